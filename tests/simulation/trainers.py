"""Trainers: what users think of: one reading each, through all lives of its process."""

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
    """What readers agree on."""

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
    """One reading. `enough`: how many elements it wants; None for all."""

    name: str
    job: Job
    group: str = ""
    consumer: int = -1
    enough: int | None = None
    think: float = 0.01
    saves: float = 0.1
    """How often it saves its state, per pull."""
    returns: bool = True
    """Whether it is started again when it dies."""
    stubborn: bool = False
    """Whether it continues to read after an error."""
    status: str = READING
    history: list[int] = field(default_factory=list)
    saved: SavedState | None = None
    merged: SavedState | None = None
    """What several trainers each began with: what other trainers had got before them."""
    then: Trainer | None = None
    """Begins when this one has come to the end."""
    client: Client | None = None
    starts: int = 0
    """How often it was to be started."""
    lives: int = 0
    clients: list[str] = field(default_factory=list)
    """The lives of which each went on from a state of the one before."""
    past: list[tuple[list[str], list[int]]] = field(default_factory=list)
    """Lives from whose states none resumed, and what those lives got."""
    streams: int = 0
    form: str = ""
    doubtful: set[int] = field(default_factory=set)
    """What it got, and could not report before other readers got it."""
    untold: bool = False
    """Whether it was gone when the dispatcher lost facts, so that nothing reports what it got."""
    outlived: bool = False
    """Whether it was there when the dispatcher lost facts, perhaps all of what it reads."""
    known: bool = True
    """Whether the dispatcher knows all that it read."""
    errors: list[str] = field(default_factory=list)

    def another(self, name: str, job: Job, merged: SavedState | None = None) -> Trainer:
        """One that does the same, and has not begun."""
        ways = (self.group, self.consumer, self.enough, self.think, self.saves, self.returns)
        return Trainer(name, job, *ways, self.stubborn, merged=merged, outlived=self.outlived)

    @property
    def left(self) -> int:
        """How many elements are missing to what it wants."""
        assert self.enough is not None
        return self.enough - len(self.history)

    @property
    def running(self) -> bool:
        return self.client is not None and self.client.alive


def service_part(state: dict[str, Any] | None) -> tuple[dict[str, Any] | None, int]:
    """What the stream is opened with, and how many elements are skipped then."""
    if state is None:
        return None, 0
    at, skip = state["at"], 0
    if "skip" in at:
        at, skip = at["from"], at["skip"]
    return at["own"], skip
