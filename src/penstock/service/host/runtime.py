"""`Runtime`: the clock, threads, locks and waiting of the machine that a reader or worker runs on.

Readers and workers read the clock, start threads and wait only through the `Runtime` that they are
given. The simulation passes its own, with a virtual clock.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable


class Bell:
    """Wakes a thread that waits for sockets, from another thread."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def ring(self) -> None:
        """Makes the bell readable."""
        with contextlib.suppress(OSError):  # It rings already, or was closed.
            self._there.send(b"!")

    def quiet(self) -> None:
        """Makes the bell unreadable until it rings again."""
        with contextlib.suppress(OSError):
            while self._here.recv(4096):
                pass

    def fileno(self) -> int:
        return self._here.fileno()

    def close(self) -> None:
        self._here.close()
        self._there.close()


class Runtime:
    """Clock, threads, locks and waiting of this machine."""

    now = staticmethod(time.monotonic)
    """A clock in seconds, for waiting."""
    timer = staticmethod(time.perf_counter)
    """A clock in seconds, for measuring work."""
    lock = staticmethod(threading.RLock)
    condition = staticmethod(threading.Condition)
    event = staticmethod(threading.Event)
    bell = Bell

    def selector(self) -> selectors.BaseSelector:
        """Returns a selector, which waits until connections or a bell are readable."""
        return selectors.DefaultSelector()

    def poll(self) -> select.poll:
        return select.poll()

    def name(self) -> str:
        """Returns a name that is unique everywhere."""
        return uuid.uuid4().hex

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Starts a daemon thread, which does not keep the program from exiting."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


MACHINE = Runtime()
"""The runtime of this process; the default everywhere."""
