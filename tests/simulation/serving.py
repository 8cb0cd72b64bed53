"""Serving: what a simulated worker does for one connection, with the real production."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import OpError, UnavailableError
from penstock.service.host.control import refusal
from penstock.service.logic.keeping import Block, Known
from penstock.service.logic.production import Cursor, End, Make, Serve, Stride, Wait, Want
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
from penstock.service.protocol.messages import Work
from tests.simulation.elements import pack
from tests.simulation.entries import Entry, Item
from tests.simulation.kernel import Program, Violation
from tests.simulation.network import Endpoint

if TYPE_CHECKING:
    from tests.simulation.workers import Worker

_POLL = 0.05


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
