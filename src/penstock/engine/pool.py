"""Pools of threads: the engine prefetches and calls functions in parallel in these only.

A pool's threads are daemons, so that a program can end while a call still runs. They end when the
pool is stopped; a pool that is used again afterwards starts new ones. A forked child has none of
its parent's threads, so a pool refuses to work there. At the program's end all pools are stopped,
and their threads joined for a short time, also those of pools that were stopped before: a thread
that is killed inside native code can crash the process.

One thread at a time may use a pool; its own threads see only `_tasks` and `_free`, which are safe.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from penstock.errors import FailedPreconditionError

_JOIN_SECONDS = 5.0
_EXIT_SECONDS = 2.0

Task = tuple["Future[Any]", Callable[[], Any]]


def check_process(started_in: int) -> None:
    """Raises FailedPreconditionError if this process is not `started_in` but a fork of it.

    A forked child has none of the threads of its parent, and would read from its connections.
    """
    if os.getpid() != started_in:
        raise FailedPreconditionError(
            "Iterator: it was started in another process, and its threads and connections belong "
            "to that one; make a new iterator here, and hand over a state with state_dict()"
        )


class Pool:
    """At most `most` calls at once, each in a thread, in the order in which they came.

    `interrupt` makes calls that block return; it is called before the threads are stopped.
    """

    def __init__(self, most: int, name: str, interrupt: Callable[[], None] = lambda: None) -> None:
        self._most = most
        self._name = name
        self._interrupt = interrupt
        self.process = os.getpid()
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = threading.Semaphore(0)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begins a call as soon as a thread is free; it sees the caller's context variables."""
        self.check()
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        self._tasks.put((future, lambda: context.run(call, *arguments)))
        if not self._free.acquire(blocking=False) and len(self._threads) < self._most:
            self._start()
        return future

    @property
    def idents(self) -> list[int]:
        """The threads, as `sys._current_frames` names them."""
        return [thread.ident for thread in self._threads if thread.ident is not None]

    def check(self) -> None:
        """Raises FailedPreconditionError in a forked child."""
        check_process(self.process)

    def _start(self) -> None:
        thread = threading.Thread(
            target=_work, args=(self._tasks, self._free), name=self._name, daemon=True
        )
        self._threads.append(thread)
        _THREADS.add(thread)
        thread.start()

    def stop(self, join: bool = False, drop: bool = False) -> None:
        """Ends the threads after their current calls; `drop` cancels calls that have not begun."""
        self._interrupt()
        tasks, threads = self._tasks, self._threads
        self._reset()
        if drop:
            _drain(tasks)
        for _ in threads:
            tasks.put(None)
        if join:
            _join(threads, _JOIN_SECONDS)

    def stop_with(self, owner: object) -> None:
        """Ends the threads when `owner` is collected, and cancels calls that have not begun."""
        # At the end of the program, `_stop_all` does it.
        weakref.finalize(owner, self.stop, False, True).atexit = False


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""The threads of all pools; those of a stopped pool may still be in their last calls."""


@atexit.register
def _stop_all() -> None:
    for pool in list(_POOLS):
        if pool.process == os.getpid():
            pool.stop(drop=True)
    _join([thread for thread in list(_THREADS) if thread.is_alive()], _EXIT_SECONDS)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread in threads:
        if thread is not threading.current_thread():
            with suppress(RuntimeError):  # Another thread has not started it yet; it will end.
                thread.join(max(0.0, until - time.monotonic()))


def _drain(tasks: queue.SimpleQueue[Task | None]) -> None:
    while True:
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            return
        if task is not None:
            task[0].cancel()


def _work(tasks: queue.SimpleQueue[Task | None], free: threading.Semaphore) -> None:
    """Runs tasks in a thread. It must not refer to the pool, or that could not be collected."""
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:
                # Also KeyboardInterrupt and the like: the caller waits for this future.
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, call
        free.release()
