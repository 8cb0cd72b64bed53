"""Splits: how the workers of a service divide a plan.

All here are functions of plans: nothing is iterated over, and all processes must come to the same
result. What of a plan workers cannot do at all is a matter of `cuts`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import InvalidArgumentError
from penstock.plan import nodes
from penstock.plan.bounds import bounded
from penstock.plan.cuts import cut
from penstock.plan.nodes import Node, options_of
from penstock.plan.options import ShardingPolicy
from penstock.plan.pieces import ENDLESS, is_ordered, parts_of_files, pieces_of, reader_of
from penstock.plan.shard import in_order, service_shard, share_plan

__all__ = ["ENDLESS", "Splits", "bounded", "cut", "piece", "shape_of"]


class Splits(NamedTuple):
    """How a plan is divided.

    `random`: any worker computes any range of its elements. `split`: it has `streams` pieces (or
    is ENDLESS); one after the other they are the whole plan if they are `ordered`. `single`: one
    worker computes it all. `length` is the cardinality of the plan.
    """

    kind: str
    streams: int
    ordered: bool
    length: int


def shape_of(plan: Node) -> Splits:
    """How the workers of a service divide a plan."""
    plan = in_order(plan)
    if plan.blocked is None:
        return Splits("random", 1, True, plan.cardinality)
    pieces = pieces_of(plan, parts_of_files(plan))
    if pieces is None:
        return Splits("single", 1, True, plan.cardinality)
    ordered = pieces.streams == 1 or is_ordered(plan)
    return Splits("split", pieces.streams, ordered, plan.cardinality)


def piece(plan: Node, form: str, stream: int, streams: int, policy: int = 0) -> Node:
    """What a worker computes of a plan as stream `stream` of `streams`; see `messages.Work`.

    All elements of it are in one order, whoever computes them and however often.
    """
    match form:
        case "random" | "single" | "whole":
            return in_order(plan)
        case "split":
            return _piece(in_order(plan), stream, streams)
        case "shard":
            return service_shard(plan, ShardingPolicy(policy), streams, stream)
        case "share":
            return share_plan(plan, streams, stream)
    raise InvalidArgumentError(
        'piece: form must be "random", "split", "single", "whole", "shard" or "share", '
        f"got {form!r}"
    )


def _piece(plan: Node, stream: int, streams: int) -> Node:
    reader = reader_of(plan)
    files = 1 if reader is None else max(reader.input.cardinality, 1)
    pieces = pieces_of(plan, max(1, streams // files) if reader is not None else 1)
    if pieces is None:
        raise InvalidArgumentError(
            f"piece: {plan.blocked}, so this plan is not divided into pieces; "
            'ask for it as a whole, form "single"'
        )
    # Options stay those of the whole plan, wherever in it they stood.
    options = options_of(plan)
    made = pieces.make(stream)
    return made if options == nodes.NO_OPTIONS else nodes.WithOptions(made, options.frozen())
