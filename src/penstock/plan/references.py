"""Plans without pickles: functions are named by module and qualified name, never sent.

Whoever reads such a plan decides beforehand which modules may be imported for it. What those
modules merely imported themselves is no function of theirs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
)
from penstock.plan import nodes
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.plan.typed import Json, Read, Written

_HEADER = b"penstock references 1\n"
_SPEC_HEADER = b"penstock spec 1\n"

_OWN = frozenset({"penstock.data.file_datasets:one_file"})
"""Functions that datasets put into plans themselves; everybody may call them."""

_NODES = {
    name: kind
    for name, kind in vars(nodes).items()
    if isinstance(kind, type) and issubclass(kind, Node) and kind is not Node
}


def encode_by_reference(node: Node) -> bytes:
    """A plan for `decode_by_reference`, its functions by name.

    >>> from penstock.plan.nodes import Random, Take
    >>> decode_by_reference(encode_by_reference(Take(Random(seed=1), 3)), ())
    Take(input=Random(seed=1, rerandomize=False, drawn=False), count=3)
    """
    written = _WrittenPlan()
    return _HEADER + written.pack(written.value(node))


def decode_by_reference(data: bytes, modules: Collection[str]) -> Node:
    """The plan; functions only of `modules`, each a module or a package with all in it."""
    reader = functools.partial(_ReadPlan, modules=modules)
    plan = _decoded(data, _HEADER, "decode_by_reference", "plan", reader)
    if not isinstance(plan, Node):
        raise DataLossError(f"decode_by_reference: not a plan but a {type(plan).__name__}")
    return plan


def encode_spec(spec: Any) -> bytes:
    """A structure of specs as bytes.

    >>> from penstock.element.spec import TensorSpec
    >>> decode_spec(encode_spec({"a": TensorSpec([None], "int32")}))
    {'a': TensorSpec(shape=(None,), dtype=tf.int32, name=None)}
    """
    written = Written()
    try:
        return _SPEC_HEADER + written.pack(written.value(spec))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"element_spec: {error.message}") from None


def decode_spec(data: bytes) -> Any:
    """The structure of specs that `encode_spec` was given."""
    return _decoded(data, _SPEC_HEADER, "decode_spec", "spec", Read)


def _decoded(
    data: bytes, header: bytes, call: str, kind: str, reader: Callable[[bytes], Read]
) -> Any:
    if not data.startswith(header):
        raise DataLossError(
            f"{call}: not a {kind} that this version wrote, it begins with {bytes(data[:24])!r}; "
            "use the same version of penstock on both sides"
        )
    try:
        read = reader(data[len(header) :])
        return read.value(read.text)
    except (PermissionDeniedError, FailedPreconditionError):
        raise
    except (OpError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{call}: the {kind} is damaged: {error}") from error


# Writing


class _WrittenPlan(Written):
    """Knows nodes and functions as well."""

    def value(self, value: Any) -> Json:
        match value:
            case Node():
                return {"node": [type(value).__name__, self._fields(value)]}
            case Function(call):
                name, tried = self._function(call), value.tried
                return {"function": name} if tried is None else {"tried": [name, *tried]}
            case tuple() if any(isinstance(part, Node) for part in value):
                return {"nodes": [self.value(part) for part in value]}
        return super().value(value)

    def _fields(self, node: Node) -> Json:
        named = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        try:
            return {name: self.value(value) for name, value in named.items()}
        except InvalidArgumentError as error:
            if error.message.startswith("Dataset."):
                raise
            raise InvalidArgumentError(f"Dataset.{node.label}: {error.message}") from None

    def _function(self, call: Any) -> Json:
        if isinstance(call, functools.partial):
            values = [self._plain(call, value) for value in call.args]
            named = {name: self._plain(call, value) for name, value in call.keywords.items()}
            return [self._function(call.func), values, named]
        module, name = getattr(call, "__module__", None), getattr(call, "__qualname__", None)
        found = None
        if isinstance(module, str) and isinstance(name, str) and module != "__main__":
            found = _attribute(sys.modules.get(module), name)
        if found is None or found != call:
            raise _unnamed(call)
        return f"{module}:{name}"

    def _plain(self, call: Any, value: Any) -> Json:
        try:
            return self.value(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"distribute by reference: {Function(call)} is a partial with {value!r:.60}, and "
                f"{error.message}"
            ) from None


def _unnamed(call: Any) -> Exception:
    return InvalidArgumentError(
        f"distribute by reference: {Function(call)} has no name that a worker could import it by; "
        "define it with def at the top level of a module that the workers have (not in __main__, "
        "not inside a function), and pass values to it with functools.partial"
    )


# Reading


class _ReadPlan(Read):
    """Makes nodes as well, and finds functions in the modules that are allowed."""

    def __init__(self, data: bytes, modules: Collection[str]) -> None:
        super().__init__(data)
        self._modules = tuple(modules)

    def made(self, name: str, body: Json) -> Any:
        match name, body:
            case "node", [str(kind), dict(fields)]:
                return self._node(kind, fields)
            case "nodes", [*parts]:
                return tuple(map(self.value, parts))
            case "function", _:
                return Function(self._function(body))
            case "tried", [function, int(number), str(structure)]:
                return Function(self._function(function), (number, structure))
            case "tree", _:
                self._load_classes(body)
            case "in" | "data", [tree, *_]:
                self._load_classes(tree)
        return super().made(name, body)

    def _node(self, name: str, fields: dict[str, Json]) -> Node:
        if name not in _NODES:
            raise ValueError(f"there is no operator {name!r:.40}")
        kind = _NODES[name]
        if not set(fields) <= {field.name for field in dataclasses.fields(kind)}:
            raise ValueError(f"{name} has no such fields: {', '.join(fields)}")
        return kind(**{field: self.value(value) for field, value in fields.items()})

    def _function(self, body: Json) -> Callable[..., Any]:
        match body:
            case [inner, [*values], dict(named)]:
                arguments = {name: self.value(value) for name, value in named.items()}
                return functools.partial(
                    self._function(inner), *map(self.value, values), **arguments
                )
            case str() if body.count(":") == 1:
                return self._found(*body.split(":"))
        raise ValueError(f"{body!r:.60} is not the name of a function")

    def _found(self, module: str, name: str) -> Callable[..., Any]:
        own = f"{module}:{name}" in _OWN
        if not own:
            self._check_allowed(module, f"{module}.{name}")
        found = _attribute(self._imported(module), name)
        if found is None or not callable(found):
            raise FailedPreconditionError(
                f"functions by reference: there is no function {name} in the module {module} here; "
                "install the version of it that the client has"
            ) from AttributeError(f"module {module!r} has no function {name!r}")
        home = getattr(found, "__module__", None) or module
        if not own:
            self._check_allowed(home, f"{module}.{name}")
        call: Callable[..., Any] = found
        return call

    def _check_allowed(self, module: str, what: str) -> None:
        if not any(module == one or module.startswith(f"{one}.") for one in self._modules):
            allowed = ", ".join(self._modules) or "none"
            raise PermissionDeniedError(
                f"functions by reference: {what} is a function of the module {module}, which is "
                f"not among the modules of this worker ({allowed}); start it with that module too"
            )

    def _imported(self, module: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except Exception as error:
            raise FailedPreconditionError(
                f"functions by reference: the module {module} cannot be imported here: {error}; "
                "install it where the worker runs"
            ) from error

    def _load_classes(self, tree: Json) -> None:
        """Imports the modules of element classes, of those that may be imported."""
        match tree:
            case ["namedtuple" | "dataclass", str(module), str(name), _, [*parts]]:
                if module not in sys.modules:
                    self._check_allowed(module, f"{module}.{name}")
                    self._imported(module)
            case ["tuple", [*parts]]:
                pass
            case ["dict" | "ordered", [*items]]:
                parts = [part for _, part in items]
            case _:
                parts = []
        for part in parts:
            self._load_classes(part)


def _attribute(module: Any, name: str) -> Any:
    """What a qualified name leads to inside of a module; None if it leads nowhere, or elsewhere.

    Names lead through classes only: a function's own attributes lead to everything there is.
    """
    found = module
    for part in name.split("."):
        if found is not module and not isinstance(found, type):
            return None
        found = None if part.startswith("__") else getattr(found, part, None)
    return None if isinstance(found, ModuleType) else found
