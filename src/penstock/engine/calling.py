"""Calling: where the calls of one parallel map run, in threads or in processes.

A stream submits tasks (elements, and the ordinal of the first) and gets a `Future` for each. Order,
states and the places of failures are the stream's own: they do not depend on where calls run.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine.inlets import BUDGET
from penstock.engine.pool import Pool
from penstock.engine.processes import call_processes
from penstock.engine.processes.call_processes import Answer, CallTask, SentFunction
from penstock.engine.tuning import Parallelism, Relocation
from penstock.engine.user_calls import Calls
from penstock.plan.functions import cannot_travel

_TASK_SECONDS = 0.016
"""Seconds of work that go into a task of a process: sending it takes about a hundredth of that."""

_MOST_ROWS = 1024


class Calling:
    """The calls of one parallel map: begins in threads, or in processes if it must."""

    def __init__(self, calls: Calls, parallelism: Parallelism, executor: str) -> None:
        self._calls = calls
        self._parallelism = parallelism
        self.threads = _ThreadCalls(calls, parallelism)
        self._processes: _ProcessCalls | None = None
        self._relocation = Relocation(executor, calls.function.calls_run)
        if self._relocation.begins_in_processes:
            self._move(self._relocation.reason)

    @property
    def rows(self) -> int:
        """How many elements the next task should have."""
        return self.threads.rows if self._processes is None else self._processes.rows

    @property
    def tasks(self) -> int:
        """How many tasks should be under way."""
        return self._parallelism.calls if self._processes is None else self._processes.tasks

    def submit(self, rows: Chunk, ordinal: int) -> Future[Any]:
        """Begins a task; `result` returns what was made."""
        if self._processes is None:
            return self.threads.submit(rows, ordinal)
        return self._processes.submit(rows, ordinal)

    def result(self, future: Future[Any]) -> Chunk | list[Any]:
        """Waits for a task: a chunk, or a list with a `FailedCall` for each failure."""
        made = future.result()
        if not isinstance(made, Answer):
            return made  # type: ignore[no-any-return]
        assert isinstance(future, CallTask)
        assert future.chunk is not None
        if made.refusal:
            self._return(made.refusal)
            return self.threads.call(future.chunk, future.ordinal)
        if self._processes is not None:
            self._processes.note(future.chunk, made)
        return made.made

    def _move(self, reason: str) -> None:
        """Has processes do all further tasks, unless the function cannot travel."""
        try:
            function = SentFunction(self._calls)
        except Exception as error:
            self._return(cannot_travel(error))
            return
        most = self._parallelism.processes
        self._processes = _ProcessCalls(self, function, most, self._parallelism.nbytes)
        self._calls.function.note_calls("processes", reason)

    def _return(self, reason: str) -> None:
        """Has threads do all further tasks."""
        self._processes = None
        self._relocation.settle()
        self._calls.function.note_calls("threads", reason)

    def note_rate(self, elements: int, seconds: float, nbytes_each: float) -> None:
        """Notes how many elements were handed on in how much time, and their size."""
        if self._processes is None:
            self._parallelism.note_rate(elements / seconds, nbytes_each * self.rows)

    def stop(self, join: bool = False, drop: bool = False) -> None:
        self.threads.pool.stop(join, drop)
        if self._processes is not None and drop:
            self._processes.drop()


class _ThreadCalls:
    """Calls in threads of this process.

    Threads set `rows` without a lock: it is a hint for the next task, and any of them will do.
    """

    def __init__(self, calls: Calls, parallelism: Parallelism) -> None:
        self._calls = calls
        self.pool = Pool(parallelism.most, "penstock-calls")
        self.rows = 1
        self._lock = threading.Lock()
        self._cpu_seconds = 0.0  #: guarded by _lock

    def submit(self, rows: Chunk, ordinal: int) -> Future[Any]:
        return self.pool.submit(self.call, rows, ordinal)

    def call(self, rows: Chunk, ordinal: int) -> list[Any]:
        """Calls the function on every element, in the current thread."""
        started, cpu = time.perf_counter(), time.thread_time()
        made = self._calls.all(rows, ordinal)
        each = (time.perf_counter() - started) / len(rows)
        with self._lock:
            self._cpu_seconds += time.thread_time() - cpu
        fits = int(BUDGET / max(each, 1e-7))
        self.rows = 1 if self._calls.on_trial else max(1, min(fits, 2 * len(rows), _MOST_ROWS))
        return made

    def take_cpu_seconds(self) -> float:
        """Returns the CPU time of all calls since the last time."""
        with self._lock:
            taken, self._cpu_seconds = self._cpu_seconds, 0.0
        return taken


class _ProcessCalls:
    """Calls in the call processes of this program."""

    def __init__(self, owner: object, function: SentFunction, most: int, nbytes: int) -> None:
        self._owner, self._most, self._nbytes = owner, most, nbytes
        self._function = call_processes.call_processes().keep(function)
        self.tasks = 2 * most
        self.rows = 1

    def submit(self, rows: Chunk, ordinal: int) -> CallTask:
        task = CallTask(self._function, rows, ordinal, self._owner, self._most)
        while not call_processes.call_processes().submit(task):
            pass  # They were closed, because they were idle, since they were looked up.
        return task

    def note(self, given: Chunk, answer: Answer) -> None:
        """Chooses the size of the next task by the time and the bytes of one that was done."""
        count = len(given)
        fits = int(_TASK_SECONDS * count / max(answer.seconds, 1e-7))
        made = answer.made.nbytes if isinstance(answer.made, Chunk) else 0
        each = max(given.nbytes, made) / count
        holds = int(self._nbytes / (2 * self.tasks * max(each, 1)))
        self.rows = max(1, min(fits, 2 * count, holds, _MOST_ROWS))

    def drop(self) -> None:
        call_processes.call_processes().drop(self._owner)
