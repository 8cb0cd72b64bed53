"""One run: events happen while readers read, and at the end all elements are counted.

A fault is mended after a number of elements, or when no reader can continue before that.
"""

from __future__ import annotations

import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

from penstock.service.logic.state import Settings
from tests.integration.chaos.cluster import Cluster, Reader
from tests.integration.chaos.plans import CRASH, Plan
from tests.integration.chaos.programs import WORKER_TIMEOUT, Programs
from tests.integration.chaos.schedule import Event
from tests.integration.chaos.strangers import Strangers

IDLE = 1.0
"""Seconds without an element after which a fault is mended."""

DAMAGED = 5_000
"""One bit flips in about so many bytes."""

FROZEN = WORKER_TIMEOUT + 1.0
"""The least number of seconds that a worker is stopped."""

ASLEEP = Settings.lease_seconds + 4.0
"""The least number of seconds that a client is stopped."""

UNREPORTED = 16
"""Elements that a client may have handed out and not reported when it counts as dead."""


@dataclass(frozen=True)
class Outcome:
    """What the readers got, compared with the data."""

    expected: int
    lost: int
    duplicated: int
    seconds: float
    ended: bool
    in_order: bool
    happened: int
    missing: tuple[int, ...]
    """Some of the lost elements."""
    problem: str = ""
    late: int = 0
    """How many elements too late an event happened, at most."""
    slept: int = 0
    """How many clients were stopped so long that other clients got their unreported elements."""

    @property
    def once(self) -> bool:
        """Whether no element was lost, and no reported element came twice."""
        return not self.lost and self.duplicated <= self.slept * UNREPORTED

    @property
    def flawless(self) -> bool:
        return self.once and self.ended and not self.problem


@dataclass
class Mending:
    """How a fault is mended: at element `at`, not before time `earliest`."""

    at: int
    earliest: float
    mend: Callable[[], None]
    broken: Callable[[], bool] = lambda: True
    """Whether the fault has begun: a crash waits for a call of the function."""


class Scenario:
    """A plan that is read while the events of a schedule happen."""

    def __init__(
        self,
        programs: Programs,
        folder: Path,
        plan: Plan,
        events: Iterable[Event],
        n: int = 600,
        pace: float = 0.004,
        patience: float = 60.0,
    ) -> None:
        self._cluster = Cluster(programs, folder)
        self._plan, self._n, self._pace, self._patience = plan, n, pace, patience
        self._events = sorted(events, key=lambda event: event.at)
        self._mendings: list[Mending] = []
        self._read = self._happened = self._late = self._slept = 0

    def run(self) -> Outcome:
        with self._cluster as cluster:
            started = time.monotonic()
            cluster.read(self._plan, self._n, self._pace)
            problem = self._watch()
            return self._outcome(time.monotonic() - started, problem)

    def _watch(self) -> str:
        """Runs until all readers have ended; returns what went wrong."""
        readers, moved = self._cluster.readers, time.monotonic()
        self._allow()
        while not all(reader.ended for reader in readers):
            for reader in self._cluster.ready(IDLE / 4):
                before = len(reader.elements)
                going = reader.read()
                self._read += len(reader.elements) - before
                moved = time.monotonic()
                if not going and not reader.ended:
                    return f"a reader failed: {reader.last_words()}"
            self._happen(idle=time.monotonic() - moved)
            self._allow()
            if time.monotonic() - moved > self._patience:
                return f"no element for {self._patience:.0f} s"
        return "a crash that was due did not happen" if self._crash.exists() else ""

    def _allow(self) -> None:
        """Lets readers continue, unless a fault has lasted long enough but cannot be mended yet."""
        now = time.monotonic()
        if any(self._read >= each.at and now < each.earliest for each in self._mendings):
            return
        for reader in self._cluster.readers:
            reader.allow()

    @property
    def _crash(self) -> Path:
        """While this file is there, the next call of a function ends its process."""
        return self._cluster.data / CRASH

    def _happen(self, idle: float) -> None:
        """Starts and mends the faults that are due; one fault at a time."""
        now = time.monotonic()
        for mending in list(self._mendings):
            over = self._read >= mending.at or idle > IDLE
            if mending.broken() and now >= mending.earliest and over:
                self._mendings.remove(mending)
                mending.mend()
        while self._events and not self._mendings and self._due(self._events[0]):
            self._break(self._events.pop(0))

    def _due(self, event: Event) -> bool:
        """A client that will be restarted needs a state with elements that it has read."""
        if self._read < event.at:
            return False
        reader = self._reader(event.which)
        return event.kind != "client" or reader.ended or reader.saved > 0 or not reader.saves

    def _reader(self, which: int) -> Reader:
        readers = self._cluster.readers
        return readers[which % len(readers)]

    def _break(self, event: Event) -> None:
        self._happened += 1
        self._late = max(self._late, self._read - event.at)
        cluster = self._cluster
        worker = cluster.workers[event.which % len(cluster.workers)]
        match event.kind:
            case "worker":
                worker.kill()
                self._later(event, worker.start)
            case "dispatcher":
                cluster.dispatcher.kill()
                self._later(event, cluster.dispatcher.start)
            case "everything":
                for program in (cluster.dispatcher, *cluster.workers):
                    program.kill()
                self._later(event, self._start_everything)
            case "freeze":
                worker.signal(signal.SIGSTOP)
                self._later(event, lambda: worker.signal(signal.SIGCONT), FROZEN)
            case "full":
                cluster.dispatcher.limit_files(1)
                self._later(event, lambda: cluster.dispatcher.limit_files(resource.RLIM_INFINITY))
            case "partition":
                proxy = cluster.proxies[event.which % len(cluster.proxies)]
                proxy.stall()
                self._later(event, proxy.flow, FROZEN)
            case "damage":
                for proxy in cluster.proxies:
                    proxy.damage(every=DAMAGED)
                    self._later(event, partial(proxy.damage, 0))
            case "cut":
                for proxy in cluster.proxies:
                    proxy.cut()
            case "strangers":
                strangers = Strangers(cluster.ports)
                self._later(event, strangers.close)
                for proxy in cluster.proxies:  # Readers have to connect among the strangers.
                    proxy.cut()
            case "crash" if cluster.programs.name == "penstock":
                self._crash.touch()
                self._later(event, lambda: None, broken=lambda: not self._crash.exists())
            case "sleep":
                self._slept += 1
                reader = self._reader(event.which)
                reader.signal(signal.SIGSTOP)
                self._later(event, lambda: reader.signal(signal.SIGCONT), ASLEEP)
            case "client" if cluster.programs.name == "penstock":
                self._restart_reader(event.which)

    def _later(
        self,
        event: Event,
        mend: Callable[[], None],
        seconds: float = 0.0,
        broken: Callable[[], bool] = lambda: True,
    ) -> None:
        at, earliest = self._read + event.length, time.monotonic() + seconds
        self._mendings.append(Mending(at, earliest, mend, broken))

    def _start_everything(self) -> None:
        self._cluster.dispatcher.start()
        for worker in self._cluster.workers:
            worker.start()

    def _restart_reader(self, which: int) -> None:
        reader = self._reader(which)
        if not reader.ended:
            reader.kill_and_forget()
            if not reader.ended:
                reader.start(wait=False)

    def _outcome(self, seconds: float, problem: str) -> Outcome:
        readers, plan = self._cluster.readers, self._plan
        found = [list(chain.from_iterable(reader.elements)) for reader in readers]
        expected = plan.counts(self._n, len(self._cluster.workers))
        got = Counter(chain.from_iterable(found))
        in_order = not plan.ordered or found[0] == sorted(found[0])
        return Outcome(
            expected.total(),
            (expected - got).total(),
            (got - expected).total(),
            seconds,
            all(reader.ended for reader in readers),
            in_order,
            self._happened,
            tuple(islice((expected - got).elements(), 10)),
            problem,
            self._late,
            self._slept,
        )
