"""Parallel calls: a function of several elements at once, in threads or processes.

The threads end at the end of the data, at a failure (the next pull starts them again), when the
stream is closed, and when the stream is garbage collected.

Only the thread that pulls touches the fields of the stream. The calls (`engine/calling.py`) see a
chunk and its number, and answer through a `Future`, so no lock is needed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.engine.calling import Calling
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import FedStream, Place
from penstock.engine.logs import Logs
from penstock.engine.results import Results
from penstock.engine.user_calls import Calls, FailedCall


@dataclass(eq=False)
class _Task:
    """Elements `first` to `first + size`, for which the function is called."""

    place: Place
    first: int
    size: int
    numbers: Array | None
    future: Future[Any]


class ParallelMapStream(FedStream):
    """A function of every element, several at once.

    Results come in order or, without `ordered`, as they are ready. A state of the latter names the
    elements that were handed on before their turn, and has a log of the elements that followed it:
    places are counted from states, so a stream opened from one must begin with the same order.
    """

    def __init__(
        self,
        source: Stream,
        calls: Calls,
        arguments: Callable[[Chunk, int], Chunk],
        calling: Calling,
        ordered: bool,
        state: State,
    ) -> None:
        super().__init__(source)
        self._calling = calling
        self._arguments = arguments
        self._ordered = ordered
        self._ordinal: int = state[0]
        self._done = sorted(tuple(span) for span in state[1])
        self._again: deque[int] = deque(state[2])
        self._logs = Logs()
        """The numbers of elements, in the order in which they were handed on."""
        self._results = Results(calls, self._ordinal)
        self._tasks: deque[_Task] = deque()
        self._task: _Task | None = None
        self._ended = False
        self._pool = calling.threads.pool
        self._measured = (time.perf_counter(), 0)
        self._nbytes_each = 0.0
        self._pool.stop_with(self)

    def expect_batches(self, size: int) -> None:
        """Says that the elements are batched next; called before the first pull."""
        if self._ordered:
            self._calling.expect_batches(size, self._ordinal)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while not len(self._results):
            self._pool.check()  # A forked child would wait for tasks of its parent's processes.
            self._finish_task()
            window = self._calling.tasks * (2 if self._ordered else 1)
            while not self._ended and len(self._tasks) < window:
                self._submit_next(needed)
            if not self._tasks:
                self._calling.stop()
                raise StopIteration
            self._take(self._next_task())
        first = self._results.ordinal
        try:
            chunk = self._results.hand_on(limit)
        except Exception:
            # The failure is raised at once; the threads end after their current calls.
            self._logs.record(range(first, self._results.ordinal))
            self._calling.stop()
            raise
        self._logs.record(range(first, self._results.ordinal))
        self._nbytes_each = chunk.nbytes / len(chunk)
        return chunk

    def _submit_next(self, needed: int = 1) -> None:
        try:
            most = 1 if self._again else self._calling.count_rows(self._ordinal)
            rows = self._feed.pull(most, needed)
        except StopIteration:
            self._ended = True
            return
        except Exception as error:
            if any(start <= self._ordinal < stop for start, stop in self._done):
                self._ordinal += 1
            else:
                self._add(1, None, _completed_future([FailedCall(error)]))
            return
        fresh = self._without_done(rows)
        if fresh is not None:
            arguments = self._arguments(fresh, self._ordinal)
            future = self._calling.submit(arguments, self._ordinal)
            self._add(len(fresh), fresh.numbers, future)

    def _add(self, size: int, numbers: Array | None, future: Future[Any]) -> None:
        self._tasks.append(_Task(self._feed.place, self._ordinal, size, numbers, future))
        self._ordinal += size

    def _without_done(self, rows: Chunk) -> Chunk | None:
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
            # Removed only afterwards: while the log has numbers, elements are submitted singly.
            task = self._task_of(self._again[0])
            self._again.popleft()
            return task
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
        made = self._calling.result(task.future)
        if isinstance(made, Chunk):
            self._results.add_chunk(made, task.numbers)
        else:
            failures = sum(type(item) is FailedCall for item in made)
            self._results.add(made, failures, task.numbers, task.place)
        self._measure(task.size)

    def _finish_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            spans, oldest = [*self._done, (task.first, task.first + task.size)], self._find_oldest()
            self._done = sorted(span for span in spans if span[1] > oldest)

    def _measure(self, elements: int) -> None:
        since, count = self._measured
        now, count = time.perf_counter(), count + elements
        self._measured = (since, count)
        if now - since > 0.05 and count >= 2 * self._calling.tasks:
            self._calling.note_rate(count, now - since, self._nbytes_each)
            self._measured = (now, 0)

    def count_used(self) -> int:
        return self._ordinal

    def _own_state(self) -> State:
        oldest = self._find_oldest()
        spans = list(self._done)
        if self._task is not None:
            spans.append((self._task.first, self._results.ordinal))
        done = [list(span) for span in spans if span[1] > oldest]
        if self._ordered and not done and not self._again:
            return oldest
        return [oldest, done, self._logs.begin()]

    def _find_oldest(self) -> int:
        waiting = [task.first for task in self._tasks]
        if self._task is not None and len(self._results):
            waiting.append(self._results.ordinal if self._ordered else self._task.first)
        return min(waiting, default=self._ordinal)

    def _input_states(self) -> list[State]:
        oldest = self._find_oldest()
        current = [self._task] if self._task is not None else []
        for task in [*current, *self._tasks]:
            if task.first <= oldest < task.first + task.size:
                return [task.place.after(oldest - task.first).state]
        return super()._input_states()

    def close(self) -> None:
        self._calling.stop(join=True, drop=True)
        self._ended = True
        super().close()


def _completed_future(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
