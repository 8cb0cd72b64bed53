"""Prefetching: a thread pulls ahead of its caller.

The thread ends at the end of the data, at a failure (the next pull starts it again), when the
stream is closed, and when the stream is garbage collected. It must not hold a reference to the
stream that the caller holds, or that stream would never be collected.

A source that is expected to be short (`Brevity`) is pulled in the caller's thread when its turn
comes, until it has taken more time than a thread costs.
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
from penstock.engine.endings import is_collecting
from penstock.engine.inlets import Demand, MarkedInput, Place
from penstock.engine.pool import Pool
from penstock.engine.tuning import HANDOVER, Brevity, Depth

_LOOK_SECONDS = 1.0
"""How often a thread that waits for room looks whether the garbage collector has stopped it."""


class _Ahead:
    """What the prefetching thread and its caller share.

    `changed` guards `ready`, `elements`, `depth`, `stopping` and `pulling`. The source belongs to
    the thread while it runs, and to the caller after `Pool.stop(join=True)`; so do the other
    fields, which the caller may read at any time: an old value of them is good enough, except for
    `at`.
    """

    def __init__(self, source: Stream, depth: Depth) -> None:
        self.changed = threading.Condition()
        self.depth = depth
        self.ready: deque[tuple[Place, Chunk | BaseException]] = deque()
        self.elements = 0
        """How many elements were pulled and not handed on."""
        self.stopping = False
        self.pulling = False
        """Whether the thread is inside a pull, so that `interrupt` reaches that pull."""
        self.marked = MarkedInput(source)
        self.at = self.marked.place()
        """The place behind the last result in `ready`. Exact states rest on it: it may be replaced
        outside the lock, because the old and the new value then name the same place."""
        self.notify: Callable[[], None] = lambda: None
        self.demand = Demand(nbytes=4 << 20)
        self.cpu_seconds = 0.0
        """The processor time that threads have spent on this source."""

    def run(self) -> None:
        """Fills the buffer until `stopping` is set, an element fails, or the source ends."""
        began = time.thread_time() - self.cpu_seconds
        while True:
            with self.changed:
                self._wait_for_room()
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
                # Also KeyboardInterrupt and the like: the caller waits for a result.
                result = error
            seconds = time.perf_counter() - started
            if isinstance(result, Chunk):
                self.demand.record(result, seconds)
            with self.changed:
                self.pulling = False
                self.cpu_seconds = time.thread_time() - began
                self.ready.append((place, result))
                if isinstance(result, Chunk):
                    self.elements += len(result)
                    self.depth.note_made(len(result), seconds, result.nbytes)
                    self.at = place.after(len(result))
                self.changed.notify_all()
            self.notify()
            if not isinstance(result, Chunk):
                return

    def _wait_for_room(self) -> None:
        """Blocks until an element may be pulled, or `stopping` is set; called under the lock."""
        if self.elements < self.depth.elements:
            return
        started = time.perf_counter()
        while not self.stopping and self.elements >= self.depth.elements:
            self.changed.wait(_LOOK_SECONDS)
        self.depth.note_blocked(time.perf_counter() - started)

    def wait_until_ready(self) -> None:
        """Blocks until there is a result, or `stopping` is set; called under the lock."""
        if self.ready:
            return
        started = time.perf_counter()
        while not self.ready and not self.stopping:
            self.changed.wait()
        self.depth.note_starved(time.perf_counter() - started)

    def stop(self) -> None:
        """Makes `run` return.

        The garbage collector may call this in the middle of anything, also of `notify`. Then it
        takes no lock: the thread sees the flag after its pull, or within a second.
        """
        if is_collecting():
            self.stopping = True
            return
        with self.changed:
            self.stopping = True
            pulling = self.pulling
            self.changed.notify_all()
        self.notify()
        remote = self.marked.stream.remote
        if pulling and remote is not None:
            # Only then: else the stream would apply the interruption to the next pull.
            remote.interrupt()


class PrefetchStream(Stream):
    """The input, pulled by a thread, up to a number of elements ahead.

    All fields belong to the caller; `_ahead` is what the thread sees.
    """

    def __init__(self, source: Stream, depth: Depth, brevity: Brevity | None = None) -> None:
        self.inputs = (source,)
        self._ahead = _Ahead(source, depth)
        self._brevity = brevity
        self._is_here = False
        """Whether the caller's thread pulls, because the source is expected to be short."""
        self._seconds_here = 0.0
        self._pool = Pool(1, "penstock-prefetch", self._ahead.stop)
        self._running: Future[Any] | None = None
        self._place: Place | None = None
        self._rest: Chunk | None = None
        self._ended = False
        self._pool.stop_with(self)

    def start(self) -> None:
        """Begins to pull, before the caller does, unless the source is expected to be short."""
        if self._running is None and not self._ended:
            self._is_here = self._brevity is not None and self._brevity.expect()
            if not self._is_here:
                self._start()

    def notify(self, notify: Callable[[], None]) -> None:
        """Makes the thread call `notify` whenever `ready` may have become true."""
        self._ahead.notify = notify

    @property
    def ready(self) -> bool:
        """Whether a pull would not wait for the thread."""
        ahead = self._ahead
        waits = self._rest is None and not ahead.ready and not self._is_here
        return not waits or self._ended or ahead.stopping

    @property
    def has_read_all(self) -> bool:
        """Whether the thread has seen the end."""
        ready = self._ahead.ready
        return bool(ready) and isinstance(ready[-1][1], StopIteration)

    def pull(self, limit: int) -> Chunk:
        if self._rest is None:
            self._place, self._rest = self._next_result()
        chunk, rest = self._rest.rows(0, limit), self._rest
        self._rest = rest.rows(limit, len(rest)) if len(rest) > limit else None
        self._place = self._place.after(len(chunk)) if self._place and self._rest else None
        self._release(len(chunk))
        return chunk

    def _next_result(self) -> tuple[Place, Chunk]:
        if self._ended:
            raise StopIteration
        ahead = self._ahead
        if self._is_here:
            return self._pull_here()
        if not ahead.ready:
            self._start()
        with ahead.changed:
            ahead.wait_until_ready()
            if not ahead.ready:
                raise StopIteration  # Another thread closes the iteration.
            place, result = ahead.ready.popleft()
        if isinstance(result, Chunk):
            return place, result
        self._stop()
        self._ended = isinstance(result, StopIteration)
        ahead.at = place.after(0 if self._ended else 1)
        if self._ended and self._brevity is not None and not self._seconds_here:
            self._brevity.note_ahead(ahead.cpu_seconds)
        raise result

    def _pull_here(self) -> tuple[Place, Chunk]:
        """Pulls in the caller's thread; starts a thread if the source turns out to be long."""
        ahead = self._ahead
        place = ahead.at = ahead.marked.place()
        started = time.perf_counter()
        try:
            chunk = ahead.marked.pull(ahead.depth.elements)
        except StopIteration:
            self._ended = True
            raise
        except Exception:
            ahead.at = place.after(1)
            raise
        finally:
            self._note_here(time.perf_counter() - started)
        ahead.at = place.after(len(chunk))
        ahead.elements += len(chunk)
        if not self._is_here:
            self._start()
        return place, chunk

    def _note_here(self, seconds: float) -> None:
        self._seconds_here += seconds
        if self._ended or self._seconds_here > HANDOVER:
            self._is_here = False
            if self._brevity is not None:
                self._brevity.note_here(self._seconds_here)

    def _release(self, count: int) -> None:
        with self._ahead.changed:
            self._ahead.elements -= count
            self._ahead.changed.notify_all()

    def _start(self) -> None:
        self._pool.check()
        if self._running is None and not self._ended:
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
