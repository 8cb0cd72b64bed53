"""Crashed processes: when a worker restarts them, and when a reader stops asking for elements.

A worker replaces a crashed plan process at once. If its successors crash soon after their start,
too, the pauses between them grow, so that a plan whose processes cannot live does not occupy a
worker.

A function can end its process by a crash in native code, or because memory runs out. Asking for
the same elements again would cost the next process. So a reader counts the crashes that happen
while the same elements are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import AbortedError
from penstock.service.protocol import timing

AT_ONCE = 3
"""Early crashes in a row before a worker pauses: a reader gives up after the same number
(`MOST_CRASHES`), so that it does so without pauses."""


MOST_CRASHES = 3
"""Workers, or plan processes, that may crash while they compute the same elements."""


@dataclass(frozen=True)
class Crash:
    """How the last process of a plan crashed."""

    number: int
    """Counts all crashes of the worker, so that clients can distinguish two of them."""
    code: int
    """The exit code, negative for a signal."""
    at: float
    early: int = 0
    """How many processes in a row crashed soon after their start."""

    @property
    def pause(self) -> float:
        """Seconds until the next process may start."""
        late = self.early - AT_ONCE
        if late < 0:
            return 0.0
        return min(timing.CRASH_FIRST_PAUSE * 2.0**late, timing.CRASH_LONGEST_PAUSE)


class Crashes:
    """The last crash of every plan, by the digest of the plan."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[bytes, Crash] = {}

    def add(self, plan: bytes, code: int, started: float, now: float) -> Crash:
        """Records that a process crashed, which had started at `started`."""
        self.count += 1
        before = self._last.get(plan)
        in_a_row = 0 if before is None else before.early
        early = in_a_row + 1 if now - started < timing.EARLY_CRASH else 0
        crash = self._last[plan] = Crash(self.count, code, now, early)
        return crash

    def last(self, plan: bytes) -> Crash | None:
        return self._last.get(plan)

    def pause(self, plan: bytes, now: float) -> float:
        """Seconds until the next process of a plan may start."""
        crash = self._last.get(plan)
        return 0.0 if crash is None else max(0.0, crash.at + crash.pause - now)

    def forget(self, now: float) -> None:
        """Forgets crashes that no client asks for any more."""
        oldest = now - timing.CRASH_MEMORY
        self._last = {plan: crash for plan, crash in self._last.items() if crash.at >= oldest}


class Blame:
    """Counts the workers that crashed in a row while they computed the same elements."""

    def __init__(self) -> None:
        self._stream = self._start = self._stop = 0
        self.workers: list[str] = []
        self._how = ""

    def add(self, worker: str, stream: int, start: int, stop: int) -> None:
        """Records that a worker crashed while it computed elements `start` to `stop`."""
        if (stream, start) != (self._stream, self._start):
            self._clear()
        self._stream, self._start, self._stop = stream, start, stop
        self.workers.append(worker)

    def explain(self, worker: str, how: str) -> None:
        """Records how the process of a worker ended, for the error message."""
        if worker in self.workers:
            self._how = f"; the process of worker {worker.partition('/')[0]} {how}"

    @property
    def is_certain(self) -> bool:
        """Whether so many crashed that the reader must ask for nothing more."""
        return len(self.workers) >= MOST_CRASHES

    def verdict(self) -> AbortedError:
        """Returns the error that names the elements, and begins to count anew."""
        error = AbortedError(
            f"distribute: {MOST_CRASHES} workers were lost one after the other while they made "
            f"elements {self._start} to {self._stop - 1} of stream {self._stream}{self._how}; a "
            "function may end its process there (memory, a crash in native code): see what workers "
            "printed"
        )
        self._clear()
        return error

    def _clear(self) -> None:
        self.workers, self._how = [], ""
