"""Endings: what has to be done once, when something is closed or when nobody holds it any more.

The garbage collector finds the latter out in any thread at any time, also in one that holds a lock
which the ending needs, or that others wait for. So what was dropped is ended in another thread.
Whoever dropped it waits for that, but never for long; the collector does not wait. A forked child
leaves alone what its parent has opened.
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
"""Seconds after which what was dropped ends by itself."""

End = Callable[[], Any]


class Ending:
    """Calls `end(*arguments)` once: when it is called itself, or when its owner is gone.

    The arguments must not know the owner. `atexit` says that the end of the program counts, too.
    """

    def __init__(
        self, owner: object, end: Callable[..., Any], *arguments: Any, atexit: bool = True
    ) -> None:
        process = os.getpid()
        _found(process)  # Now, because the collector had better start no threads.
        self._owned = weakref.finalize(owner, _dropped, process, functools.partial(end, *arguments))
        self._owned.atexit = atexit

    def __call__(self) -> None:
        """Ends it here and now, unless it has ended; twice is fine."""
        if (owned := self._owned.detach()) is not None:
            process, end = owned[2]
            if _is_mine(process, end):
                end()

    def forget(self) -> None:
        """It will never be ended."""
        self._owned.detach()


_INHERITED: list[End] = []
"""Of the parent process: a child must neither end nor drop what is in them."""


def _is_mine(process: int, end: End) -> bool:
    if process == os.getpid():
        return True
    _INHERITED.append(end)
    return False


def _dropped(process: int, end: End) -> None:
    if not _is_mine(process, end):
        return
    if not threading.main_thread().is_alive():
        end()  # The program ends, and starts no more threads.
        return
    ended = threading.Event()
    # Unlike other queues, this one can be used while the same thread is using it.
    _found(process).put((end, ended))
    if threading.current_thread().name != _NAME and not _collector.at_work:
        ended.wait(_PATIENCE)


class _Collector(threading.local):
    """Whether the garbage collector is at work in this thread."""

    at_work = False

    def note(self, phase: str, _: dict[str, int]) -> None:
        self.at_work = phase == "start"


_collector = _Collector()
gc.callbacks.append(_collector.note)


_NAME = "penstock-endings"


@functools.lru_cache(maxsize=1)
def _found(process: int) -> SimpleQueue[tuple[End, threading.Event]]:
    """What was found to be dropped, and a thread that looks after it."""
    found: SimpleQueue[tuple[End, threading.Event]] = SimpleQueue()
    threading.Thread(target=_look_after, args=(found,), name=_NAME, daemon=True).start()
    return found


def _look_after(found: SimpleQueue[tuple[End, threading.Event]]) -> None:
    while True:
        end, ended = found.get()
        # Each for itself: one may take long, or drop others.
        threading.Thread(target=_run, args=(end, ended), name="penstock-end", daemon=True).start()
        del end, ended


def _run(end: End, ended: threading.Event) -> None:
    try:
        end()
    finally:
        ended.set()
