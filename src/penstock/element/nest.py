"""Structures: tuples, named tuples, dicts, dataclasses and attrs classes. A list is a leaf.

No other module may import optree.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import optree

Tree = optree.PyTreeSpec
_NAMESPACE = "penstock"

# The entries to optree; `_close_entries` replaces them when the program ends.
_flatten: Callable[..., Any] = optree.tree_flatten
_unflatten: Callable[..., Any] = optree.tree_unflatten
_map: Callable[..., Any] = optree.tree_map
_flatten_up_to: Callable[..., Any] = optree.PyTreeSpec.flatten_up_to


def _is_leaf(value: Any) -> bool:
    """Whether `value` is a list. Classes are registered as structures when they are first seen."""
    kind = type(value)
    if kind is list:
        return True
    if kind not in _seen:
        _seen.add(kind)
        _register(kind)
    return False


_seen: set[type] = set()


def _register(kind: type) -> None:
    """Registers a dataclass, an attrs class or a class with `__tf_flatten__` as a structure.

    A class with an attribute `__leaf__`, such as a spec, is a leaf.
    """
    if hasattr(kind, "__leaf__"):
        return
    if hasattr(kind, "__tf_flatten__"):
        optree.register_pytree_node(
            kind, flatten_by_method, partial(unflatten_by_method, kind), namespace=_NAMESPACE
        )
        return
    fields = [field.name for field in fields_of(kind)]
    if fields or dataclasses.is_dataclass(kind):
        optree.register_pytree_node(
            kind,
            lambda value: (tuple(getattr(value, name) for name in fields), None, tuple(fields)),
            lambda _, leaves: kind(*leaves),
            namespace=_NAMESPACE,
        )


def fields_of(kind: type) -> Any:
    """The fields of a dataclass or an attrs class; none for other classes."""
    if dataclasses.is_dataclass(kind):
        return dataclasses.fields(kind)
    return getattr(kind, "__attrs_attrs__", ())


def flatten_by_method(value: Any) -> tuple[tuple[Any, ...], Any]:
    """The components of an instance of a class with `__tf_flatten__`, and its metadata."""
    metadata, components = value.__tf_flatten__()
    return tuple(components), metadata


def unflatten_by_method(kind: Any, metadata: Any, components: Any) -> Any:
    """An instance of a class with `__tf_unflatten__`, of other components."""
    method = kind.__tf_unflatten__
    if isinstance(method, FunctionType):  # Neither a class method nor a static method.
        return method(object.__new__(kind), metadata, tuple(components))
    return method(metadata, tuple(components))


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of a value, and its structure."""
    leaves, tree = _flatten(value, is_leaf=_is_leaf, none_is_leaf=True, namespace=_NAMESPACE)
    return leaves, tree


@lru_cache(maxsize=256)
def text_of(tree: Tree) -> str:
    """A structure as text that is equal in every process; empty for a leaf."""
    return "" if tree.is_leaf() else str(tree)


def leaf_places(tree: Tree) -> list[str]:
    """How code reaches each leaf in a structure; empty where the structure is one leaf.

    >>> leaf_places(flatten({"a": 1, "b": (2, 3)})[1])
    ["['a']", "['b'][0]", "['b'][1]"]
    """
    return [accessor.codify("") for accessor in tree.accessors()]


def unflatten(tree: Tree, leaves: Any) -> Any:
    return _unflatten(tree, leaves)


def sort_keys(value: Any) -> Any:
    """`value` with the keys of its dicts in the order of the leaves.

    Structures that differ only in the order of their keys are equal, and then have equal text.
    """
    if flatten(value)[1] == LEAF:
        return value
    if type(value) is dict:
        value = {key: value[key] for key in keys_of(tuple(value))[0]}
    return _map(
        sort_keys,
        value,
        is_leaf=lambda part: part is not value,
        none_is_leaf=True,
        namespace=_NAMESPACE,
    )


def flatten_up_to(tree: Tree, value: Any) -> list[Any]:
    """The parts of `value` at the leaves of `tree`; ValueError if the structures differ."""
    parts: list[Any] = _flatten_up_to(tree, value)
    return parts


def map_structure(function: Callable[..., Any], first: Any, *more: Any) -> Any:
    """`function` of each leaf of `first` and the parts of `more` at its place."""
    leaves, tree = flatten(first)
    rest = [flatten_up_to(tree, value) for value in more]
    results = [function(*parts) for parts in zip(leaves, *rest, strict=True)]
    return unflatten(tree, results)


def graft(tree: Tree, parts: tuple[Tree, ...]) -> Tree:
    """`tree` with its leaves replaced by the structures `parts`."""
    for part in parts:
        if part != LEAF:
            return _replace_leaves(tree, parts)
    # Not by the cache: trees that differ only in the order of their keys are equal.
    return tree


@lru_cache(maxsize=256)
def _replace_leaves(tree: Tree, parts: tuple[Tree, ...]) -> Tree:
    return flatten(unflatten(tree, [unflatten(part, [0] * part.num_leaves) for part in parts]))[1]


@lru_cache(maxsize=64)
def tuple_of(count: int) -> Tree:
    """The structure of a tuple of leaves."""
    return flatten((0,) * count)[1]


@lru_cache(maxsize=256)
def keys_of(keys: tuple[Any, ...]) -> tuple[list[Any], Tree]:
    """The keys of a dict in the order of its leaves, and its structure."""
    places, tree = flatten({key: place for place, key in enumerate(keys)})
    return [keys[place] for place in places], tree


LEAF: Tree = flatten(0)[1]
"""The structure of a bare leaf."""

PAIR: Tree = flatten((0, 0))[1]
"""The structure of a pair."""


# The end of the program
#
# Python before 3.14 ends a daemon thread that wants to run after the program's end by unwinding its
# stack. A thread inside C++ code that called Python does not survive this: the C++ runtime aborts
# the whole process ("terminate called without an active exception", exit status 134). A thread that
# blocks is left alone, and ends with the process. So a thread that would enter optree while the
# program ends blocks instead.
#
# Joining all threads instead could wait for other machines. An exception in every thread would
# reach the readers of a worker as an error of their dataset.

_EXIT_SECONDS = 2.0
"""The most seconds that the end of a program waits for threads inside optree."""


def _guard(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call` for the calling thread; every other thread that calls it blocks forever."""
    return partial(_enter_alone, threading.get_ident(), call)


def _enter_alone(ident: int, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if threading.get_ident() != ident:
        threading.Event().wait()
    return call(*arguments, **options)


def _has_thread_inside(codes: set[CodeType]) -> bool:
    here = threading.get_ident()
    return any(
        ident != here and _is_inside(frame, codes) for ident, frame in sys._current_frames().items()
    )


def _is_inside(frame: FrameType | None, codes: set[CodeType]) -> bool:
    """Whether a thread is in one of the functions, and not blocked by `_enter_alone`."""
    inside = False
    while frame is not None:
        if frame.f_code is _enter_alone.__code__:
            return False
        inside = inside or frame.f_code in codes
        frame = frame.f_back
    return inside


def _close_entries() -> None:
    """Lets no thread but this one enter optree, and waits for the threads inside of it."""
    global _flatten, _unflatten, _map, _flatten_up_to
    _flatten, _unflatten = _guard(_flatten), _guard(_unflatten)
    _map, _flatten_up_to = _guard(_map), _guard(_flatten_up_to)
    codes = {entry.__code__ for entry in (flatten, unflatten, sort_keys, flatten_up_to)}
    until = time.monotonic() + _EXIT_SECONDS
    while _has_thread_inside(codes) and time.monotonic() < until:
        time.sleep(0.0005)  # The other threads run meanwhile.


# At the program's end the newest finalizer runs first, and this module is among the first that
# penstock loads: all that needs its threads in order to end has ended before.
weakref.finalize(flatten, _close_entries)
