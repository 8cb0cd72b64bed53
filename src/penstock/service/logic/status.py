"""Status: what goes on, as plain data, for people and for whoever starts workers."""

from __future__ import annotations

import math
from typing import Any

from penstock.service.logic.agreement import MODES
from penstock.service.logic.iterations import HERE, ClientRecord, IterationRecord
from penstock.service.logic.roster import WorkerRecord
from penstock.service.logic.state import State

_BUSY = 0.02
"""A client that only waits is taken to be busy for this part of its time."""


def status(state: State, now: float) -> dict[str, Any]:
    """Workers, jobs and datasets; and how many workers the clients could use."""
    return {
        "dispatcher": state.dispatcher,
        "workers": [_worker(worker, now) for worker in state.roster.workers.values()],
        "jobs": [_iteration(record) for record in state.iterations.values()],
        "datasets": [
            {
                "dataset_id": info.dataset_id,
                "kind": info.shape.kind,
                "streams": info.shape.streams,
                "cardinality": info.cardinality,
            }
            for info in state.datasets.values()
        ],
        "wanted_workers": wanted_workers(state),
    }


def _worker(worker: WorkerRecord, now: float) -> dict[str, Any]:
    return {
        "worker": worker.info.worker,
        "address": worker.info.address,
        "host": worker.info.host,
        "tags": list(worker.info.tags),
        "streams": len(worker.streams),
        "rate": worker.pace.rate,
        "buffered": worker.buffered,
        "restarts": worker.restarts,
        "last_seen": max(0.0, now - worker.heard),
        "state": _state(worker),
    }


def _state(worker: WorkerRecord) -> str:
    if worker.draining:
        return "draining"
    return "suspected" if worker.suspected else "here"


def _iteration(record: IterationRecord) -> dict[str, Any]:
    clients = [record.members[client] for client in record.clients]
    seconds = sum(client.pace.seconds for client in clients)
    return {
        "job": record.work.job,
        "name": record.begun.name,
        "repetition": record.begun.repetition,
        "dataset_id": record.begun.dataset_id,
        "mode": MODES[record.options.mode],
        "form": record.work.form,
        "consumers": record.options.consumers,
        "missing_consumers": list(record.missing()),
        "clients": len(clients),
        "streams": record.total,
        "leased": sum(sum(group.holders.values()) for group in record.groups.values()),
        "consumed": sum(member.consumed.count for member in record.members.values()),
        "rate": sum(client.pace.rate for client in clients),
        "lag": sum(client.pace.waited for client in clients) / seconds if seconds else 0.0,
        "finished": record.begun.leased and record.finished,
    }


def wanted_workers(state: State) -> int:
    """How many workers would keep all clients busy, as fast as they would go without waiting."""
    wanted = 0.0
    for job in state.active:
        record = state.iterations[job]
        one = record.making.rate
        if one > 0:
            members = (record.members[client] for client in record.clients)
            wanted += sum(_possible(client) for client in members if client.standing == HERE) / one
    at_least = 1 if state.active else 0
    return max(at_least, math.ceil(wanted - 1e-9))


def _possible(client: ClientRecord) -> float:
    """Elements per second that a client would use if it never had to wait."""
    pace = client.pace
    if pace.seconds <= 0:
        return 0.0
    busy = max(pace.seconds - pace.waited, pace.seconds * _BUSY)
    return pace.elements / busy
