"""A fleet: one dispatcher, many workers and many readers of one named job, of which some die.

The clients are those of `scripts/bench control`, on the virtual clock. Every second some readers
and workers die silently, and new ones replace them. Every element must reach a reader, and
none may reach two readers, unless one of them died before it could report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.light_clients import DATASET, LightReader, LightWorker
from penstock.plan.shape import Shape
from penstock.service.host.services import Session
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import RegisterDataset, StreamRange
from tests.service.logic.invariants import check
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import Process, Violation, World
from tests.simulation.machines import Machine
from tests.simulation.network import Network, Weather

RATE = 100.0
"""Elements per second that the user of a reader consumes."""
STEP = 0.25
"""Seconds between two steps of a user."""
START = 5.0
"""Seconds in which all workers and readers start."""
COUNTED = 3.0
"""Seconds after the start; progress is measured from then on."""
PATIENCE = 120.0
"""Seconds in which the remaining elements must be read at the end."""


@dataclass
class Fleet:
    """The parameters of a run, and its results."""

    workers: int
    readers: int
    seconds: float
    deaths: int
    """How many readers, and how many workers, die per second."""
    died: int = 0
    requests: int = 0
    busy: float = 0.0
    """Seconds of CPU time that the dispatcher needed while progress was measured."""
    consumed: int = 0
    """Elements that users consumed while progress was measured."""
    ideal: float = 0.0
    """Elements that users would have consumed if they had never waited."""
    repeated: int = 0
    """Elements that two readers got, because the first reader died before it could report them."""
    total: int = 0
    last: float = 0.0
    """The virtual time at which the last reader ended."""

    @property
    def progress(self) -> float:
        return self.consumed / self.ideal

    def __str__(self) -> str:
        return (
            f"{self.readers} readers of one job, {self.workers} workers, {self.died} died\n"
            f"{self.busy / self.seconds:.1%} of one core for {self.requests / self.seconds:,.0f} "
            "requests per second\n"
            f"{self.progress:.1%} of ideal progress\n"
            f"{self.total:,} elements, each read; {self.repeated:,} of dead readers read again"
        )


class Reader(LightReader):
    """A light reader in a process of its own, which notes what it hands out."""

    def __init__(self, network: Network, name: str) -> None:
        self.process = Process(network.world, name)
        super().__init__(name, "job", RATE, Machine(self.process))
        self.handed: list[StreamRange] = []
        self.is_open = False
        self.network = network
        self.process.spawn(self._live)

    def _live(self) -> None:
        self.open(Session("dispatcher", None, self.network.call))  # type: ignore[arg-type]
        self.is_open = True

    def hand_out(self, at: StreamRange) -> None:
        super().hand_out(at)
        self.handed.append(at)


@dataclass
class _Run:
    fleet: Fleet
    world: World
    network: Network
    readers: list[Reader] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    dead: list[Reader] = field(default_factory=list)
    counting: bool = False
    names: int = 0

    def add_worker(self) -> None:
        self.names += 1
        worker = LightWorker(f"w{self.names}")
        process = Process(self.world, f"w{self.names}")
        self.workers.append(process)
        process.spawn(partial(worker.open, self.network, Machine(process)))  # type: ignore[arg-type]

    def add_reader(self) -> None:
        self.names += 1
        self.readers.append(Reader(self.network, f"r{self.names}"))

    def use(self) -> None:
        """The users of all readers."""
        while self.readers:
            self.world.wait(STEP)
            for reader in [reader for reader in self.readers if reader.is_open]:
                used = reader.step()
                if self.counting:
                    self.fleet.consumed += used
                    self.fleet.ideal += RATE * STEP
                if reader.finished and not reader.left:
                    self.readers.remove(reader)
                    reader.process.spawn(reader.close)
                    self.dead.append(reader)

    def kill_some(self) -> None:
        while self.counting:
            self.world.wait(1.0)
            for _ in range(self.fleet.deaths if self.counting else 0):
                reader = self.world.random.choice(self.readers)
                reader.process.kill()
                self.readers.remove(reader)
                self.dead.append(reader)
                worker = self.world.random.choice(self.workers)
                worker.kill()
                self.workers.remove(worker)
                self.add_reader()
                self.add_worker()
                self.fleet.died += 2


def run(workers: int, readers: int, seconds: float = 20.0, deaths: int = 2) -> Fleet:
    """One history of a fleet; raises Violation if an element is lost or read twice."""
    fleet = Fleet(workers, readers, seconds, deaths)
    world = World(0, most=1 << 40)
    network = Network(world, Weather())
    dispatcher = Dispatcher(network, Settings())
    network.answer = _time_answers(dispatcher, fleet)
    fleet.total = int(RATE * readers * (START + COUNTED + seconds + 5.0))
    run = _Run(fleet, world, network)
    launcher = Process(world, "launcher")
    shape = Shape("random", length=fleet.total)
    register = RegisterDataset("plan", "plan", b"", shape, fleet.total, DATASET)
    launcher.spawn(lambda: network.call(register))
    for _ in range(workers):
        world.at(world.random.random() * START, run.add_worker)
    for _ in range(readers):
        world.at(1.0 + world.random.random() * (START - 1.0), run.add_reader)
    try:
        world.run(START, lambda: False)
        launcher.spawn(run.use)
        world.run(START + COUNTED, lambda: False)
        run.counting, fleet.busy, fleet.requests = True, 0.0, 0
        launcher.spawn(run.kill_some)
        world.run(START + COUNTED + seconds, lambda: False)
        run.counting, busy, requests = False, fleet.busy, fleet.requests
        world.run(world.now + PATIENCE, lambda: not run.readers)
        fleet.busy, fleet.requests, fleet.last = busy, requests, world.now
        _settle(run, dispatcher)
    finally:
        world.close()
    return fleet


def _time_answers(dispatcher: Dispatcher, fleet: Fleet) -> Callable[[bytes, Any], None]:
    def answer(data: bytes, reply: Callable[[bytes | None], None]) -> None:
        started = time.thread_time()
        answered = dispatcher.handle(data)
        fleet.busy += time.thread_time() - started
        fleet.requests += 1
        reply(answered)

    return answer


def _settle(run: _Run, dispatcher: Dispatcher) -> None:
    """Compares what the readers handed out with the data."""
    if run.readers:
        raise Violation(f"{len(run.readers)} readers did not end in {PATIENCE:g} s")
    check(dispatcher.state)
    handed = sorted(
        (at.start, at.stop, reader.finished) for reader in run.dead for at in reader.handed
    )
    reached = 0
    for start, stop, _ in handed:
        if start > reached:
            raise Violation(f"elements {reached} to {start - 1} were not read")
        reached = max(reached, stop)
    if reached != run.fleet.total:
        raise Violation(f"elements from {reached} on were not read")
    for (_, stop, ended), (again, end, other) in pairwise(handed):
        if again < stop and ended and other:
            raise Violation(f"elements {again} to {min(stop, end) - 1} were read twice")
    run.fleet.repeated = sum(stop - start for start, stop, _ in handed) - run.fleet.total
