"""Trainers: a trainer is one reading by a user, with all restarts of its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.service.logic.feeds import Limits
from penstock.service.protocol.messages import JobOptions
from tests.simulation.plans import Dataset

if TYPE_CHECKING:
    from tests.simulation.clients import Client

READING, ENDED, LEFT, DEAD, MERGED = "reading", "ended", "left", "dead", "merged"


@dataclass(frozen=True)
class Job:
    """What all readers of a job have in common."""

    name: str | None
    plan: Dataset
    options: JobOptions
    ordered: bool
    limits: Limits
    repetition: int = 0


@dataclass
class SavedState:
    """A state, and what the user had got by then."""

    state: dict[str, Any]
    history: tuple[int, ...]


@dataclass(eq=False)
class Trainer:
    """One reading. `enough`: how many elements it reads; None for all."""

    name: str
    job: Job
    group: str = ""
    consumer: int = -1
    enough: int | None = None
    think: float = 0.01
    saves: float = 0.1
    """The probability that it saves its state after a pull."""
    returns: bool = True
    """Whether it is started again when it dies."""
    stubborn: bool = False
    """Whether it continues to read after an error."""
    status: str = READING
    history: list[int] = field(default_factory=list)
    saved: SavedState | None = None
    merged: SavedState | None = None
    """The merged state of earlier trainers, from which this one started."""
    then: Trainer | None = None
    """The trainer that starts when this one has read to the end."""
    client: Client | None = None
    starts: int = 0
    """How many starts were scheduled."""
    lives: int = 0
    clients: list[str] = field(default_factory=list)
    """The clients since the last fresh start; each resumed from a state of the client before it."""
    past: list[tuple[list[str], list[int]]] = field(default_factory=list)
    """Earlier clients whose states were never resumed, and the elements that they got."""
    streams: int = 0
    form: str = ""
    doubtful: set[int] = field(default_factory=set)
    """Elements that it got, but did not report before other readers got them."""
    untold: bool = False
    """Whether it had ended when the dispatcher lost facts, so that no client reports them again."""
    outlived: bool = False
    """Whether it was reading when the dispatcher lost facts, perhaps its whole iteration."""
    known: bool = True
    """Whether the dispatcher knows all that it read."""
    errors: list[str] = field(default_factory=list)

    def another(self, name: str, job: Job, merged: SavedState | None = None) -> Trainer:
        """A new trainer with the same parameters."""
        ways = (self.group, self.consumer, self.enough, self.think, self.saves, self.returns)
        return Trainer(name, job, *ways, self.stubborn, merged=merged, outlived=self.outlived)

    @property
    def left(self) -> int:
        """How many more elements it will read."""
        assert self.enough is not None
        return self.enough - len(self.history)

    @property
    def running(self) -> bool:
        return self.client is not None and self.client.alive


def service_part(state: dict[str, Any] | None) -> tuple[dict[str, Any] | None, int]:
    """The state that the stream is opened with, and how many elements are skipped then."""
    if state is None:
        return None, 0
    at, skip = state["at"], 0
    if "skip" in at:
        at, skip = at["from"], at["skip"]
    return at["own"], skip
