"""How many workers a service has under loads that change: against the best fixed number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from penstock.launch.hosted_service import WorkerRange, WorkerScaling
from penstock.plan.shape import Shape
from penstock.service.logic.status import BUSY, status
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    LeaveWorker,
    WorkerHeartbeat,
    WorkStatus,
)
from tests.service.logic.world import World


def follow(load: Callable[[int], float], seconds: int, allowed: WorkerRange) -> list[int]:
    """The number of workers in every second; a load is what readers can use."""
    scaling, running, counts = WorkerScaling(allowed), allowed.least, []
    for now in range(seconds):
        running = scaling.choose(float(now), math.ceil(load(now)), running)
        counts.append(running)
    return counts


@pytest.mark.parametrize("size", [2, 300])
def test_a_load_that_triples_and_falls(size: int) -> None:
    """Two minutes each: enough workers after 10 s, and few worker-seconds too many."""

    def load(now: int) -> float:
        return size * (3 if 120 <= now < 240 else 1)

    counts = follow(load, 360, WorkerRange(1, 1000))
    missing = [now for now in range(360) if counts[now] < load(now)]
    assert all(now % 120 < 10 for now in missing)
    best = sum(math.ceil(load(now)) for now in range(360))
    assert sum(counts) < 1.15 * best


def test_a_load_that_changes_all_the_time_does_not_end_workers() -> None:
    counts = follow(lambda now: 3 + now % 3, 60, WorkerRange(1, 8))
    assert set(counts[10:]) == {5}


def test_one_high_figure_costs_a_doubling_for_a_while() -> None:
    counts = follow(lambda now: 50 if now == 20 else 2, 60, WorkerRange(1, 100))
    assert max(counts) == 4
    assert counts[20 + int(timing.SHRINK_AFTER) + 2 :] == [2] * (37 - int(timing.SHRINK_AFTER) + 1)


@pytest.mark.parametrize(("load", "expected"), [(0, 3), (100, 6)])
def test_bounds_are_kept(load: int, expected: int) -> None:
    assert follow(lambda now: load, 5, WorkerRange(3, 6))[-1] == expected


SPEED = 1000
"""The elements that a worker makes in a second."""


class Simulation:
    """The closed loop on a simulated clock: one program, and the workers that it wants.

    The program uses what `load` workers make. It waits if fewer workers are there, or if the
    network carries what fewer of them make. Program and workers report that to a dispatcher, and
    what the dispatcher wants decides how many workers there are.
    """

    def __init__(self, allowed: WorkerRange, network: float = math.inf) -> None:
        self._scaling, self._network = WorkerScaling(allowed), network
        self._world = World(checked=False)
        self._workers: list[str] = []
        self._named = itertools.count()
        self._resize(allowed.least)
        self._world.open("program", self._world.dataset(Shape("random", length=-1)))
        self.counts: list[int] = []
        self.waits: list[float] = []

    def run(self, load: float, seconds: int) -> None:
        for _ in range(seconds):
            self._live_one_second(load)
            wanted = status(self._world.state, self._world.now)["wanted_workers"]
            running = len(self._workers)
            self._resize(self._scaling.choose(self._world.now, wanted, running))

    def _live_one_second(self, load: float) -> None:
        world, running = self._world, len(self._workers)
        world.now += 1.0
        used = min(load, running, self._network)
        waited, share = 1.0 - used / load, used / running
        self.counts.append(running)
        self.waits.append(waited)
        made = (WorkStatus("d/0", round(share * SPEED), share),)
        for worker in self._workers:
            world.ask(WorkerHeartbeat(worker, made))
        elements = round(used * SPEED)
        world.ask(ClientHeartbeat("program", 0, elements=elements, waited=waited, seconds=1.0))

    def _resize(self, count: int) -> None:
        while len(self._workers) < count:
            self._workers.append(f"w{next(self._named)}")
            self._world.worker(self._workers[-1])
        while len(self._workers) > count:
            self._world.ask(LeaveWorker(self._workers.pop()))


@pytest.mark.parametrize("size", [2, 332])
def test_the_closed_loop_follows_a_load_that_triples_and_falls(size: int) -> None:
    """With up to 1,000 workers: hardly a wait after 20 s, and few worker-seconds too many."""
    simulation = Simulation(WorkerRange(1, 1000))
    for load in (size, 3 * size, size):
        simulation.run(load, 60)
    for begin in (0, 60, 120):
        waits = simulation.waits[begin + 20 : begin + 60]
        assert sum(waits) / len(waits) < 0.02
    best = 60 * (size + 3 * size + size)
    assert sum(simulation.counts) < 1.15 * best
    assert max(simulation.counts) <= 3 * size + 1


def test_the_closed_loop_adds_no_workers_for_a_network_that_is_full() -> None:
    """Idle workers would not help: at most one doubling beyond what the network carries."""
    simulation = Simulation(WorkerRange(1, 1000), network=20)
    simulation.run(400, 60)
    assert max(simulation.counts) <= 2 * 20 / BUSY
