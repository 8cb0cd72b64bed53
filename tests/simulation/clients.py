"""Clients: programs of users that read, save states, die, and come back with a saved state.

A `Trainer` is what the user thinks of: one reading, through all lives of its process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import NotFoundError, OpError
from penstock.service.logic.feeds import Failure
from penstock.service.logic.reader import Limits
from penstock.service.logic.reading import claimed
from penstock.service.protocol.messages import JobOptions, OpenIteration, RegisterDataset
from tests.simulation.elements import values_of
from tests.simulation.kernel import Process, Program
from tests.simulation.network import Network
from tests.simulation.plans import Dataset
from tests.simulation.streams import RemoteStream

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
class Saved:
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
    """Whether somebody starts it again when it dies."""
    status: str = READING
    history: list[int] = field(default_factory=list)
    saved: Saved | None = None
    merged: Saved | None = None
    """What several began with, each of them: what others had got before them all."""
    then: Trainer | None = None
    """Begins when this one has come to the end."""
    client: Client | None = None
    lives: int = 0
    clients: list[str] = field(default_factory=list)
    """The lives of which each went on from a state of the one before."""
    past: list[tuple[list[str], list[int]]] = field(default_factory=list)
    """Lives of which nobody went on from a state, and what those got."""
    streams: int = 0
    form: str = ""
    doubtful: set[int] = field(default_factory=set)
    """What it got, and could not report before others were given it."""
    known: bool = True
    """Whether the dispatcher knows all that it read."""
    errors: list[str] = field(default_factory=list)

    def another(self, name: str, job: Job, merged: Saved | None = None) -> Trainer:
        """One that does the same, and has not begun."""
        ways = (self.group, self.consumer, self.enough, self.think, self.saves, self.returns)
        return Trainer(name, job, *ways, merged=merged)

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


class Client(Process):
    """One life of a trainer."""

    def __init__(
        self,
        network: Network,
        trainer: Trainer,
        host: str,
        failed: Callable[[Trainer], None],
        recorded: Callable[[Trainer], set[int]],
    ) -> None:
        super().__init__(network.world, f"{trainer.name}#{trainer.lives}")
        self.network = network
        self.trainer = trainer
        self.host = host
        self._failed = failed
        self._recorded = recorded
        self.stream: RemoteStream | None = None
        trainer.lives += 1
        trainer.client = self
        if trainer.saved is None and trainer.clients:
            trainer.past.append((trainer.clients, trainer.history))
            trainer.clients = []
        trainer.clients.append(self.name)
        trainer.history = list(trainer.saved.history) if trainer.saved else []
        start = trainer.saved or trainer.merged
        self.world.tell(self.name, "starts", "" if start is None else f"from {start.state}")
        self.spawn(self._live(None if start is None else start.state))

    def crash(self) -> None:
        self.world.tell(f"{self.name} dies")
        self.kill()
        if self.stream is not None:
            for link in self.stream.links.all():
                link.end.close()

    def _live(self, state: dict[str, Any] | None) -> Program:
        trainer = self.trainer
        try:
            yield from self._read(state)
        except OpError as error:
            self.world.tell(f"{self.name} fails with {type(error).__name__}: {error}")
            trainer.errors.append(type(error).__name__)
            self.crash()
            if trainer.client is self:
                self._failed(trainer)
        else:
            self.world.tell(f"{self.name} is {trainer.status}")
            self.kill()

    def _read(self, state: dict[str, Any] | None) -> Program:
        own, skip = service_part(state)
        stream = self.stream = yield from self._open(own)
        while skip:
            piece = yield from stream.pull(skip)
            skip -= len(piece)
        status = yield from self._consume(stream)
        known = yield from stream.close()
        if self.trainer.client is self:
            self.trainer.status, self.trainer.known = status, known

    def _consume(self, stream: RemoteStream) -> Program:
        """Reads to the end, or as much as is wanted; gives which of both."""
        trainer, random = self.trainer, self.world.random
        while trainer.enough is None or len(trainer.history) < trainer.enough:
            replays = stream.reading.replays
            mark = stream.reading.state() if replays else (yield from stream.save())
            limit = random.choice((1, 4, 64))
            piece = yield from stream.pull(
                limit if replays else max(1, min(limit, stream.reading.sure()))
            )
            if piece is None:
                return ENDED
            self._deliver(piece)
            if self.world.chance(trainer.saves):
                yield from self._save(stream, mark, len(piece))
            yield trainer.think * random.random() * 2
        return LEFT

    def _deliver(self, piece: Any) -> None:
        if isinstance(piece, Failure):
            values = [piece.error.value]  # type: ignore[attr-defined]
        else:
            values = values_of(piece)
        self.world.tell(self.name, "gets", values)
        if self.trainer.client is self:
            self.trainer.history += values

    def _save(self, stream: RemoteStream, mark: Any, count: int) -> Program:
        """Keeps a state: of now, or of the middle of what was handed out last."""
        trainer = self.trainer
        used = self.world.random.choice((count, count, self.world.random.randint(0, count)))
        yield from stream.commit()
        if used == count:
            at: dict[str, Any] = {"own": self._own((yield from stream.save())), "inputs": []}
        else:
            at = {"from": {"own": self._own(mark), "inputs": []}, "skip": used}
        history = tuple(trainer.history[: len(trainer.history) - count + used])
        if trainer.client is self:
            trainer.saved = Saved({"plan": trainer.job.plan.digest, "at": at}, history)
            self.world.tell(self.name, "has saved", trainer.saved.state)

    def _own(self, state: dict[str, Any]) -> dict[str, Any]:
        job = self.trainer.job
        if job.name is None:
            return state
        client = self.stream.client if self.stream is not None else self.name
        extra = {"repetition": job.repetition, "clients": [client], "key": 7, "epoch": [1]}
        return {**extra, **state}

    def _open(self, state: dict[str, Any] | None) -> Program:
        trainer, job = self.trainer, self.trainer.job
        request = self._request(state, (yield from self._registered()))
        try:
            opened = yield from self.network.call(request)
        except NotFoundError:
            request = self._request(state, (yield from self._registered()))
            opened = yield from self.network.call(request)
        trainer.form, trainer.streams = opened.work.form, opened.work.streams

        def again() -> Program:
            yield from self._registered()
            streams = opened.work.streams if opened.work.form in ("share", "whole") else 0
            again = msgspec.structs.replace(request, streams=max(request.streams, streams))
            return (yield from self.network.call(again))

        return RemoteStream(
            *(self.network, self, request, opened, again, job.plan.shape),
            *(job.limits, job.ordered, state, self._rename),
        )

    def _rename(self, name: str) -> None:
        """The dispatcher took this one for dead: what it was not told of, others may get."""
        told = self._recorded(self.trainer)
        self.trainer.doubtful |= set(self.trainer.history) - told
        self.trainer.clients.append(name)

    def _registered(self) -> Program:
        plan = self.trainer.job.plan
        request = RegisterDataset(
            *(plan.digest, plan.digest, b"spec", plan.shape, plan.cardinality, plan.digest)
        )
        return (yield from self.network.call(request)).dataset_id

    def _request(self, state: dict[str, Any] | None, dataset_id: str) -> OpenIteration:
        trainer, job = self.trainer, self.trainer.job
        return OpenIteration(
            *(self.name, job.name, job.repetition, dataset_id, job.options, 7, (1,), self.host),
            *(trainer.consumer, trainer.group, tuple((state or {}).get("clients", ()))),
            streams=len(state["order"]["open"]) if state and "order" in state else 0,
            **(claimed(state) if state and "held" in state else {}),
        )
