"""Plans without pickles: a function is sent as the name of its module and its qualified name.

The process that decodes a plan lists the modules that may be imported for it. A function counts to
the module that defines it, not to a module that only imports it.
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
from penstock.plan.array_references import Refer, Resolve, refer_to_none, resolve_none
from penstock.plan.codec import MOVED
from penstock.plan.functions import Function, Trial
from penstock.plan.nodes import Node
from penstock.plan.typed import Json, ValueDecoder, ValueEncoder

_HEADER = b"penstock references 1\n"
_SPEC_HEADER = b"penstock spec 1\n"

_OWN = frozenset({"penstock.data.file_datasets:one_file"})
"""Functions that `Dataset` itself puts into plans; they are always allowed."""

_NODES = {
    name: kind
    for name, kind in vars(nodes).items()
    if isinstance(kind, type) and issubclass(kind, Node) and kind is not Node
}


def encode_by_reference(node: Node, refer: Refer = refer_to_none) -> bytes:
    """Encodes a plan for `decode_by_reference`, with the names of its functions.

    `refer` returns what is sent instead of a large array.

    >>> from penstock.plan.nodes import Random, Take
    >>> decode_by_reference(encode_by_reference(Take(Random(seed=1), 3)), ())
    Take(input=Random(seed=1, rerandomize=False, drawn=False), count=3)
    """
    return _HEADER + _PlanEncoder(refer).pack(node)


def decode_by_reference(
    data: bytes, modules: Collection[str], resolve: Resolve = resolve_none
) -> Node:
    """Decodes a plan; its functions must be in `modules`, or in modules of these packages."""
    decoder = functools.partial(_PlanDecoder, modules=modules, resolve=resolve)
    plan = _decode(data, _HEADER, "decode_by_reference", "plan", decoder)
    if not isinstance(plan, Node):
        raise DataLossError(f"decode_by_reference: not a plan but a {type(plan).__name__}")
    return plan


def encode_spec(spec: Any) -> bytes:
    """Encodes a structure of specs for `decode_spec`.

    >>> from penstock.element.spec import TensorSpec
    >>> decode_spec(encode_spec({"a": TensorSpec([None], "int32")}))
    {'a': TensorSpec(shape=(None,), dtype=tf.int32, name=None)}
    """
    try:
        return _SPEC_HEADER + ValueEncoder().pack(spec)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"element_spec: {error.message}") from None


def decode_spec(data: bytes) -> Any:
    """Decodes what `encode_spec` returned."""
    return _decode(data, _SPEC_HEADER, "decode_spec", "spec", ValueDecoder)


def _decode(
    data: bytes, header: bytes, call: str, kind: str, make: Callable[[bytes], ValueDecoder]
) -> Any:
    if not data.startswith(header):
        raise DataLossError(
            f"{call}: not a {kind} that this version wrote, it begins with {bytes(data[:24])!r}; "
            "use the same version of penstock on both sides"
        )
    try:
        decoder = make(data[len(header) :])
        return decoder.value(decoder.text)
    except (PermissionDeniedError, FailedPreconditionError):
        raise
    except (OpError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{call}: the {kind} is damaged: {error}") from error


class _PlanEncoder(ValueEncoder):
    """Encodes nodes and functions as well."""

    def value(self, value: Any) -> Json:
        match value:
            case Node():
                return {"node": [type(value).__name__, self._fields(value)]}
            case Function(call):
                name, tried = self._function_name(call), value.trial
                return {"function": name} if tried is None else {"tried": [name, *tried]}
            case tuple() if any(isinstance(part, Node) for part in value):
                return {"nodes": [self.value(part) for part in value]}
        return super().value(value)

    def _fields(self, node: Node) -> Json:
        try:
            return {name: self.value(value) for name, value in node.changed_fields().items()}
        except InvalidArgumentError as error:
            if error.message.startswith("Dataset."):
                raise
            raise InvalidArgumentError(f"Dataset.{node.label}: {error.message}") from None

    def _function_name(self, call: Any) -> Json:
        if isinstance(call, functools.partial):
            values = [self._argument(call, value) for value in call.args]
            named = {name: self._argument(call, value) for name, value in call.keywords.items()}
            return [self._function_name(call.func), values, named]
        module, name = getattr(call, "__module__", None), getattr(call, "__qualname__", None)
        found = None
        if isinstance(module, str) and isinstance(name, str) and module != "__main__":
            found = _find_attribute(sys.modules.get(module), name)
        if found is None or found != call:
            raise InvalidArgumentError(
                f"distribute by reference: {Function(call)} has no name that a worker could import "
                "it by; define it with def at the top level of a module that the workers have (not "
                "in __main__, not inside a function), and pass values to it with functools.partial"
            )
        return f"{module}:{name}"

    def _argument(self, call: Any, value: Any) -> Json:
        try:
            return self.value(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"distribute by reference: {Function(call)} is a partial with {value!r:.60}, and "
                f"{error.message}"
            ) from None


class _PlanDecoder(ValueDecoder):
    """Decodes nodes as well, and finds functions in the modules that are allowed."""

    def __init__(self, data: bytes, modules: Collection[str], resolve: Resolve) -> None:
        super().__init__(data, resolve)
        self._modules = tuple(modules)

    def make(self, name: str, body: Json) -> Any:
        match name, body:
            case "node", [str(kind), dict(fields)]:
                return self._node(kind, fields)
            case "nodes", [*parts]:
                return tuple(map(self.value, parts))
            case "function", _:
                return Function(self._function(body))
            case "tried", [function, int(number), str(structure), lists]:
                shapes = None if lists is None else [tuple(shape) for shape in lists]
                return Function(self._function(function), Trial(number, structure, shapes))
            case "tree", _:
                self._load_classes(body)
            case "in" | "data", [tree, *_]:
                self._load_classes(tree)
        return super().make(name, body)

    def _node(self, name: str, fields: dict[str, Json]) -> Node:
        if name not in _NODES:
            raise ValueError(f"there is no operator {name!r:.40}")
        kind = _NODES[name]
        if not set(fields) <= {field.name for field in dataclasses.fields(kind)}:
            raise FailedPreconditionError(
                f"Dataset.{name}: the plan sets {', '.join(fields)}, of which this version of "
                "penstock does not know all; upgrade penstock in this process"
            )
        return kind(**{field: self.value(value) for field, value in fields.items()})

    def _function(self, body: Json) -> Callable[..., Any]:
        match body:
            case [inner, [*values], dict(named)]:
                arguments = {name: self.value(value) for name, value in named.items()}
                return functools.partial(
                    self._function(inner), *map(self.value, values), **arguments
                )
            case str() if body.count(":") == 1:
                return self._find_function(*body.split(":"))
        raise ValueError(f"{body!r:.60} is not the name of a function")

    def _find_function(self, module: str, name: str) -> Callable[..., Any]:
        module = MOVED.get(module, module)
        own = f"{module}:{name}" in _OWN
        if not own:
            self._check_allowed(module, f"{module}.{name}")
        found = _find_attribute(self._import_module(module), name)
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

    def _import_module(self, module: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except Exception as error:
            raise FailedPreconditionError(
                f"functions by reference: the module {module} cannot be imported here: {error}; "
                "install it where the worker runs"
            ) from error

    def _load_classes(self, tree: Json) -> None:
        """Imports the modules that define the classes of elements, if they are allowed."""
        match tree:
            case ["namedtuple" | "dataclass", str(module), str(name), _, [*parts]]:
                if module not in sys.modules:
                    self._check_allowed(module, f"{module}.{name}")
                    self._import_module(module)
            case ["tuple", [*parts]]:
                pass
            case ["dict" | "ordered", [*items]]:
                parts = [part for _, part in items]
            case _:
                parts = []
        for part in parts:
            self._load_classes(part)


def _find_attribute(module: Any, name: str) -> Any:
    """The object with a qualified name in a module; None if there is none.

    The name may lead through classes only: through the attributes of a function, such as
    `__globals__`, every object of the process could be reached.
    """
    found = module
    for part in name.split("."):
        if found is not module and not isinstance(found, type):
            return None
        found = None if part.startswith("__") else getattr(found, part, None)
    return None if isinstance(found, ModuleType) else found
