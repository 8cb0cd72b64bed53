"""What a running plan is told about the world around it.

The engine never reaches for the outside: whoever runs it hands down an `Environment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.engine.access import Epoch
from penstock.engine.contract import State, Stream
from penstock.engine.meters import Meters
from penstock.engine.trail import Trail
from penstock.plan.nodes import Node
from penstock.plan.options import Options
from penstock.plan.seeds import derive


@dataclass(frozen=True)
class Environment:
    """The outside world.

    `wrap` makes the dataset that users' functions see from a plan. `spec` tells a plan's spec,
    which may take a call of a user's function. `connect` opens what a service computes.
    """

    wrap: Callable[[Node], Any]
    spec: Callable[[Node], Any]
    connect: Callable[[Node, State, Context], Stream]


@dataclass(frozen=True)
class Context:
    """One iteration: its epoch, the key of all that is drawn in it, its options and meters."""

    environment: Environment
    epoch: Epoch = (0,)
    key: int = 0
    options: Options = field(default_factory=Options)
    meters: Meters = field(default_factory=Meters)
    in_order: bool = False
    """Whether all must come in order, because states were saved that do not say what followed."""
    trail: Trail | None = None
    """Who is told what the streams of a piece find out."""
    numbered: bool = False
    """Whether chunks carry the numbers of their elements, because somebody draws by them.

    The number of an element says where it comes from, and not how many came before it: its
    position where there is random access; of what one element became (a dataset, rows, records),
    one number from that element's and another from the place in it. So those who have a piece of
    a plan know the numbers of the whole.
    """

    endless: bool = False
    """Whether this is one round of a repetition without an end."""

    def repetition(self, number: int, endless: bool = False) -> Context:
        return replace(self, epoch=(*self.epoch, number), endless=endless)

    def inside(self, number: int) -> Context:
        """For a dataset that a function made of element `number`."""
        key = derive(self.key, *self.epoch, number)
        meters = self.meters.inner()
        epoch = (*self.epoch, number)
        inner = replace(self, epoch=epoch, key=key, meters=meters, in_order=True)
        return replace(inner, numbered=False, endless=False, trail=None)

    @property
    def inline(self) -> bool:
        """Whether everything is to run in the caller's thread."""
        return self.options.executor == "inline"
