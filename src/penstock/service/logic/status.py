"""The status of a dispatcher: plain data, how many workers would help, a time line, a tally.

docs/metrics.md describes every field. A field that programs read is never renamed or removed. For
each job it says in words what limits its speed, and what would help.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.service.logic.dispatcher_records import (
    HERE,
    LEFT,
    LOST,
    ClientRecord,
    IterationRecord,
    Throughput,
    WorkerRecord,
)
from penstock.service.logic.facts import (
    ClientGone,
    ClientHeard,
    ClientJoined,
    DispatcherStarted,
    Fact,
    IterationBegun,
    IterationRemoved,
    StreamsPlaced,
    WorkerGone,
    WorkerHeard,
    WorkerJoined,
    WorkerSuspected,
)
from penstock.service.logic.state import State, worker_heartbeat
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    MODES,
    UNKNOWN_BOTTLENECK,
    Bottleneck,
    ClientHeartbeat,
)

STATUS_VERSION = 1
"""Increased when a field of the status changes its meaning or is removed."""

_SETTLING = 5
"""After so many heartbeats, a sixth of what a worker reports is about the time before them."""


def status(state: State, now: float) -> dict[str, Any]:
    """All that people and programs may see, and how many workers would keep the clients busy."""
    wanted, usable = wanted_workers(state), _count_usable_workers(state)
    return {
        "status_version": STATUS_VERSION,
        "dispatcher": state.dispatcher,
        "workers": [_worker_status(worker, now) for worker in state.roster.workers.values()],
        "jobs": [
            _iteration_status(each, usable, wanted=wanted, now=now)
            for each in state.iterations.values()
        ],
        "readers": [
            _reader_status(each.members[client], now)
            for each in state.iterations.values()
            for client in each.clients
        ],
        "datasets": [
            {
                "dataset_id": info.dataset_id,
                "kind": str(info.shape.kind),
                "streams": info.shape.streams,
                "cardinality": info.cardinality,
            }
            for info in state.datasets.values()
        ],
        "wanted_workers": wanted,
    }


def _worker_status(worker: WorkerRecord, now: float) -> dict[str, Any]:
    return {
        "worker": worker.info.worker,
        "address": worker.info.address,
        "host": worker.info.host,
        "transfers": dict(worker.info.transfers),
        "tags": list(worker.info.tags),
        "version": worker.info.version,
        "streams": len(worker.streams),
        "rate": worker.pace.rate,
        "byte_rate": worker.pace.byte_rate,
        "busy": busy_share(worker.pace),
        "buffered": worker.buffered,
        "restarts": worker.restarts,
        "last_seen": max(0.0, now - worker.heard),
        "state": _worker_state(worker),
    }


def _worker_state(worker: WorkerRecord) -> str:
    if worker.draining:
        return "draining"
    return "suspected" if worker.suspected else "here"


def _iteration_status(
    record: IterationRecord, usable: _UsableWorkers, wanted: int, now: float
) -> dict[str, Any]:
    clients = [record.members[client] for client in record.clients]
    rate = sum(client.pace.rate for client in clients)
    signs = _read_signs(record, usable, wanted=wanted, now=now)
    limit = find_limit(signs)
    return {
        "job": record.work.job,
        "name": record.begun.name,
        "repetition": record.begun.repetition,
        "dataset_id": record.begun.dataset_id,
        "mode": MODES[record.options.mode],
        "form": str(record.work.form),
        "consumers": record.options.consumers,
        "missing_consumers": list(signs.missing),
        "clients": signs.readers,
        "streams": record.total,
        "leased": sum(sum(group.holders.values()) for group in record.groups.values()),
        "consumed": sum(member.consumed.count for member in record.members.values()),
        "rate": rate,
        "byte_rate": rate * record.making.element_bytes,
        "held": sum(client.held for client in clients),
        "budget": sum(client.budget for client in clients),
        "lag": signs.lag,
        "finished": signs.finished,
        "limit": limit.place,
        "advice": limit.advice,
        "slowest": signs.slowest.operator,
        "delivering": signs.delivering,
    }


def _reader_status(client: ClientRecord, now: float) -> dict[str, Any]:
    return {
        "client": client.client,
        "job": client.job,
        "host": client.host,
        "consumer": client.consumer,
        "consumed": client.consumed.count,
        "rate": client.pace.rate,
        "held": client.held,
        "budget": client.budget,
        "lag": _waiting_share([client]),
        "last_seen": max(0.0, now - client.heard),
    }


def _waiting_share(clients: list[ClientRecord]) -> float:
    """The share of their time that programs wait for elements.

    A first report also has what the program waited before the client could report.
    """
    seconds = sum(client.pace.seconds for client in clients)
    return min(1.0, sum(client.pace.waited for client in clients) / seconds) if seconds else 0.0


class _UsableWorkers(NamedTuple):
    """The workers that may get streams, and the mean share of their time that they compute."""

    workers: int
    busy: float
    settling: float
    """For how many seconds this share is mostly about the time before, if the load changes."""


def _count_usable_workers(state: State) -> _UsableWorkers:
    busy = [busy_share(worker.pace) for worker in state.roster.usable()]
    settling = _SETTLING * timing.WORKER_HEARTBEAT * worker_heartbeat(state)
    return _UsableWorkers(len(busy), sum(busy) / max(1, len(busy)), settling)


def _find_bottleneck(clients: list[ClientRecord]) -> Bottleneck:
    """What the first reader says that knows it: all of them run the same plan."""
    known = (client.bottleneck for client in clients if client.bottleneck.operator)
    return next(known, UNKNOWN_BOTTLENECK)


def _delivering_share(clients: list[ClientRecord]) -> float:
    """The share of their time in which readers bring elements to devices."""
    seconds = sum(client.delivered.seconds for client in clients)
    return sum(client.delivered.waited for client in clients) / seconds if seconds else 0.0


def _read_signs(
    record: IterationRecord, usable: _UsableWorkers, wanted: int, now: float
) -> JobSigns:
    clients = [record.members[client] for client in record.clients]
    return JobSigns(
        readers=len(clients),
        measured=any(client.pace.seconds for client in clients),
        missing=record.missing(),
        finished=record.begun.leased and record.is_finished,
        workers=usable.workers,
        lag=_waiting_share(clients),
        busy=usable.busy,
        wanted=wanted,
        element_bytes=record.making.element_bytes,
        slowest=_find_bottleneck(clients),
        delivering=_delivering_share(clients),
        settled=now - record.read_since >= usable.settling,
    )


# How many workers readers can use
# Decided by measured shares of time: how long programs wait, and how long workers compute.

_MIN_BUSY = 0.02
"""The least share of its time that a client counts as busy: its potential rate stays finite."""


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
    operator = signs.slowest.operator
    mostly = f", most of it in {operator}" if operator else ""
    found = (
        f"Programs wait for {signs.lag:.0%} of their time, and workers compute for "
        f"{signs.busy:.0%} of theirs{mostly}. "
    )
    faster = operator or "the source and the functions"
    here = "1 is" if signs.workers == 1 else f"{signs.workers} are"
    if signs.wanted > signs.workers:
        return (
            f"{found}Add workers: {_enough(signs)} would keep all readers busy, "
            f"{here} here. Or make {faster} faster."
        )
    return f"{found}Make {faster} faster, or add a worker."


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


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


# What happened since the dispatcher started: its time line in words, and a tally in numbers.
# Both record facts that were just decided, and none that are read from the journal. So every number
# of the tally begins at 0 when the dispatcher starts, and never decreases. The time line looks up
# names in the state, so it must see a fact before the state applies it.


MOST_INCIDENTS = 200
"""How many incidents are kept."""

_NOTHING: Mapping[str, str] = {}


class Incident(NamedTuple):
    """Something that happened: `kind` is a word such as "joined" or "lost", `text` says what."""

    time: float
    """Seconds since 1970."""
    kind: str
    text: str
    about: Mapping[str, str] = _NOTHING
    """What it is about, for logs: `worker`, `job`, `job_name` and `dataset`, where known."""


class Timeline:
    """The latest incidents at workers, readers and jobs, the earliest first."""

    def __init__(self) -> None:
        self._incidents: deque[Incident] = deque(maxlen=MOST_INCIDENTS)
        self.orphans: set[tuple[str, int]] = set()
        """Streams of workers that are gone, until other workers make them: (job, stream)."""

    def record(
        self, state: State, fact: Fact, time: float, is_expired: bool = False
    ) -> Incident | None:
        """Records a fact that `state` has not applied; most kinds of facts are no incidents.

        `is_expired`: only the time has caused it, so a worker that is gone was lost.
        """
        describe = _DESCRIBE.get(type(fact))
        if describe is None or (found := describe(self, state, fact)) is None:
            return None
        kind, text, about = found
        if is_expired and isinstance(fact, WorkerGone):
            kind, text = "lost", f"{text}: silent for {state.settings.worker_timeout:g} s"
        incident = Incident(time, kind, text, about)
        self._incidents.append(incident)
        return incident

    def as_rows(self) -> list[dict[str, Any]]:
        """The incidents as plain data."""
        return [
            {"time": each.time, "kind": each.kind, "text": each.text} for each in self._incidents
        ]


Description = tuple[str, str, Mapping[str, str]] | None
"""The kind and the text of an incident, and what it is about; None if a fact is none."""


def _dispatcher_started(line: Timeline, state: State, fact: DispatcherStarted) -> Description:
    if state.starts:
        return "began", f"dispatcher restarted (start {state.starts + fact.times})", {}
    return "began", "dispatcher started", {}


def _worker_joined(line: Timeline, state: State, fact: WorkerJoined) -> Description:
    return "joined", f"worker {fact.info.address}", {"worker": fact.info.address}


def _worker_gone(line: Timeline, state: State, fact: WorkerGone) -> Description:
    record = state.roster.workers.get(fact.worker)
    if record is None:
        return None
    line.orphans.update(record.streams)
    address = record.info.address
    streams = f" with {_count(len(record.streams), 'stream')}" if record.streams else ""
    return "left", f"worker {address}{streams}", {"worker": address}


def _worker_suspected(line: Timeline, state: State, fact: WorkerSuspected) -> Description:
    record = state.roster.workers.get(fact.worker)
    if record is None or record.suspected:
        return None
    address = record.info.address
    return "unreachable", f"worker {address}, for a reader", {"worker": address}


def _worker_heard(line: Timeline, state: State, fact: WorkerHeard) -> Description:
    record = state.roster.workers.get(fact.heartbeat.worker)
    # The first heartbeat also counts what happened before this dispatcher started.
    if record is None or not record.pace.seconds:
        return None
    address = record.info.address
    about = {"worker": address}
    if (crashed := fact.heartbeat.restarts - record.restarts) > 0:
        return "crashed", f"{_count(crashed, 'plan process')} of worker {address}", about
    if (failed := fact.heartbeat.failures - record.failures) > 0:
        return "failed", f"{_count(failed, 'element')} on worker {address}", about
    return None


def _streams_placed(line: Timeline, state: State, fact: StreamsPlaced) -> Description:
    record = state.iterations[fact.job]
    placed = [place for place in fact.places if place.worker is not None]
    moved = [
        place.worker
        for place in placed
        if record.places.worker(place.stream) not in (None, place.worker)
        or (fact.job, place.stream) in line.orphans
    ]
    line.orphans.difference_update((fact.job, place.stream) for place in placed)
    if not moved:
        return None
    workers = _count(len(set(moved)), "worker")
    text = f"{_count(len(moved), 'stream')} of {_job(record)} to {workers}"
    return "moved", text, _names_of(record)


def _client_joined(line: Timeline, state: State, fact: ClientJoined) -> Description:
    record = state.iterations[fact.job]
    resumed = ", from a saved state" if fact.resumes else ""
    return "joined", f"reader of {_job(record)}{resumed}", _names_of(record)


def _client_gone(line: Timeline, state: State, fact: ClientGone) -> Description:
    if fact.how not in (LEFT, LOST):
        return None
    record = state.iterations[state.clients[fact.client].job]
    text = f"reader of {_job(record)}"
    if fact.how == LOST:
        return "lost", f"{text}: silent for {state.settings.lease_seconds:g} s", _names_of(record)
    if record.begun.leased and record.is_finished:
        return "ended", f"{_job(record)} was read to its end", _names_of(record)
    return "left", text, _names_of(record)


def _iteration_begun(line: Timeline, state: State, fact: IterationBegun) -> Description:
    record = IterationRecord(fact)
    return "began", _job(record), _names_of(record)


def _iteration_removed(line: Timeline, state: State, fact: IterationRemoved) -> Description:
    line.orphans = {each for each in line.orphans if each[0] != fact.job}
    record = state.iterations[fact.job]
    return "removed", _job(record), _names_of(record)


def _job(record: IterationRecord) -> str:
    begun = record.begun
    if begun.name is None:
        return f"anonymous job {begun.work.job.rpartition('/')[2]}"
    repetition = f", repetition {begun.repetition}" if begun.repetition else ""
    return f"job {begun.name!r}{repetition}"


def _names_of(record: IterationRecord) -> Mapping[str, str]:
    """The iteration, by the names that `status` has for it."""
    begun = record.begun
    about = {"job": begun.work.job, "dataset": begun.dataset_id}
    return about if begun.name is None else {**about, "job_name": begun.name}


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}" + plural * (number != 1)


_DESCRIBE: dict[type[Any], Callable[[Timeline, State, Any], Description]] = {
    DispatcherStarted: _dispatcher_started,
    WorkerJoined: _worker_joined,
    WorkerGone: _worker_gone,
    WorkerSuspected: _worker_suspected,
    WorkerHeard: _worker_heard,
    StreamsPlaced: _streams_placed,
    ClientJoined: _client_joined,
    ClientGone: _client_gone,
    IterationBegun: _iteration_begun,
    IterationRemoved: _iteration_removed,
}


@dataclass
class Tally:
    """What clients and workers have reported, and how many of them came and went, for metrics."""

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
        match fact:
            case ClientHeard(heartbeat=ClientHeartbeat() as heartbeat):
                self.elements_handed_out += heartbeat.elements
                self.reader_seconds += heartbeat.seconds
                self.reader_wait_seconds += heartbeat.waited
            case WorkerHeard():
                self.elements_made += sum(job.elements for job in fact.heartbeat.jobs)
                self.making_seconds += sum(job.seconds for job in fact.heartbeat.jobs)
            case WorkerJoined():
                self.workers_joined += 1
            case WorkerGone():
                self.workers_gone += 1
            case ClientJoined():
                self.readers_joined += 1
            case ClientGone():
                self.readers_gone += 1
                self.readers_lost += fact.how == LOST
            case IterationBegun():
                self.iterations_begun += 1

    def count_expired(self, facts: tuple[Fact, ...]) -> None:
        """Counts the lost workers among facts that only the time has caused."""
        self.workers_lost += sum(isinstance(fact, WorkerGone) for fact in facts)
