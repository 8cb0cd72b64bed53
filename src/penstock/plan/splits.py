"""Splits: how the workers of a service divide a plan.

All here are functions of plans: nothing is iterated over, and all processes must come to the same
result. What of a plan workers cannot do at all is a matter of `cuts`.
"""

from __future__ import annotations

from penstock.errors import InvalidArgumentError
from penstock.plan import nodes
from penstock.plan.nodes import Node, options_of
from penstock.plan.options import ShardingPolicy
from penstock.plan.parts import WHOLE, begun_at, with_parts
from penstock.plan.pieces import inputs_of, pieces_of
from penstock.plan.shape import Shape
from penstock.plan.shard import in_order, service_shard, share_plan


def shape_of(plan: Node) -> Shape:
    """How the workers of a service divide a plan."""
    plan = in_order(with_parts(plan))
    if plan.blocked is None:
        return Shape("random", 1, plan.cardinality)
    pieces = pieces_of(plan)
    if pieces is None:
        return Shape("single", 1, plan.cardinality)
    return Shape("split", pieces.streams, plan.cardinality, pieces.turns)


def piece(
    plan: Node,
    form: str,
    stream: int,
    streams: int,
    policy: int = 0,
    begin: int = WHOLE,
    inputs: tuple[int, int] = (0, 1),
) -> Node:
    """What a worker computes of a plan as stream `stream` of `streams`; see `messages.Work`.

    All elements of it are in one order, whoever computes them and however often. Of files, the
    plan must say `with_parts` how they are divided.
    """
    match form:
        case "random" | "single" | "whole":
            return in_order(plan)
        case "split":
            return begun_at(_piece(in_order(plan), stream), begin)
        case "turns":
            return _with_options_of(plan, inputs_of(in_order(plan), stream, *inputs))
        case "shard":
            return service_shard(plan, ShardingPolicy(policy), streams, stream)
        case "share":
            return share_plan(plan, streams, stream)
    raise InvalidArgumentError(
        'piece: form must be "random", "split", "turns", "single", "whole", "shard" or "share", '
        f"got {form!r}"
    )


def _piece(plan: Node, stream: int) -> Node:
    pieces = pieces_of(plan)
    if pieces is None:
        raise InvalidArgumentError(
            f"piece: {plan.blocked}, so this plan is not divided into pieces; "
            'ask for it as a whole, form "single"'
        )
    return _with_options_of(plan, pieces.make(stream))


def _with_options_of(plan: Node, made: Node) -> Node:
    """Options stay those of the whole plan, wherever in it they stood."""
    options = options_of(plan)
    return made if options == nodes.NO_OPTIONS else nodes.WithOptions(made, options.frozen())
