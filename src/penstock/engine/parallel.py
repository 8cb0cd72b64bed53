"""Threads: prefetching and parallel calls. The only owner of threads in the engine.

Threads end when there is nothing for them to do: at the end of the data, at a failure (they start
again if somebody pulls on), when the stream is closed, and when it is garbage collected. A thread
never holds a reference to the stream that its consumer holds.
"""

from __future__ import annotations

import contextvars
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from penstock.element import columns
from penstock.element.chunk import Chunk
from penstock.element.index import Array
from penstock.engine.calls import Calls, Failed
from penstock.engine.results import Results, as_results
from penstock.engine.stream import BUDGET, Demand, Feed, Marked, Place, State, Stream
from penstock.engine.tuning import Depth, Parallelism

_JOIN_SECONDS = 5.0
_WORTH_SHARING = 2 << 20


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
                self.ready.append((place, result))
                if isinstance(result, Chunk):
                    self.elements += len(result)
                    self.at = place.after(len(result))
                self.changed.notify_all()
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
            self.changed.notify_all()


class PrefetchStream(Stream):
    """The input, pulled by a thread, up to a number of elements ahead."""

    def __init__(self, source: Stream, depth: Depth) -> None:
        self.inputs = (source,)
        self._ahead = _Ahead(source, depth)
        self._thread: threading.Thread | None = None
        self._place: Place | None = None
        self._rest: Chunk | None = None
        self._ended = False
        weakref.finalize(self, self._ahead.stop)

    def warm(self) -> None:
        self._start()

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
        if self._thread is not None:
            return
        self._ahead.stopping = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._ahead.run,), name="penstock-prefetch", daemon=True
        )
        self._thread.start()

    def _stop(self) -> None:
        self._ahead.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        self._thread = None

    def save(self) -> State:
        """The input's state, as of what was handed on: prefetching leaves no trace in it."""
        if self._place is not None:
            return self._place.state
        with self._ahead.changed:
            return (self._ahead.ready[0][0] if self._ahead.ready else self._ahead.at).state

    def close(self) -> None:
        self._stop()
        self._ended = True
        super().close()


class _Pool:
    """Threads for calls, made when first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._most, "penstock-calls")
        context = contextvars.copy_context()
        return self._executor.submit(context.run, call, *arguments)

    def stop(self, join: bool = False) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=join, cancel_futures=False)


class Gather:
    """Gathers rows from an array; many bytes by several threads, each a part of the result."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = _Pool(max(1, threads - 1))
        weakref.finalize(self, self._pool.stop)

    def __call__(self, column: columns.Column, indices: Array) -> columns.Column:
        if type(column) is not np.ndarray or self._threads < 2 or column.dtype.hasobject:
            return columns.take(column, indices)
        row = column.nbytes // max(len(column), 1)
        if row * len(indices) < _WORTH_SHARING or len(indices) < 2 * self._threads:
            return columns.take(column, indices)
        out = np.empty((len(indices), *column.shape[1:]), column.dtype)
        cuts = [len(indices) * i // self._threads for i in range(self._threads + 1)]
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        others = [self._pool.submit(_take_into, column, indices[p], out[p]) for p in parts[1:]]
        _take_into(column, indices[parts[0]], out[parts[0]])
        for other in others:
            other.result()
        return out

    def stop(self) -> None:
        self._pool.stop(join=True)


def _take_into(column: Array, indices: Array, out: Array) -> None:
    # NumPy checks bounds before it copies unless told otherwise, and then through a buffer.
    np.take(column, indices, 0, out, "clip")


class _Work:
    """What a thread does: calls a function on some elements, and learns how many to take."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.rows = 1

    def __call__(self, rows: Chunk, ordinal: int) -> list[Any]:
        started = time.perf_counter()
        made = as_results(self._calls.all(rows, ordinal))
        each = (time.perf_counter() - started) / len(rows)
        fits = int(BUDGET / max(each, 1e-7))
        self.rows = max(1, min(fits, 2 * len(rows), 1024))
        return made


class _Task:
    """Some elements on their way through a function."""

    def __init__(self, place: Place, first: int, size: int, future: Future[Any]) -> None:
        self.place = place
        self.first = first
        self.size = size
        self.future = future


class _Log(list[int]):
    """The numbers of elements, in the order in which they were handed on after a state was saved."""


class ParallelMapStream(Stream):
    """A function of every element, several at once.

    In order, unless order is not asked for: then as they are ready. A state then names the
    elements that were handed on before their turn, and remembers in which order more of them
    followed it: places are counted from states, so an opened one begins with the same order.
    """

    def __init__(
        self,
        source: Stream,
        calls: Calls,
        arguments: Callable[[Chunk, int], Chunk],
        parallelism: Parallelism,
        ordered: bool,
        state: State,
    ) -> None:
        self.inputs = (source,)
        self._feed = Feed(source)
        self._work = _Work(calls)
        self._arguments = arguments
        self._parallelism = parallelism
        self._ordered = ordered
        self._ordinal: int = state[0]
        self._done = sorted(tuple(span) for span in state[1])
        self._again: deque[int] = deque(state[2])
        self._logs: list[weakref.ref[_Log]] = []
        self._results = Results(calls.where, self._ordinal)
        self._tasks: deque[_Task] = deque()
        self._task: _Task | None = None
        self._ended = False
        self._pool = _Pool(parallelism.most)
        self._measured = (time.perf_counter(), 0)
        self._nbytes_each = 0.0
        weakref.finalize(self, self._pool.stop)

    def pull(self, limit: int) -> Chunk:
        while not len(self._results):
            self._finish_task()
            self._submit()
            if not self._tasks:
                self._pool.stop()
                raise StopIteration
            self._take(self._next_task())
        first = self._results.ordinal
        try:
            chunk = self._results.hand_on(limit)
        except Exception:
            self._log(first)
            self._pool.stop(join=True)
            raise
        self._log(first)
        self._nbytes_each = chunk.nbytes / len(chunk)
        return chunk

    def _log(self, first: int) -> None:
        """Remembers what was handed on, from number `first`, for states that were saved before."""
        if self._logs:
            kept = [(ref, log) for ref in self._logs if (log := ref()) is not None]
            for _, log in kept:
                log.extend(range(first, self._results.ordinal))
            self._logs = [ref for ref, _ in kept]

    def _submit(self) -> None:
        window = self._parallelism.calls + (self._parallelism.calls if self._ordered else 0)
        while not self._ended and len(self._tasks) < window:
            self._submit_next()

    def _submit_next(self) -> None:
        try:
            rows = self._feed.pull(1 if self._again else self._work.rows)
        except StopIteration:
            self._ended = True
            return
        except Exception as error:
            if any(start <= self._ordinal < stop for start, stop in self._done):
                self._ordinal += 1
            else:
                self._add(1, _completed([Failed(error)]))
            return
        fresh = self._undone(rows)
        if fresh is not None:
            arguments = self._arguments(fresh, self._ordinal)
            self._add(len(fresh), self._pool.submit(self._work, arguments, self._ordinal))

    def _add(self, size: int, future: Future[Any]) -> None:
        self._tasks.append(_Task(self._feed.place, self._ordinal, size, future))
        self._ordinal += size

    def _undone(self, rows: Chunk) -> Chunk | None:
        """The elements from the front that were not handed on before; None if the first was."""
        for start, stop in self._done:
            if start <= self._ordinal < stop:
                used = min(len(rows), stop - self._ordinal)
                self._ordinal += used
                if used < len(rows):
                    self._feed.unread(rows, used)
                return None
            if self._ordinal < start < self._ordinal + len(rows):
                self._feed.unread(rows, start - self._ordinal)
                return rows.rows(0, start - self._ordinal)
        return rows

    def _next_task(self) -> _Task:
        if self._again:
            return self._task_of(self._again.popleft())
        if not self._ordered:
            wait([task.future for task in self._tasks], return_when=FIRST_COMPLETED)
            ready = next(task for task in self._tasks if task.future.done())
            self._tasks.remove(ready)
            return ready
        return self._tasks.popleft()

    def _task_of(self, number: int) -> _Task:
        while self._ordinal <= number and not self._ended:
            self._submit_next()
        task = next(task for task in self._tasks if task.first == number)
        self._tasks.remove(task)
        return task

    def _take(self, task: _Task) -> None:
        self._task = task
        self._results.ordinal = task.first
        made = task.future.result()
        self._results.add(made, sum(type(item) is Failed for item in made))
        self._measure(task.size)

    def _finish_task(self) -> None:
        task, self._task = self._task, None
        if task is not None and not self._ordered:
            spans, oldest = [*self._done, (task.first, task.first + task.size)], self._oldest()
            self._done = sorted(span for span in spans if span[1] > oldest)

    def _measure(self, elements: int) -> None:
        since, count = self._measured
        now, count = time.perf_counter(), count + elements
        self._measured = (since, count)
        if now - since > 0.05 and count >= 2 * self._parallelism.calls:
            task_bytes = self._nbytes_each * self._work.rows
            self._parallelism.measured(count / (now - since), task_bytes)
            self._measured = (now, 0)

    def state(self) -> State:
        oldest = self._oldest()
        done = [list(span) for span in self._spans() if span[1] > oldest]
        log = _Log()
        if not self._ordered:
            self._logs.append(weakref.ref(log))
        return [oldest, done, log]

    def _spans(self) -> list[Any]:
        spans = list(self._done)
        if self._task is not None and not self._ordered:
            spans.append((self._task.first, self._results.ordinal))
        return spans

    def _oldest(self) -> int:
        waiting = [task.first for task in self._tasks]
        if self._task is not None and len(self._results):
            waiting.append(self._results.ordinal if self._ordered else self._task.first)
        return min(waiting, default=self._ordinal)

    def input_states(self) -> list[State]:
        oldest = self._oldest()
        current = [self._task] if self._task is not None else []
        for task in [*current, *self._tasks]:
            if task.first <= oldest < task.first + task.size:
                return [task.place.after(oldest - task.first).state]
        return [self._feed.save()]

    def close(self) -> None:
        self._pool.stop(join=True)
        self._ended = True
        super().close()


def _completed(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
