"""Structures: tuples, named tuples, dicts and dataclasses of leaves. Lists are data, not structure.

The only module that knows optree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import optree

Tree = optree.PyTreeSpec
_NAMESPACE = "penstock"


def _is_leaf(value: Any) -> bool:
    """Lists are values; a dataclass met for the first time becomes a known structure.

    A dataclass that is a value itself (a spec, say) has an attribute `__leaf__`.
    """
    kind = type(value)
    if kind is list:
        return True
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "__leaf__"):
        _register(kind)
    return False


_registered: set[type] = set()


def _register(kind: type) -> None:
    if kind in _registered:
        return
    _registered.add(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    optree.register_pytree_node(
        kind,
        lambda value: (tuple(getattr(value, name) for name in fields), None, tuple(fields)),
        lambda _, leaves: kind(*leaves),
        namespace=_NAMESPACE,
    )


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves, and the structure that they stood in."""
    leaves, tree = optree.tree_flatten(
        value, is_leaf=_is_leaf, none_is_leaf=True, namespace=_NAMESPACE
    )
    return leaves, tree


@lru_cache(maxsize=256)
def text_of(tree: Tree) -> str:
    """A structure as text, the same in every process; empty for a bare leaf."""
    return "" if tree.is_leaf() else str(tree)


def unflatten(tree: Tree, leaves: Any) -> Any:
    return optree.tree_unflatten(tree, leaves)


def flatten_up_to(tree: Tree, value: Any) -> list[Any]:
    """What stands in `value` at the leaves of `tree`; ValueError if it is another structure."""
    return tree.flatten_up_to(value)


def map_structure(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """`function` of the leaves of `first` and of what stands there in `others`."""
    leaves, tree = flatten(first)
    rest = [flatten_up_to(tree, other) for other in others]
    results = [function(*parts) for parts in zip(leaves, *rest, strict=True)]
    return unflatten(tree, results)


@lru_cache(maxsize=256)
def graft(tree: Tree, parts: tuple[Tree, ...]) -> Tree:
    """`tree` with the structures `parts` in the place of its leaves."""
    return flatten(unflatten(tree, [unflatten(part, [0] * part.num_leaves) for part in parts]))[1]


@lru_cache(maxsize=64)
def tuple_of(count: int) -> Tree:
    """The structure of a tuple of leaves."""
    return flatten((0,) * count)[1]


@lru_cache(maxsize=256)
def keys_of(keys: tuple[Any, ...]) -> tuple[list[Any], Tree]:
    """The structure of a dict of leaves with these keys, and the order of its leaves."""
    places, tree = flatten({key: place for place, key in enumerate(keys)})
    return [keys[place] for place in places], tree


LEAF: Tree = flatten(0)[1]
"""The structure of a bare leaf."""

PAIR: Tree = flatten((0, 0))[1]
"""The structure of a pair."""
