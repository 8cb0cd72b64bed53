"""The status of a dispatcher as plain data: its workers, jobs, readers and datasets.

docs/metrics.md describes every field. A field that programs read is never renamed or removed. For
each job it says in words what limits its speed, and what would help. This is decided by measured
shares of time: how long programs wait, and how long workers compute.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from penstock.service.logic.dispatcher_records import (
    HERE,
    ClientRecord,
    IterationRecord,
    Throughput,
    WorkerRecord,
)
from penstock.service.logic.reader_checks import MODES
from penstock.service.logic.state import State, worker_heartbeat
from penstock.service.protocol import timing
from penstock.service.protocol.messages import UNKNOWN_BOTTLENECK, Bottleneck

STATUS_VERSION = 1
"""Increased when a field of the status changes its meaning or is removed."""

_MIN_BUSY = 0.02
"""The least share of its time that a client counts as busy: its potential rate stays finite."""

_SETTLING = 5
"""After so many heartbeats, a sixth of what a worker reports is about the time before them."""


def status(state: State, now: float) -> dict[str, Any]:
    """All that people and programs may see, and how many workers would keep the clients busy."""
    wanted, crew = wanted_workers(state), _survey_crew(state)
    return {
        "status_version": STATUS_VERSION,
        "dispatcher": state.dispatcher,
        "workers": [_worker_status(worker, now) for worker in state.roster.workers.values()],
        "jobs": [
            _iteration_status(each, crew, wanted=wanted, now=now)
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
        "busy": _busy_share(worker.pace),
        "buffered": worker.buffered,
        "restarts": worker.restarts,
        "last_seen": max(0.0, now - worker.heard),
        "state": _worker_state(worker),
    }


def _worker_state(worker: WorkerRecord) -> str:
    if worker.draining:
        return "draining"
    return "suspected" if worker.suspected else "here"


def _busy_share(pace: Throughput) -> float:
    return 1.0 - pace.waited / pace.seconds if pace.seconds > 0 else 0.0


def _iteration_status(
    record: IterationRecord, crew: _Crew, wanted: int, now: float
) -> dict[str, Any]:
    clients = [record.members[client] for client in record.clients]
    rate, lag = sum(client.pace.rate for client in clients), _waiting_share(clients)
    limit = find_limit(_read_signs(record, crew, lag=lag, wanted=wanted, now=now))
    return {
        "job": record.work.job,
        "name": record.begun.name,
        "repetition": record.begun.repetition,
        "dataset_id": record.begun.dataset_id,
        "mode": MODES[record.options.mode],
        "form": str(record.work.form),
        "consumers": record.options.consumers,
        "missing_consumers": list(record.missing()),
        "clients": len(clients),
        "streams": record.total,
        "leased": sum(sum(group.holders.values()) for group in record.groups.values()),
        "consumed": sum(member.consumed.count for member in record.members.values()),
        "rate": rate,
        "byte_rate": rate * record.making.element_bytes,
        "held": sum(client.held for client in clients),
        "budget": sum(client.budget for client in clients),
        "lag": lag,
        "finished": record.begun.leased and record.is_finished,
        "limit": limit.place,
        "advice": limit.advice,
        "slowest": _find_bottleneck(clients).operator,
        "delivering": _delivering_share(clients),
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


class _Crew(NamedTuple):
    """The workers that may get streams, and the mean share of their time that they compute."""

    workers: int
    busy: float
    settling: float
    """For how many seconds this share is mostly about the time before, if the load changes."""


def _survey_crew(state: State) -> _Crew:
    busy = [_busy_share(worker.pace) for worker in state.roster.usable()]
    settling = _SETTLING * timing.WORKER_HEARTBEAT * worker_heartbeat(state)
    return _Crew(len(busy), sum(busy) / max(1, len(busy)), settling)


def _find_bottleneck(clients: list[ClientRecord]) -> Bottleneck:
    """What the first reader says that knows it: all of them run the same plan."""
    known = (client.bottleneck for client in clients if client.bottleneck.operator)
    return next(known, UNKNOWN_BOTTLENECK)


def _delivering_share(clients: list[ClientRecord]) -> float:
    """The share of their time in which readers bring elements to devices."""
    seconds = sum(client.delivered.seconds for client in clients)
    return sum(client.delivered.waited for client in clients) / seconds if seconds else 0.0


def _read_signs(
    record: IterationRecord, crew: _Crew, lag: float, wanted: int, now: float
) -> JobSigns:
    clients = [record.members[client] for client in record.clients]
    return JobSigns(
        readers=len(clients),
        measured=any(client.pace.seconds for client in clients),
        missing=record.missing(),
        finished=record.begun.leased and record.is_finished,
        workers=crew.workers,
        lag=lag,
        busy=crew.busy,
        wanted=wanted,
        element_bytes=record.making.element_bytes,
        slowest=_find_bottleneck(clients),
        delivering=_delivering_share(clients),
        settled=now - record.read_since >= crew.settling,
    )


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
    measured = [_busy_share(pace) for pace in paces if pace.seconds > 0]
    return math.inf if sum(measured) >= BUSY * len(measured) else len(paces)


def _potential_rate(client: ClientRecord) -> float:
    """Elements per second that a client would use if it never had to wait."""
    pace = client.pace
    if pace.seconds <= 0:
        return 0.0
    busy = max(pace.seconds - pace.waited, pace.seconds * _MIN_BUSY)
    return pace.elements / busy


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
    found = (
        f"Programs wait for {signs.lag:.0%} of their time, and workers compute for "
        f"{signs.busy:.0%} of theirs{_most_of_it(signs.slowest)}. "
    )
    faster = signs.slowest.operator or "the source and the functions"
    if signs.wanted > signs.workers:
        return (
            f"{found}Add workers: {_enough(signs)} would keep all readers busy, "
            f"{_are(signs.workers)} here. Or make {faster} faster."
        )
    return f"{found}Make {faster} faster, or add a worker."


def _most_of_it(slowest: Bottleneck) -> str:
    return f", most of it in {slowest.operator}" if slowest.operator else ""


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


def _are(count: int) -> str:
    return "1 is" if count == 1 else f"{count} are"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
