"""Tasks: what the connections of a worker read, and the lines that they read it from.

Nothing is made that nobody asked for, and a line that nobody reads is closed after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from penstock.element.chunk import Chunk
from penstock.engine.context import Environment
from penstock.engine.contract import Stream
from penstock.engine.trail import Trail
from penstock.errors import UnavailableError
from penstock.plan.nodes import Node
from penstock.service.host.failures import Fault, fault_of
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.worker_streams import KEPT, Depot, Item, Line, Quit, Recipe, recipe_of
from penstock.service.logic.production import Block, Stride, Want
from penstock.service.protocol import timing
from penstock.service.protocol.fetches import Mark
from penstock.service.protocol.messages import Work, WorkStatus


@dataclass(frozen=True, slots=True)
class Made:
    """Elements from `start` on, as the one who fetches counts them."""

    start: int
    chunk: Chunk
    mark: Mark | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Missed:
    """An element that could not be made."""

    ordinal: int
    fault: Fault
    place: int | None = None


class Tasks:
    """All lines of a worker, by what they make."""

    restarts = 0
    """How many processes were lost: this one runs all plans itself."""

    def __init__(
        self,
        plan: Callable[[str], Node],
        environment: Callable[[], Environment],
        address: str,
        kept: int = KEPT,
        runtime: Runtime = MACHINE,
    ) -> None:
        self.address = address
        self.depot = Depot(address, kept, runtime)
        self._plan = plan
        self._environment = environment
        self._closed = False

    def __len__(self) -> int:
        """How many streams somebody reads."""
        with self.depot.lock:
            return sum(line.readers > 0 for line in self.depot.lines.values())

    def open(self, work: Work) -> Task:
        """A task; what is wrong with its plan shows when it is fetched from."""
        return Task(self, work)

    def join(self, work: Work) -> Line:
        """The line that makes what `work` describes, with one reader more."""
        recipe = self._recipe(work)
        strided = recipe.random and work.consumers > 1
        name = work if strided else msgspec.structs.replace(work, consumer=-1)
        with self.depot.lock:
            if self._closed:
                raise UnavailableError("distribute: this worker stops; ask another one")
            line = self.depot.lines.get(name)
            if line is None:
                line = self.depot.lines[name] = Line(self.depot, name, recipe, work)
            line.readers += 1
            return line

    def _recipe(self, work: Work) -> Recipe:
        return recipe_of(self._plan(work.digest), work, self._environment())

    def leave(self, line: Line, finished: bool = False) -> None:
        """A reader less; it may have `finished`, and then nobody asks again for what is kept."""
        with self.depot.lock:
            line.readers -= 1
            line.idle_since = self.depot.runtime.now()
        if finished and line.over:
            self._close_idle(line)

    def tidy(self, jobs: Collection[str] | None = None) -> None:
        """Closes what nobody reads: at once if its job is over, else after a while."""
        with self.depot.lock:
            late = self.depot.runtime.now() - timing.IDLE_STREAM
            idle = [line for line in self.depot.lines.values() if not line.readers]
        for line in idle:
            if line.idle_since <= late or (jobs is not None and line.job not in jobs):
                self._close_idle(line)

    def _close_idle(self, line: Line) -> None:
        with self.depot.lock:
            if line.readers:
                return
            self.depot.forget(line)
        line.close()

    def statuses(self) -> tuple[WorkStatus, ...]:
        """What was done for every job since the last time this was asked."""
        found: dict[str, WorkStatus] = {}
        with self.depot.lock:
            for line in self.depot.lines.values():
                so_far = found.get(line.job, WorkStatus(line.job, 0, 0.0))
                found[line.job] = WorkStatus(
                    line.job,
                    so_far.elements + line.elements,
                    so_far.seconds + line.seconds,
                    so_far.buffered + line.production.shelf.nbytes,
                )
                line.elements, line.seconds = 0, 0.0
        return tuple(found.values())

    def close(self) -> None:
        """Ends all lines; who waits for them is told."""
        with self.depot.lock:
            self._closed = True
            lines = list(self.depot.lines.values())
        for line in lines:
            line.close()


class Task:
    """One connection's reading of a stream. Used by one thread."""

    def __init__(self, tasks: Tasks, work: Work) -> None:
        self._tasks = tasks
        self._timer = tasks.depot.runtime.timer
        self._work = work
        self._line: Line | None = None
        self._stride = Stride()
        self._stream: Stream | None = None
        self._at = self._stop = 0

    def fetch(
        self, start: int, stop: int, mark: Mark | None = None, horizon: int = 0, quit: Quit = bool
    ) -> Iterator[Made | Missed]:
        """Elements `start` to `stop`, as soon as they are made; until `quit` says yes.

        `horizon`: up to where it is known already that they will be fetched, one after the other.
        """
        line = self._joined()
        if line.alone:
            return self._own(line, start, stop, max(stop, horizon), quit)
        line.learn(mark)
        return self._shared(line, start, stop, quit)

    def length(self, stop: int) -> int | None:
        """How many elements there are, if that is known and a fetch up to `stop` reaches it."""
        length = None if self._line is None else self._line.production.length
        own = None if length is None else self._stride.count(length)
        return own if own is not None and own <= stop else None

    @property
    def trail(self) -> Trail:
        """What is known of the stream beside its elements."""
        return Trail() if self._line is None else self._line.trail

    def _joined(self) -> Line:
        if self._line is None:
            self._line = self._tasks.join(self._work)
            if self._work.consumers > 1 and not self._line.recipe.random:
                self._stride = Stride(self._work.consumers, self._work.consumer)
        return self._line

    def _shared(self, line: Line, start: int, stop: int, quit: Quit) -> Iterator[Made | Missed]:
        stride, number = self._stride, start
        want = Want(stride.ordinal(start), stride.ordinal(stop - 1) + 1, self._work.consumer)
        while number < stop:
            want.at = stride.ordinal(number)
            block = line.block(want, quit)
            if block is None:
                return
            yield (part := _part(block, stride, number, stop))
            number += len(part.chunk) if isinstance(part, Made) else 1

    def _own(
        self, line: Line, start: int, stop: int, horizon: int, quit: Quit
    ) -> Iterator[Made | Missed]:
        """Random access that is shared with nobody: no lock, nothing kept."""
        if self._stream is None or self._at != start or self._stop < stop:
            self._close_stream()
            self._at = start
        while self._at < stop and not quit():
            if self._stream is None:
                self._stream, self._stop = line.recipe.open(self._at, horizon), horizon
            part = self._next(self._stream, line, stop)
            if part is None:
                break
            yield part
        if self._at != stop or self._at >= self._stop:
            self._close_stream()

    def _next(self, stream: Stream, line: Line, stop: int) -> Made | Missed | None:
        at, started = self._at, self._timer()
        try:
            chunk = stream.pull(min(line.demand.limit, stop - at))
        except StopIteration:
            line.production.stopped(at)
            return None
        except Exception as error:
            self._at += 1
            return Missed(at, fault_of(error, self._tasks.address))
        seconds = self._timer() - started
        line.demand.record(chunk, seconds)
        line.did(len(chunk), seconds)
        self._at += len(chunk)
        return Made(at, chunk, None, seconds)

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close(self, finished: bool = False) -> None:
        """Reads no more, because it has `finished` or is gone; twice is fine."""
        self._close_stream()
        line, self._line = self._line, None
        if line is not None:
            self._tasks.leave(line, finished)


def _part(block: Block, stride: Stride, number: int, stop: int) -> Made | Missed:
    """What a block has for somebody who counts by `stride`, from element `number` on."""
    item: Item = block.item
    if isinstance(item.content, Fault):
        return Missed(number, item.content, item.place)
    first = stride.ordinal(number) - block.first
    last = min(block.stop, stride.ordinal(stop - 1) + 1) - block.first
    chunk = _picked(item.content, first, last, stride.of)
    begins = number == stride.count(block.first)
    mark = Mark(number, item.mark) if item.mark is not None and begins else None
    return Made(number, chunk, mark, item.seconds * len(chunk) / len(item.content))


def _picked(chunk: Chunk, first: int, last: int, step: int) -> Chunk:
    return chunk.rows(first, last) if step == 1 else chunk.take(np.arange(first, last, step))
