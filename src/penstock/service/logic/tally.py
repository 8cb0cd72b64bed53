"""`Tally`: counts what has happened at a dispatcher since it started, for its metrics.

It counts facts that were just decided, and none that are read from the journal. So every number
begins at 0 when the dispatcher starts, and never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.service.logic.dispatcher_records import LOST
from penstock.service.logic.facts import (
    ClientGone,
    ClientHeard,
    ClientJoined,
    Fact,
    IterationBegun,
    WorkerGone,
    WorkerHeard,
    WorkerJoined,
)


@dataclass
class Tally:
    """What clients and workers have reported, and how many of them came and went."""

    elements_handed_out: int = 0
    reader_seconds: float = 0.0
    reader_wait_seconds: float = 0.0
    elements_made: int = 0
    making_seconds: float = 0.0
    workers_joined: int = 0
    workers_gone: int = 0
    """Workers that left, were replaced at their address, or were lost."""
    workers_lost: int = 0
    """Workers that were silent for too long."""
    readers_joined: int = 0
    readers_gone: int = 0
    """Readers that left or were lost."""
    readers_lost: int = 0
    """Readers that were silent for too long."""
    iterations_begun: int = 0

    def count(self, fact: Fact) -> None:
        """Counts a fact; most kinds of facts change nothing."""
        counter = _COUNTERS.get(type(fact))
        if counter is not None:
            counter(self, fact)

    def count_expired(self, facts: tuple[Fact, ...]) -> None:
        """Counts the lost workers among facts that only the time has caused."""
        self.workers_lost += sum(isinstance(fact, WorkerGone) for fact in facts)

    def _client_heard(self, fact: ClientHeard) -> None:
        self.elements_handed_out += fact.elements
        self.reader_seconds += fact.seconds
        self.reader_wait_seconds += fact.waited

    def _worker_heard(self, fact: WorkerHeard) -> None:
        for job in fact.jobs:
            self.elements_made += job.elements
            self.making_seconds += job.seconds

    def _worker_joined(self, fact: WorkerJoined) -> None:
        self.workers_joined += 1

    def _worker_gone(self, fact: WorkerGone) -> None:
        self.workers_gone += 1

    def _client_joined(self, fact: ClientJoined) -> None:
        self.readers_joined += 1

    def _client_gone(self, fact: ClientGone) -> None:
        self.readers_gone += 1
        self.readers_lost += fact.how == LOST

    def _iteration_begun(self, fact: IterationBegun) -> None:
        self.iterations_begun += 1


_COUNTERS: dict[type[Any], Callable[[Tally, Any], None]] = {
    ClientHeard: Tally._client_heard,
    WorkerHeard: Tally._worker_heard,
    WorkerJoined: Tally._worker_joined,
    WorkerGone: Tally._worker_gone,
    ClientJoined: Tally._client_joined,
    ClientGone: Tally._client_gone,
    IterationBegun: Tally._iteration_begun,
}
