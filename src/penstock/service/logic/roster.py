"""The roster: which workers there are, how much each has to do, and who may get more.

A worker is *usable* if it may get something new: not suspected, not about to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.service.logic.throughput import Throughput
from penstock.service.protocol.messages import WorkerInfo, WorkStatus


@dataclass
class WorkerRecord:
    """A worker that is there. `streams` are those that it makes: job and stream."""

    info: WorkerInfo
    heard: float = 0.0
    streams: dict[tuple[str, int], None] = field(default_factory=dict)
    suspected: bool = False
    draining: bool = False
    pace: Throughput = field(default_factory=Throughput)
    buffered: int = 0
    restarts: int = 0

    @property
    def usable(self) -> bool:
        return not self.suspected and not self.draining


class Roster:
    """All workers; `version` moves whenever the list that clients see does."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerRecord] = {}
        self.addresses: dict[str, str] = {}
        self.silent: dict[str, None] = {}
        """Workers, the one that was silent longest first."""
        self.version = 0
        self._loads: dict[int, dict[str, None]] = {}
        """Usable workers by the number of their streams."""
        self._offered: tuple[WorkerInfo, ...] | None = None

    def join(self, info: WorkerInfo, now: float) -> None:
        record = self.workers.get(info.worker)
        if record is None:
            record = self.workers[info.worker] = WorkerRecord(info)
        else:
            self._count_out(record)
            self.addresses.pop(record.info.address, None)
            record.info, record.suspected, record.draining = info, False, False
        self.addresses[info.address] = info.worker
        self._count_in(record)
        self._moved()
        self._spoke(record, now)

    def leave(self, worker: str) -> WorkerRecord | None:
        record = self.workers.pop(worker, None)
        if record is None:
            return None
        self._count_out(record)
        self.silent.pop(worker, None)
        if self.addresses.get(record.info.address) == worker:
            del self.addresses[record.info.address]
        self._moved()
        return record

    def hear(
        self,
        worker: str,
        jobs: tuple[WorkStatus, ...],
        draining: bool,
        now: float,
        restarts: int = 0,
    ) -> None:
        record = self.workers.get(worker)
        if record is None:
            return
        if record.suspected or draining != record.draining:
            if draining != record.draining:
                self._moved()
            self._count_out(record)
            record.suspected, record.draining = False, draining
            self._count_in(record)
        for job in jobs:
            record.pace.add(job.elements, job.seconds)
        record.buffered = sum(job.buffered for job in jobs)
        record.restarts = max(record.restarts, restarts)
        self._spoke(record, now)

    def suspect(self, worker: str) -> None:
        record = self.workers.get(worker)
        if record is not None:
            self._count_out(record)
            record.suspected = True

    def give(self, worker: str, job: str, stream: int) -> None:
        """A worker makes a stream more."""
        record = self.workers.get(worker)
        if record is not None:
            self._count_out(record)
            record.streams[job, stream] = None
            self._count_in(record)

    def take(self, worker: str | None, job: str, stream: int) -> None:
        """A worker makes a stream less."""
        record = self.workers.get(worker) if worker is not None else None
        if record is not None:
            self._count_out(record)
            record.streams.pop((job, stream), None)
            self._count_in(record)

    def address(self, worker: str | None) -> str | None:
        record = self.workers.get(worker) if worker is not None else None
        return record.info.address if record is not None else None

    def usable(self) -> Iterator[WorkerRecord]:
        """Those who may get something new, the ones with least to do first."""
        for load in sorted(self._loads):
            yield from (self.workers[worker] for worker in self._loads[load])

    def count_usable(self, most: int) -> int:
        """How many may get something new, counted no further than `most`."""
        count = 0
        for workers in self._loads.values():
            count += len(workers)
            if count >= most:
                return most
        return count

    def offered(self) -> tuple[WorkerInfo, ...]:
        """Whom clients may ask: nobody who is about to leave, unless there is no other."""
        if self._offered is None:
            records = self.workers.values()
            staying = tuple(record.info for record in records if not record.draining)
            self._offered = staying or tuple(record.info for record in records)
        return self._offered

    def _moved(self) -> None:
        self.version += 1
        self._offered = None

    def _spoke(self, record: WorkerRecord, now: float) -> None:
        record.heard = now
        self.silent.pop(record.info.worker, None)
        self.silent[record.info.worker] = None

    def _count_out(self, record: WorkerRecord) -> None:
        load = len(record.streams)
        workers = self._loads.get(load)
        if workers is not None:
            workers.pop(record.info.worker, None)
            if not workers:
                del self._loads[load]

    def _count_in(self, record: WorkerRecord) -> None:
        if record.usable:
            self._loads.setdefault(len(record.streams), {})[record.info.worker] = None


def least_loaded(
    workers: Iterable[WorkerRecord], given: Sequence[str | None] = ()
) -> WorkerRecord | None:
    """The first of `workers` that is in `given` the fewest times; None if there are none."""
    best, fewest = None, len(given) + 1
    for record in workers:
        times = given.count(record.info.worker)
        if times < fewest:
            best, fewest = record, times
        if not times:
            break
    return best
