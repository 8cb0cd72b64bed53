"""Pieces: plans divided by ranges of indices, by files and by parts of files.

A piece is made from the plan and its number, so every process makes the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from penstock.plan import nodes
from penstock.plan.bounds import bounded
from penstock.plan.nodes import INFINITE, UNKNOWN, Node
from penstock.plan.parts import divided_files
from penstock.plan.shape import ENDLESS, Turns
from penstock.plan.traits import Trait

_PIECES = 1024
_LONGEST = 1024
_ENDLESS_LENGTH = 256


class Pieces(NamedTuple):
    """A plan in pieces: how many, and each of them.

    One after the other they are the plan, unless it takes `turns`.
    """

    streams: int
    make: Callable[[int], Node]
    turns: Turns | None = None


def pieces_of(node: Node) -> Pieces | None:
    """The pieces of a plan; None if it has no way to be divided."""
    if node.blocked is None:
        return _ranges(node)
    match node:
        case nodes.Saved(shards=shards) if shards:
            return Pieces(len(shards), lambda number: _shard_file(node, number))
        case nodes.Records() if (files := divided_files(node)) is not None:
            return Pieces(files.streams, files.make)
        case nodes.Concatenate(first, second):
            return _both(pieces_of(first), pieces_of(second))
        case _ if Trait.ELEMENTWISE in node.traits:
            return _over(node, pieces_of(node.inputs[0]))
    return None


def _over(node: Node, inner: Pieces | None) -> Pieces | None:
    """What an operator makes of each piece of its input."""
    turns = None if inner is None else inner.turns
    if inner is None or (takes_turns(node) and turns is not None):
        return None
    if isinstance(node, nodes.Interleave) and takes_turns(node):
        known = node.input.blocked is None
        turns = Turns(node.cycle, node.block, node.input.cardinality if known else UNKNOWN)
    return Pieces(inner.streams, lambda i: node.with_inputs((inner.make(i),)), turns)


def takes_turns(node: Node) -> bool:
    """Whether an operator gives elements of several inputs in turn."""
    return isinstance(node, nodes.Interleave) and node.cycle > 1


def _ranges(node: Node) -> Pieces:
    """Ranges of indices."""
    count = node.cardinality
    if count == INFINITE:
        return Pieces(ENDLESS, lambda i: _range(node, i * _ENDLESS_LENGTH, _ENDLESS_LENGTH))
    size = min(max(count // _PIECES, 1), _LONGEST)
    return Pieces(max(1, -(-count // size)), lambda i: _range(node, i * size, size))


def _range(node: Node, start: int, size: int) -> Node:
    if 0 <= node.cardinality <= start:
        return nodes.Take(node, 0)
    return nodes.Tail(bounded(node, start + size), start)


def _shard_file(node: nodes.Saved, number: int) -> Node:
    if number >= len(node.shards):
        return nodes.Take(node, 0)
    if len(node.shards) == 1:
        return node
    return nodes.Part(replace(node, shards=(node.shards[number],), count=UNKNOWN), number)


def _both(first: Pieces | None, second: Pieces | None) -> Pieces | None:
    """The pieces of one plan, then those of another, which is part 1."""
    if first is None or second is None or first.turns or second.turns:
        return first if first is not None and first.streams == ENDLESS else None
    if first.streams == ENDLESS:
        return first
    before = first.streams
    streams = ENDLESS if second.streams == ENDLESS else before + second.streams
    behind = second.make

    def make(number: int) -> Node:
        return first.make(number) if number < before else nodes.Part(behind(number - before), 1)

    return Pieces(streams, make)


def inputs_of(plan: Node, stream: int, first: int, count: int) -> Node:
    """Inputs `first` to `first + count` of the `interleave` in a plan that takes turns, and what
    the operators behind it make of them; of piece `stream`, if its inputs have no numbers."""
    pieces = pieces_of(plan)
    assert pieces is not None
    assert pieces.turns is not None
    known = pieces.turns.inputs != UNKNOWN
    return _narrowed(plan if known else pieces.make(stream), first, count)


def _narrowed(node: Node, first: int, count: int) -> Node:
    if not isinstance(node, nodes.Interleave) or not takes_turns(node):
        return node.with_inputs((_narrowed(node.inputs[0], first, count),))
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
