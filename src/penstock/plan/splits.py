"""Splits: how the workers of a service divide a plan, and the pieces that they divide it into.

All processes must get the same result from the same plan, so nothing here may depend on the
process; no element is computed. `cuts` decides which parts of a plan run in the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, assert_never

from penstock.errors import InvalidArgumentError
from penstock.plan import nodes
from penstock.plan.bounds import bound_plan
from penstock.plan.nodes import INFINITE, UNKNOWN, Node, with_options_of
from penstock.plan.options import ShardingPolicy
from penstock.plan.parts import begin_part, divide_files, with_parts
from penstock.plan.shape import ENDLESS, WHOLE_FILE, Form, Shape, Turns
from penstock.plan.shard import in_order, service_shard, shard_sources
from penstock.plan.traits import Trait

_PIECES = 1024
"""The number of ranges that a plan with random access is divided into, unless they get too long."""

_LONGEST = 1024
"""The most elements of one range."""

_ENDLESS_LENGTH = 256
"""The elements of one range of a plan without end."""


def shape_of(plan: Node) -> Shape:
    """How the workers of a service divide a plan.

    The sizes of files are read, unless the plan contains the parts already (`with_parts`).
    """
    plan = in_order(with_parts(plan))
    if plan.blocked is None:
        return Shape(Form.RANDOM, 1, plan.cardinality)
    pieces = pieces_of(plan)
    if pieces is None:
        return Shape(Form.SINGLE, 1, plan.cardinality)
    return Shape(Form.SPLIT, pieces.streams, plan.cardinality, pieces.turns)


def piece(
    plan: Node,
    form: Form,
    stream: int,
    streams: int,
    policy: int = 0,
    begin: int = WHOLE_FILE,
    inputs: tuple[int, int] = (0, 1),
) -> Node:
    """The plan of stream `stream` of `streams`, as a worker computes it; see `Form`.

    The result depends on the arguments alone: any worker computes the same elements in the same
    order, any number of times. `with_parts` must have been applied to the plan.
    """
    match form:
        case Form.RANDOM | Form.SINGLE | Form.WHOLE:
            return in_order(plan)
        case Form.SPLIT:
            return begin_part(_split_piece(in_order(plan), stream), begin)
        case Form.TURNS:
            return with_options_of(plan, inputs_of(in_order(plan), stream, *inputs))
        case Form.SHARD:
            return service_shard(plan, ShardingPolicy(policy), streams, stream)
        case Form.SHARE:
            return shard_sources(plan, streams, stream)
        case _:
            assert_never(form)


def _split_piece(plan: Node, stream: int) -> Node:
    pieces = pieces_of(plan)
    if pieces is None:
        raise InvalidArgumentError(
            f"piece: {plan.blocked}, so this plan is not divided into pieces; "
            'ask for it as a whole, form "single"'
        )
    return with_options_of(plan, pieces.make(stream))


# Pieces: ranges of indices, files, or parts of files


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
