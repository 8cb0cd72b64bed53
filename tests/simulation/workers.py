"""Workers: processes that register, beat, keep what they made, drain and die.

What a stream is made of is known beforehand; making it takes time, and marks are real places to
begin at.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

import msgspec

from penstock.errors import UnavailableError
from penstock.service.logic.keeping import Block, Stock
from penstock.service.logic.production import TAIL
from penstock.service.protocol.messages import (
    PROTOCOL,
    LeaveWorker,
    RegisterWorker,
    Work,
    WorkerBeat,
    WorkerInfo,
    WorkStatus,
)
from tests.simulation.entries import Entry
from tests.simulation.kernel import Process, Program, Violation
from tests.simulation.network import Endpoint, Network
from tests.simulation.plans import Dataset
from tests.simulation.serving import Serving

BEAT = 1.0
_GRACE = 10.0
_POLL = 0.05


class Worker(Process):
    """A worker process, from its first word to its end."""

    def __init__(
        self,
        network: Network,
        name: str,
        where: str,
        host: str,
        plans: dict[str, Dataset],
        kept: int,
    ) -> None:
        super().__init__(network.world, name)
        self.network = network
        self.plans = plans
        self.info = WorkerInfo(name, where, host, {"tcp": where})
        self.stock = Stock(kept)
        self.entries: dict[Hashable, Entry] = {}
        self.connections: list[Endpoint] = []
        self.draining = False
        self.inside = 0
        """Fetches that were taken on."""
        network.listeners[where] = self
        self.world.tell(f"{name} starts at {where}")
        self.spawn(self._live())

    # Life

    def _live(self) -> Program:
        register = RegisterWorker(self.info, PROTOCOL, "", "")
        while True:
            try:
                yield from self.network.call(register)
                break
            except UnavailableError:
                continue
        while True:
            yield BEAT
            try:
                beat = WorkerBeat(self.info.worker, self._statuses(), self.draining)
                beaten = yield from self.network.call(beat, 5.0)
                if not beaten.known:
                    yield from self.network.call(register, 5.0)
                self._tidy(beaten.jobs)
            except UnavailableError:
                pass

    def _statuses(self) -> tuple[WorkStatus, ...]:
        statuses = []
        for entry in self.entries.values():
            statuses.append(WorkStatus(entry.work.job, entry.elements, entry.seconds))
            entry.elements, entry.seconds = 0, 0.0
        return tuple(statuses)

    def _tidy(self, jobs: tuple[str, ...] | None) -> None:
        for entry in [entry for entry in self.entries.values() if not entry.readers]:
            over = jobs is not None and entry.work.job not in jobs
            if over or self.world.now - entry.idle_since >= _GRACE:
                del self.entries[entry.name]
                self.stock.clear(entry.name)

    def crash(self, silently: bool = False) -> None:
        """Dies. `silently`: its host goes with it, so that nobody is told."""
        self.world.tell(f"{self.name} dies{' silently' * silently}")
        self.kill()
        if self.network.listeners.get(self.info.address) is self:
            del self.network.listeners[self.info.address]
        for end in self.connections:
            end.vanish() if silently else end.close()

    def drain(self) -> None:
        """Answers what it was asked, says goodbye and ends."""
        self.world.tell(f"{self.name} drains")
        self.draining = True
        self.spawn(self._leave())

    def _leave(self) -> Program:
        with suppress(UnavailableError):
            yield from self.network.call(WorkerBeat(self.info.worker, (), True), 5.0)
        until = self.world.now + 10.0
        while self.inside and self.world.now < until:
            yield _POLL
        with suppress(UnavailableError):
            yield from self.network.call(LeaveWorker(self.info.worker), 0.5)
        self.crash()

    # Connections

    def accept(self, end: Endpoint) -> None:
        self.connections = [other for other in self.connections if not other.broken] + [end]
        self.spawn(Serving(self, end).run())

    def entry(self, work: Work) -> Entry:
        plan = self.plans[work.digest]
        strided = plan.shape.kind == "random" and work.consumers > 1
        name = work if strided else msgspec.structs.replace(work, consumer=-1)
        entry = self.entries.get(name)
        if entry is None:
            if work.consumers and not 0 <= work.consumer < work.consumers:
                raise Violation(f"a fetch of consumer {work.consumer} of {work.consumers}")
            entry = self.entries[name] = Entry(name, work, plan)
        entry.readers += 1
        return entry

    def keep(self, entry: Entry, block: Block) -> None:
        production = entry.production
        if production.pace is None:
            self.stock.add(entry.name, block.start, block.nbytes)
        for start in production.spare():
            production.shelf.drop(start)
            self.stock.remove(entry.name, start)
        for name, start in self.stock.excess():
            self.entries[name].production.shelf.drop(start)
            self.stock.remove(name, start)
        if self.stock.nbytes > self.stock.limit:
            raise Violation(f"{self.name} keeps {self.stock.nbytes} of {self.stock.limit} bytes")

    def allowance(self) -> int:
        paced = sum(entry.production.pace is not None for entry in self.entries.values())
        return TAIL + self.stock.limit // max(1, paced)
