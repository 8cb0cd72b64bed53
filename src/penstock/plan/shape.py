"""`Shape`: how the elements of a plan are divided into streams.

Plans and the messages of the service share these values, so nothing here may import a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

ENDLESS = -1
"""The number of streams of a plan that has infinitely many."""

GUESS, WHOLE_FILE = -1, -2
"""Where a part of a TFRecord file begins, instead of a byte.

GUESS: at the first position that looks like a record; the client compares where neighbouring parts
began and ended. WHOLE_FILE: the first part is the whole file, for clients that do not compare.
"""


TURN_WIDTH = 1 << 40
"""The turns of one input of an `interleave` are this far apart from those of the next input.

The *turn* of an element is an integer by which a client puts the elements of all inputs in order.
"""


class Form(StrEnum):
    """Which part of a plan a stream of a service is. Messages carry it as its string."""

    RANDOM = "random"
    """The whole plan, of which any worker computes any range of elements."""
    SPLIT = "split"
    """One of the pieces that are the plan, one after the other."""
    TURNS = "turns"
    """Some inputs of the plan's `interleave`, which the client merges."""
    SINGLE = "single"
    """The whole plan, which one worker computes from its start."""
    WHOLE = "whole"
    """The whole plan, which every worker computes for itself: a slot of `parallel_epochs`."""
    SHARD = "shard"
    """A fixed part of the source, by a sharding policy."""
    SHARE = "share"
    """Every n-th piece of the source, for operators that run per worker."""


OWNED_FORMS = frozenset({Form.WHOLE, Form.SHARD, Form.SHARE})
"""Forms whose streams belong to workers."""

PARTIAL_FORMS = frozenset({Form.SPLIT, Form.TURNS, Form.SHARD, Form.SHARE})
"""Forms whose streams count only the elements of a part of the plan."""


class Turns(NamedTuple):
    """How an `interleave` takes turns: `cycle` inputs at once, `block` elements of each.

    `inputs` is the number of inputs, if each can be computed from its number; -1 for infinitely
    many, -2 for unknown.
    """

    cycle: int
    block: int
    inputs: int


@dataclass(frozen=True)
class Shape:
    """How workers divide a plan, by its `kind`: RANDOM, SPLIT or SINGLE.

    `random`: one stream; any worker computes any range of its elements. `split`: `streams` pieces
    (or ENDLESS), each computed from its start. One after the other they are the plan; with `turns`,
    the elements of several inputs alternate. `single`: one worker computes the whole plan.
    """

    kind: Form
    streams: int = 1
    length: int = -2
    """The cardinality of the whole plan: a number, -1 for infinite, -2 for unknown."""
    turns: Turns | None = None
