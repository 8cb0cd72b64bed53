"""Bounds: plans with random access that end early, without work for what comes behind the end."""

from __future__ import annotations

from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.traits import Trait


def bounded(node: Node, stop: int) -> Node:
    """A plan with random access up to element `stop`, whose streams never work ahead beyond it.

    So whoever makes elements up to there calls no function for others. Give it a plan that is
    prepared: there is nothing to optimise in what comes out.
    """
    if Trait.ADVISORY in node.traits:
        return bounded(node.inputs[0], stop)
    if 0 <= node.cardinality <= stop:
        return node
    made = nodes.Take(node, stop) if node.pure else _bounded(node, stop)
    if node.found_spec is not None:
        made.keep_spec(node.found_spec.spec, sampled=node.found_spec.sampled)
    return made


def _bounded(node: Node, stop: int) -> Node:
    match node:
        case nodes.Map(source) | nodes.Enumerate(source):
            return node.with_inputs((bounded(source, stop),))
        case nodes.AssertCardinality(source):
            return bounded(source, stop)
        case nodes.Batch(source, size):
            return node.with_inputs((bounded(source, stop * size),))
        case nodes.Take(source, count):
            return bounded(source, min(stop, count))
        case nodes.Skip(source, count) | nodes.Tail(source, count):
            return node.with_inputs((bounded(source, stop + count),))
        case nodes.Shard(source, shards, index):
            return node.with_inputs((bounded(source, (stop - 1) * shards + index + 1),))
        case nodes.Zip(parts):
            return node.with_inputs(tuple(bounded(part, stop) for part in parts))
        case nodes.Concatenate(first, second):
            count = first.cardinality
            if not 0 <= count < stop:
                return bounded(first, stop)
            return nodes.Concatenate(first, bounded(second, stop - count))
        case nodes.Round(source):
            return node.with_inputs((bounded(source, stop),))
        case nodes.Repeat(source):
            return _rounds(source, stop)
        case _:
            return nodes.Take(node, stop)


def _rounds(source: Node, stop: int) -> Node:
    """The first elements of a plan that is repeated; its last round ends where they do."""
    if not 0 <= source.cardinality < stop:
        return nodes.Round(bounded(source, stop), 0)
    whole, rest = divmod(stop, source.cardinality)
    before = nodes.Repeat(source, whole)
    return nodes.Concatenate(before, nodes.Round(bounded(source, rest), whole)) if rest else before
