"""`Shape`: how the elements of a plan are divided into streams.

Plans and the messages of the service share these values, so nothing here may import a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ENDLESS = -1
"""The number of streams of a plan that has infinitely many."""


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
    """How workers divide a plan, by its `kind`.

    `random`: one stream; any worker computes any range of its elements. `split`: `streams` pieces
    (or ENDLESS), each computed from its start. One after the other they are the plan; with `turns`,
    the elements of several inputs alternate. `single`: one worker computes the whole plan.
    """

    kind: str
    streams: int = 1
    length: int = -2
    """The cardinality of the whole plan: a number, -1 for infinite, -2 for unknown."""
    turns: Turns | None = None
