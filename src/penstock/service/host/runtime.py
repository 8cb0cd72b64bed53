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
    """Wakes whoever waits for sockets, from another thread."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # It has rung often enough, or nobody listens.
            self._there.send(b"!")

    def quiet(self) -> None:
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
    """Seconds, for whoever waits."""
    timer = staticmethod(time.perf_counter)
    """Seconds, for whoever measures work."""
    lock = staticmethod(threading.RLock)
    condition = staticmethod(threading.Condition)
    event = staticmethod(threading.Event)
    bell = Bell

    def selector(self) -> selectors.BaseSelector:
        """Waits until connections, or a bell, have something to say."""
        return selectors.DefaultSelector()

    def poll(self) -> select.poll:
        return select.poll()

    def name(self) -> str:
        """One that nobody else has."""
        return uuid.uuid4().hex

    def start(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Does something in a thread that no program has to wait for when it ends."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


MACHINE = Runtime()
"""The one that this process runs on."""
