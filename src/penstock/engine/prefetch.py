"""Prefetching: a thread pulls ahead of its consumer.

The thread ends when there is nothing for it to do: at the end of the data, at a failure (it starts
again if somebody pulls on), when the stream is closed, and when it is garbage collected. It never
holds a reference to the stream that its consumer holds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import Demand, Marked, Place
from penstock.engine.pool import Pool
from penstock.engine.tuning import Depth


class _Ahead:
    """What the prefetching thread and its consumer share."""

    def __init__(self, source: Stream, depth: Depth) -> None:
        self.marked = Marked(source)
        self.at = self.marked.place()
        self.depth = depth
        self.ready: deque[tuple[Place, Chunk | BaseException]] = deque()
        self.elements = 0
        self.changed = threading.Condition()
        self.stopping = False
        self.pulling = False
        self.notify: Callable[[], None] = lambda: None
        self.demand = Demand(nbytes=4 << 20)
        self.seconds_each = 1.0
        self.nbytes_each = 1.0

    def run(self) -> None:
        """Fills the buffer until it is told to stop, or an element fails, or there is no more."""
        while True:
            with self.changed:
                while not self.stopping and self.elements >= self.depth.elements:
                    self.changed.wait()
                if self.stopping:
                    return
                self.pulling = True
                room = self.depth.elements - self.elements
            place = self.at = self.marked.place()
            started = time.perf_counter()
            result: Chunk | BaseException
            try:
                result = self.marked.pull(min(room, self.demand.limit))
            except BaseException as error:
                # Whatever ends this thread must reach the consumer, who waits for something.
                result = error
            self._note(result, time.perf_counter() - started)
            with self.changed:
                self.pulling = False
                self.ready.append((place, result))
                if isinstance(result, Chunk):
                    self.elements += len(result)
                    self.at = place.after(len(result))
                self.changed.notify_all()
            self.notify()
            if not isinstance(result, Chunk):
                return

    def _note(self, result: Chunk | BaseException, seconds: float) -> None:
        if isinstance(result, Chunk):
            self.demand.record(result, seconds)
            self.seconds_each = seconds / len(result)
            self.nbytes_each = result.nbytes / len(result)

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            pulling = self.pulling
            self.changed.notify_all()
        self.notify()
        if pulling:  # A stream that nobody pulls from would take it for the next pull.
            self.marked.stream.interrupt()


class PrefetchStream(Stream):
    """The input, pulled by a thread, up to a number of elements ahead."""

    def __init__(self, source: Stream, depth: Depth) -> None:
        self.inputs = (source,)
        self._ahead = _Ahead(source, depth)
        self._pool = Pool(1, "penstock-prefetch", self._ahead.stop)
        self._running: Future[Any] | None = None
        self._place: Place | None = None
        self._rest: Chunk | None = None
        self._ended = False
        self._pool.stop_with(self)

    def start(self) -> None:
        """Begins to pull, before the consumer does."""
        if not self._ended:
            self._start()

    def notify(self, notify: Callable[[], None]) -> None:
        """Has `notify` called, by the thread, whenever `ready` may have become true."""
        self._ahead.notify = notify

    @property
    def ready(self) -> bool:
        """Whether a pull would not wait for the thread."""
        ahead = self._ahead
        return self._rest is not None or bool(ahead.ready) or self._ended or ahead.stopping

    def pull(self, limit: int) -> Chunk:
        if self._rest is None:
            self._place, self._rest = self._next()
        chunk, rest = self._rest.rows(0, limit), self._rest
        self._rest = rest.rows(limit, len(rest)) if len(rest) > limit else None
        self._place = self._place.after(len(chunk)) if self._place and self._rest else None
        self._release(len(chunk))
        return chunk

    def _next(self) -> tuple[Place, Chunk]:
        if self._ended:
            raise StopIteration
        ahead = self._ahead
        if not ahead.ready:
            self._start()
        with ahead.changed:
            if not ahead.ready:
                ahead.depth.starved(ahead.seconds_each, ahead.nbytes_each)
                ahead.changed.notify_all()
            while not ahead.ready:
                if ahead.stopping:
                    raise StopIteration  # Somebody else ends the iteration.
                ahead.changed.wait()
            place, result = ahead.ready.popleft()
        if isinstance(result, Chunk):
            return place, result
        self._stop()
        self._ended = isinstance(result, StopIteration)
        ahead.at = place.after(0 if self._ended else 1)
        raise result

    def _release(self, count: int) -> None:
        with self._ahead.changed:
            self._ahead.elements -= count
            self._ahead.changed.notify_all()

    def _start(self) -> None:
        self._pool.check()
        if self._running is None:
            self._ahead.stopping = False
            self._running = self._pool.submit(self._ahead.run)

    def _stop(self) -> None:
        self._pool.stop(join=True)
        self._running = None

    def save(self) -> State:
        """The input's state, as of what was handed on: prefetching leaves no trace in it."""
        if self._place is not None:
            return self._place.state
        with self._ahead.changed:
            return (self._ahead.ready[0][0] if self._ahead.ready else self._ahead.at).state

    def close(self) -> None:
        self._ended = True  # First, or another thread's `start` could start the thread again.
        self._stop()
        super().close()
