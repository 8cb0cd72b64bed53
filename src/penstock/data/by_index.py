"""Single elements by index, also through operators that streams read in order only.

A cache, an `assert_cardinality` or an `unbatch` keeps a plan from random access, because a stream
must fill, count or measure. For one element it is enough to know where it comes from. Nothing here
is used to plan a stream: numbers of rows that were found on samples may be wrong.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from penstock.data.element_specs import leading_dimension
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.specs import is_steady
from penstock.errors import OpError
from penstock.plan import nodes
from penstock.plan.nodes import INFINITE, UNKNOWN, Node

_SAMPLED = 8
"""How many elements must have the same number of rows."""

Read = Callable[[Node], Iterable[Any]]
"""Iterates over the elements of a plan."""


def plan_by_index(plan: Node, spec_of: Callable[[Node], Any], read: Read) -> Node:
    """A plan with the same elements, for access to one of them."""

    def change(node: Node) -> Node:
        match node:
            case nodes.Cache():
                return _read_cache(node, read)
            case nodes.AssertCardinality(source):
                return source
            case nodes.Unbatch(source) if type(node) is nodes.Unbatch:
                rows = node.rows or _find_rows(source, spec_of, read)
                return nodes.Unbatch(source, rows, even=rows is not None)
        return node

    return nodes.rewrite(plan, change)


def _read_cache(node: nodes.Cache, read: Read) -> Node:
    """What a cache holds. If its input has no random access, the first access fills the cache."""
    store, source = node.store, node.input
    is_in_memory = not node.filename
    if store.chunks is None and is_in_memory and source.blocked and not _may_be_endless(source):
        collections.deque(read(node), maxlen=0)
    if store.chunks:
        return nodes.Slices(nodes.Data(Chunk.join(store.chunks)))
    return source


def _may_be_endless(node: Node) -> bool:
    """Whether a plan may have elements without end; a filter of them has an unknown number."""
    if node.cardinality == UNKNOWN:
        return any(map(_may_be_endless, node.inputs))
    return node.cardinality == INFINITE


def count_by_samples(plan: Node, spec_of: Callable[[Node], Any], read: Read) -> int:
    """The cardinality, where the rows that `unbatch` gets are counted on the first elements."""
    if plan.cardinality != UNKNOWN or nodes.rewrite(plan, _give_a_row).cardinality == UNKNOWN:
        return plan.cardinality
    find = partial(_find_rows, spec_of=spec_of, read=read)

    def change(node: Node) -> Node:
        if type(node) is nodes.Unbatch and node.rows is None:
            return nodes.Unbatch(node.input, find(node.input))
        return node

    return nodes.rewrite(plan, change).cardinality


def _give_a_row(node: Node) -> Node:
    return nodes.Unbatch(node.input, 1) if type(node) is nodes.Unbatch else node


def _find_rows(source: Node, spec_of: Callable[[Node], Any], read: Read) -> int | None:
    """How many rows each element has, if the spec and the first elements agree on it."""
    try:
        rows = leading_dimension("Dataset.unbatch", spec_of(source))
        if not rows or not is_steady(source):
            return None
        first = itertools.islice(read(source), _SAMPLED)
        return rows if all(_rows_of(element) == rows for element in first) else None
    except OpError:
        return None


def _rows_of(element: Any) -> int | None:
    return next((len(leaf) for leaf in nest.flatten(element)[0] if leaf is not None), None)
