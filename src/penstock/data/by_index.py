"""Single elements by index, also through operators that streams read in order only.

A cache, an `assert_cardinality` or an `unbatch` keeps a plan from random access, because a stream
must fill, count or measure. For one element it is enough to know where it comes from.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from penstock.data.element_specs import rows_of_elements
from penstock.element.chunk import Chunk
from penstock.plan import nodes
from penstock.plan.nodes import INFINITE, UNKNOWN, Node, walk_plan
from penstock.plan.traits import Trait

Read = Callable[[Node], Iterable[Any]]
"""Iterates over the elements of a plan."""


def plan_by_index(plan: Node, read: Read) -> Node:
    """A plan with the same elements, for access to one of them.

    An operator whose result depends on how its input is read stays as it is.
    """
    match plan:
        case nodes.Cache():
            return _read_cache(plan, read)
        case nodes.AssertCardinality(source):
            return plan_by_index(source, read)
    if plan.sealed or _depends_on_reading(plan):
        return plan
    plan = plan.with_inputs(tuple(plan_by_index(source, read) for source in plan.inputs))
    if type(plan) is nodes.Unbatch:
        rows = plan.rows or rows_of_elements("Dataset.unbatch", plan.input)
        return nodes.Unbatch(plan.input, rows, even=rows is not None)
    return plan


def _depends_on_reading(node: Node) -> bool:
    """Whether a stream draws another order, or other numbers, than access by index would."""
    if Trait.DRAWS_ORDER in node.traits:
        return any(source.blocked for source in node.inputs)
    draws = getattr(node, "random", None) is not None
    return draws and any(one.blocked and isinstance(one, nodes.Unbatch) for one in walk_plan(node))


def _read_cache(node: nodes.Cache, read: Read) -> Node:
    """What a cache holds. If its input has no random access, the first access fills the cache."""
    store, source = node.store, node.input
    is_in_memory = not node.filename
    if store.chunks is None and is_in_memory and source.blocked and not _may_be_endless(source):
        collections.deque(read(node), maxlen=0)
    if store.chunks:
        return nodes.Slices(nodes.Data(Chunk.join(store.chunks)))
    return plan_by_index(source, read)


def _may_be_endless(node: Node) -> bool:
    """Whether a plan may have elements without end; a filter of them has an unknown number."""
    if node.cardinality == UNKNOWN:
        return any(map(_may_be_endless, node.inputs))
    return node.cardinality == INFINITE
