"""AUTOTUNE: how far ahead to work and with how many threads, learned while running.

Pure: observations go in, a number comes out; nothing here owns a thread or reads a clock.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import numpy as np

from penstock.plan.options import Options

AUTOTUNE = -1

_CHEAP = 0.001
_STARVED_OFTEN = 16

_GUESSED_MOST = 256
"""Measured with records of 1 KB: 16 at a time cost 2.7 us each, 256 and 1024 cost 2.0 us."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """The bytes of memory that this process may use: of the machine, or of its container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            found.append(int(file.read()))
    return min(found)


def reader_budget(options: Options) -> int:
    """How many bytes a reader of a service may hold that it has not handed out."""
    return options.service.reader_memory or machine_memory() // 8


@dataclass(frozen=True)
class Budget:
    """The threads and bytes that tuning may use."""

    threads: int
    nbytes: int
    enabled: bool

    @classmethod
    def of(cls, options: Options) -> Budget:
        autotune, pool = options.autotune, options.threading.private_threadpool_size
        threads = pool or autotune.cpu_budget or max(16, 4 * cores())
        nbytes = autotune.ram_budget or 256 << 20
        return cls(max(1, threads), nbytes, autotune.enabled is not False)


class Depth:
    """How many elements to keep ready. Grows if more of them would have saved time.

    That is so if the thread that makes them has waited for room, and the caller then for an
    element. A caller that never gives the thread a rest gains nothing from more elements.

    A fixed depth grows only while its elements cost next to nothing: handing a number from
    thread to thread costs more than making it, so some are handed over at once. It does so at the
    first elements if it is a `guess`, which no user asked for.
    """

    def __init__(self, size: int, budget: Budget, guess: bool = False) -> None:
        self._fixed = size if size != AUTOTUNE else None
        self._guess = guess
        self._budget = budget
        self.elements = max(1, size) if size != AUTOTUNE else 2
        self._starved = 0
        self._seconds_each = self._nbytes_each = 1.0
        self._seconds = 0.0
        """For how long the thread has worked and waited; old seconds count less."""
        self._blocked = 0.0
        """For how long it has waited for room, and the caller not yet for an element."""
        self._lost = 0.0
        """How much time more elements would have saved since the depth grew."""

    def note_made(self, elements: int, seconds: float, nbytes: float) -> None:
        """Notes how many elements the thread has made, in how much time, and their size."""
        self._seconds += seconds
        self._seconds_each, self._nbytes_each = seconds / elements, nbytes / elements
        if self._guess and self._fixed is not None and self.elements < _GUESSED_MOST:
            self.elements = max(self._fixed, min(self._most_cheap(), _GUESSED_MOST))

    def note_blocked(self, seconds: float) -> None:
        """Notes for how long the thread had to wait for room."""
        self._seconds += seconds
        self._blocked += seconds

    def note_starved(self, seconds: float) -> None:
        """Notes for how long the caller had to wait for an element."""
        self._starved += 1
        saved = min(self._blocked, seconds)
        self._blocked -= saved
        self._lost += saved
        if self._fixed is None:
            self._grow_if_time_was_lost()
        elif self._starved >= _STARVED_OFTEN:
            self.elements = max(self._fixed, min(2 * self.elements, self._most_cheap(), 1024))

    def _grow_if_time_was_lost(self) -> None:
        if self._seconds > _LATELY:
            self._seconds, self._lost = self._seconds / 2, self._lost / 2
        if self._budget.enabled and self._lost > _MOST_LOST * self._seconds:
            most = int(self._budget.nbytes / max(self._nbytes_each, 1))
            self.elements = max(2, min(2 * self.elements, most, 4096))
            self._lost = self._blocked = 0.0

    def _most_cheap(self) -> int:
        """How many elements cost next to nothing together."""
        in_time = int(_CHEAP / max(self._seconds_each, 1e-7))
        return min(in_time, int((1 << 20) / max(self._nbytes_each, 1)))


_MOST_LOST = 0.02
"""The depth grows if this fraction of the time could be saved."""

_LATELY = 10.0
"""Seconds over which that fraction is measured."""


class Brevity:
    """Whether datasets are so short that it costs more to read them ahead than it saves.

    At first, threads read them ahead. If a dataset took a thread less processor time than the
    thread itself costs, the caller reads the next one when its turn comes, as a trial. It reads
    those that follow as well, until they take it more time by the clock than threads would have
    cost: a slow disk needs time, but no processor.
    """

    def __init__(self) -> None:
        self.failures = 0
        """How often the caller took too long; then threads should start on all open datasets."""
        self._is_brief = self._is_due = self._is_open = False
        """Whether the caller reads all datasets, whether the next is a trial, and one is open."""
        self._saved = 0.0
        """Seconds that the caller has saved without threads; it may lose them again."""
        self._left, self._pause = 0, _FIRST_PAUSE
        """After how many datasets the next trial may be, and how many will follow its failure."""

    def expect(self) -> bool:
        """Whether the caller is to read the next dataset when its turn comes."""
        is_trial, self._is_due = self._is_due, False
        self._is_open = self._is_open or is_trial
        return self._is_brief or is_trial

    def note_ahead(self, cpu_seconds: float) -> None:
        """Notes the processor time of a thread that has read a dataset to its end."""
        self._left -= 1
        is_free = not self._is_brief and not self._is_open
        self._is_due = is_free and self._left < 0 and cpu_seconds < HANDOVER

    def note_here(self, seconds: float) -> None:
        """Notes for how long the caller has read a dataset: to its end, or to more than that."""
        self._is_open = False
        self._saved = min(self._saved + HANDOVER - seconds, _MOST_SAVED)
        self._is_brief = self._saved > 0
        if self._saved == _MOST_SAVED:
            self._pause = _FIRST_PAUSE
        elif not self._is_brief:
            self.failures += 1
            self._saved, self._left, self._pause = 0.0, self._pause, min(2 * self._pause, 1024)


HANDOVER = 0.5e-3
"""Seconds of processor time to read a dataset by a thread of its own, beyond the reading itself.

Measured with files of five lines: 0.55 ms."""

_MOST_SAVED = 16 * HANDOVER
_FIRST_PAUSE = 8


class Parallelism:
    """How many calls at once: climbs as long as the throughput rises with it, then stays.

    It looks a few times at the rate, then tries another number for three looks, of which it counts
    the last two: the first has results of calls that were made before. A number is kept if it is
    faster by more than the noise of the looks. A failed try is followed by twice as many looks.
    After three of them in a row, up and down in turns, the number stays until the rate changes for
    a while.
    """

    def __init__(self, calls: int, budget: Budget) -> None:
        self._fixed = calls if calls != AUTOTUNE else None
        self.most = min(budget.threads, calls) if self._fixed else budget.threads
        self.calls = self.most if self._fixed else max(1, min(2, self.most))
        self._threads, self.nbytes = self.most, budget.nbytes
        self.processes = self.most if self._fixed else min(self.most, cores())
        """How many processes make the calls, where processes do."""
        self._tuned = self._fixed is None and budget.enabled
        self._kept = self.calls
        self._rates: list[float] = []
        """The last rates with `_kept` calls."""
        self._tried: list[float] = []
        """The rates of the present try."""
        self._failed = self._odd = 0
        """The tries that failed in a row, and the looks in a row with another rate."""

    def note_rate(self, rate: float, nbytes_each: float) -> None:
        """Notes how many elements per second came with `calls` at once, and the bytes of a call."""
        if not self._tuned:
            return
        self.most = max(1, min(self._threads, int(self.nbytes / max(2 * nbytes_each, 1))))
        if max(self.calls, self._kept) > self.most:
            self._keep(min(self._kept, self.most), [])
        elif self.calls != self._kept:
            self._note_try(rate)
        elif self._failed >= _MOST_FAILED:
            self._watch(rate)
        else:
            self._note_kept(rate)

    def _note_try(self, rate: float) -> None:
        self._tried.append(rate)
        if len(self._tried) < _TRY_LOOKS:
            return
        counted, usual = self._tried[1:], np.mean(self._rates)
        if np.mean(counted) > max(_FASTER * usual, usual + 2 * np.std(self._rates)):
            self._keep(self.calls, counted)
        else:
            self.calls = self._kept
            self._failed += 1

    def _keep(self, calls: int, rates: list[float]) -> None:
        self.calls = self._kept = calls
        self._rates, self._failed, self._odd = rates, 0, 0

    def _note_kept(self, rate: float) -> None:
        self._rates.append(rate)
        if len(self._rates) >= (2 * _TRY_LOOKS if self._failed else _TRY_LOOKS):
            self._try_next()

    def _try_next(self) -> None:
        up = min(self.most, max(self._kept + 1, int((1.5 if self._failed else 2) * self._kept)))
        down = max(1, self._kept - 1)
        self.calls = down if self._failed % 2 else up
        self._tried = []
        if self.calls == self._kept:
            self._failed += 1  # There is no such number.

    def _watch(self, rate: float) -> None:
        """Tries other numbers again if the rate has changed for a while."""
        usual = np.mean(self._rates)
        changed = not usual / _CHANGE < rate < usual * _CHANGE
        self._odd = self._odd + 1 if changed else 0
        if self._odd >= _CHANGED_LOOKS:
            self._keep(self._kept, [])


_FASTER = 1.05
"""Another number of calls is kept if it is at least that many times as fast."""

_TRY_LOOKS = 3
_MOST_FAILED = 3
_CHANGE, _CHANGED_LOOKS = 1.5, 8
"""Numbers are tried again if the rate differs by this factor in so many looks in a row."""


class Relocation:
    """Whether calls move from threads to processes: one decision, and at most one way back.

    Functions that hold the lock of the interpreter share one core, however many threads call them.
    So calls move if they are busy and use fewer cores than they could, twice in a row. They return
    if clearly fewer elements come from processes.

    Calls that use nearly all cores may still lose time to that lock. Only a trial can show this,
    and it costs little where each call takes long: such calls move after some looks, and return
    unless more elements come from processes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seconds = self._cpu = self._total = self._nbytes = 0.0
        self._elements = self._times = 0
        self._rate = self._moved = 0.0
        self._arrived = 0
        self._saturated = 0
        """In how many looks in a row long calls used nearly all cores."""
        self.reason = ""
        """Why the last decision was made."""

    def note_threads(self, elements: int, seconds: float, use: CpuUse, nbytes: float) -> bool:
        """Notes what came from threads, in how much time; returns whether calls should move."""
        self._elements += elements
        self._seconds += seconds
        self._cpu += use.calls
        self._total += use.program
        self._nbytes += nbytes
        if self._seconds < _LOOK_SECONDS:
            return False
        self._times = self._times + 1 if self._is_held_back() else 0
        self._saturated = self._saturated + 1 if self._is_saturated() else 0
        self._rate = self._elements / self._seconds
        self._seconds = self._cpu = self._total = self._nbytes = 0.0
        self._elements = 0
        return self._times >= 2 or self._saturated >= _TRIAL_LOOKS

    def _is_held_back(self) -> bool:
        used, total = self._cpu / self._seconds, self._total / self._seconds
        self.reason = f"in threads they used {used:.1f} of {self._most} cores"
        if _GAIN * used > self._most or self._nbytes > _MOST_TRAFFIC * self._cpu:
            return False
        return used >= 0.6 or (used >= 0.3 and 0.8 <= total <= 1.3)

    def _is_saturated(self) -> bool:
        if self._most == 1 or self._nbytes > _MOST_TRAFFIC * self._cpu:
            return False
        is_long = self._cpu >= _LONG_CALL * self._elements
        return is_long and _GAIN * self._cpu / self._seconds > self._most

    def _is_warm(self) -> bool:
        """Whether processes had time to begin: their first calls import what the function needs."""
        has_begun = self._arrived >= _WARM_SECONDS * self._rate / 2
        return self._moved >= (_WARM_SECONDS if has_begun else _LONGEST_WARM)

    def note_processes(self, elements: int, seconds: float) -> bool:
        """Notes what came from processes; returns whether calls should return to threads."""
        if not self._rate or not self._is_warm():
            self._moved += seconds
            self._arrived += elements
            return False
        self._elements += elements
        self._seconds += seconds
        if self._seconds < _TRY_SECONDS:
            return False
        rate, before = self._elements / self._seconds, self._rate
        self._rate = 0.0  # This was the last decision.
        self.reason = f"{before:.0f} elements/s came from threads and {rate:.0f} from processes"
        least = _FASTER if self._saturated >= _TRIAL_LOOKS else _LOSS
        return rate < least * before


@dataclass(frozen=True)
class CpuUse:
    """Seconds of CPU time: of the calls, and of all threads of this program."""

    calls: float
    program: float


_LOOK_SECONDS = 0.12
"""For how long the use of the CPU is measured at once."""

_GAIN = 1.3
"""Calls move if so much more could be gained."""

_MOST_TRAFFIC = 400e6
"""Bytes of results for each second of calls; beyond, copying them takes what processes gain."""

_LOSS = 0.9
"""Calls return if fewer elements come than this fraction; a machine's own noise is smaller."""

_LONG_CALL = 0.3e-3
"""Seconds of CPU time of a call beside which its way to a process costs little."""

_TRIAL_LOOKS = 8
"""Long calls that use nearly all cores move after so many looks, to find out what is faster."""

_WARM_SECONDS, _LONGEST_WARM = 0.4, 4.0
"""When processes are compared with threads after the move: later if hardly anything came."""

_TRY_SECONDS = 0.6
"""For how long they are compared."""
