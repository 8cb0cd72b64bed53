"""Splits: how the workers of a service divide a plan.

All processes must get the same result from the same plan, so nothing here may depend on the
process; no element is computed. `cuts` decides which parts of a plan run in the client.
"""

from __future__ import annotations

from typing import assert_never

from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import Node, with_options_of
from penstock.plan.options import ShardingPolicy
from penstock.plan.parts import begin_part, with_parts
from penstock.plan.pieces import inputs_of, pieces_of
from penstock.plan.shape import WHOLE_FILE, Form, Shape
from penstock.plan.shard import in_order, service_shard, shard_sources


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
