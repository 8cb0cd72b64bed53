"""The dispatcher: takes a request and the time, and returns facts and a reply; its recovery.

`decide` and `tick` change nothing: their caller journals the durable facts, applies all facts in
order, and then sends the reply. Requests that cannot be served raise.

What clients and workers register is removed again: an anonymous job with its reader, and a dataset
that its client would register again with its last iteration. Named jobs are kept longer, for saved
states that may be restored; they expire here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

import msgspec

from penstock.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.service.logic.dispatcher_records import (
    HERE,
    LEFT,
    LOST,
    ClientRecord,
    IterationRecord,
    JobRecord,
)
from penstock.service.logic.facts import (
    ClientGone,
    ClientHeard,
    ConsumptionKept,
    DatasetForgotten,
    DatasetStored,
    DispatcherStarted,
    Fact,
    GroupReached,
    IterationRemoved,
    LeasesKept,
    LengthsKept,
    NumbersGiven,
    RangesClaimed,
    RepetitionsOver,
    StreamsPlaced,
    WorkerGone,
    WorkerHeard,
    WorkerJoined,
    WorkerSuspected,
)
from penstock.service.logic.granting import find_reader, lease, report_consumed
from penstock.service.logic.leases import Group, describe_ranges
from penstock.service.logic.opening import depart, find_dataset, open_iteration, workers_for
from penstock.service.logic.placement import extend, inherit, is_at, relieve, welcome
from penstock.service.logic.state import Decision, State, intervals_of, worker_heartbeat
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    ClientHeartbeatReply,
    DatasetInfo,
    ForgetJobs,
    ForgetJobsReply,
    GetDataset,
    LastFact,
    Lease,
    Leave,
    LeaveWorker,
    Ok,
    OpenIteration,
    RegisterDataset,
    RegisterDatasetReply,
    RegisterWorker,
    Reply,
    Request,
    StreamRange,
    WorkerHeartbeat,
    WorkerHeartbeatReply,
)


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
        ClientHeard(request.client, request),
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
    last = ClientHeartbeat(
        client=request.client,
        version=0,
        elements=request.elements,
        waited=request.waited,
        seconds=request.seconds,
    )
    heard = ClientHeard(request.client, last)
    return Decision((heard, *facts, *depart(state, client, LEFT)), Ok())


_FIRST_ID = 1000


REPETITIONS = 16
"""How many repetitions of a job are kept; earlier ones are removed once they are finished."""


def register_dataset(state: State, request: RegisterDataset) -> Decision:
    """Registers a dataset under a new id or the given one; repeated requests get the same id."""
    numbered = not request.dataset_id
    dataset_id = request.dataset_id or state.requests.get(request.request) or _next_id(state)
    info = DatasetInfo(
        dataset_id=dataset_id,
        digest=request.digest,
        structure=request.structure,
        spec=request.spec,
        shape=request.shape,
        cardinality=request.cardinality,
        seeds=request.seeds,
    )
    known = state.datasets.get(dataset_id)
    if known is not None:
        if not _is_same_dataset(known, info):
            raise InvalidArgumentError(
                f"register_dataset: another dataset is registered as {dataset_id!r}; use another "
                "dataset_id, or none to get a new one"
            )
        return Decision((), RegisterDatasetReply(dataset_id))
    stored = DatasetStored(info, request.request, numbered, request.lasting)
    return Decision((stored,), RegisterDatasetReply(dataset_id))


def _next_id(state: State) -> str:
    numbers = (str(_FIRST_ID + number) for number in count(state.dataset_numbers))
    return next(number for number in numbers if number not in state.datasets)


def _is_same_dataset(one: DatasetInfo, other: DatasetInfo) -> bool:
    """Whether two datasets count as one; seeds and the bytes of functions may differ."""
    if (one.structure, one.spec) != (other.structure, other.spec):
        return False
    same_size = (one.shape, one.cardinality) == (other.shape, other.cardinality)
    return same_size or one.digest == other.digest


def register_worker(state: State, request: RegisterWorker) -> Decision:
    """Adds a worker; a worker that had its address before is removed, and its streams move."""
    _check_worker(state, request)
    info = request.info
    known = state.roster.workers.get(info.worker)
    if known is not None and known.info == info:
        return Decision((WorkerHeard(WorkerHeartbeat(info.worker)),), Ok())
    facts: list[Fact] = [WorkerJoined(info)]
    old = state.roster.workers.get(state.roster.addresses.get(info.address, ""))
    if old is not None and old.info.worker != info.worker:
        facts = [WorkerGone(old.info.worker), *facts, *inherit(state, old, info.worker)]
    return Decision((*facts, *welcome(state, info)), Ok())


def _check_worker(state: State, request: RegisterWorker) -> None:
    settings = state.settings
    where = f"WorkerServer at {request.info.address}"
    if settings.python and request.python != settings.python:
        raise FailedPreconditionError(
            f"{where}: it has Python {request.python} and the dispatcher has {settings.python}; "
            "run the same version everywhere"
        )
    listed = settings.worker_addresses
    if listed and not any(is_at(request.info.address, one) for one in listed):
        raise FailedPreconditionError(
            f"{where}: this address is not among the dispatcher's worker_addresses "
            f"({', '.join(settings.worker_addresses)}); start the worker at one of them"
        )


def receive_worker_heartbeat(state: State, request: WorkerHeartbeat, now: float) -> Decision:
    """Notes a heartbeat; the reply says which iterations have readers."""
    record = state.roster.workers.get(request.worker)
    if record is None:
        return Decision((), WorkerHeartbeatReply(False))
    leaves = request.draining and not record.draining
    moved = relieve(state, (request.worker,)) if leaves else []
    started = state.settings.started
    # Just after a start, clients may not have returned yet, and the list may be incomplete.
    unsure = started is not None and now - started < state.settings.lease_seconds
    jobs = None if unsure else state.active_jobs()
    return Decision(
        (WorkerHeard(request), *moved), WorkerHeartbeatReply(True, jobs, worker_heartbeat(state))
    )


def leave_worker(state: State, request: LeaveWorker) -> Decision:
    """Removes a worker that stops, and moves its streams to other workers."""
    if request.worker not in state.roster.workers:
        return Decision((), Ok())
    return Decision(tuple(remove_workers(state, (request.worker,))), Ok())


def remove_workers(state: State, workers: tuple[str, ...]) -> list[Fact]:
    """The facts that remove workers and move their streams to workers that stay."""
    moved = relieve(state, workers)
    return [*(WorkerGone(worker) for worker in workers), *moved]


def forget_idle(state: State, now: float) -> list[Fact]:
    """The facts that remove iterations and datasets that had no readers for long enough."""
    idle = dict.fromkeys(_idle_iterations(state, now))
    for job in state.jobs.values():
        idle.update(dict.fromkeys(_early_repetitions(state, job)))
    facts: list[Fact] = [IterationRemoved(name) for name in idle]
    spare = (name for name, since in state.spare.items() if now - since >= timing.UNREAD_DATASET)
    return facts + [DatasetForgotten(dataset_id) for dataset_id in spare]


def _idle_iterations(state: State, now: float) -> Iterator[str]:
    """The names of iterations to remove, the longest idle iteration first."""
    settings = state.settings
    soonest = min(settings.forget_after, settings.job_gc_timeout or settings.forget_after)
    for name in state.idle:
        record = state.iterations[name]
        age = now - record.idle_since
        if age < soonest:
            return
        collected = settings.job_gc_timeout and age >= settings.job_gc_timeout
        if collected or (age >= settings.forget_after and record.forgettable):
            yield name


def _early_repetitions(state: State, job: JobRecord) -> Iterator[str]:
    """The earliest repetitions of a job that has more than REPETITIONS."""
    spare = len(job.iterations) - REPETITIONS
    for repetition in sorted(job.iterations)[: max(0, spare)]:
        name = job.iterations[repetition]
        if state.iterations[name].forgettable:
            yield name


def forget_jobs(state: State, request: ForgetJobs) -> Decision:
    """Removes one job, or all jobs without readers, because a user asks for it."""
    asked = [r for r in state.iterations.values() if r.begun.name is not None]
    if request.job is not None:
        asked = _find_job(asked, request.job)
    read = {record.begun.name for record in asked if record.clients}
    gone = [record for record in asked if record.begun.name not in read]
    facts = tuple(IterationRemoved(record.work.job) for record in gone)
    return Decision(facts, ForgetJobsReply(_job_names(gone), tuple(sorted(filter(None, read)))))


def _find_job(records: list[IterationRecord], job: str) -> list[IterationRecord]:
    found = [record for record in records if record.begun.name == job]
    if not found:
        names = ", ".join(map(repr, _job_names(records))) or "none"
        raise NotFoundError(f"forget: the dispatcher knows no job {job!r}; it knows {names}")
    readers = sum(len(record.clients) for record in found)
    if readers:
        raise FailedPreconditionError(
            f"forget: {readers} clients read job {job!r}; stop them first, or use another job_name"
        )
    return found


def _job_names(records: list[IterationRecord]) -> tuple[str, ...]:
    return tuple(sorted({record.begun.name or "" for record in records}))


# Recovery: a whole state as a snapshot of facts, and the detection of facts that were lost.
# Facts are counted, through restarts too. Every reply to a reader names the last fact that it rests
# on, and the reader names that fact in its next request. A dispatcher that does not know the fact
# was restored from a journal that was cut, or from an older copy: it refuses the request, and
# serves the reader again once the reader has reported which elements it has handed out.


def snapshot(state: State) -> tuple[Fact, ...]:
    """The fewest facts that give an equal state when applied to a new one."""
    return tuple(_list_facts(state))


def _list_facts(state: State) -> Iterator[Fact]:
    if state.starts:
        yield DispatcherStarted(state.dispatcher, state.starts, tuple(state.lives.items()))
    names = {dataset_id: request for request, dataset_id in state.requests.items()}
    for dataset_id, info in state.datasets.items():
        lasting = state.is_lasting(dataset_id)
        yield DatasetStored(info, names.get(dataset_id, ""), lasting=lasting)
    for worker in state.roster.workers.values():
        yield WorkerJoined(worker.info)
    for record in state.iterations.values():
        yield from _iteration_facts(record)
    for job in state.jobs.values():
        if job.over:
            some = next(iter(job.iterations.values()))
            yield RepetitionsOver(some, tuple(job.over), tuple(job.programs))
    yield NumbersGiven(state.dataset_numbers, state.iteration_numbers, state.facts)


def _iteration_facts(record: IterationRecord) -> Iterator[Fact]:
    begun, job = record.begun, record.work.job
    yield msgspec.structs.replace(begun, ready=record.ready)
    if record.ends:
        yield LengthsKept(job, record.ends.pack())
    for client in record.members.values():
        yield from _client_facts(client)
    for name, group in record.groups.items():
        reached = ((stream, track.reached) for stream, track in sorted(group.tracks.items()))
        yield GroupReached(job, name, group.begun, tuple(reached))
    for client in record.members.values():
        yield from _lease_facts(client, record.groups[client.group])
    # After the clients: when the last client of an iteration leaves, its streams lose their places.
    places = tuple(sorted(record.places, key=lambda place: place.stream))
    if places:
        yield StreamsPlaced(job, places)


def _client_facts(client: ClientRecord) -> Iterator[Fact]:
    yield client.joined
    if client.consumed:
        yield ConsumptionKept(client.client, *client.consumed.pack())
    if client.standing != HERE:
        yield ClientGone(client.client, client.standing)


def _lease_facts(client: ClientRecord, group: Group) -> Iterator[Fact]:
    if client.standing != HERE:
        return
    held = [
        StreamRange(stream, start, stop)
        for stream, track in sorted(group.tracks.items())
        for start, stop in track.held.get(client.client, ())
    ]
    if held or client.number:
        yield LeasesKept(client.client, tuple(held), client.number, client.answer)


def stamp_reply(state: State, request: Request, reply: Reply) -> Reply:
    """The reply to a client with the number of the last fact of `state`, and with its intervals."""
    if not state.lives or not isinstance(request, OpenIteration | Lease | ClientHeartbeat):
        return reply
    record = state.iterations[state.clients[request.client].job]
    return msgspec.structs.replace(
        reply,
        last=LastFact(next(reversed(state.lives)), state.facts),
        intervals=intervals_of(state, record),
    )


def lost_facts(state: State, request: Request) -> str | None:
    """An error message if a reader knows of a fact that this dispatcher has lost; else None."""
    if not isinstance(request, Lease | ClientHeartbeat | Leave) or request.last is None:
        return None
    if state.knows(request.last):
        return None
    end = state.last_known_fact(request.last.life)
    return (
        f"service: the dispatcher has lost facts: reader {request.client} knows of fact "
        f"{request.last.number}, and the journal ended with fact {end} when it was opened; its "
        "disk did not keep what it was given, or it is an older copy. Readers report what they got"
    )


def describe_unrecorded(state: State) -> list[str]:
    """For each named iteration, the elements that departed readers may have got unrecorded."""
    return [
        f"job {record.begun.name!r}, repetition {record.begun.repetition}: "
        f"{describe_ranges(_unleased_ranges(record))}"
        for record in state.iterations.values()
        if record.begun.leased and not record.is_finished
    ]


def _unleased_ranges(record: IterationRecord) -> Iterator[StreamRange]:
    for group in record.groups.values():
        for stream in sorted(group.open):
            yield StreamRange(stream, group.tracks[stream].reached, record.ends.get(stream, -1))
