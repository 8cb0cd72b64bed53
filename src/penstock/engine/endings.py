"""Endings: what is done once, when an object is closed or when its last reference is gone.

The last reference may go in any thread at any time, also while that thread holds a lock that the
ending needs. So the ending of an object that was not closed runs in a thread of its own. A thread
that dropped the last reference waits for the ending, but at most a second; the garbage collector,
which may run inside any other code, does not wait. A forked child never ends what its parent
opened.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_PATIENCE = 1.0
"""The most seconds that a thread waits for the ending of an object that it dropped."""

End = Callable[[], Any]


class Ending:
    """Calls `end(*arguments)` once: when it is called itself, or when its owner is collected.

    The arguments must not refer to the owner. With `atexit`, the end of the program ends it, too.
    """

    def __init__(
        self, owner: object, end: Callable[..., Any], *arguments: Any, atexit: bool = True
    ) -> None:
        process = os.getpid()
        _start_queue(process)  # Now, so that the garbage collector starts no thread.
        call = functools.partial(end, *arguments)
        self._owned = weakref.finalize(owner, _end_elsewhere, process, call)
        self._owned.atexit = atexit

    def __call__(self) -> None:
        """Calls `end` in this thread, unless it was called before."""
        if (owned := self._owned.detach()) is not None:
            process, end = owned[2]
            if _is_of_this_process(process, end):
                end()

    def forget(self) -> None:
        """Makes sure that `end` is never called."""
        self._owned.detach()


_INHERITED: list[End] = []
"""Endings of the parent process, kept so that a forked child does not drop what they refer to."""


def _is_of_this_process(process: int, end: End) -> bool:
    if process == os.getpid():
        return True
    _INHERITED.append(end)
    return False


def _end_elsewhere(process: int, end: End) -> None:
    """Runs an ending in another thread; called when the owner was collected."""
    if not _is_of_this_process(process, end):
        return
    if not threading.main_thread().is_alive():
        end()  # The program ends, and can start no more threads.
        return
    ended = threading.Event()
    # `SimpleQueue.put` is reentrant: the collector may run while this thread is inside of it.
    _start_queue(process).put((end, ended))
    if threading.current_thread().name != _NAME and not is_collecting():
        ended.wait(_PATIENCE)


class _Collector(threading.local):
    """Whether the garbage collector runs in this thread; each thread has its own flag."""

    at_work = False

    def note(self, phase: str, _: dict[str, int]) -> None:
        self.at_work = phase == "start"


_collector = _Collector()
gc.callbacks.append(_collector.note)


def is_collecting() -> bool:
    """Whether the garbage collector runs in this thread, which then may hold any lock."""
    return _collector.at_work


_NAME = "penstock-endings"


@functools.lru_cache(maxsize=1)
def _start_queue(process: int) -> SimpleQueue[tuple[End, threading.Event]]:
    """The endings to run in this process; the first call starts the thread that takes them."""
    endings: SimpleQueue[tuple[End, threading.Event]] = SimpleQueue()
    threading.Thread(target=_run_all, args=(endings,), name=_NAME, daemon=True).start()
    return endings


def _run_all(endings: SimpleQueue[tuple[End, threading.Event]]) -> None:
    while True:
        end, ended = endings.get()
        # One thread for each: an ending may take long, or drop an object with another ending.
        threading.Thread(target=_run, args=(end, ended), name="penstock-end", daemon=True).start()
        del end, ended


def _run(end: End, ended: threading.Event) -> None:
    try:
        end()
    finally:
        ended.set()
