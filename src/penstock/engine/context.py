"""The environment and the context that a plan is opened with.

The engine imports neither the service nor `data`: the caller of `open_plan` passes an
`Environment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from penstock.engine.access import Epoch
from penstock.engine.contract import State, Stream
from penstock.engine.meters import Meters
from penstock.engine.trail import Trail
from penstock.errors import InternalError
from penstock.plan.nodes import Node
from penstock.plan.options import Options
from penstock.plan.seeds import derive


@dataclass(frozen=True)
class Environment:
    """The outside world.

    `wrap` makes the dataset that users' functions see from a plan. `spec` finds a plan's spec,
    which may take a call of a user's function. `connect` opens what a service computes.
    """

    wrap: Callable[[Node], Any]
    spec: Callable[[Node], Any]
    connect: Callable[[Node, State, Context], Stream]


class OriginSearch:
    """A search for the origin of an element: the sources that were opened, and what is left to do.

    See `engine/origins.py`.
    """

    def __init__(self, most_bytes: int, *, with_values: bool = False) -> None:
        self.sources: list[Any] = []
        self.with_values = with_values
        """Whether the elements are pairs of a number and the value of the source."""
        self.bytes_left = most_bytes
        self.has_failed = False

    def fail(self) -> NoReturn:
        """Ends the search. A stream may take the exception for the failure of one element."""
        self.has_failed = True
        raise InternalError("the origin of an element is not found")


@dataclass(frozen=True)
class Context:
    """One iteration: its epoch, the key of all that is drawn in it, its options and meters."""

    environment: Environment
    epoch: Epoch = (0,)
    first_epoch: Epoch = (0,)
    """The epoch of the first pass, which fills caches."""
    key: int = 0
    options: Options = field(default_factory=Options)
    meters: Meters = field(default_factory=Meters)
    in_order: bool = False
    """Whether elements must come in order: the state has no log of the order that followed it."""
    trail: Trail | None = None
    """Receives what the streams of a piece find out."""
    numbered: bool = False
    """Whether chunks carry the numbers of their elements, because an operator draws by them.

    The number of an element says where it comes from, and not how many came before it. With random
    access it is the position. Elements that were made of one element (a dataset, rows, records)
    derive theirs from that element's number and their index in it. So a process that has only a
    piece of a plan computes the same numbers as the whole plan.
    """

    search: OriginSearch | None = None
    """Set to open numbers in place of elements, to find where an element comes from."""

    endless: bool = False
    """Whether this is one repetition of a `repeat` without an end."""

    def repetition(self, number: int, endless: bool = False) -> Context:
        epoch, first = (*self.epoch, number), (*self.first_epoch, 0)
        return replace(self, epoch=epoch, first_epoch=first, endless=endless)

    def first_pass(self) -> Context:
        """For the input of a cache, of which every pass hands on the elements of the first one.

        So a pass that fills the cache again, in another process or from a state, finds the same
        elements in the same order.
        """
        return replace(self, epoch=self.first_epoch)

    def inside(self, number: int) -> Context:
        """For a dataset that a function made of element `number`."""
        epoch = (*self.epoch, number)
        return replace(
            self,
            epoch=epoch,
            first_epoch=epoch,
            key=derive(self.key, *epoch),
            meters=self.meters.inner(),
            in_order=True,
            numbered=False,
            endless=False,
            trail=None,
        )

    @property
    def inline(self) -> bool:
        """Whether everything is to run in the caller's thread."""
        return self.options.executor == "inline" or DebugMode.enabled


class DebugMode:
    """Whether all iterators of this process run in the threads of their callers."""

    enabled = False


OpenPlan = Callable[[Node, State, Context], Stream]
"""Opens a plan at a state: `engine/lower.py`."""
