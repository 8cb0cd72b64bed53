"""The records of a dispatcher: workers and their streams, jobs, their iterations and clients.

Only `state` changes records, when it applies a fact. A worker is *usable* if it may get another
stream: no client suspects it, and it is not draining. A stream that belongs to an address returns
there when a worker registers with that address.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

import msgspec

from penstock.plan.shape import ENDLESS, OWNED_FORMS, Form
from penstock.service.logic.facts import ClientJoined, IterationBegun, StreamPlace
from penstock.service.logic.leases import ConsumedRanges, Group, Lengths, Ranges
from penstock.service.protocol.messages import (
    AT_END,
    UNDECIDED,
    UNKNOWN_BOTTLENECK,
    Bottleneck,
    ClientHeartbeat,
    DatasetInfo,
    JobOptions,
    OpenIteration,
    StreamInfo,
    StreamRange,
    Work,
    WorkerHeartbeat,
    WorkerInfo,
)

FADING = 0.7
"""The weight of all earlier measurements when the next one comes."""


@dataclass(slots=True)
class Throughput:
    """How many elements a client uses or a worker makes per second; old measurements fade.

    `waited` are the seconds in which a client waited for elements, or a worker computed nothing.
    """

    elements: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    nbytes: float = 0.0

    def add(
        self, elements: float, seconds: float, waited: float = 0.0, nbytes: float = 0.0
    ) -> None:
        if seconds > 0 or elements:
            self.elements = self.elements * FADING + elements
            self.seconds = self.seconds * FADING + seconds
            self.waited = self.waited * FADING + waited
            self.nbytes = self.nbytes * FADING + nbytes

    @property
    def rate(self) -> float:
        """Elements per second."""
        return self.elements / self.seconds if self.seconds > 0 else 0.0

    @property
    def byte_rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def element_bytes(self) -> float:
        """Bytes per element."""
        return self.nbytes / self.elements if self.elements > 0 else 0.0


@dataclass
class WorkerRecord:
    """A registered worker. `streams` are the streams that it makes: (job, stream)."""

    info: WorkerInfo
    heard: float = 0.0
    streams: dict[tuple[str, int], None] = field(default_factory=dict)
    suspected: bool = False
    draining: bool = False
    pace: Throughput = field(default_factory=Throughput)
    buffered: int = 0
    restarts: int = 0
    failures: int = 0

    @property
    def usable(self) -> bool:
        return not self.suspected and not self.draining


class Roster:
    """All workers; `version` increases whenever the list that clients get changes."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerRecord] = {}
        self.addresses: dict[str, str] = {}
        self.silent: dict[str, None] = {}
        """Workers, the longest silent worker first."""
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
        self._change_list()
        self._record_request(record, now)

    def leave(self, worker: str) -> WorkerRecord | None:
        record = self.workers.pop(worker, None)
        if record is None:
            return None
        self._count_out(record)
        self.silent.pop(worker, None)
        if self.addresses.get(record.info.address) == worker:
            del self.addresses[record.info.address]
        self._change_list()
        return record

    def apply_heartbeat(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        record = self.workers.get(heartbeat.worker)
        if record is None:
            return
        jobs, draining = heartbeat.jobs, heartbeat.draining
        if record.suspected or draining != record.draining:
            if draining != record.draining:
                self._change_list()
            self._count_out(record)
            record.suspected, record.draining = False, draining
            self._count_in(record)
        # By the clock, not by the time spent on elements: the rate of an idle worker falls.
        elapsed = now - record.heard
        record.pace.add(
            sum(job.elements for job in jobs),
            elapsed,
            waited=max(0.0, elapsed - sum(job.seconds for job in jobs)),
            nbytes=sum(job.nbytes for job in jobs),
        )
        record.buffered = sum(job.buffered for job in jobs)
        record.restarts = max(record.restarts, heartbeat.restarts)
        record.failures = max(record.failures, heartbeat.failures)
        self._record_request(record, now)

    def suspect(self, worker: str) -> None:
        record = self.workers.get(worker)
        if record is not None:
            self._count_out(record)
            record.suspected = True

    def give(self, worker: str, job: str, stream: int) -> None:
        """Adds a stream to the streams of a worker."""
        record = self.workers.get(worker)
        if record is not None:
            self._count_out(record)
            record.streams[job, stream] = None
            self._count_in(record)

    def take(self, worker: str | None, job: str, stream: int) -> None:
        """Removes a stream from the streams of a worker."""
        record = self.workers.get(worker) if worker is not None else None
        if record is not None:
            self._count_out(record)
            record.streams.pop((job, stream), None)
            self._count_in(record)

    def address(self, worker: str | None) -> str | None:
        record = self.workers.get(worker) if worker is not None else None
        return record.info.address if record is not None else None

    def usable(self) -> Iterator[WorkerRecord]:
        """Workers that may get another stream, those with the fewest streams first."""
        for load in sorted(self._loads):
            yield from (self.workers[worker] for worker in self._loads[load])

    def count_usable(self, most: int) -> int:
        """How many workers may get another stream, or `most` if there are more."""
        count = 0
        for workers in self._loads.values():
            count += len(workers)
            if count >= most:
                return most
        return count

    def list_offered(self) -> tuple[WorkerInfo, ...]:
        """The workers that clients may fetch from: draining ones only if all are draining."""
        if self._offered is None:
            records = self.workers.values()
            staying = tuple(record.info for record in records if not record.draining)
            self._offered = staying or tuple(record.info for record in records)
        return self._offered

    def _change_list(self) -> None:
        self.version += 1
        self._offered = None

    def _record_request(self, record: WorkerRecord, now: float) -> None:
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


def spread(workers: Iterable[WorkerRecord], given: Iterable[str | None]) -> Iterator[WorkerRecord]:
    """Yields a worker for each of several streams: the first that has got the fewest of them.

    `given` are the workers of further streams, which count. Without workers it yields nothing.
    """
    counts, turns = Counter(given), []
    for turn, record in enumerate(workers):
        # Lazily: mostly one stream needs a worker, and there may be thousands of workers.
        times = counts[record.info.worker]
        if not times:
            yield record
        turns.append((max(1, times), turn, record))
    heapify(turns)
    while turns:
        times, turn, record = turns[0]
        heapreplace(turns, (times + 1, turn, record))
        yield record


class Places:
    """Which worker makes which stream of one iteration.

    If the streams are `owned` by workers, a stream without a worker keeps its place.
    """

    def __init__(self, job: str, owned: bool) -> None:
        self.version = 0
        self.homes: dict[str, dict[int, None]] = {}
        """The streams that belong to an address."""
        self.guests: dict[int, None] = {}
        """Streams that another worker makes than the one at their home address."""
        self.undecided: dict[int, None] = {}
        """Streams whose first lap the consumers have not agreed on."""
        self._job = job
        self._owned = owned
        self._places: dict[int, StreamPlace] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[StreamPlace]:
        return iter(self._places.values())

    def __contains__(self, stream: int) -> bool:
        return stream in self._places

    def worker(self, stream: int) -> str | None:
        place = self._places.get(stream)
        return place.worker if place is not None else None

    def home(self, stream: int) -> str:
        place = self._places.get(stream)
        return place.home if place is not None else ""

    def begins(self, stream: int) -> int:
        """The lap in which a stream has its first turn; UNDECIDED if it is not known."""
        place = self._places.get(stream)
        return UNDECIDED if place is None or place.begins is None else place.begins

    def put(self, place: StreamPlace, roster: Roster) -> None:
        """Places a stream, and updates the loads of both workers."""
        before = self._remove_place(place.stream, roster)
        if place.begins is None:
            begins = before.begins if before is not None else 0
            place = msgspec.structs.replace(place, begins=begins)
        if place.begins == UNDECIDED:
            self.undecided[place.stream] = None
        else:
            self.undecided.pop(place.stream, None)
        if self._owned or (before is not None and place.worker is not None):
            self.version += 1
        self._places[place.stream] = place
        if place.home:
            self.homes.setdefault(place.home, {})[place.stream] = None
        if place.worker is not None:
            roster.give(place.worker, self._job, place.stream)
        if self._owned and roster.address(place.worker) != place.home:
            self.guests.setdefault(place.stream)
        else:
            self.guests.pop(place.stream, None)

    def vacate(self, stream: int, roster: Roster) -> None:
        """Takes a stream from its worker."""
        if self._owned:
            self.put(StreamPlace(stream, None, self.home(stream)), roster)
        else:
            self._remove_place(stream, roster)

    def clear(self, roster: Roster) -> None:
        """Takes all streams from their workers."""
        for stream in list(self._places):
            self.vacate(stream, roster)

    def _remove_place(self, stream: int, roster: Roster) -> StreamPlace | None:
        before = self._places.pop(stream, None)
        if before is not None:
            roster.take(before.worker, self._job, stream)
            self.homes.get(before.home, {}).pop(stream, None)
            if not self.homes.get(before.home, True):
                del self.homes[before.home]
        return before


HERE, LEFT, LOST, SUPERSEDED = "here", "left", "lost", "superseded"


def is_local(options: JobOptions) -> bool:
    """Whether clients may only use workers on their own host."""
    return options.target.upper() == "LOCAL"


@dataclass(slots=True)
class ClientRecord:
    """A client, while it reads and afterwards: a later client may resume a saved state of it."""

    joined: ClientJoined
    consumed: ConsumedRanges
    standing: str = HERE
    number: int = 0
    answer: tuple[StreamRange, ...] = ()
    """The grants of the reply to request `number`."""
    heard: float = 0.0
    version: int = 0
    """The latest version that a request of it named."""
    waits_since: int | None = None
    """The version that was made when it began to wait for the leases of other clients."""
    limit: int | None = None
    """The limit that it promised together with `version`; see `ClientHeartbeat`."""
    held: int = 0
    """The bytes that it holds, from the last `ClientHeartbeat` that has a budget."""
    budget: int = 0
    """The bytes that it may hold, from the same heartbeat."""
    pace: Throughput = field(default_factory=Throughput)
    delivered: Throughput = field(default_factory=Throughput)
    """`waited` are the seconds in which it brought elements to devices."""
    bottleneck: Bottleneck = UNKNOWN_BOTTLENECK

    @property
    def client(self) -> str:
        return self.joined.client

    @property
    def job(self) -> str:
        return self.joined.job

    @property
    def group(self) -> str:
        return self.joined.group

    @property
    def host(self) -> str:
        return self.joined.host

    @property
    def consumer(self) -> int:
        return self.joined.consumer

    def note(self, heartbeat: ClientHeartbeat) -> None:
        """Notes what a heartbeat reports about its reading."""
        self.pace.add(heartbeat.elements, heartbeat.seconds, heartbeat.waited)
        self.delivered.add(0.0, heartbeat.seconds, heartbeat.bottleneck.delivered)
        if heartbeat.bottleneck.operator:
            self.bottleneck = heartbeat.bottleneck
        if heartbeat.budget:
            self.held, self.budget = heartbeat.held, heartbeat.budget
        if heartbeat.version >= self.version:
            self.version, self.limit = heartbeat.version, heartbeat.limit


class IterationRecord:
    """One repetition of a job: its streams, the workers that make them, the clients that read."""

    def __init__(self, begun: IterationBegun) -> None:
        self.begun = begun
        self.ready = begun.ready
        self.ends = Lengths()
        if begun.work.form == Form.RANDOM and begun.length >= 0:
            self.ends[0] = begun.length
        self.places = Places(begun.work.job, self.has_owned_streams)
        self.groups: dict[str, Group] = {}
        self.members: dict[str, ClientRecord] = {}
        """Every client that has ever read this iteration."""
        self.clients: dict[str, None] = {}
        """The clients that read it now."""
        self.hosts: dict[str, int] = {}
        self.consumers: dict[int, str] = {}
        self.idle_since = 0.0
        self.read_since = 0.0
        """When the first of its present clients joined."""
        self.calls = 0
        """How often the dispatcher has begun to wait for heartbeats of the clients.

        It is a part of the version: a client that names a later version was alive since."""
        self.making = Throughput()
        self.asked_since: int | None = None
        """The version since which consumers are asked for a limit; None if they are not."""

    @property
    def work(self) -> Work:
        return self.begun.work

    @property
    def options(self) -> JobOptions:
        return self.begun.options

    @property
    def has_owned_streams(self) -> bool:
        """Whether each stream belongs to a worker, and the clients get the list of them."""
        work = self.work
        return work.form in OWNED_FORMS or (work.form == Form.SINGLE and work.consumers > 0)

    @property
    def has_bound_streams(self) -> bool:
        """Whether workers make a stream from its start: one worker should make all of it."""
        return self.work.form != Form.RANDOM

    @property
    def most_workers(self) -> float:
        """How many workers can make its elements at the same time."""
        is_bounded = self.has_bound_streams and not self.extendable and self.work.streams >= 0
        return self.work.streams if is_bounded else math.inf

    @property
    def elastic(self) -> bool:
        """Whether every worker that joins makes a stream of its own."""
        return self.work.form == Form.WHOLE and self.work.streams == ENDLESS

    @property
    def extendable(self) -> bool:
        """Whether a worker that joins adds a stream, from a lap on that all consumers agree on."""
        return self.work.form == Form.WHOLE and self.work.consumers > 0

    @property
    def can_extend(self) -> bool:
        """Whether streams wait for an agreement on a lap, and every consumer is there to agree."""
        if not self.places.undecided or self.missing():
            return False
        return all(self.members[name].limit != AT_END for name in self.consumers.values())

    @property
    def waiting(self) -> bool:
        """Whether there are no streams because there are no workers."""
        return self.elastic and not len(self.places)

    @property
    def total(self) -> int:
        """The number of streams; ENDLESS if there is no last one."""
        return len(self.places) if self.elastic or self.extendable else self.work.streams

    @property
    def is_finished(self) -> bool:
        """Whether every group has consumed all elements."""
        return bool(self.groups) and all(self.complete(group) for group in self.groups.values())

    @property
    def forgettable(self) -> bool:
        """Whether no client needs the record again: it has no readers, and no element is left.

        Without leases, the saved states of the clients say what they have read.
        """
        return not self.clients and (not self.begun.leased or self.is_finished)

    def complete(self, group: Group) -> bool:
        """Whether a group has consumed all elements; unbegun streams must be empty."""
        if group.tracks or self.total == ENDLESS or self.waiting:
            return False
        return all(self.ends.get(stream) == 0 for stream in range(group.begun, self.total))

    def group_of(self, request: OpenIteration) -> str:
        """The name of the group that a client belongs to."""
        return request.group if self.options.cached else ""

    def consumed_by(self, group: str) -> int:
        """How many elements the clients of a group have consumed."""
        members = (member for member in self.members.values() if member.group == group)
        return sum(member.consumed.count for member in members)

    def near(self, info: WorkerInfo) -> bool:
        """Whether clients of this iteration may use a worker."""
        return not is_local(self.options) or info.host in self.hosts

    def streams(self) -> tuple[StreamInfo, ...]:
        places = sorted(self.places, key=lambda place: place.stream)
        return tuple(StreamInfo(p.stream, p.worker, p.begins or 0) for p in places)

    def missing(self, besides: int = -1) -> tuple[int, ...]:
        """The consumers of a coordinated read that are not connected."""
        wanted = range(self.options.consumers)
        return tuple(c for c in wanted if c != besides and c not in self.consumers)


@dataclass
class JobRecord:
    """A named job: what all its readers agree on, and its repetitions."""

    options: JobOptions
    dataset: DatasetInfo
    iterations: dict[int, str] = field(default_factory=dict)
    programs: dict[str, None] = field(default_factory=dict)
    """The processes that have ever read it."""
    over: Ranges = field(default_factory=Ranges)
    """Repetitions that were read to their end and removed."""
