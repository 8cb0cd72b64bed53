"""The status of a dispatcher as plain data: its workers, jobs, readers and datasets.

docs/metrics.md describes every field. A field that programs read is never renamed or removed. For
each job it says in words what limits its speed, and what would help (see `scaling`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.service.logic.dispatcher_records import (
    ClientRecord,
    IterationRecord,
    WorkerRecord,
)
from penstock.service.logic.reader_checks import MODES
from penstock.service.logic.scaling import JobSigns, busy_share, find_limit, wanted_workers
from penstock.service.logic.state import State, worker_heartbeat
from penstock.service.protocol import timing
from penstock.service.protocol.messages import UNKNOWN_BOTTLENECK, Bottleneck

STATUS_VERSION = 1
"""Increased when a field of the status changes its meaning or is removed."""

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
    busy = [busy_share(worker.pace) for worker in state.roster.usable()]
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
