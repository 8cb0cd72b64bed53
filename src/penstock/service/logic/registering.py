"""Registering: datasets get ids, workers get a place among the others and leave it again."""

from __future__ import annotations

from itertools import count

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.service.logic.facts import (
    DatasetStored,
    Fact,
    WorkerGone,
    WorkerHeard,
    WorkerJoined,
)
from penstock.service.logic.placing import inherit, is_at, relieve, welcome
from penstock.service.logic.state import Decision, State
from penstock.service.protocol.messages import (
    PROTOCOL,
    DatasetInfo,
    DatasetRegistered,
    LeaveWorker,
    Ok,
    RegisterDataset,
    RegisterWorker,
    WorkerBeat,
    WorkerBeaten,
)

_FIRST_ID = 1000


def register_dataset(state: State, request: RegisterDataset) -> Decision:
    """A new id, or the given one; the same registration, and the same id, may come again."""
    numbered = not request.dataset_id
    dataset_id = request.dataset_id or state.requests.get(request.request) or _next_id(state)
    info = DatasetInfo(
        *(dataset_id, request.digest, request.structure, request.spec),
        *(request.shape, request.cardinality, request.seeds),
    )
    known = state.datasets.get(dataset_id)
    if known is not None:
        if not _equal(known, info):
            raise InvalidArgumentError(
                f"register_dataset: another dataset is registered as {dataset_id!r}; use another "
                "dataset_id, or none to get a new one"
            )
        return Decision((), DatasetRegistered(dataset_id))
    stored = DatasetStored(info, request.request, numbered, request.lasting)
    return Decision((stored,), DatasetRegistered(dataset_id))


def _next_id(state: State) -> str:
    numbers = (str(_FIRST_ID + number) for number in count(state.dataset_numbers))
    return next(number for number in numbers if number not in state.datasets)


def _equal(one: DatasetInfo, other: DatasetInfo) -> bool:
    """Whether two plans are the same, though seeds and the bytes of functions may differ."""
    if (one.structure, one.spec) != (other.structure, other.spec):
        return False
    same_size = (one.shape, one.cardinality) == (other.shape, other.cardinality)
    return same_size or one.digest == other.digest


def register_worker(state: State, request: RegisterWorker) -> Decision:
    """A worker joins; the one that had its address before is gone."""
    _check_worker(state, request)
    info = request.info
    known = state.roster.workers.get(info.worker)
    if known is not None and known.info == info:
        return Decision((WorkerHeard(info.worker),), Ok())
    facts: list[Fact] = [WorkerJoined(info)]
    old = state.roster.workers.get(state.roster.addresses.get(info.address, ""))
    if old is not None and old.info.worker != info.worker:
        facts = [WorkerGone(old.info.worker), *facts, *inherit(state, old, info.worker)]
    return Decision((*facts, *welcome(state, info)), Ok())


def _check_worker(state: State, request: RegisterWorker) -> None:
    settings = state.settings
    where = f"WorkerServer at {request.info.address}"
    for what, theirs, ours in (
        ("protocol", request.protocol, PROTOCOL),
        ("Python", request.python, settings.python),
        ("penstock", request.version, settings.version),
    ):
        if ours and theirs != ours:
            raise FailedPreconditionError(
                f"{where}: it has {what} {theirs} and the dispatcher has {ours}; run the same "
                "versions everywhere"
            )
    listed = settings.worker_addresses
    if listed and not any(is_at(request.info.address, one) for one in listed):
        raise FailedPreconditionError(
            f"{where}: this address is not among the dispatcher's worker_addresses "
            f"({', '.join(settings.worker_addresses)}); start the worker at one of them"
        )


def beat_worker(state: State, request: WorkerBeat, now: float) -> Decision:
    """A worker lives, and learns what goes on."""
    record = state.roster.workers.get(request.worker)
    if record is None:
        return Decision((), WorkerBeaten(False))
    heard = WorkerHeard(request.worker, request.jobs, request.draining, request.restarts)
    leaves = request.draining and not record.draining
    moved = relieve(state, (request.worker,)) if leaves else []
    started = state.settings.started
    unsure = started is not None and now - started < state.settings.lease_seconds
    return Decision((heard, *moved), WorkerBeaten(True, None if unsure else state.going_on()))


def leave_worker(state: State, request: LeaveWorker) -> Decision:
    """A worker stops; others make what it made."""
    if request.worker not in state.roster.workers:
        return Decision((), Ok())
    return Decision(tuple(workers_gone(state, (request.worker,))), Ok())


def workers_gone(state: State, workers: tuple[str, ...]) -> list[Fact]:
    """What follows when workers are there no more, all at once."""
    moved = relieve(state, workers)
    return [*(WorkerGone(worker) for worker in workers), *moved]
