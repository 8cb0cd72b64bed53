"""How many workers a service should have, from how many its readers can use; what limits a job.

Both are decided by measured shares of time: how long programs wait, and how long workers compute.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from penstock.service.logic.dispatcher_records import (
    HERE,
    ClientRecord,
    IterationRecord,
    Throughput,
)
from penstock.service.logic.state import State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import UNKNOWN_BOTTLENECK, Bottleneck

_MIN_BUSY = 0.02
"""The least share of its time that a client counts as busy: its potential rate stays finite."""


class WorkerRange(NamedTuple):
    """The fewest and the most workers of a service."""

    least: int
    most: int


def read_range(text: str) -> WorkerRange | None:
    """The range that `4` (from four to four) or `1..8` names; None if it names none."""
    first, dots, last = text.partition("..")
    try:
        least = int(first)
        most = int(last) if dots else least
    except ValueError:
        return None
    return WorkerRange(least, most) if 1 <= least <= most else None


class WorkerScaling:
    """Follows a load: grows at once, by no more than a doubling, and shrinks after a while.

    One high figure, such as that of a reader that has just begun to wait, costs at most a doubling
    for that while. A load that falls for a moment changes nothing.
    """

    def __init__(self, allowed: WorkerRange) -> None:
        self.allowed = allowed
        self._recent: deque[tuple[float, int]] = deque()
        """When readers could use how many workers, in the last `SHRINK_AFTER` seconds."""

    def choose(self, now: float, wanted: int, running: int) -> int:
        """The number of workers from now on: readers can use `wanted`, and `running` run."""
        self._recent.append((now, wanted))
        while self._recent[0][0] < now - timing.SHRINK_AFTER:
            self._recent.popleft()
        if wanted > running:
            target = min(wanted, max(2 * running, 1))
        else:
            target = min(running, max(count for _, count in self._recent))
        return min(max(target, self.allowed.least), self.allowed.most)


# How many workers readers can use


def wanted_workers(state: State) -> int:
    """How many workers are needed so that no client waits; never more than would help."""
    wanted = sum(_job_wants(state.iterations[job]) for job in state.active)
    at_least = 1 if state.active else 0
    return max(at_least, math.ceil(min(wanted - 1e-9, _most_helpful(state))))


def _job_wants(record: IterationRecord) -> float:
    """How many workers would keep the clients of one iteration busy."""
    one = record.making.rate
    if one <= 0:
        return 0.0
    members = (record.members[client] for client in record.clients)
    potential = sum(_potential_rate(client) for client in members if client.standing == HERE)
    return min(potential / one, record.most_workers)


def _most_helpful(state: State) -> float:
    """The workers that are here, if they are idle: clients that wait do not wait for them."""
    paces = [worker.pace for worker in state.roster.usable()]
    measured = [busy_share(pace) for pace in paces if pace.seconds > 0]
    return math.inf if sum(measured) >= BUSY * len(measured) else len(paces)


def _potential_rate(client: ClientRecord) -> float:
    """Elements per second that a client would use if it never had to wait."""
    pace = client.pace
    if pace.seconds <= 0:
        return 0.0
    busy = max(pace.seconds - pace.waited, pace.seconds * _MIN_BUSY)
    return pace.elements / busy


def busy_share(pace: Throughput) -> float:
    """The share of its time that a worker computes."""
    return 1.0 - pace.waited / pace.seconds if pace.seconds > 0 else 0.0


# What limits a job

SMALL_LAG = 0.05
"""A program that waits for a smaller share of its time gains next to nothing from faster input."""

BUSY = 0.6
"""Workers that compute for a larger share of their time are what a waiting program waits for.

Between two requests a worker always waits a little, so it never reaches 1.
"""


DELIVERING = 0.5
"""Readers that bring elements to devices for a larger share of their time do little else."""

_PLACES = ("source", "function")
"""Places of the slowest operator that a person can do something about."""

_FORESEEABLE = 4
"""No more than so many times the present workers are recommended."""


class JobSigns(NamedTuple):
    """What is known about a job. Shares are from 0 to 1."""

    readers: int
    measured: bool
    """Whether a reader has reported how long its program waits."""
    missing: tuple[int, ...]
    """Coordinated reads: the consumers that have not come."""
    finished: bool
    workers: int
    """Workers that may get streams."""
    lag: float
    """The share of their time that programs wait for elements."""
    busy: float
    """The share of their time that workers compute elements, for all jobs together."""
    wanted: int
    """How many workers the readers of all jobs could use."""
    element_bytes: float
    slowest: Bottleneck = UNKNOWN_BOTTLENECK
    """The slowest operator on the workers, as a reader reports it."""
    delivering: float = 0.0
    """The share of their time in which readers bring elements to devices."""
    settled: bool = True
    """Whether it is read for so long that `busy` is hardly about the time before."""


class Limit(NamedTuple):
    """Where a job loses its time, in a word, and what would help."""

    place: str
    advice: str


def find_limit(signs: JobSigns) -> Limit:
    """What limits a job now: the first reason that applies."""
    if signs.finished:
        return Limit("finished", "It was read to its end.")
    if not signs.readers:
        return Limit("no readers", "No program reads it now.")
    if signs.missing:
        return Limit("consumers", _missing_consumers(signs.missing))
    if not signs.workers:
        return Limit("no workers", "Start a worker: penstock worker --dispatcher HOST:PORT")
    if not signs.measured:
        return Limit("unknown", "Its readers have not reported their speed yet.")
    if signs.lag < SMALL_LAG and signs.delivering >= DELIVERING:
        return Limit("device", _slow_delivery(signs))
    if signs.lag < SMALL_LAG:
        return Limit("program", _fast_enough(signs))
    if signs.busy >= BUSY:
        place = signs.slowest.place
        return Limit(place if place in _PLACES else "workers", _busy_workers(signs))
    if not signs.settled:
        return Limit("unknown", "Its readers have just begun. Look again in a few seconds.")
    return Limit("wire", _slow_wire(signs))


def _slow_delivery(signs: JobSigns) -> str:
    return (
        f"Readers bring elements to their devices for {signs.delivering:.0%} of the time, and "
        "hardly wait for workers. Send fewer bytes: small dtypes such as uint8, converted on the "
        "device."
    )


def _missing_consumers(missing: tuple[int, ...]) -> str:
    names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"Start the programs of the missing consumers: {names}."


def _fast_enough(signs: JobSigns) -> str:
    return (
        f"Programs wait for {signs.lag:.1%} of their time: nothing to gain here. The training "
        "step, its device, or what the reader itself computes sets the pace."
    )


def _busy_workers(signs: JobSigns) -> str:
    found = (
        f"Programs wait for {signs.lag:.0%} of their time, and workers compute for "
        f"{signs.busy:.0%} of theirs{_most_of_it(signs.slowest)}. "
    )
    faster = signs.slowest.operator or "the source and the functions"
    if signs.wanted > signs.workers:
        return (
            f"{found}Add workers: {_enough(signs)} would keep all readers busy, "
            f"{_are(signs.workers)} here. Or make {faster} faster."
        )
    return f"{found}Make {faster} faster, or add a worker."


def _most_of_it(slowest: Bottleneck) -> str:
    return f", most of it in {slowest.operator}" if slowest.operator else ""


def _enough(signs: JobSigns) -> str:
    # Where programs do almost nothing but wait, the number says little about their own speed.
    most = _FORESEEABLE * signs.workers
    return f"{signs.wanted}" if signs.wanted <= most else f"more than {most}"


def _slow_wire(signs: JobSigns) -> str:
    return (
        f"Programs wait for {signs.lag:.0%} of their time, but workers compute for only "
        f"{signs.busy:.0%} of theirs: elements of {_bytes(signs.element_bytes)} are on their way "
        "for too long. Look at the network and at the cores of the reading machine, or raise "
        "Options.service.reader_memory."
    )


def _are(count: int) -> str:
    return "1 is" if count == 1 else f"{count} are"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
