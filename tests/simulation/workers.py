"""Workers: the real production of streams, behind connections that are programs on the clock.

What a stream is made of is known beforehand; making it takes time, and marks are real places to
begin at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import OpError, UnavailableError
from penstock.service.host.control import refusal
from penstock.service.logic.keeping import Block, Known, Pace, Stock
from penstock.service.logic.production import (
    TAIL,
    Cursor,
    End,
    Make,
    Production,
    Serve,
    Stride,
    Wait,
    Want,
)
from penstock.service.protocol.fetches import (
    Cancel,
    CloseTask,
    Done,
    Failed,
    Fetch,
    Impossible,
    Mark,
    OpenTask,
    Rows,
)
from penstock.service.protocol.messages import (
    PROTOCOL,
    LeaveWorker,
    RegisterWorker,
    Work,
    WorkerBeat,
    WorkerInfo,
    WorkStatus,
)
from tests.simulation.elements import pack
from tests.simulation.kernel import Bell, Process, Program, Violation
from tests.simulation.network import Endpoint, Network
from tests.simulation.plans import Dataset, element, share_of

BEAT = 1.0
_GRACE = 10.0
_POLL = 0.05


@dataclass(frozen=True)
class Item:
    """What a cursor gave in one go, or the one element that fails; and a mark before it."""

    values: tuple[int, ...] | int
    mark: bytes | None


class Entry:
    """One stream of a worker, shared by all connections that read it."""

    def __init__(self, name: Hashable, work: Work, plan: Dataset) -> None:
        self.name = name
        self.work = work
        self.plan = plan
        self.random = plan.shape.kind == "random"
        self.changed = Bell()
        self.limit = 1
        self.readers = 0
        self.idle_since = 0.0
        self.elements, self.seconds = 0, 0.0
        strided = work.consumers > 1
        self.strided = strided and self.random
        pace = Pace(work.consumers) if strided and not self.random else None
        kept = work.kept and not (strided and self.random)
        self.production = Production(self.random, kept, pace, self.length)

    @property
    def alone(self) -> bool:
        return self.random and not self.production.kept

    @property
    def length(self) -> int:
        """The truth about it."""
        length = self.plan.length(self.work.stream)
        if self.strided:
            return share_of(length, self.work.consumers, self.work.consumer)
        return length

    def value(self, ordinal: int) -> int:
        if self.strided:
            ordinal = ordinal * self.work.consumers + self.work.consumer
        return element(self.work.stream, ordinal)

    def made(self, at: int, most: int) -> tuple[tuple[int, ...] | int, float]:
        """Elements from `at` on, none at the end, or one that fails; and the time it takes."""
        stop = min(at + min(most, self.limit), self.length)
        values: list[int] = []
        for ordinal in range(at, stop):
            value = self.value(ordinal)
            if value in self.plan.failing:
                if values:
                    break
                return value, self.plan.seconds
            values.append(value)
        self.limit = min(16, 2 * self.limit)
        return tuple(values), self.plan.seconds * len(values)


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
        try:
            yield from self.network.call(WorkerBeat(self.info.worker, (), True), 5.0)
        except UnavailableError:
            pass
        until = self.world.now + 10.0
        while self.inside and self.world.now < until:
            yield _POLL
        try:
            yield from self.network.call(LeaveWorker(self.info.worker), 0.5)
        except UnavailableError:
            pass
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


class Serving:
    """What a worker does for one connection."""

    def __init__(self, worker: Worker, end: Endpoint) -> None:
        self._worker = worker
        self._end = end
        self._works: dict[int, Work] = {}
        self._entries: dict[int, Entry] = {}
        self._waiting: deque[Any] = deque()
        self._taken: set[int] = set()
        self._cancelled: set[int] = set()

    def run(self) -> Program:
        try:
            while True:
                self._look()
                while not self._waiting:
                    yield self._end.bell, None
                    self._look()
                yield from self._handle(self._waiting.popleft())
        except OpError:
            pass
        finally:
            self._close()

    def _look(self) -> None:
        while (received := self._end.receive()) is not None:
            message = received[0]
            if isinstance(message, Cancel):
                self._cancelled.add(message.request)
            elif isinstance(message, Fetch) and not self._worker.draining:
                self._taken.add(message.request)
                self._worker.inside += 1
            self._waiting.append(message)

    def _handle(self, message: Any) -> Program:
        match message:
            case OpenTask(number, work):
                self._leave(number)
                self._works[number] = work
            case CloseTask(number):
                self._leave(number)
            case Fetch(request):
                if request not in self._taken:
                    error = refusal(UnavailableError("this worker is about to stop"))
                    self._end.send(Impossible(request, error.kind, error.message, True))
                    return
                try:
                    yield from self._answer(message)
                finally:
                    self._taken.discard(request)
                    self._worker.inside -= 1

    def _answer(self, fetch: Fetch) -> Program:
        entry = self._entries.get(fetch.task)
        if entry is None:
            entry = self._entries[fetch.task] = self._worker.entry(self._works[fetch.task])
        if entry.alone:
            yield from self._own(entry, fetch)
            share = Stride()
        else:
            share = self._stride(self._works[fetch.task], entry)
            self._learn(entry, fetch.mark)
            yield from self._shared(entry, fetch, share)
        length = entry.production.length
        own = None if length is None else share.count(length)
        self._end.send(Done(fetch.request, own if own is not None and own <= fetch.stop else None))

    def _stride(self, work: Work, entry: Entry) -> Stride:
        return (
            Stride(work.consumers, work.consumer)
            if work.consumers > 1 and not entry.random
            else Stride()
        )

    def _learn(self, entry: Entry, mark: Mark | None) -> None:
        if mark is not None and not entry.random:
            ordinal, state = msgspec.msgpack.decode(mark.state)
            entry.production.marks.add(Known(ordinal, state))

    def _own(self, entry: Entry, fetch: Fetch) -> Program:
        at = fetch.start
        while at < fetch.stop:
            values, seconds = entry.made(at, fetch.stop - at)
            yield seconds + 0.0001
            self._look()
            if values == ():
                entry.production.stopped(at)
                return
            at += self._send(fetch.request, at, values, None, seconds)

    def _shared(self, entry: Entry, fetch: Fetch, share: Stride) -> Program:
        work = self._works[fetch.task]
        want = Want(share.ordinal(fetch.start), share.ordinal(fetch.stop - 1) + 1, work.consumer)
        number = fetch.start
        while number < fetch.stop:
            want.at = share.ordinal(number)
            block = yield from self._block(entry, want)
            if block is None:
                return
            number += self._part(fetch, block, share, number)

    def _block(self, entry: Entry, want: Want) -> Program:
        worker = self._worker
        while True:
            self._look()
            match entry.production.step(want, worker.world.now, worker.allowance()):
                case Serve(block):
                    worker.stock.touch(entry.name, block.start)
                    return block
                case End():
                    return None
                case Wait():
                    yield entry.changed, _POLL
                case Make(cursor, most):
                    made = yield from self._make(entry, cursor, most)
                    if made is not None and made.start <= want.at < made.stop:
                        return made

    def _make(self, entry: Entry, cursor: Cursor, most: int) -> Program:
        if cursor.stream is None:
            if (cursor.state or 0) != cursor.at:
                raise Violation(f"a stream is opened at {cursor.state} to give {cursor.at}")
            cursor.stream = True
        mark = self._mark(entry, cursor)
        values, seconds = entry.made(cursor.at, most)
        yield seconds + 0.0001
        cursor.frames += 1
        if values == ():
            entry.production.ended(cursor)
            entry.changed.ring()
            return None
        count = 1 if isinstance(values, int) else len(values)
        item = Item(values, mark)
        block, kept = entry.production.made(cursor, count, 8 * count, item)
        entry.elements += count
        entry.seconds += seconds
        if kept is not None and entry.name in self._worker.entries:
            self._worker.keep(entry, kept)
        entry.changed.ring()
        return block

    def _mark(self, entry: Entry, cursor: Cursor) -> bytes | None:
        if entry.random or cursor.frames < 3:
            return None
        cursor.frames = 0
        entry.production.marks.add(Known(cursor.at, cursor.at))
        return msgspec.msgpack.encode((cursor.at, cursor.at))

    def _part(self, fetch: Fetch, block: Block, share: Stride, number: int) -> int:
        item: Item = block.item
        if isinstance(item.values, int):
            return self._send(fetch.request, number, item.values, None, 0.0)
        first = share.ordinal(number) - block.first
        last = min(block.stop, share.ordinal(fetch.stop - 1) + 1) - block.first
        values = item.values[first : last : share.of]
        begins = number == share.count(block.first)
        mark = Mark(number, item.mark) if item.mark is not None and begins else None
        return self._send(fetch.request, number, values, mark, 0.001)

    def _send(
        self, request: int, start: int, values: tuple[int, ...] | int, mark: Any, seconds: float
    ) -> int:
        if isinstance(values, int):
            self._end.send(Failed(request, start, "InvalidArgumentError", str(values)))
            return 1
        columns, body = pack(values)
        rows = Rows(request, start, len(values), columns, -1, len(body), "", mark, seconds)
        self._end.send(rows, body)
        return len(values)

    def _leave(self, number: int) -> None:
        self._works.pop(number, None)
        entry = self._entries.pop(number, None)
        if entry is not None:
            entry.readers -= 1
            entry.idle_since = self._worker.world.now

    def _close(self) -> None:
        for number in list(self._works):
            self._leave(number)
        self._worker.inside -= len(self._taken)
        self._end.close()
