"""Trees of results: containers of leaves, rebuilt with their own types.

Containers are tuples, lists, dicts, dataclasses, attrs classes and classes with `__tf_flatten__`.
In the elements of a dataset a list is data (`element.nest`); here it is a container. A container in
which no leaf changes is returned as the same object.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.element import nest


class Container(NamedTuple):
    """How to take a type of container apart, and how to build it again."""

    children: Callable[[Any], Sequence[Any]]
    children_like: Callable[[Any, Any], Sequence[Any] | None]
    """The children of the second in the order of the first; None if keys or lengths differ."""
    rebuild: Callable[[Any, Sequence[Any]], Any]
    """A container like the first, with other children."""


def _same_length(first: Any, other: Any) -> Any:
    return other if len(first) == len(other) else None


def _same_keys(first: Any, other: Any) -> list[Any] | None:
    return [other[key] for key in first] if first.keys() == other.keys() else None


def _fill_dict(first: Any, parts: Sequence[Any]) -> Any:
    """A copy of an instance of a dict subclass, which may have other attributes, with new items."""
    filled = copy.copy(first)
    filled.update(zip(first, parts, strict=True))
    return filled


_TUPLE = Container(lambda value: value, _same_length, lambda _, parts: tuple(parts))
_NAMED = Container(lambda value: value, _same_length, lambda first, parts: type(first)._make(parts))
_SEQUENCE = Container(lambda value: value, _same_length, lambda first, parts: type(first)(parts))
_DICT = Container(
    lambda value: list(value.values()),
    _same_keys,
    lambda first, parts: dict(zip(first, parts, strict=True)),
)
_OTHER_DICT = _DICT._replace(rebuild=_fill_dict)


def _of_fields(kind: type) -> Container:
    """The container of a dataclass or an attrs class."""
    names = _names_of(kind)

    def children(value: Any) -> list[Any]:
        return [getattr(value, name) for name in names]

    def rebuild(first: Any, parts: Sequence[Any]) -> Any:
        # Not by its constructor, which may take other arguments or reject distributed values.
        rebuilt = copy.copy(first)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(rebuilt, name, part)
        return rebuilt

    return Container(children, lambda _, other: children(other), rebuild)


def _names_of(kind: type) -> list[str]:
    return [field.name for field in nest.fields_of(kind)]


def _of_method(kind: type) -> Container:
    """The container of a class with `__tf_flatten__`: metadata is kept, and is no leaf."""

    def children(value: Any) -> Sequence[Any]:
        return nest.flatten_by_method(value)[0]

    def rebuild(first: Any, parts: Sequence[Any]) -> Any:
        return nest.unflatten_by_method(kind, nest.flatten_by_method(first)[1], parts)

    return Container(
        children, lambda first, other: _same_length(children(first), children(other)), rebuild
    )


def _container_of(kind: type) -> Container | None:
    """The container of a type; None for leaves, such as other tuples (`torch.Size`)."""
    if kind is tuple:
        return _TUPLE
    if kind is dict:
        return _DICT
    if issubclass(kind, list):
        return _SEQUENCE
    if issubclass(kind, dict):
        return _OTHER_DICT
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return _NAMED
    if issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields"):
        return _SEQUENCE
    if hasattr(kind, "__leaf__"):
        return None
    if hasattr(kind, "__tf_flatten__"):
        return _of_method(kind)
    return _of_fields(kind) if _has_fields(kind) else None


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


container_of: Callable[[Any], Container | None] = lru_cache(maxsize=1024)(_container_of)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `function` applied to every leaf."""
    container = container_of(type(tree))
    if container is None:
        return function(tree)
    parts = container.children(tree)
    mapped = [map_leaves(function, part) for part in parts]
    same = all(map(operator.is_, mapped, parts))
    return tree if same else container.rebuild(tree, mapped)


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves, in order."""
    container = container_of(type(tree))
    if container is None:
        yield tree
    else:
        for part in container.children(tree):
            yield from leaves(part)


def path_of(leaf: Any, tree: Any, path: str = "value") -> str | None:
    """The path of a leaf, as Python code; None if the tree does not contain it.

    >>> path_of(None, {"a": [1, None]})
    "value['a'][1]"
    """
    container = container_of(type(tree))
    if container is None:
        return path if tree is leaf else None
    parts = container.children(tree)
    for label, part in zip(_labels(tree, len(parts)), parts, strict=True):
        if found := path_of(leaf, part, path + label):
            return found
    return None


def _labels(tree: Any, count: int) -> list[str]:
    if isinstance(tree, dict):
        return [f"[{key!r}]" for key in tree]
    if hasattr(tree, "__tf_flatten__"):
        return [f".__tf_flatten__()[1][{index}]" for index in range(count)]
    if _has_fields(type(tree)):
        return [f".{name}" for name in _names_of(type(tree))]
    return [f"[{index}]" for index in range(count)]


def describe(tree: Any) -> str:
    """The outermost container of a structure, in words.

    >>> describe((1, [2])), describe({"a": 1}), describe(None)
    ('tuple of 2', "dict of 'a'", 'NoneType')
    """
    name = type(tree).__name__
    if isinstance(tree, dict):
        return f"{name} of {', '.join(map(repr, tree)) or 'nothing'}"
    return f"{name} of {len(tree)}" if isinstance(tree, tuple | list) else name
