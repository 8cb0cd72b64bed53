"""The life of a server: it starts once and stops for good; both calls may be repeated.

Threads of a server must not refer to the server object, so that a dropped server stops.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from penstock.errors import FailedPreconditionError


class Lifecycle(ABC):
    """`start`, `join` and `stop` of a server, for any thread.

    Subclasses implement `_begin` and `_end`, and name themselves as users do.
    """

    public_name: ClassVar[str]

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        """Set when the server has stopped, also without a call of `stop`."""
        self._changing = threading.Lock()
        """Guards `_begun`, and makes `_begin` and `_end` exclude each other."""
        self._begun = False

    def start(self) -> None:
        """Starts the server, unless it runs already."""
        with self._changing:
            if self._stopped.is_set():
                raise FailedPreconditionError(
                    f"{self.public_name}.start: this server was stopped; make a new one"
                )
            if not self._begun:
                self._begin()
                self._begun = True

    def join(self) -> None:
        """Blocks until the server has stopped."""
        self._stopped.wait()

    def stop(self) -> None:
        """Stops the server; it cannot be started again."""
        with self._changing:
            self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _begin(self) -> None:
        """Starts to serve."""

    @abstractmethod
    def _end(self) -> None:
        """Sets `_stopped`, closes ports and files; may be called again, or before `_begin`."""
