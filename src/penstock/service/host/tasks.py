"""Tasks: what each connection of a worker reads, from the worker's streams.

A worker computes only elements that a client fetched. It closes a stream without readers after a
while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from penstock.element.chunk import Chunk
from penstock.engine.context import Environment
from penstock.engine.contract import Stream
from penstock.engine.figures import Figures
from penstock.engine.state_values import ReceivedElements
from penstock.engine.trail import Trail
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import Node
from penstock.plan.shape import PARTIAL_FORMS
from penstock.service.host.data_connection import Connection
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.telemetry import SentTotals, Traffic, add_work
from penstock.service.host.worker_streams import (
    KEPT,
    CursorResult,
    IsCancelled,
    StreamPlan,
    StreamPool,
    WorkerStopsError,
    WorkerStream,
    plan_stream,
)
from penstock.service.logic.worker import Block, DecodedMark, Stride, WantedElements
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import LARGE_STATE, AddState, Fault, Mark, fault_of
from penstock.service.protocol.messages import Work, WorkerInfo, WorkStatus


@dataclass(frozen=True, slots=True)
class FetchedChunk:
    """Elements from `start` on, as the fetching consumer counts them."""

    start: int
    chunk: Chunk
    mark: Mark | None
    seconds: float


@dataclass(frozen=True, slots=True)
class FailedElement:
    """An element that could not be computed."""

    ordinal: int
    fault: Fault
    place: int | None = None
    """Its place among the inputs of an `interleave`, if it has one."""


Fetched = FetchedChunk | FailedElement


class Tasks:
    """The tasks of a worker, and the pool of streams that they read."""

    restarts = 0
    """How many plan processes crashed: none, because this process runs all plans itself."""

    def __init__(
        self,
        get_plan: Callable[[str], Node],
        environment: Callable[[], Environment],
        address: str,
        kept: int = KEPT,
        runtime: Runtime = MACHINE,
        connect: Callable[[WorkerInfo, Work], Connection] | None = None,
    ) -> None:
        self.address = address
        self.connect = connect
        """Connects to the worker that continues streams, if this one leaves."""
        self.pool = StreamPool(address, kept, runtime)
        self.traffic = Traffic()
        self._ended: list[WorkStatus] = []
        """What closed streams did since the last heartbeat; guarded by the lock of the pool."""
        self._get_plan = get_plan
        self._environment = environment
        self._closed = False
        """Guarded by the lock of the pool."""

    def __len__(self) -> int:
        """Counts the streams that have readers."""
        with self.pool.lock:
            return sum(stream.readers > 0 for stream in self.pool.streams.values())

    def open(self, work: Work) -> Task:
        """Returns a task; an error of its plan is raised by the first fetch."""
        return Task(self, work)

    def join(self, work: Work) -> WorkerStream:
        """Returns the stream that `work` describes, with one reader more."""
        plan = self._plan_stream(work)
        strided = plan.random and work.consumers > 1
        name = work if strided else msgspec.structs.replace(work, consumer=-1)
        with self.pool.lock:
            if self._closed:
                raise WorkerStopsError
            stream = self.pool.streams.get(name)
            if stream is None:
                stream = self.pool.streams[name] = WorkerStream(self.pool, name, plan, work)
            stream.readers += 1
            return stream

    def _plan_stream(self, work: Work) -> StreamPlan:
        return plan_stream(self._get_plan(work.digest), work, self._environment())

    def leave(self, stream: WorkerStream, finished: bool = False) -> None:
        """Removes a reader; a reader that `finished` does not fetch kept elements again."""
        with self.pool.lock:
            stream.readers -= 1
            stream.idle_since = self.pool.runtime.now()
        if finished and stream.is_finished:
            self._close_idle(stream)

    def tidy(self, jobs: Collection[str] | None = None) -> None:
        """Closes streams without readers: at once if `jobs` lacks their job, else after a while."""
        with self.pool.lock:
            now = self.pool.runtime.now()
            idle = [stream for stream in self.pool.streams.values() if not stream.readers]
        for stream in idle:
            # A reader may not have noticed yet that another worker has left.
            patience = timing.MOVED_STREAM if stream.moved_bytes else timing.IDLE_STREAM
            is_late = now - stream.idle_since >= patience
            if is_late or (jobs is not None and stream.job not in jobs):
                self._close_idle(stream)

    def _close_idle(self, stream: WorkerStream) -> None:
        with self.pool.lock:
            if stream.readers:
                return  # Another task has joined it meanwhile.
            self.pool.forget(stream)
            if stream.has_work:
                self._ended.append(stream.take_work())
        stream.close()

    @property
    def sent(self) -> SentTotals:
        """What was sent to clients."""
        return self.traffic.total

    def count_processes(self) -> int:
        """How many plan processes there are: none."""
        return 0

    def statuses(self) -> tuple[WorkStatus, ...]:
        """Returns the work that was done for every job since the last call."""
        with self.pool.lock:
            done, self._ended = self._ended, []
            for stream in self.pool.streams.values():
                kept = WorkStatus(stream.job, 0, 0.0, stream.production.blocks.nbytes)
                done.append(add_work(stream.take_work(), kept))
        found: dict[str, WorkStatus] = {}
        for status in done:
            so_far = found.get(status.job)
            found[status.job] = status if so_far is None else add_work(so_far, status)
        return tuple(found.values())

    def close(self) -> None:
        """Closes all streams; fetches that wait for them raise UnavailableError."""
        with self.pool.lock:
            self._closed = True
            streams = list(self.pool.streams.values())
        for stream in streams:
            stream.close()


class Task:
    """One connection's reading of a stream. Used by one thread."""

    def __init__(self, tasks: Tasks, work: Work) -> None:
        self._tasks = tasks
        self._timer = tasks.pool.runtime.timer
        self.work = work
        self._shared: WorkerStream | None = None
        self._stride = Stride()
        self._stream: Stream | None = None
        """The engine's stream of an unshared plan; it computes `_at` next and ends at `_stop`."""
        self._at = self._stop = 0
        self._received = ReceivedElements()
        """Elements of a state that a worker which leaves is sending."""
        self._was_idle = False
        self._idle_mark: Mark | None = None
        self._asked = 0
        """Every element before it was requested, or the client needs none of them."""
        self.is_move_known = False
        """Whether the client knows from where another worker continues."""

    def fetch(
        self,
        start: int,
        stop: int,
        mark: Mark | None = None,
        horizon: int = 0,
        is_cancelled: IsCancelled = bool,
    ) -> Iterator[Fetched]:
        """Yields elements `start` to `stop` as they are computed, until `is_cancelled` is true.

        The client has already asked for the elements up to `horizon`, in order.
        """
        shared = self._join()
        self._asked = stop
        if shared.is_unshared:
            return self._fetch_unshared(shared, start, stop, max(stop, horizon), is_cancelled)
        shared.add_mark(mark)
        return self._fetch_shared(shared, start, stop, is_cancelled)

    def length(self, stop: int) -> int | None:
        """Returns the number of elements, if it is known and a fetch up to `stop` reaches it."""
        length = None if self._shared is None else self._shared.production.length
        own = None if length is None else self._stride.count(length)
        return own if own is not None and own <= stop else None

    def take_figures(self) -> tuple[Figures, ...]:
        """What the operators of its stream have done since the last report to any client."""
        return () if self._shared is None else self._shared.plan.meters.take()

    def save_mark(self, number: int, most: int) -> Mark | None:
        """A mark before element `number`, if the stream is there and its state can travel.

        `most`: the bytes that the state may have.
        """
        if self._shared is None or self._shared.plan.random or self._stride.of > 1:
            return None
        state = self._shared.save_at(number, most)
        return None if state is None else Mark(number, state)

    @property
    def moving_stream(self) -> WorkerStream | None:
        """The stream, if it is computed in order and its state can move to another worker."""
        shared = self._shared
        return None if shared is None or shared.plan.random else shared

    def has_made(self, number: int) -> bool:
        """Whether the stream keeps element `number`, so that it can be sent at once."""
        shared = self._shared
        return shared is not None and shared.has_block(self._stride.ordinal(number))

    def is_behind(self, mark: Mark) -> bool:
        """Whether its client has not yet requested all that was made before a mark.

        Other consumers of a coordinated read have these elements already.
        """
        return self._stride.of > 1 and self._asked < self._stride.count(mark.ordinal)

    def renumber(self, mark: Mark) -> Mark:
        """A mark of the stream, before the first element of this task that is behind it."""
        return msgspec.structs.replace(mark, ordinal=self._stride.count(mark.ordinal))

    def save_idle_mark(self) -> Mark | None:
        """A mark where the stream was idle when this was called first, if its state is small."""
        if not self._was_idle and self.moving_stream is not None:
            at = self.moving_stream.find_idle()
            self._was_idle = at is not None
            self._idle_mark = None if at is None else self.save_mark(at, LARGE_STATE)
        return self._idle_mark

    def add_state(self, part: AddState) -> None:
        """Adds a part of the stream's state, which a worker that leaves has sent."""
        shared = self._join()
        if self.moving_stream is None:
            raise InvalidArgumentError("distribute: this stream continues anywhere without a state")
        self._tasks.pool.reserve(shared, len(part.elements))
        try:
            if part.cached is not None:
                shared.add_cached(part.cached)
            if part.elements:
                self._received.add(msgspec.msgpack.decode(part.elements))
            if part.mark is not None:
                state = self._received.resolve(msgspec.msgpack.decode(part.mark.state))
                shared.add_state(DecodedMark(part.mark.ordinal, state, small=False))
        except (msgspec.MsgspecError, TypeError) as error:
            raise InvalidArgumentError(f"distribute: a damaged state ({error})") from None

    @property
    def is_partial(self) -> bool:
        """Whether the worker does not know how many elements come before those of its stream."""
        return self.work.form in PARTIAL_FORMS

    @property
    def used(self) -> dict[str, int] | None:
        """At the end of a piece: how many elements its operators have used, by their keys."""
        return None if self._shared is None else self._shared.used

    @property
    def trail(self) -> Trail:
        """What the stream has found out about its source."""
        return Trail() if self._shared is None else self._shared.trail

    def _join(self) -> WorkerStream:
        if self._shared is None:
            self._shared = self._tasks.join(self.work)
            if self.work.consumers > 1 and not self._shared.plan.random:
                self._stride = Stride(self.work.consumers, self.work.consumer)
        return self._shared

    def _fetch_shared(
        self, shared: WorkerStream, start: int, stop: int, is_cancelled: IsCancelled
    ) -> Iterator[Fetched]:
        stride, number = self._stride, start
        want = WantedElements(
            stride.ordinal(start), stride.ordinal(stop - 1) + 1, self.work.consumer
        )
        while number < stop:
            want.at = stride.ordinal(number)
            block = shared.get_block(want, is_cancelled)
            if block is None:
                return
            yield (part := _cut_block(block, stride, number, stop))
            number += len(part.chunk) if isinstance(part, FetchedChunk) else 1

    def _fetch_unshared(
        self,
        shared: WorkerStream,
        start: int,
        stop: int,
        horizon: int,
        is_cancelled: IsCancelled,
    ) -> Iterator[Fetched]:
        """Random access for this task alone: no lock, and nothing is kept."""
        if self._stream is None or self._at != start or self._stop < stop:
            self._close_stream()
            self._at = start
        while self._at < stop and not is_cancelled():
            if self._stream is None:
                self._stream, self._stop = shared.plan.open(self._at, horizon), horizon
            part = self._pull(self._stream, shared, stop)
            if part is None:
                break
            yield part
        if self._at != stop or self._at >= self._stop:
            self._close_stream()

    def _pull(self, stream: Stream, shared: WorkerStream, stop: int) -> Fetched | None:
        at, started = self._at, self._timer()
        try:
            with shared.running():
                chunk = stream.pull(min(shared.demand.limit, stop - at))
        except StopIteration:
            shared.production.record_length(at)
            return None
        except WorkerStopsError:
            raise
        except Exception as error:
            self._at += 1
            self._tasks.pool.failures.note(error, shared.job)
            return FailedElement(at, fault_of(error, self._tasks.address))
        seconds = self._timer() - started
        shared.demand.record(chunk, seconds)
        shared.record_work(len(chunk), seconds, chunk.nbytes)
        self._at += len(chunk)
        return FetchedChunk(at, chunk, None, seconds)

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close(self, finished: bool = False) -> None:
        """Leaves the stream: the client has `finished` it, or is gone. May be repeated."""
        self._close_stream()
        shared, self._shared = self._shared, None
        if shared is not None:
            self._tasks.leave(shared, finished)


def _cut_block(block: Block, stride: Stride, number: int, stop: int) -> Fetched:
    """Returns the part of a block from element `number` up to `stop`, which count by `stride`."""
    result: CursorResult = block.item
    if isinstance(result.content, Fault):
        return FailedElement(number, result.content, result.place)
    first = stride.ordinal(number) - block.first
    last = min(block.stop, stride.ordinal(stop - 1) + 1) - block.first
    if stride.of == 1:
        chunk = result.content.rows(first, last)
    else:
        chunk = result.content.take(np.arange(first, last, stride.of))
    begins = number == stride.count(block.first)
    mark = Mark(number, result.mark) if result.mark is not None and begins else None
    return FetchedChunk(number, chunk, mark, result.seconds * len(chunk) / len(result.content))
