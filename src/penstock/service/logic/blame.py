"""Blame: which elements cost one process after the other, and when a reader gives up on them.

A function may end its process: by a crash in native code, or because memory ran out. Asking for
the same elements again would cost the next process. So losses are counted for as long as they
happen with the same elements in hand.
"""

from __future__ import annotations

from penstock.errors import AbortedError

MOST_DEATHS = 3
"""Workers, or processes of theirs, that may be lost with the same elements in hand."""


class Blame:
    """The elements that were in hand when the last workers were lost, and those workers."""

    def __init__(self) -> None:
        self._stream = self._start = self._stop = 0
        self.workers: list[str] = []
        self._how = ""

    def add(self, worker: str, stream: int, start: int, stop: int) -> None:
        """A worker was lost while it made elements `start` to `stop`."""
        if (stream, start) != (self._stream, self._start):
            self._clear()
        self._stream, self._start, self._stop = stream, start, stop
        self.workers.append(worker)

    def explain(self, worker: str, how: str) -> None:
        """A worker has told how it lost the process that was at work."""
        if worker in self.workers:
            self._how = f"; the process of worker {worker.partition('/')[0]} {how}"

    @property
    def is_certain(self) -> bool:
        """Whether enough were lost; nothing more may be asked for then."""
        return len(self.workers) >= MOST_DEATHS

    def verdict(self) -> AbortedError:
        """The error that names the elements; whoever goes on begins to count anew."""
        error = AbortedError(
            f"distribute: {MOST_DEATHS} workers were lost one after the other while they made "
            f"elements {self._start} to {self._stop - 1} of stream {self._stream}{self._how}; a "
            "function may end its process there (memory, a crash in native code): see what workers "
            "printed"
        )
        self._clear()
        return error

    def _clear(self) -> None:
        self.workers, self._how = [], ""
