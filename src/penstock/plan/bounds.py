"""Bounds: the first elements of a plan with random access, and no work for later ones."""

from __future__ import annotations

from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.traits import Trait


def bound_plan(node: Node, stop: int) -> Node:
    """The first `stop` elements of a plan with random access.

    The bound moves down to the sources, so that no function is called for a later element, not
    even to work ahead. Pass a prepared plan: optimising the result would undo this.
    """
    if Trait.ADVISORY in node.traits:
        return bound_plan(node.inputs[0], stop)
    if 0 <= node.cardinality <= stop:
        return node
    made = nodes.Take(node, stop) if node.pure else _bound_inputs(node, stop)
    if node.found_spec is not None:
        made.keep_spec(node.found_spec.spec, sampled=node.found_spec.sampled)
    return made


def _bound_inputs(node: Node, stop: int) -> Node:
    match node:
        case nodes.Map(source) | nodes.Enumerate(source) | nodes.OneRepetition(source):
            return node.with_inputs((bound_plan(source, stop),))
        case nodes.AssertCardinality(source):
            return bound_plan(source, stop)
        case nodes.Batch(source, size):
            return node.with_inputs((bound_plan(source, stop * size),))
        case nodes.Take(source, count):
            return bound_plan(source, min(stop, count))
        case nodes.Skip(source, count) | nodes.Tail(source, count):
            return node.with_inputs((bound_plan(source, stop + count),))
        case nodes.Shard(source, shards, index):
            return node.with_inputs((bound_plan(source, (stop - 1) * shards + index + 1),))
        case nodes.Zip(parts):
            return node.with_inputs(tuple(bound_plan(part, stop) for part in parts))
        case nodes.Concatenate(first, second):
            count = first.cardinality
            if not 0 <= count < stop:
                return bound_plan(first, stop)
            return nodes.Concatenate(first, bound_plan(second, stop - count))
        case nodes.Repeat(source):
            return _bound_repetitions(source, stop)
        case _:
            return nodes.Take(node, stop)


def _bound_repetitions(source: Node, stop: int) -> Node:
    """The first `stop` elements of a repeated plan; only the last repetition is cut short."""
    if not 0 <= source.cardinality < stop:
        return nodes.OneRepetition(bound_plan(source, stop), 0)
    whole, rest = divmod(stop, source.cardinality)
    before = nodes.Repeat(source, whole)
    if not rest:
        return before
    return nodes.Concatenate(before, nodes.OneRepetition(bound_plan(source, rest), whole))
