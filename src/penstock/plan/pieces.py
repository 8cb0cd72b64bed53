"""Pieces: a plan divided into ranges of indices, into files or into parts of files.

A piece depends only on the plan and on its number, so every process makes the same pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from penstock.plan import nodes
from penstock.plan.bounds import bound_plan
from penstock.plan.nodes import INFINITE, UNKNOWN, Node
from penstock.plan.parts import divide_files
from penstock.plan.shape import ENDLESS, Turns
from penstock.plan.traits import Trait

_PIECES = 1024
"""The number of ranges that a plan with random access is divided into, unless they get too long."""

_LONGEST = 1024
"""The most elements of one range."""

_ENDLESS_LENGTH = 256
"""The elements of one range of a plan without end."""


class Pieces(NamedTuple):
    """A plan in pieces. One after the other they are the plan, unless it takes `turns`."""

    streams: int
    """The number of pieces, or ENDLESS."""
    make: Callable[[int], Node]
    """Makes a piece from its number."""
    turns: Turns | None = None


def pieces_of(node: Node) -> Pieces | None:
    """The pieces of a plan; None if it cannot be divided."""
    if node.blocked is None:
        return _divide_range(node)
    match node:
        case nodes.Saved(shards=shards) if shards:
            return Pieces(len(shards), lambda number: _saved_shard(node, number))
        case nodes.Records() if (parts := divide_files(node)) is not None:
            return Pieces(*parts)
        case nodes.Concatenate(first, second):
            return _concatenate(pieces_of(first), pieces_of(second))
        case _ if Trait.ELEMENTWISE in node.traits:
            return _apply_to_pieces(node, pieces_of(node.inputs[0]))
    return None


def _apply_to_pieces(node: Node, inner: Pieces | None) -> Pieces | None:
    """An operator applied to each piece of its input."""
    if inner is None:
        return None
    own = _turns_of(node)
    if own is not None and inner.turns is not None:
        return None
    return Pieces(inner.streams, lambda i: node.with_inputs((inner.make(i),)), own or inner.turns)


def _turns_of(node: Node) -> Turns | None:
    """How an operator alternates between several inputs; None if it does not."""
    if not isinstance(node, nodes.Interleave) or not node.takes_turns:
        return None
    known = node.input.blocked is None
    return Turns(node.cycle, node.block, node.input.cardinality if known else UNKNOWN)


def _divide_range(node: Node) -> Pieces:
    count = node.cardinality
    if count == INFINITE:
        return Pieces(ENDLESS, lambda i: _range(node, i * _ENDLESS_LENGTH, _ENDLESS_LENGTH))
    size = min(max(count // _PIECES, 1), _LONGEST)
    return Pieces(max(1, -(-count // size)), lambda i: _range(node, i * size, size))


def _range(node: Node, start: int, size: int) -> Node:
    if 0 <= node.cardinality <= start:
        return nodes.Take(node, 0)
    return nodes.Tail(bound_plan(node, start + size), start)


def _saved_shard(node: nodes.Saved, number: int) -> Node:
    if number >= len(node.shards):
        return nodes.Take(node, 0)
    if len(node.shards) == 1:
        return node
    return nodes.Branch(replace(node, shards=(node.shards[number],), count=UNKNOWN), number)


def _concatenate(first: Pieces | None, second: Pieces | None) -> Pieces | None:
    if first is None or second is None or first.turns or second.turns:
        return first if first is not None and first.streams == ENDLESS else None
    if first.streams == ENDLESS:
        return first
    before = first.streams
    streams = ENDLESS if second.streams == ENDLESS else before + second.streams
    make_second = second.make

    def make(number: int) -> Node:
        if number < before:
            return nodes.Branch(first.make(number), None)
        return nodes.Branch(make_second(number - before), 1)

    return Pieces(streams, make)


def inputs_of(plan: Node, stream: int, first: int, count: int) -> Node:
    """A plan that takes turns, over inputs `first` to `first + count` of its `interleave` only.

    If inputs cannot be computed from their numbers, these are inputs of piece `stream`.
    """
    pieces = pieces_of(plan)
    assert pieces is not None
    assert pieces.turns is not None
    known = pieces.turns.inputs != UNKNOWN
    return _select_inputs(plan if known else pieces.make(stream), first, count)


def _select_inputs(node: Node, first: int, count: int) -> Node:
    if not isinstance(node, nodes.Interleave) or not node.takes_turns:
        return node.with_inputs((_select_inputs(node.inputs[0], first, count),))
    source, skipped = node.input, first
    if source.blocked is None and not isinstance(source, nodes.Tail | nodes.Take):
        source, skipped = _range(source, first, count), 0
    return nodes.Inputs(
        source,
        node.function,
        parallel=node.parallel,
        deterministic=node.deterministic,
        first=skipped,
        count=count,
    )
