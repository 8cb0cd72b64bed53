"""Opening: a client begins or resumes an iteration of a job.

A named job that was read to its end stays so until it is removed: a client that comes later gets
no element of it, and learns why (decision 0022). A client that resumes a saved state supersedes the
clients that read on from it before, unless all of them resume the same merged state: these are
readers of one job, side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from penstock.errors import FailedPreconditionError
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
    ClientRewound,
    Fact,
    IterationRemoved,
    RangesClaimed,
    RangesSetAside,
    StreamPlace,
    StreamsPlaced,
)
from penstock.service.logic.leases import Ranges
from penstock.service.logic.placement import begin, joining_places, opening_places
from penstock.service.logic.reader_checks import (
    check_claims,
    check_opening,
    check_return,
    check_same,
    find_dataset,
)
from penstock.service.logic.recovery import knows
from penstock.service.logic.state import Decision, State, job_key
from penstock.service.protocol.messages import (
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
        opened = _make_reply(state, record, request, (), held, find_unclaimed(record, request))
        return Decision((ClientHeard(request.client),), opened)
    left = depart(state, client, LEFT) if client is not None and here else []
    found = find_iteration(state, request, dataset)
    if skipped := found.repetition - request.repetition:
        # The round of an endless `repeat` is the last number of its epoch.
        epoch = (*request.epoch[:-1], request.epoch[-1] + skipped)
        request = msgspec.structs.replace(request, repetition=found.repetition, epoch=epoch)
    begun, record, places = _prepare_iteration(state, found, request, dataset)
    facts = (*left, *begun, *_join_facts(record, request, places))
    held = find_untaken(record, request, begun)
    twice = find_repeated(record, request, begun)
    opened = _make_reply(state, record, request, places, held, twice)
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
        return list(_replaced_consumers(record, request))
    if not record.begun.leased or not request.resumes:
        return []
    return list(find_rewound(record, request))


def _replaced_consumers(record: IterationRecord, request: OpenIteration) -> Iterator[Fact]:
    """Removes clients of the same consumer index, also lost ones, so that they cannot return."""
    for member in record.members.values():
        same = member.consumer == request.consumer and member.client != request.client
        if same and member.standing in (HERE, LOST):
            yield ClientGone(member.client, SUPERSEDED)


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
    if request.last is not None and knows(state, request.last):
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


def origin_of(request: OpenIteration) -> str:
    """A digest of the saved states that a client resumes; empty without any."""
    if not request.resumes:
        return ""
    ranges = sorted((*request.consumed, *request.held), key=_by_position)
    states = (sorted(request.resumes), ranges, request.finished)
    return hashlib.sha256(msgspec.msgpack.encode(states)).hexdigest()[:16]


def _by_position(held: StreamRange) -> tuple[int, int]:
    return held.stream, held.start


def find_rewound(record: IterationRecord, request: OpenIteration) -> list[ClientRewound]:
    """The clients whose reading is undone: the resumed ones, and all that resumed states of these.

    Members are in the order in which they joined, so that each comes after those it resumed.
    """
    origin = origin_of(request)
    line = set(request.resumes)
    for member in record.members.values():
        follows = any(ancestor in line for ancestor in member.resumes)
        if (
            follows
            and not _resumes_together(member, request, origin)
            and not _is_returning(member, request, origin)
        ):
            line.add(member.client)
    members = (record.members[client] for client in record.members if client in line)
    return [ClientRewound(member.client) for member in members if _needs_rewind(member)]


def _resumes_together(member: ClientRecord, request: OpenIteration, origin: str) -> bool:
    """Whether a member and the requesting client resume the same merged state, side by side."""
    merged = request.merged or len(request.resumes) > 1
    return merged and member.origin == origin and member.standing in (HERE, LEFT)


def _is_returning(member: ClientRecord, request: OpenIteration, origin: str) -> bool:
    """Whether the member is the requesting client, which returns after its leases expired."""
    return member.client == request.client and member.origin == origin


def _needs_rewind(member: ClientRecord) -> bool:
    return bool(member.consumed) or member.standing != SUPERSEDED


def find_untaken(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact]
) -> tuple[StreamRange, ...]:
    """The part of `request.held` that no other client has once the facts `before` are applied."""
    ends = {**record.ends, **dict(request.finished)}
    taken = _find_taken(record, request, before, {at.stream for at in request.held})
    return tuple(
        StreamRange(at.stream, start, stop)
        for at in request.held
        for start, stop in taken[at.stream].outside(
            at.start, min(at.stop, ends.get(at.stream, at.stop))
        )
    )


def find_repeated(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact]
) -> tuple[StreamRange, ...]:
    """The part of `request.consumed` that other clients have got, too."""
    if request.merged or len(request.resumes) > 1:
        return ()  # All clients that resume a merged state report the same; the first has it.
    taken = _find_taken(record, request, before, {at.stream for at in request.consumed})
    return _overlaps(request, taken)


def find_unclaimed(record: IterationRecord, request: OpenIteration) -> tuple[StreamRange, ...]:
    """As `find_repeated`, for a repeated request: what it reports and the record does not have."""
    if request.merged or len(request.resumes) > 1:
        return ()
    mine = record.members[request.client].consumed
    return tuple(
        StreamRange(at.stream, start, stop)
        for at in request.consumed
        for start, stop in mine.get(at.stream, Ranges()).outside(at.start, at.stop)
    )


def _overlaps(request: OpenIteration, taken: dict[int, Ranges]) -> tuple[StreamRange, ...]:
    return tuple(
        StreamRange(at.stream, start, stop)
        for at in request.consumed
        for start, stop in taken[at.stream].inside(at.start, at.stop)
    )


def _find_taken(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact], streams: set[int]
) -> dict[int, Ranges]:
    undone = {fact.client for fact in before if isinstance(fact, ClientRewound)}
    return _ranges_of_others(record, record.group_of(request), {*undone, request.client}, streams)


def _ranges_of_others(
    record: IterationRecord, name: str, undone: set[str], streams: set[int]
) -> dict[int, Ranges]:
    """What the other clients of a group hold or have consumed of some streams."""
    taken = {stream: Ranges() for stream in streams}
    if not taken:
        return taken  # A new reader: an iteration may have thousands of members.
    others = [m for m in record.members.values() if m.group == name and m.client not in undone]
    for member in others:
        for stream in streams & member.consumed.keys():
            for start, stop in member.consumed[stream]:
                taken[stream].add(start, stop)
    tracks = record.groups[name].tracks if name in record.groups else {}
    for stream in streams & tracks.keys():
        for client, held in tracks[stream].held.items():
            for start, stop in held if client not in undone else ():
                taken[stream].add(start, stop)
    return taken


def find_leased(record: IterationRecord, request: OpenIteration) -> tuple[StreamRange, ...]:
    """As `find_untaken`, for a repeated request: the part of `request.held` that it has leased."""
    group = record.groups[record.members[request.client].group]
    return tuple(
        StreamRange(at.stream, start, stop)
        for at in request.held
        if at.stream in group.tracks
        for start, stop in group.tracks[at.stream]
        .held.get(request.client, Ranges())
        .inside(at.start, at.stop)
    )
