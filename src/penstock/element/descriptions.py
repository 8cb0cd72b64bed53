"""Structures and specs as JSON, for files and other processes.

There are no pickles, and decoding never imports a module: classes are looked up by name in modules
that this process has imported already.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
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
    """A structure as JSON; InvalidArgumentError if `structure_from_json` could not decode it.

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
        name = "dict" if kind is dict else "ordered"
        return [name, [[_key_to_json(key), parts[place]] for key, place in _places(tree).items()]]
    return [_kind(kind), kind.__module__, kind.__qualname__, _fields(kind), parts]


def name_leaves(tree: Tree) -> list[tuple[str, int]]:
    """The name and the number of each leaf; in the order of the items where there are dicts.

    >>> name_leaves(nest.flatten({"image": 1, "box": (2, 3)})[1])
    [('image', 2), ('box.0', 0), ('box.1', 1)]
    >>> name_leaves(nest.LEAF)
    [('value', 0)]
    """
    found = [(".".join(path) or "value", leaf) for path, leaf in _leaf_paths(tree, 0)]
    seen: set[str] = set()
    named = []
    for name, leaf in found:
        while name in seen:  # As in {"a": (1,), "a.0": 2}.
            name += "_"
        seen.add(name)
        named.append((name, leaf))
    return named


def _leaf_paths(tree: Tree, first: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """The path to each leaf, and its number; `first` is the number of the first."""
    if tree.is_leaf():
        yield (), first
        return
    parts = tree.children()
    starts = list(itertools.accumulate((part.num_leaves for part in parts), initial=first))
    for key, place in _items(tree, len(parts)):
        for path, leaf in _leaf_paths(parts[place], starts[place]):
            yield (key, *path), leaf


def _items(tree: Tree, count: int) -> list[tuple[str, int]]:
    """The key and the place of each part of a structure."""
    kind: Any = tree.type
    if kind in (dict, OrderedDict):
        return [(_key_text(key), place) for key, place in _places(tree).items()]
    fields = map(str, range(count)) if kind is tuple else _fields(kind)
    return [(name, place) for place, name in enumerate(fields)]


def _places(tree: Tree) -> dict[Any, int]:
    """The place of each part of a dict: optree sorts them by key, a dict keeps their order."""
    level: Any = tree.one_level()
    places: dict[Any, int] = nest.unflatten(level, range(level.num_leaves))
    return places


def _key_text(key: Any) -> str:
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)


def structure_from_json(value: Json) -> Tree:
    """Decodes a structure; raises ValueError, TypeError or KeyError if `value` is none."""
    return nest.flatten(_placeholder(value))[1]


def same_structure(first: Tree, second: Tree) -> bool:
    """Whether two structures are equal, except for the modules that define their named tuples."""
    if first == second:
        return True
    return bool(
        _without_modules(structure_to_json(first)) == _without_modules(structure_to_json(second))
    )


def _without_modules(value: Json) -> Json:
    match value:
        case ["namedtuple", _, name, fields, parts]:
            return [name.rpartition(".")[2], fields, [_without_modules(part) for part in parts]]
        case ["dict", items]:
            return {key: _without_modules(part) for key, part in items}
        case [*parts]:
            return [_without_modules(part) for part in parts]
    return value


def _placeholder(value: Json) -> Any:
    """An element of the structure whose leaves are all 0."""
    if value == _LEAF:
        return 0
    match value:
        case ["tuple", [*parts]]:
            return tuple(map(_placeholder, parts))
        case ["dict", [*items]]:
            return {_key_from_json(key): _placeholder(part) for key, part in items}
        case ["ordered", [*items]]:
            return OrderedDict((_key_from_json(key), _placeholder(part)) for key, part in items)
        case ["namedtuple", str(module), str(name), [*fields], [*parts]]:
            return _tuple_class(module, name, fields)._make(map(_placeholder, parts))
        case ["dataclass", str(module), str(name), [*fields], [*parts]]:
            # Its constructor is not called, because it may check its arguments.
            placeholder = object.__new__(_dataclass(module, name, fields))
            for field, part in zip(fields, parts, strict=True):
                object.__setattr__(placeholder, field, _placeholder(part))
            return placeholder
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
    can_be_found = _find_loaded(kind.__module__, kind.__qualname__) is kind
    if can_be_found and dataclasses.is_dataclass(kind):
        return "dataclass"
    raise InvalidArgumentError(
        f"elements of type {kind.__qualname__} cannot be written down; use tuples, dicts, "
        "named tuples, or dataclasses defined at the top level of a module"
    )


def _fields(kind: Any) -> list[str]:
    if issubclass(kind, tuple):
        return list(kind._fields)
    return [field.name for field in dataclasses.fields(kind)]


def _find_loaded(module: str, name: str) -> Any:
    """The object with a qualified name in a module, if that is imported already; else None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def _tuple_class(module: str, name: str, fields: list[str]) -> Any:
    """The named tuple of the program, if it has one with these fields; else a new class."""
    found = _find_loaded(module, name)
    if isinstance(found, type) and issubclass(found, tuple) and _fields(found) == fields:
        return found
    return _new_tuple_class(name.rpartition(".")[2], tuple(fields))


_new_tuple_class: Any = lru_cache(maxsize=256)(namedtuple)


def _dataclass(module: str, name: str, fields: list[str]) -> Any:
    found = _find_loaded(module, name)
    if isinstance(found, type) and dataclasses.is_dataclass(found) and _fields(found) == fields:
        return found
    raise FailedPreconditionError(
        f"the elements are of the dataclass {name} with the fields {', '.join(fields)}, "
        f"which is not in the module {module} of this program; import that module first"
    )


def spec_to_json(spec: Any) -> Json:
    """A structure of specs as JSON, for `spec_from_json`."""
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
    """Decodes a structure of specs; raises ValueError, TypeError or KeyError if `value` is none."""
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
