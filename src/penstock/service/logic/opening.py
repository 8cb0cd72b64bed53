"""Opening: a client begins or resumes an iteration of a job, if all checks pass.

A named job that was read to its end stays so until it is removed: a client that comes later gets
no element of it, and learns why (decision 0022). A client that resumes a saved state supersedes the
clients that read on from it before, unless all of them resume the same merged state: these are
readers of one job, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.service.logic.dispatcher_records import (
    HERE,
    LEFT,
    LOST,
    SUPERSEDED,
    ClientRecord,
    IterationRecord,
    JobRecord,
    is_local,
)
from penstock.service.logic.facts import (
    ClientGone,
    ClientHeard,
    ClientJoined,
    Fact,
    IterationRemoved,
    RangesClaimed,
    RangesSetAside,
    StreamPlace,
    StreamsPlaced,
)
from penstock.service.logic.granting import (
    check_ends,
    explain_departure,
    find_leased,
    find_repeated,
    find_rewound,
    find_unclaimed,
    find_untaken,
    origin_of,
)
from penstock.service.logic.placement import begin, joining_places, opening_places
from penstock.service.logic.state import Decision, State, job_key
from penstock.service.protocol.messages import (
    MODES,
    DatasetInfo,
    OpenIteration,
    OpenIterationReply,
    StreamInfo,
    StreamRange,
    WorkerInfo,
)


def open_iteration(state: State, request: OpenIteration) -> Decision:
    """Returns what a client reads, and the facts that follow for other clients and for workers."""
    dataset = find_dataset(state, request.dataset_id, "service.distribute")
    check_opening(state, request)
    client = state.clients.get(request.client)
    here = client is not None and client.standing == HERE
    if client is not None and here and _is_reading(state, client, request):
        record = state.iterations[client.job]
        held = find_leased(record, request)
        unclaimed = find_unclaimed(record, request)
        opened = _make_reply(state, record, request, places=(), held=held, twice=unclaimed)
        return Decision((ClientHeard(request.client),), opened)
    left = depart(state, client, LEFT) if client is not None and here else []
    found = find_iteration(state, request, dataset)
    if skipped := found.repetition - request.repetition:
        # The repetition of an endless `repeat` is the last number of its epoch.
        epoch = (*request.epoch[:-1], request.epoch[-1] + skipped)
        request = msgspec.structs.replace(request, repetition=found.repetition, epoch=epoch)
    begun, record, places = _prepare_iteration(state, found, request, dataset)
    facts = (*left, *begun, *_join_facts(record, request, places))
    held = find_untaken(record, request, begun)
    twice = find_repeated(record, request, begun)
    opened = _make_reply(state, record, request, places=places, held=held, twice=twice)
    return Decision(facts, msgspec.structs.replace(opened, warning=found.warning))


def depart(state: State, client: ClientRecord, how: str) -> list[Fact]:
    """The facts that remove a client, and the anonymous iteration that only it could read."""
    gone: list[Fact] = [ClientGone(client.client, how)]
    if state.iterations[client.job].begun.name is None:
        gone.append(IterationRemoved(client.job))
    return gone


def _is_reading(state: State, client: ClientRecord, request: OpenIteration) -> bool:
    begun = state.iterations[client.job].begun
    if request.endless and begun.repetition > request.repetition:
        return begun.name == request.job
    return begun.name == request.job and begun.repetition == request.repetition


def _prepare_iteration(
    state: State, found: FoundIteration, request: OpenIteration, dataset: DatasetInfo
) -> tuple[list[Fact], IterationRecord, tuple[StreamPlace, ...]]:
    """The facts before the client joins, the iteration, and the places of its streams."""
    if found.record is None:
        begun = begin(state, request, dataset, over=found.over)
        record = IterationRecord(begun)
        return [begun], record, opening_places(state, record, request)
    record = found.record
    check_return(record, request)
    return _superseded_clients(record, request), record, joining_places(state, record, request)


def _superseded_clients(record: IterationRecord, request: OpenIteration) -> list[Fact]:
    """The facts that remove the clients that a joining client supersedes."""
    if record.options.consumers:
        same = (m for m in record.members.values() if m.consumer == request.consumer)
        others = (m for m in same if m.client != request.client)
        # Also lost ones, so that they cannot return.
        return [ClientGone(m.client, SUPERSEDED) for m in others if m.standing in (HERE, LOST)]
    if not record.begun.leased or not request.resumes:
        return []
    return list(find_rewound(record, request))


def _join_facts(
    record: IterationRecord, request: OpenIteration, places: tuple[StreamPlace, ...]
) -> list[Fact]:
    job, consumer = record.work.job, request.consumer if record.options.consumers else -1
    joined = ClientJoined(
        client=request.client,
        job=job,
        group=record.group_of(request),
        host=request.host,
        consumer=consumer,
        resumes=request.resumes,
        origin=origin_of(request),
        program=request.program,
    )
    made: list[Fact] = [joined]
    if places:
        made.append(StreamsPlaced(job, places))
    if record.begun.leased and (request.consumed or request.held or request.finished):
        check_claims(record, request)
        made.append(RangesClaimed(request.client, request.consumed, request.finished))
        made.append(RangesSetAside(request.client, request.held))
    return made


def _make_reply(
    state: State,
    record: IterationRecord,
    request: OpenIteration,
    *,
    places: tuple[StreamPlace, ...],
    held: tuple[StreamRange, ...],
    twice: tuple[StreamRange, ...],
) -> OpenIterationReply:
    streams = {info.stream: info for info in record.streams()}
    for place in places:
        before = streams.get(place.stream)
        begins = place.begins
        if begins is None:
            begins = before.begins if before is not None else 0
        streams[place.stream] = StreamInfo(place.stream, place.worker, begins)
    missing = record.missing(besides=request.consumer)
    return OpenIterationReply(
        work=record.work,
        leased=record.begun.leased,
        # Joining increases the version, so the client gets the lists once more, without harm.
        version=state.version(record),
        workers=workers_for(state, record, request.host),
        streams=tuple(streams[stream] for stream in sorted(streams)),
        ready=record.ready or not missing,
        missing=missing,
        lease_seconds=state.settings.lease_seconds,
        worker_timeout=state.settings.worker_timeout,
        held=held,
        seeds=state.datasets[record.begun.dataset_id].seeds,
        repetition=record.begun.repetition,
        repeated=twice if record.begun.leased else (),
        joining=record.asked_since is not None,
    )


def workers_for(state: State, record: IterationRecord, host: str) -> tuple[WorkerInfo, ...]:
    """The workers that a client on `host` may fetch from."""
    workers = state.roster.list_offered()
    return tuple(w for w in workers if w.host == host) if is_local(record.options) else workers


@dataclass(frozen=True)
class FoundIteration:
    """The iteration that a request asks for; `record` is None if it has not begun."""

    record: IterationRecord | None
    repetition: int
    warning: str = ""
    over: bool = False
    """Whether it was read to its end and then removed."""


def find_iteration(state: State, request: OpenIteration, dataset: DatasetInfo) -> FoundIteration:
    """Finds the iteration that `request` asks for.

    Raises if no element is left and the client cannot know that, so that an empty read is no
    surprise.
    """
    job = None
    if request.job is not None:
        job = state.jobs.get(job_key(request.job, request.dataset_id, request.by_id))
    if job is None:
        _check_begins(state, request)
        return FoundIteration(None, request.repetition)
    check_same(job, request, dataset)
    repetition = request.repetition
    while request.endless and not request.resumes and _is_over(state, job, repetition, request):
        repetition += 1
    request = msgspec.structs.replace(request, repetition=repetition)
    name = job.iterations.get(repetition)
    if name is not None:
        record = state.iterations[name]
        return FoundIteration(record, repetition, _warning(state, job, record, request))
    if repetition not in job.over:
        _check_begins(state, request)
        return FoundIteration(None, repetition)
    _check_not_forgotten(request)
    return FoundIteration(None, repetition, _warning(state, job, None, request), over=True)


def _check_begins(state: State, request: OpenIteration) -> None:
    if request.last is not None and state.knows(request.last):
        raise FailedPreconditionError(
            f"service: this reader was not heard of for so long that job {request.job!r} has been "
            "forgotten meanwhile, and other readers may have read the rest; iterate again to read "
            "it anew"
        )


def _check_not_forgotten(request: OpenIteration) -> None:
    if request.resumes:
        raise FailedPreconditionError(
            f"Iterator.load_state_dict: repetition {request.repetition} of job {request.job!r} was "
            "read to its end, and the dispatcher has forgotten what other readers got; restore the "
            "state under another job_name (several of them: as one, of service.merge_states)"
        )


def _is_over(state: State, job: JobRecord, repetition: int, request: OpenIteration) -> bool:
    name = job.iterations.get(repetition)
    if name is None:
        return repetition in job.over
    return _is_read(state.iterations[name], request)


def _is_read(record: IterationRecord, request: OpenIteration) -> bool:
    """Whether the readers that the client would share with have read everything."""
    group = record.groups.get(record.group_of(request))
    return record.begun.leased and group is not None and record.complete(group)


def _warning(
    state: State, job: JobRecord, record: IterationRecord | None, request: OpenIteration
) -> str:
    """The warning for a client that gets no element, or not all; raises if it must not read.

    `record` is None for a repetition that was read to its end and removed.
    """
    returns = request.resumes or request.consumed or request.last is not None
    if returns or (record is not None and not record.begun.leased):
        return ""
    call = f"service.distribute(job_name={request.job!r})"
    others_read = any(state.iterations[name].clients for name in job.iterations.values())
    known = not request.program or request.program in job.programs
    if record is None or _is_read(record, request):
        read = f"{call}: repetition {request.repetition} of this job was read to its end"
        if not others_read and not known:
            raise FailedPreconditionError(
                f"{read} by readers that have left, and the dispatcher remembers it; to read the "
                f"dataset again use another job_name, or run: penstock forget URL "
                f"{request.job!r}"
            )
        return f"{read} by other readers, so this reader gets nothing of it"
    consumed = record.consumed_by(record.group_of(request))
    if consumed and not others_read and not known:
        return (
            f"{call}: readers that have left read {consumed} elements of this job, and this reader "
            "gets the rest; to read all of them use another job_name, or run: "
            f"penstock forget URL {request.job!r}"
        )
    return ""


# What must hold before a client may read, and what readers of a job share.
# Every check returns nothing, or raises the error that the user sees.


_MAX_STREAMS_AHEAD = 1 << 18
"""A saved state that names streams farther behind the begun ones is not of this dataset."""


def find_dataset(state: State, dataset_id: str, call: str) -> DatasetInfo:
    dataset = state.datasets.get(dataset_id)
    if dataset is None:
        raise NotFoundError(
            f"{call}: the dispatcher knows no dataset {dataset_id!r}; register it (a dispatcher "
            "without a work_dir forgets its datasets when it stops)"
        )
    return dataset


def check_opening(state: State, request: OpenIteration) -> None:
    """Checks a request without regard to its job."""
    if not 0 <= request.options.mode < len(MODES):
        raise InvalidArgumentError(
            f"service.distribute: unknown processing mode {request.options.mode}"
        )
    _check_consumer(request)
    if request.options.mode >= 2 and not state.settings.worker_addresses:
        raise NotFoundError(
            f"service.distribute: {MODES[request.options.mode]} gives every worker a fixed part, "
            "but the dispatcher has no list of workers; start it with "
            "DispatcherConfig(worker_addresses=[...]), or penstock dispatcher --worker-address"
        )
    if is_local(request.options):
        _check_host(state, request.host)


def _check_consumer(request: OpenIteration) -> None:
    consumers = request.options.consumers
    if consumers and request.job is None:
        raise InvalidArgumentError(
            "service.distribute: num_consumers is given without job_name; consumers find each "
            "other by the name of the job"
        )
    if consumers and not 0 <= request.consumer < consumers:
        raise FailedPreconditionError(
            f"service.distribute: consumer_index must be at least 0 and less than num_consumers "
            f"({consumers}), got {request.consumer}"
        )


def _check_host(state: State, host: str) -> None:
    workers = state.roster.workers.values()
    if workers and not any(worker.info.host == host for worker in workers):
        raise InvalidArgumentError(
            f'service.distribute: target_workers="LOCAL", but none of the {len(workers)} workers '
            'runs on this host; start one here, or use target_workers="ANY"'
        )


def check_same(job: JobRecord, request: OpenIteration, dataset: DatasetInfo) -> None:
    """Checks that a reader asks for the same as the first reader of its job."""
    ours, theirs = request.options, job.options
    numbers = {
        "processing_mode": (MODES[ours.mode], MODES[theirs.mode]),
        "num_consumers": (ours.consumers, theirs.consumers),
        "target_workers": (ours.target.upper(), theirs.target.upper()),
        "the use of cross_trainer_cache": (ours.cached, theirs.cached),
        "the use of per-worker operators": (ours.per_worker, theirs.per_worker),
        "the cardinality of the dataset": (dataset.cardinality, job.dataset.cardinality),
    }
    for what, (here, there) in numbers.items():
        if here != there:
            _disagree(request, f"{what} is {here} here and was {there} for the first reader")
    for what, same in (
        ("element_spec", dataset.spec == job.dataset.spec),
        ("structure", dataset.structure == job.dataset.structure),
    ):
        if not same:
            _disagree(request, f"the {what} of this dataset is not that of the first reader's")


def _disagree(request: OpenIteration, what: str) -> None:
    raise InvalidArgumentError(
        f"service.distribute(job_name={request.job!r}): all readers of a job must ask for the "
        f"same, but {what}; use another job_name"
    )


def check_return(record: IterationRecord, request: OpenIteration) -> None:
    """Checks that a client may join: it did not leave, was not superseded, and its state fits."""
    member = record.members.get(request.client)
    if member is not None and member.standing in (LEFT, SUPERSEDED):
        raise AbortedError(explain_departure(member))
    if member is not None and member.standing == LOST and record.begun.leased:
        # A late duplicate of a request must not bring the client back: it would not know which of
        # its leases have expired.
        raise NotFoundError(
            f"service: the leases of reader {request.client} have expired, and other readers may "
            "have them; it must return under another name"
        )
    if (overtaken := _find_overtaken(record, request)) is not None:
        raise AbortedError(explain_departure(overtaken))
    if (request.resumes or request.consumed) and request.key != record.work.key:
        raise FailedPreconditionError(
            f"service.distribute(job_name={request.job!r}): repetition {request.repetition} was "
            "begun anew, with other random numbers than those of the saved state; restore the "
            "state before other readers read, or use another job_name"
        )


def _find_overtaken(record: IterationRecord, request: OpenIteration) -> ClientRecord | None:
    """Returns the record of a returning client, if another client continues from its saved state.

    The returning client checked this before, but the other client may have come since.
    """
    for member in record.members.values():
        if member.client not in (*request.names, request.client):
            for name in request.names:
                if name in member.joined.resumes and name in record.members:
                    return record.members[name]
    return None


def check_claims(record: IterationRecord, request: OpenIteration) -> None:
    """Checks that a saved state names elements that can exist."""
    begun = max((group.begun for group in record.groups.values()), default=0)
    last = record.total if record.total >= 0 and not record.elastic else begun + _MAX_STREAMS_AHEAD
    ends = (StreamRange(stream, 0, end) for stream, end in request.finished)
    for at in (*request.consumed, *request.held, *ends):
        if not (0 <= at.stream < last and 0 <= at.start <= at.stop):
            raise InvalidArgumentError(
                f"load_state_dict: the saved state has read elements {at.start} to {at.stop} of "
                f"stream {at.stream}, which this dataset does not have; restore it into the "
                "dataset that it was saved from"
            )
    check_ends(record, request.finished)
