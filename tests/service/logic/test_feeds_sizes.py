"""What a reader requests: enough for every worker, within a budget, for elements of any size."""

from __future__ import annotations

from collections import deque

import pytest

from penstock.service.logic.feeds import Ask, Limits
from penstock.service.logic.fetching import Fetcher
from penstock.service.logic.orders import SequentialOrder
from penstock.service.protocol.data_messages import Done

MB = 1 << 20


class Batch:
    """One element of some size."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __len__(self) -> int:
        return 1

    def rows(self, start: int, stop: int) -> Batch:
        return self


class Crew:
    """Workers that all take one second for an element, and a reader that takes no time."""

    def __init__(self, workers: int, nbytes: int, limits: Limits) -> None:
        self.reader = Fetcher(SequentialOrder(1, 10_000), limits, bound=False)
        self.nbytes = nbytes
        self.queues: dict[str, deque[Ask]] = {f"w{n}": deque() for n in range(workers)}
        for worker in self.queues:
            self.reader.join(worker)
        self.most = 0
        """The most bytes that were requested and not handed out."""
        self.handed_out = 0

    def ask(self) -> None:
        for ask in self.reader.asks():
            assert ask.stop == ask.start + 1
            self.queues[ask.worker].append(ask)
        self.most = max(self.most, self.reader._here + self.reader._owed)

    def run(self, seconds: int, take: int = 1 << 30) -> int:
        """Runs for some seconds; returns the idle seconds of all workers together."""
        idle = 0
        for _ in range(seconds):
            self.ask()
            busy = [queue for queue in self.queues.values() if queue]
            idle += len(self.queues) - len(busy)
            for queue in busy:
                ask = queue.popleft()
                self.reader.arrive(ask.request, ask.start, Batch(self.nbytes), 1.0)
                self.reader.done(Done(ask.request))
            for _ in range(take):
                if self.reader.take(1) is None:
                    break
                self.handed_out += 1
        return idle


@pytest.mark.parametrize("nbytes", [10 * MB, 100 * MB, 1000 * MB])
def test_no_worker_is_idle_because_elements_are_large(nbytes: int) -> None:
    crew = Crew(14, nbytes, Limits(budget=1 << 40))
    assert crew.run(50) == 0
    assert crew.most <= 3 * 14


def test_small_elements_may_take_64_mb() -> None:
    limits = Limits(budget=1 << 40)
    assert limits.count_bytes(14, 1000) == 64 * MB
    assert limits.count_bytes(14, 9.6 * MB) == int(3 * 14 * 9.6 * MB)
    assert Limits(budget=MB).count_bytes(14, 1000) == MB


def test_a_slow_user_does_not_make_the_reader_hold_more() -> None:
    crew = Crew(14, 10 * MB, Limits(budget=1 << 40))
    crew.run(50, take=1)
    assert crew.most <= 3 * 14


@pytest.mark.parametrize(("budget", "holds"), [(100 * MB, 10), (29 * MB, 2), (5 * MB, 1)])
def test_the_budget_is_kept_and_one_large_element_still_comes(budget: int, holds: int) -> None:
    crew = Crew(14, 10 * MB, Limits(budget=budget))
    crew.run(2)  # The size of the first elements is not known beforehand.
    crew.most = 0
    assert crew.run(20) > 0
    assert crew.most <= holds
    assert crew.reader.is_short
    assert crew.handed_out >= 20


def test_the_first_elements_may_be_large() -> None:
    crew = Crew(14, 1000 * MB, Limits(budget=1 << 40))
    crew.ask()
    assert crew.most == 2 * 14
    assert not crew.reader.is_short


def test_a_limit_of_elements_is_the_users_own() -> None:
    crew = Crew(14, 1000 * MB, Limits(elements=5, budget=MB))
    crew.run(9)
    assert crew.most == 5
    assert not crew.reader.is_short
