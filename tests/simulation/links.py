"""The data connections of one simulated client: who is wanted, who is connected."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from penstock.errors import OpError
from penstock.service.protocol.fetches import CloseTask, Fetch, OpenTask
from penstock.service.protocol.messages import Work, WorkerInfo
from tests.simulation.kernel import Bell, Process, Program
from tests.simulation.network import Endpoint, Network

AGAIN = 2.0
"""Seconds until a worker that could not be reached is tried again."""


class Link:
    """A connection to one worker, and what its tasks are called there."""

    def __init__(self, worker: str, end: Endpoint) -> None:
        self.worker = worker
        self.end = end
        self._tasks: dict[tuple[str, int], int] = {}
        self._opened = 0

    def fetch(self, request: int, work: Work, start: int, stop: int, mark: Any) -> None:
        key = (work.job, work.stream)
        if key not in self._tasks:
            self._opened += 1
            self._tasks[key] = self._opened
            self.end.send(OpenTask(self._tasks[key], work))
        self.end.send(Fetch(request, self._tasks[key], start, stop, mark))

    def close_task(self, job: str, stream: int) -> None:
        task = self._tasks.pop((job, stream), None)
        if task is not None:
            self.end.send(CloseTask(task))


class Links:
    """Connections to all workers that there are."""

    def __init__(self, network: Network, owner: Process, bell: Bell) -> None:
        self._network = network
        self._owner = owner
        self._bell = bell
        self._wanted: dict[str, WorkerInfo] = {}
        self._links: dict[str, Link] = {}
        self._busy: set[str] = set()
        self._again: dict[str, float] = {}
        self._arrived: list[tuple[str, Endpoint | None]] = []

    def __getitem__(self, worker: str) -> Link:
        return self._links[worker]

    def want(self, workers: Iterable[WorkerInfo]) -> list[str]:
        """The workers there are; gives those that are connected and no longer among them."""
        self._wanted = {info.worker: info for info in workers}
        return [worker for worker in self._links if worker not in self._wanted]

    def dial(self) -> None:
        now = self._network.world.now
        for worker, info in self._wanted.items():
            waits = worker in self._links or worker in self._busy
            if not waits and self._again.get(worker, 0.0) <= now:
                self._busy.add(worker)
                self._owner.spawn(self._dial(info))

    def _dial(self, info: WorkerInfo) -> Program:
        end = None
        with suppress(OpError):
            end = yield from self._network.connect(self._owner, self._bell, info.transfers["tcp"])
        self._arrived.append((info.worker, end))
        self._bell.ring()

    def connected(self) -> list[str]:
        """Workers that were connected since the last call."""
        made: list[str] = []
        arrived, self._arrived = self._arrived, []
        for worker, end in arrived:
            self._busy.discard(worker)
            if end is None:
                self._again[worker] = self._network.world.now + AGAIN
            elif worker not in self._wanted:
                end.close()
            else:
                self._links[worker] = Link(worker, end)
                made.append(worker)
        return made

    def drop(self, worker: str) -> None:
        link = self._links.pop(worker, None)
        self._again[worker] = self._network.world.now + AGAIN
        if link is not None:
            link.end.close()

    def ready(self) -> list[Link]:
        """Links with something to read, be it their end."""
        return [link for link in self._links.values() if link.end.inbox or link.end.broken]

    def all(self) -> list[Link]:
        return list(self._links.values())

    def close(self) -> None:
        self._wanted = {}
        for worker in list(self._links):
            self.drop(worker)
