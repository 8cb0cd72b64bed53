"""Calling: where the calls of one parallel map run, in threads or in processes.

A stream submits tasks (elements, and the ordinal of the first) and gets a `Future` for each. Order,
states and the places of failures are the stream's own: they do not depend on where calls run.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine import spans
from penstock.engine.figures import CallTimes
from penstock.engine.inlets import BUDGET
from penstock.engine.pool import Pool
from penstock.engine.processes import call_processes, fork_server
from penstock.engine.processes.batch_memory import BatchPlaces
from penstock.engine.processes.call_processes import Answer, CallTask, SentFunction
from penstock.engine.results import holds_scattered_array, stack_results
from penstock.engine.tuning import CpuUse, Parallelism, Relocation, cores
from penstock.engine.user_calls import CONTAINED, Calls, FailedCall
from penstock.errors import OpError
from penstock.plan.functions import cannot_travel

_TASK_SECONDS = 0.04
"""Seconds of work that go into a task of a process: sending it takes about a hundredth of that."""

_MOST_ROWS = 1024

_CALLS_BETWEEN = 16
"""How many calls must have ended before a function is pickled again, to see whether it changed."""

_MOST_CAPTURED = 1 << 30
"""The most bytes that a function may capture and still move, if the user has not asked for it."""


class Calling:
    """The calls of one parallel map: in threads or in processes, as `executor` says."""

    def __init__(self, calls: Calls, parallelism: Parallelism, executor: str) -> None:
        self._calls, self._parallelism = calls, parallelism
        self.threads = _ThreadCalls(calls, parallelism)
        self._processes: _ProcessCalls | None = None
        self._places: BatchPlaces | None = None
        self._preparation: _Preparation | None = None
        known, reason = calls.function.notes.calls_run
        automatic = executor == "auto" and parallelism.processes > 1 and may_move()
        searches = automatic and not known
        most = min(parallelism.processes, cores())
        self._relocation = Relocation(most) if searches else None
        if executor == "processes" or (automatic and known == "processes"):
            self._begin_in_processes(reason if automatic else "")

    def _begin_in_processes(self, reason: str) -> None:
        try:
            function = SentFunction(self._calls)
        except Exception as error:
            self._return_to_threads(cannot_travel(error))
        else:
            self._move_to_processes(function, reason)

    def expect_batches(self, size: int, first: int) -> None:
        """Notes that the results are batched next, and that the first batch begins at `first`.

        Then processes write the rows of large batches to their places.
        """
        self._places = BatchPlaces(size, first)

    def count_rows(self, ordinal: int) -> int:
        """How many elements the next task should have, which begins at `ordinal`."""
        if self._processes is None:
            return self.threads.rows
        rows = self._processes.rows
        return rows if self._places is None else self._places.round_rows(ordinal, rows)

    @property
    def tasks(self) -> int:
        """How many tasks should be under way."""
        return self._parallelism.calls if self._processes is None else self._processes.tasks

    def times(self) -> CallTimes:
        """What the calls have taken so far, in threads and in processes."""
        threads, processes = self.threads, self._processes
        if processes is None:
            most = min(self._parallelism.calls, threads.most)
            return CallTimes("threads", most, threads.seconds, threads.cpu_seconds)
        seconds = threads.seconds + processes.seconds
        return CallTimes("processes", self._parallelism.processes, seconds, seconds)

    @property
    def function_elsewhere(self) -> str:
        """The function that processes call, with its place in the source; empty if threads do."""
        return "" if self._processes is None else str(self._calls.function)

    def submit(self, rows: Chunk, ordinal: int) -> Future[Any]:
        """Begins a task; `result` returns what was made."""
        if self._processes is None:
            return self.threads.submit(rows, ordinal)
        return self._processes.submit(rows, ordinal, self._places)

    def result(self, future: Future[Any]) -> Chunk | list[Any]:
        """Waits for a task: a chunk, or a list with a `FailedCall` for each failure."""
        made = future.result()
        if not isinstance(made, Answer):
            return made  # type: ignore[no-any-return]
        assert isinstance(future, CallTask)
        assert future.chunk is not None
        if made.refusal:
            self._return_to_threads(made.refusal)
            return self.threads.call(future.chunk, future.ordinal)
        if self._processes is not None:
            self._processes.note(future.chunk, made)
            self._calls.function.notes.task_rows = self._processes.rows
        if not isinstance(made.made, Chunk):
            _add_elements(made.made, future.chunk)
        elif self._places is not None:
            self._places.learn(made.made)
        return made.made

    def _move_to_processes(self, function: SentFunction, reason: str) -> None:
        """Submits all further tasks to processes."""
        parallelism = self._parallelism
        moved = _ProcessCalls(function, parallelism.processes, parallelism.nbytes)
        moved.rows = max(self.threads.rows, self._calls.function.notes.task_rows)
        self._processes, self._preparation = moved, None
        self._calls.function.notes.calls_run = ("processes", reason)

    def _return_to_threads(self, reason: str) -> None:
        """Submits all further tasks to threads."""
        self._processes = self._preparation = self._relocation = None
        self._calls.function.notes.calls_run = ("threads", reason)

    def note_rate(self, elements: int, seconds: float, nbytes_each: float) -> None:
        """Notes how many elements were handed on in how much time, and their size."""
        if self._processes is None:
            self._parallelism.note_rate(elements / seconds, nbytes_each * self.threads.rows)
        if self._relocation is None:
            return
        if self._processes is not None:
            if self._relocation.note_processes(elements, seconds):
                self._return_to_threads(self._relocation.reason)
        elif self._preparation is not None:
            self._move_if_prepared(self._preparation, self._relocation.reason)
        else:
            use = self.threads.take_cpu_use()
            if self._relocation.note_threads(elements, seconds, use, nbytes_each * elements):
                most = self._parallelism.processes
                self._preparation = _Preparation(self.threads, self._calls, most)

    def _move_if_prepared(self, preparation: _Preparation, reason: str) -> None:
        if not preparation.is_done():
            return
        if preparation.refusal:
            self._return_to_threads(preparation.refusal)
        elif preparation.function is not None:
            self._move_to_processes(preparation.function, reason)

    def stop(self, join: bool = False, drop: bool = False) -> None:
        self.threads.pool.stop(join, drop)
        if self._processes is not None and drop:
            self._processes.drop()


def may_move() -> bool:
    """Whether calls may move to processes although the user has not asked for it.

    Not in a process that is itself one of many: of a worker, or of `multiprocessing`.
    """
    if not call_processes.AVAILABLE or fork_server.is_child or CONTAINED.get():
        return False
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is None or multiprocessing.parent_process() is None


class _Preparation:
    """Sends a function to processes, which load it while threads still call it."""

    def __init__(self, threads: _ThreadCalls, calls: Calls, most: int) -> None:
        self._threads, self._calls, self._most = threads, calls, most
        self.refusal = ""
        """Why calls cannot move."""
        self.function: SentFunction | None = None
        self._loads: list[CallTask] = []
        self._calls_before = 0
        self._sent = threads.pool.submit(self._send)

    def _send(self) -> None:
        """Runs in a thread of the pool; `is_done` reads the results after this has returned."""
        try:
            function = SentFunction(self._calls)
        except Exception as error:
            self.refusal = cannot_travel(error)
            return
        if function.nbytes > _MOST_CAPTURED:
            self.refusal = f"it captures {function.nbytes >> 20} MB"
            return
        self._calls_before = self._threads.calls_done
        processes = call_processes.call_processes()
        self.function = processes.keep(function)
        for _ in range(self._most):
            task = CallTask(self.function, None, 0, self, self._most)
            if not processes.submit(task):
                self.refusal = "the processes were closed"
                return
            self._loads.append(task)

    def is_done(self) -> bool:
        """Whether the calls can move, or `refusal` says why they cannot."""
        if not self._sent.done() or not all(load.done() for load in self._loads):
            return False
        if not self.refusal and self._threads.calls_done < self._calls_before + _CALLS_BETWEEN:
            return False
        if self._sent.cancelled():
            self.refusal = "the iteration ended"
        refused = [load.result().refusal for load in self._loads]
        self.refusal = self.refusal or next(filter(None, refused), "")
        if not self.refusal:
            self._compare_pickles()
        return True

    def _compare_pickles(self) -> None:
        """Pickles the function again: if it differs, calls change what it captures."""
        try:
            again = SentFunction(self._calls)
        except Exception as error:
            self.refusal = cannot_travel(error)
            return
        if self.function is None or again.digest != self.function.digest:
            self.refusal = "its calls change what it captures"


def _add_elements(made: list[Any], arguments: Chunk) -> None:
    """Adds to the errors of another process the elements that were sent there."""
    for index, result in enumerate(made):
        if isinstance(result, FailedCall) and isinstance(result.error, OpError):
            result.error.element = arguments.rows(index, index + 1).elements()[0]


class _ThreadCalls:
    """Calls in threads of this process.

    Threads set `rows` without a lock: it is a hint for the next task, and any recent value will do.
    """

    def __init__(self, calls: Calls, parallelism: Parallelism) -> None:
        self._calls = calls
        self.pool = Pool(parallelism.most, "penstock-calls")
        self.rows = 1
        self.most = parallelism.most
        self._lock = threading.Lock()
        self.seconds = self.cpu_seconds = 0.0  #: changed under _lock
        self._cpu_seen = 0.0
        self.calls_done = 0  #: changed under _lock
        self._program_seconds = time.process_time()

    def submit(self, rows: Chunk, ordinal: int) -> Future[Any]:
        return self.pool.submit(self.call, rows, ordinal)

    def call(self, rows: Chunk, ordinal: int) -> Chunk | list[Any]:
        """Calls the function on every element, in the current thread.

        Views that a function returns of its argument (crops, flips) are stacked here: copying
        their values is the actual work, which several threads can do at once.
        """
        started, cpu = time.perf_counter(), time.thread_time()
        made = self._calls.all(rows, ordinal)
        stacked = stack_results(made) if holds_scattered_array(made[0]) else None
        seconds = time.perf_counter() - started
        if (recorder := spans.active) is not None:
            recorder.add_call(str(self._calls.function), seconds, len(rows))
        each = seconds / len(rows)
        with self._lock:
            self.seconds += seconds
            self.cpu_seconds += time.thread_time() - cpu
            self.calls_done += len(rows)
        fits = int(BUDGET / max(each, 1e-7))
        self.rows = 1 if self._calls.on_trial else max(1, min(fits, 2 * len(rows), _MOST_ROWS))
        return made if stacked is None else stacked

    def take_cpu_use(self) -> CpuUse:
        """Returns the CPU time of the calls and of the program since the last call of this."""
        calls = self.cpu_seconds - self._cpu_seen
        self._cpu_seen += calls
        before, self._program_seconds = self._program_seconds, time.process_time()
        return CpuUse(calls, self._program_seconds - before)


class _ProcessCalls:
    """Calls in the call processes of this program."""

    def __init__(self, function: SentFunction, most: int, nbytes: int) -> None:
        self._owner, self._most, self._nbytes = object(), most, nbytes
        self._function = call_processes.call_processes().keep(function)
        self.tasks = call_processes.DEPTH * most
        self.rows = 1
        self.seconds = 0.0

    def submit(self, rows: Chunk, ordinal: int, places: BatchPlaces | None) -> CallTask:
        task = CallTask(self._function, rows, ordinal, self._owner, self._most)
        processes = call_processes.call_processes()
        if places is not None:
            task.rows = places.place(ordinal, len(rows), processes.batch_cells)
        while not processes.submit(task):
            # The processes were idle and closed after `call_processes` returned them.
            processes = call_processes.call_processes()
        return task

    def note(self, given: Chunk, answer: Answer) -> None:
        """Chooses the size of the next task by the time and the bytes of a finished task."""
        count = len(given)
        self.seconds += answer.seconds
        fits = int(_TASK_SECONDS * count / max(answer.seconds, 1e-7))
        made = answer.made.nbytes if isinstance(answer.made, Chunk) else 0
        each = max(given.nbytes, made) / count
        holds = int(self._nbytes / (2 * self.tasks * max(each, 1)))
        self.rows = max(1, min(fits, 2 * count, holds, _MOST_ROWS))

    def drop(self) -> None:
        call_processes.call_processes().drop(self._owner)
