"""The dispatcher: takes a request and the time, and returns facts and a reply.

`decide` and `tick` change nothing: their caller journals the durable facts, applies all facts in
order, and then sends the reply. Requests that cannot be served raise.
"""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Any

from penstock.errors import InternalError, NotFoundError
from penstock.service.logic.agreement import MODES, find_dataset
from penstock.service.logic.facts import ClientHeard, Fact, RangesClaimed, WorkerSuspected
from penstock.service.logic.granting import find_reader, lease, report_consumed
from penstock.service.logic.iterations import HERE, LEFT, LOST, ClientRecord, IterationRecord
from penstock.service.logic.opening import depart, open_iteration, workers_for
from penstock.service.logic.placement import extend, relieve
from penstock.service.logic.recovery import lost_facts
from penstock.service.logic.registry import (
    forget_idle,
    forget_jobs,
    leave_worker,
    receive_worker_heartbeat,
    register_dataset,
    register_worker,
    remove_workers,
)
from penstock.service.logic.roster import WorkerRecord
from penstock.service.logic.state import Decision, State
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    ClientHeartbeatReply,
    ForgetJobs,
    GetDataset,
    GetStatus,
    GetStatusReply,
    Lease,
    Leave,
    LeaveWorker,
    Ok,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Request,
    WorkerHeartbeat,
)

_MIN_BUSY = 0.02
"""The least share of its time that a client counts as busy: its potential rate stays finite."""


def decide(state: State, request: Request, now: float) -> Decision:
    """Returns the facts that a request causes, and the reply to it; raises if it is refused."""
    if (lost := lost_facts(state, request)) is not None:
        raise NotFoundError(lost)
    match request:
        case Lease():
            return lease(state, request)
        case ClientHeartbeat():
            return _receive_heartbeat(state, request)
        case WorkerHeartbeat():
            return receive_worker_heartbeat(state, request, now)
        case OpenIteration():
            return open_iteration(state, request)
        case Leave():
            return _remove_client(state, request)
        case RegisterDataset():
            return register_dataset(state, request)
        case GetDataset():
            return Decision((), find_dataset(state, request.dataset_id, "from_dataset_id"))
        case RegisterWorker():
            return register_worker(state, request)
        case LeaveWorker():
            return leave_worker(state, request)
        case ForgetJobs():
            return forget_jobs(state, request)
        case GetStatus():
            return Decision((), GetStatusReply(status(state, now)))
        case _:
            raise InternalError(f"decide: {type(request).__name__} is answered by the host")


def tick(state: State, now: float) -> tuple[Fact, ...]:
    """The facts that time causes: workers, clients, jobs and datasets that expired are removed."""
    since = now - state.settings.worker_timeout
    known = state.roster.workers
    workers = takewhile(lambda name: known[name].heard < since, state.roster.silent)
    # Workers first: `relieve` needs the iterations whose streams they made, and an anonymous
    # iteration is removed with its client.
    facts = remove_workers(state, tuple(workers))
    since = now - state.settings.lease_seconds
    for client in takewhile(lambda name: state.clients[name].heard < since, state.silent):
        facts += depart(state, state.clients[client], LOST)
    return (*facts, *forget_idle(state, now))


def _receive_heartbeat(state: State, request: ClientHeartbeat) -> Decision:
    client = find_reader(state, request.client)
    record = state.iterations[client.job]
    facts: list[Fact] = [
        ClientHeard(
            client=request.client,
            elements=request.elements,
            waited=request.waited,
            seconds=request.seconds,
            version=request.version,
            limit=request.limit,
        ),
        *report_consumed(state, client, request.consumed, request.ended),
        *extend(state, record, request),
        *_suspect_workers(state, request.lost),
    ]
    changed = state.lists_since(record, request.version)
    reply = ClientHeartbeatReply(
        version=state.version(record),
        workers=workers_for(state, record, client.host) if changed else None,
        streams=record.streams() if changed else None,
        ready=record.ready,
        missing=record.missing(),
        joining=record.asked_since is not None,
    )
    return Decision(tuple(facts), reply)


def _suspect_workers(state: State, lost: tuple[str, ...]) -> list[Fact]:
    """Moves the streams of workers that a client cannot reach to other workers, if possible."""
    workers = state.roster.workers
    news = tuple(w for w in lost if w in workers and not workers[w].suspected)
    if not news:
        return []
    return [*(WorkerSuspected(worker) for worker in news), *relieve(state, news)]


def _remove_client(state: State, request: Leave) -> Decision:
    client = state.clients.get(request.client)
    if client is None or client.standing not in (HERE, LOST):
        return Decision((), Ok())
    facts: list[Fact] = [*report_consumed(state, client, request.consumed, request.ended)]
    if client.standing == LOST and facts:
        # Its leases have expired: other clients may have got the elements since.
        facts = [RangesClaimed(request.client, request.consumed, request.ended)]
    return Decision((*facts, *depart(state, client, LEFT)), Ok())


def status(state: State, now: float) -> dict[str, Any]:
    """The workers, jobs and datasets, and how many workers would keep the clients busy."""
    return {
        "dispatcher": state.dispatcher,
        "workers": [_worker_status(worker, now) for worker in state.roster.workers.values()],
        "jobs": [_iteration_status(record) for record in state.iterations.values()],
        "datasets": [
            {
                "dataset_id": info.dataset_id,
                "kind": str(info.shape.kind),
                "streams": info.shape.streams,
                "cardinality": info.cardinality,
            }
            for info in state.datasets.values()
        ],
        "wanted_workers": wanted_workers(state),
    }


def _worker_status(worker: WorkerRecord, now: float) -> dict[str, Any]:
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
        "state": _worker_state(worker),
    }


def _worker_state(worker: WorkerRecord) -> str:
    if worker.draining:
        return "draining"
    return "suspected" if worker.suspected else "here"


def _iteration_status(record: IterationRecord) -> dict[str, Any]:
    clients = [record.members[client] for client in record.clients]
    seconds = sum(client.pace.seconds for client in clients)
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
        "rate": sum(client.pace.rate for client in clients),
        "lag": sum(client.pace.waited for client in clients) / seconds if seconds else 0.0,
        "finished": record.begun.leased and record.finished,
    }


def wanted_workers(state: State) -> int:
    """How many workers are needed so that no client waits."""
    wanted = 0.0
    for job in state.active:
        record = state.iterations[job]
        one = record.making.rate
        if one > 0:
            members = (record.members[client] for client in record.clients)
            wanted += (
                sum(_potential_rate(client) for client in members if client.standing == HERE) / one
            )
    at_least = 1 if state.active else 0
    return max(at_least, math.ceil(wanted - 1e-9))


def _potential_rate(client: ClientRecord) -> float:
    """Elements per second that a client would use if it never had to wait."""
    pace = client.pace
    if pace.seconds <= 0:
        return 0.0
    busy = max(pace.seconds - pace.waited, pace.seconds * _MIN_BUSY)
    return pace.elements / busy
