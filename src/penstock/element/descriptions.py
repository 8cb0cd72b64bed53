"""Structures and specs as JSON: what a file or another process is told about elements.

No pickles, and reading never imports a module: a class that somebody names is looked up among
those that the program has loaded already.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, namedtuple
from functools import lru_cache
from typing import Any

from penstock.element import nest
from penstock.element.nest import Tree
from penstock.element.spec import NoneTensorSpec, RaggedTensorSpec, TensorSpec
from penstock.errors import FailedPreconditionError, InvalidArgumentError

Json = Any

_LEAF = "*"
_KEYS = (str, int, float, bool, type(None))


def structure_to_json(tree: Tree) -> Json:
    """A structure, for `structure_from_json`; InvalidArgumentError if it could not be read again.

    >>> structure_to_json(nest.flatten({"a": 1, "b": (2, 3)})[1])
    ['dict', [['a', '*'], ['b', ['tuple', ['*', '*']]]]]
    """
    if tree.is_leaf():
        return _LEAF
    kind: Any = tree.type
    parts = [structure_to_json(child) for child in tree.children()]
    if kind is tuple:
        return ["tuple", parts]
    if kind in (dict, OrderedDict):
        # Leaves lie in the order of the keys; the dict is to keep the order that it had.
        level: Any = tree.one_level()
        places = nest.unflatten(level, range(len(parts)))
        name = "dict" if kind is dict else "ordered"
        return [name, [[_key_to_json(key), parts[place]] for key, place in places.items()]]
    return [_kind(kind), kind.__module__, kind.__qualname__, _fields(kind), parts]


def structure_from_json(value: Json) -> Tree:
    """The structure; ValueError and its like where `value` describes none."""
    return nest.flatten(_blank(value))[1]


def same_structure(first: Tree, second: Tree) -> bool:
    """Whether two structures differ at most in where their named tuples were defined."""
    if first == second:
        return True
    return bool(_homeless(structure_to_json(first)) == _homeless(structure_to_json(second)))


def _homeless(value: Json) -> Json:
    match value:
        case ["namedtuple", _, name, fields, parts]:
            return [name.rpartition(".")[2], fields, [_homeless(part) for part in parts]]
        case ["dict", items]:
            return {key: _homeless(part) for key, part in items}
        case [*parts]:
            return [_homeless(part) for part in parts]
    return value


def _blank(value: Json) -> Any:
    """An element of the structure, with nothing in it."""
    if value == _LEAF:
        return 0
    match value:
        case ["tuple", [*parts]]:
            return tuple(map(_blank, parts))
        case ["dict", [*items]]:
            return {_key_from_json(key): _blank(part) for key, part in items}
        case ["ordered", [*items]]:
            return OrderedDict((_key_from_json(key), _blank(part)) for key, part in items)
        case ["namedtuple", str(module), str(name), [*fields], [*parts]]:
            return _tuple_class(module, name, fields)._make(map(_blank, parts))
        case ["dataclass", str(module), str(name), [*fields], [*parts]]:
            # Not by its constructor, which may look at what it gets.
            blank = object.__new__(_dataclass(module, name, fields))
            for field, part in zip(fields, parts, strict=True):
                object.__setattr__(blank, field, _blank(part))
            return blank
    raise ValueError(f"{value!r:.80} is not a structure")


def _key_to_json(key: Any) -> Json:
    if isinstance(key, bytes):
        return {"bytes": key.hex()}
    if type(key) not in _KEYS:
        raise InvalidArgumentError(
            f"the dict key {key!r} cannot be written down; use strings or numbers as keys"
        )
    return key


def _key_from_json(value: Json) -> Any:
    return bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value


def _kind(kind: Any) -> str:
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "namedtuple"
    loaded = _loaded(kind.__module__, kind.__qualname__) is kind
    if loaded and dataclasses.is_dataclass(kind):
        return "dataclass"
    raise InvalidArgumentError(
        f"elements of type {kind.__qualname__} cannot be written down; use tuples, dicts, "
        "named tuples, or dataclasses defined at the top level of a module"
    )


def _fields(kind: Any) -> list[str]:
    if issubclass(kind, tuple):
        return list(kind._fields)
    return [field.name for field in dataclasses.fields(kind)]


def _loaded(module: str, name: str) -> Any:
    """What stands under a name in a module that is loaded; None if nothing does."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def _tuple_class(module: str, name: str, fields: list[str]) -> Any:
    """The program's own class if it has it, else one of the same name and fields."""
    found = _loaded(module, name)
    if isinstance(found, type) and issubclass(found, tuple) and _fields(found) == fields:
        return found
    return _new_tuple_class(name.rpartition(".")[2], tuple(fields))


@lru_cache(maxsize=256)
def _new_tuple_class(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def _dataclass(module: str, name: str, fields: list[str]) -> Any:
    found = _loaded(module, name)
    if isinstance(found, type) and dataclasses.is_dataclass(found) and _fields(found) == fields:
        return found
    raise FailedPreconditionError(
        f"the elements are of the dataclass {name} with the fields {', '.join(fields)}, "
        f"which is not in the module {module} of this program; import that module first"
    )


def spec_to_json(spec: Any) -> Json:
    """A structure of specs, for `spec_from_json`."""
    leaves, tree = nest.flatten(spec)
    return {"structure": structure_to_json(tree), "leaves": [_leaf_to_json(x) for x in leaves]}


def _leaf_to_json(spec: Any) -> Json:
    match spec:
        case TensorSpec():
            return ["tensor", spec.dtype.name, spec.shape.dims, spec.name]
        case RaggedTensorSpec():
            splits = spec.row_splits_dtype.name
            return ["ragged", spec.dtype.name, spec.shape.dims, spec.ragged_rank, splits]
        case NoneTensorSpec():
            return ["none"]
    raise InvalidArgumentError(f"elements with a {type(spec).__name__} cannot be written down")


def spec_from_json(value: Json) -> Any:
    """The structure of specs; ValueError and its like where `value` describes none."""
    leaves = [_leaf_from_json(leaf) for leaf in value["leaves"]]
    return nest.unflatten(structure_from_json(value["structure"]), leaves)


def _leaf_from_json(value: Json) -> Any:
    match value:
        case ["tensor", str(dtype), dims, name]:
            return TensorSpec(dims, dtype, name)
        case ["ragged", str(dtype), dims, int(rank), str(splits)]:
            return RaggedTensorSpec(dims, dtype, rank, splits)
        case ["none"]:
            return NoneTensorSpec()
    raise ValueError(f"{value!r:.80} is not a spec")
