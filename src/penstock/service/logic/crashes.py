"""Crashed processes: when a worker restarts them, which call crashes them, and when a reader ends.

A function can end its process by a crash in native code, by `os._exit`, or because memory runs out.
A worker replaces a crashed plan process at once. The successor records the calls that it makes
(see `engine/call_watch.py`). A call in which processes crash repeatedly is then refused: it fails,
and its element with it, as if the function had raised. So a crash costs one element, like any
failure.

Where no call is to blame, no element can be passed over. Then a reader counts the crashes that
happen while the same elements are computed, and ends with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import AbortedError
from penstock.service.protocol import timing

AT_ONCE = 4
"""Early crashes in a row before a worker pauses: so many are needed to find a call."""

MOST_ALONE = 2
"""Processes that may crash in a call while no other call runs."""

MOST_CRASHES = 3
"""Workers, or plan processes, that may crash while they compute the same elements."""


class RunningCall(Protocol):
    """A call that ran when a process crashed: a digest that identifies it, empty if it has none,
    and its function in words."""

    @property
    def key(self) -> bytes: ...

    @property
    def function(self) -> str: ...


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
    lifetime: float = 0.0
    is_traced: bool = False
    """Whether the worker has found the call, or the next process may find it."""
    function: str = ""
    """The user's function that was running, if it is known."""

    @property
    def pause(self) -> float:
        """Seconds until the next process may start."""
        late = self.early - AT_ONCE
        if late < 0:
            return 0.0
        return min(timing.CRASH_FIRST_PAUSE * 2.0**late, timing.CRASH_LONGEST_PAUSE)

    @property
    def watch(self) -> float:
        """Seconds for which the next process records its calls."""
        return max(timing.CALL_WATCH, 2.0 * self.lifetime)


@dataclass
class Search:
    """The search for the call that crashes the processes of one plan."""

    suspects: dict[bytes, int] = field(default_factory=dict)
    """Calls that ran when a process crashed, and how often each of them ran alone then."""
    refused: dict[bytes, int] = field(default_factory=dict)
    """Calls that are not made any more, and the exit code of the last process that made them."""
    _crashes: int = 0
    """How many processes crashed since the last call was refused."""
    _widest: int = 0
    """The most calls that ran at once when a process crashed."""

    def add(self, calls: Sequence[RunningCall] | None, code: int) -> bool:
        """Adds the calls that ran at a crash, None if they were not recorded.

        Returns whether the call is found, or the next crash may reveal more about it.
        """
        self._crashes += 1
        known = [call for call in calls or () if call.key]
        self._widest = max(self._widest, len(known))
        for call in known:
            self.suspects.setdefault(call.key, 0)
        if len(known) == 1:
            self._add_alone(known[0], code)
        # A call whose arguments differ each time is never found.
        may_find = self._crashes <= AT_ONCE + MOST_ALONE * self._widest
        return may_find and (calls is None or bool(known))

    def _add_alone(self, call: RunningCall, code: int) -> None:
        self.suspects[call.key] += 1
        if self.suspects[call.key] >= MOST_ALONE:
            del self.suspects[call.key]
            self.refused[call.key] = code
            self._crashes = 0


class Crashes:
    """The last crash of every plan, and the search for its cause, by the digest of the plan."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[bytes, Crash] = {}
        self._searches: dict[bytes, Search] = {}

    def add(
        self,
        plan: bytes,
        code: int,
        started: float,
        now: float,
        calls: Sequence[RunningCall] | None = None,
    ) -> Crash:
        """Records that a process crashed, which had started at `started`, in one of `calls`."""
        self.count += 1
        search = self._searches.setdefault(plan, Search())
        refused = len(search.refused)
        is_traced = search.add(calls, code)
        crash = self._last[plan] = Crash(
            number=self.count,
            code=code,
            at=now,
            # A call that was found does not crash the next process.
            early=0 if len(search.refused) > refused else self._count_early(plan, now - started),
            lifetime=now - started,
            is_traced=is_traced,
            function=calls[0].function if calls and len(calls) == 1 else "",
        )
        return crash

    def _count_early(self, plan: bytes, lifetime: float) -> int:
        before = self._last.get(plan)
        in_a_row = 0 if before is None else before.early
        return in_a_row + 1 if lifetime < timing.EARLY_CRASH else 0

    def last(self, plan: bytes) -> Crash | None:
        return self._last.get(plan)

    def search(self, plan: bytes) -> Search:
        """What is known about the calls of a plan that crash processes."""
        return self._searches.get(plan) or Search()

    def pause(self, plan: bytes, now: float) -> float:
        """Seconds until the next process of a plan may start."""
        crash = self._last.get(plan)
        return 0.0 if crash is None else max(0.0, crash.at + crash.pause - now)

    def forget(self, now: float) -> None:
        """Forgets crashes that no client asks for any more."""
        oldest = now - timing.CRASH_MEMORY
        self._last = {plan: crash for plan, crash in self._last.items() if crash.at >= oldest}
        self._searches = {plan: self._searches[plan] for plan in self._last}


class Blame:
    """Counts the workers that crashed in a row while they computed the same elements."""

    def __init__(self) -> None:
        self._stream = self._start = self._stop = 0
        self.workers: list[str] = []
        self._how = self._function = ""
        self._accused: tuple[int, int] | None = None
        """The stream and the first element of the last verdict."""

    def add(self, worker: str, stream: int, start: int, stop: int) -> None:
        """Records that a worker crashed while it computed elements `start` to `stop`."""
        if (stream, start) != (self._stream, self._start):
            self._clear()
        self._stream, self._start, self._stop = stream, start, stop
        self.workers.append(worker)

    def explain(self, worker: str, how: str, function: str = "") -> None:
        """Records how the plan process of a worker crashed, for the error message."""
        if worker in self.workers:
            self._how = f", the last one because it {how}"
            self._function = f", in {function}" if function else ""

    def acquit(self, worker: str) -> None:
        """Takes back the last crash of a worker: another call crashed it, or it still searches."""
        if worker in self.workers:
            self.workers.remove(worker)

    @property
    def is_certain(self) -> bool:
        """Whether so many crashed that the reader must ask for nothing more."""
        return len(self.workers) >= MOST_CRASHES

    @property
    def is_final(self) -> bool:
        """Whether trying once more would be in vain: plan processes crashed, or so many workers
        were lost once more. Workers may also be lost because they were stopped."""
        return bool(self._how) or self._accused == (self._stream, self._start)

    def verdict(self) -> AbortedError:
        """Returns the error that names the elements, and begins to count anew."""
        who = "plan processes crashed" if self._how else "workers were lost"
        ends = (
            "no call of a function is known to cause this, so no element can be passed over and "
            "reading ends here"
            if self.is_final
            else "reading can continue there, and ends if that happens again"
        )
        error = AbortedError(
            f"distribute: {MOST_CRASHES} {who} one after the other while they computed elements "
            f"{self._start} to {self._stop - 1} of stream {self._stream}{self._function}"
            f"{self._how}; {ends}; see what the workers printed"
        )
        self._accused = (self._stream, self._start)
        self._clear()
        return error

    def _clear(self) -> None:
        self.workers, self._how, self._function = [], "", ""
