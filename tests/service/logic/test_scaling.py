"""How many workers a service has under loads that change: against the best fixed number."""

import math
from collections.abc import Callable

import pytest

from penstock.service.logic.scaling import WorkerRange, WorkerScaling
from penstock.service.protocol import timing


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
