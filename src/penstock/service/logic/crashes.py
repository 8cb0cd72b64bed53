"""Crashed processes: when a worker restarts them, and when a reader stops asking for elements.

A worker replaces a crashed plan process at once. If its successors crash soon after their start,
too, the pauses between them grow, so that a plan whose processes cannot live does not occupy a
worker.

A function can end its process by a crash in native code, or because memory runs out. Asking for
the same elements again would cost the next process. So a reader counts the crashes that happen
while the same elements are computed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from penstock.errors import AbortedError
from penstock.service.protocol import timing

AT_ONCE = 3
"""How many processes in a row that were lost soon are replaced at once: a reader gives up after
as many (`MOST_DEATHS`)."""


MOST_DEATHS = 3
"""Workers, or processes of theirs, that may be lost with the same elements in hand."""


@dataclass(frozen=True)
class Loss:
    """How the last process of a plan was lost."""

    number: int
    """Counts all losses of the worker, so that two of them can be told apart."""
    code: int
    """The exit code, negative for a signal."""
    at: float
    soon: int = 0
    """How many in a row were lost soon after their start."""

    @property
    def pause(self) -> float:
        """Seconds until the next process may start."""
        late = self.soon - AT_ONCE
        if late < 0:
            return 0.0
        return min(timing.CRASH_FIRST_PAUSE * 2.0**late, timing.CRASH_LONGEST_PAUSE)


class Losses:
    """The last loss of every plan, by the digest of the plan."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[bytes, Loss] = {}

    def add(self, plan: bytes, code: int, started: float, now: float) -> Loss:
        """Notes that a process was lost, which had started at a given time."""
        self.count += 1
        before = self._last.get(plan)
        in_a_row = 0 if before is None else before.soon
        soon = in_a_row + 1 if now - started < timing.EARLY_CRASH else 0
        loss = self._last[plan] = Loss(self.count, code, now, soon)
        return loss

    def last(self, plan: bytes) -> Loss | None:
        return self._last.get(plan)

    def pause(self, plan: bytes, now: float) -> float:
        """Seconds until the next process of a plan may start."""
        loss = self._last.get(plan)
        return 0.0 if loss is None else max(0.0, loss.at + loss.pause - now)

    def forget(self, now: float) -> None:
        """Drops what is no longer of interest to any client."""
        oldest = now - timing.CRASH_MEMORY
        self._last = {plan: loss for plan, loss in self._last.items() if loss.at >= oldest}


def how_it_ended(code: int) -> str:
    """The end of a process in words, from its exit code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = (signal.strsignal(-code) or "").lower()
    except ValueError:
        name = ""
    return f"was killed by signal {-code}" + (f" ({name})" if name else "")


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
