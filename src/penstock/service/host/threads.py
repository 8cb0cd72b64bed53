"""Threads for answering requests, which no program has to wait for when it ends.

The standard pool's threads are joined at the end of a program, before anybody is told to stop, and
the server that uses them then fails; these are daemons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonPool(Executor):
    """At most `most` calls at once, each in a daemon thread."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free = threading.Semaphore(0)
        self._threads = 0
        self._lock = threading.Lock()
        self._over = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            if self._over:
                raise RuntimeError("the pool was shut down")
            future: Future[Any] = Future()
            self._calls.put(lambda: _run(future, call, args, kwargs))
            if not self._free.acquire(blocking=False) and self._threads < self._most:
                self._threads += 1
                work = (self._calls, self._free)
                threading.Thread(target=_work, args=work, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads when they have done what they were given; `wait` is not obeyed."""
        with self._lock:
            self._over = True
            for _ in range(self._threads):
                self._calls.put(None)


def _run(future: Future[Any], call: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)


def _work(calls: queue.SimpleQueue[Callable[[], None] | None], free: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call
        free.release()
