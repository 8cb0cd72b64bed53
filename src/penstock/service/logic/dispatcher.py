"""The dispatcher: a request and the time go in, facts and an answer come out.

`decide` and `tick` change nothing; whoever runs them makes the durable facts safe, applies all of
them in their order, and then answers. Refusals are raised.
"""

from __future__ import annotations

from itertools import takewhile

from penstock.errors import InternalError, NotFoundError
from penstock.service.logic.agreement import known_dataset
from penstock.service.logic.checking import check
from penstock.service.logic.facts import (
    ClientHeard,
    Fact,
    RangesClaimed,
    WorkerSuspected,
)
from penstock.service.logic.forgetting import forget_idle, forget_jobs
from penstock.service.logic.granting import lease, reader, reported
from penstock.service.logic.iterations import HERE, LEFT, LOST
from penstock.service.logic.opening import depart, offered, open_iteration
from penstock.service.logic.placing import extend, relieve
from penstock.service.logic.registering import (
    beat_worker,
    leave_worker,
    register_dataset,
    register_worker,
    workers_gone,
)
from penstock.service.logic.remembering import lost_facts
from penstock.service.logic.snapshots import snapshot
from penstock.service.logic.state import Decision, Settings, State
from penstock.service.logic.status import status
from penstock.service.protocol.messages import (
    ClientBeat,
    ClientBeaten,
    Forget,
    GetDataset,
    GetStatus,
    Lease,
    Leave,
    LeaveWorker,
    Ok,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Request,
    Status,
    WorkerBeat,
)

__all__ = ["Decision", "Settings", "State", "check", "decide", "snapshot", "status", "tick"]


def decide(state: State, request: Request, now: float) -> Decision:
    """What a request changes, and what it is answered."""
    if (lost := lost_facts(state, request)) is not None:
        raise NotFoundError(lost)
    match request:
        case Lease():
            return lease(state, request)
        case ClientBeat():
            return _beat_client(state, request)
        case WorkerBeat():
            return beat_worker(state, request, now)
        case OpenIteration():
            return open_iteration(state, request)
        case Leave():
            return _leave(state, request)
        case RegisterDataset():
            return register_dataset(state, request)
        case GetDataset():
            return Decision((), known_dataset(state, request.dataset_id, "from_dataset_id"))
        case RegisterWorker():
            return register_worker(state, request)
        case LeaveWorker():
            return leave_worker(state, request)
        case Forget():
            return forget_jobs(state, request)
        case GetStatus():
            return Decision((), Status(status(state, now)))
        case _:
            raise InternalError(f"decide: {type(request).__name__} is the host's to answer")


def tick(state: State, now: float) -> tuple[Fact, ...]:
    """What time alone has brought about: who is gone, and what nobody wants any more."""
    since = now - state.settings.worker_timeout
    known = state.roster.workers
    workers = takewhile(lambda name: known[name].heard < since, state.roster.silent)
    # Workers first: with its reader, an iteration may go whose streams they made.
    facts = workers_gone(state, tuple(workers))
    since = now - state.settings.lease_seconds
    for client in takewhile(lambda name: state.clients[name].heard < since, state.silent):
        facts += depart(state, state.clients[client], LOST)
    return (*facts, *forget_idle(state, now))


def _beat_client(state: State, request: ClientBeat) -> Decision:
    client = reader(state, request.client)
    record = state.iterations[client.job]
    facts: list[Fact] = [
        ClientHeard(
            *(request.client, request.elements, request.waited, request.seconds, request.version),
            limit=request.limit,
        ),
        *reported(state, client, request.consumed, request.ended),
        *extend(state, record, request),
        *_suspected(state, request.lost),
    ]
    changed = state.lists_since(record, request.version)
    beaten = ClientBeaten(
        version=state.version(record),
        workers=offered(state, record, client.host) if changed else None,
        streams=record.streams() if changed else None,
        ready=record.ready,
        missing=record.missing(),
        joining=record.asked_since is not None,
    )
    return Decision(tuple(facts), beaten)


def _suspected(state: State, lost: tuple[str, ...]) -> list[Fact]:
    """Workers that a client cannot reach make nothing more for anybody, if others can."""
    workers = state.roster.workers
    news = tuple(w for w in lost if w in workers and not workers[w].suspected)
    if not news:
        return []
    return [*(WorkerSuspected(worker) for worker in news), *relieve(state, news)]


def _leave(state: State, request: Leave) -> Decision:
    client = state.clients.get(request.client)
    if client is None or client.standing not in (HERE, LOST):
        return Decision((), Ok())
    facts: list[Fact] = [*reported(state, client, request.consumed, request.ended)]
    if client.standing == LOST and facts:
        # What it held is free by now, or in the hands of others.
        facts = [RangesClaimed(request.client, request.consumed, request.ended)]
    return Decision((*facts, *depart(state, client, LEFT)), Ok())
