"""Opening: a client begins to read an iteration of a job, or goes on with one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.service.logic.agreement import (
    check_claims,
    check_opening,
    check_return,
    known_dataset,
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
from penstock.service.logic.finding import Found, find_iteration
from penstock.service.logic.forms import begin, joining_places, opening_places
from penstock.service.logic.iterations import (
    HERE,
    LEFT,
    LOST,
    SUPERSEDED,
    ClientRecord,
    IterationRecord,
    is_local,
)
from penstock.service.logic.rewinding import (
    leased_again,
    origin_of,
    repeated,
    rewound,
    set_aside,
    unclaimed,
)
from penstock.service.logic.state import Decision, State
from penstock.service.protocol.messages import (
    Address,
    DatasetInfo,
    IterationOpened,
    OpenIteration,
    StreamInfo,
    WorkerInfo,
)


def open_iteration(state: State, request: OpenIteration) -> Decision:
    """Decides what a client reads, and who else must do what for it."""
    dataset = known_dataset(state, request.dataset_id, "service.distribute")
    check_opening(state, request)
    client = state.clients.get(request.client)
    here = client is not None and client.standing == HERE
    if client is not None and here and _reads(state, client, request):
        record = state.iterations[client.job]
        held = leased_again(record, request)
        opened = _opened(state, record, request, (), held, unclaimed(record, request))
        return Decision((ClientHeard(request.client),), opened)
    left = depart(state, client, LEFT) if client is not None and here else []
    found = find_iteration(state, request, dataset)
    if skipped := found.repetition - request.repetition:
        # The round of an endless `repeat` is the last number of its epoch.
        epoch = (*request.epoch[:-1], request.epoch[-1] + skipped)
        request = msgspec.structs.replace(request, repetition=found.repetition, epoch=epoch)
    begun, record, places = _joinable(state, found, request, dataset)
    facts = (*left, *begun, *_joined(record, request, places))
    held = set_aside(record, request, begun)
    twice = repeated(record, request, begun)
    opened = _opened(state, record, request, places, held, twice)
    return Decision(facts, msgspec.structs.replace(opened, warning=found.warning))


def depart(state: State, client: ClientRecord, how: str) -> list[Fact]:
    """A client is gone, and with it what was for it alone."""
    gone: list[Fact] = [ClientGone(client.client, how)]
    if state.iterations[client.job].begun.name is None:
        gone.append(IterationRemoved(client.job))
    return gone


def _reads(state: State, client: ClientRecord, request: OpenIteration) -> bool:
    begun = state.iterations[client.job].begun
    if request.endless and begun.repetition > request.repetition:
        return begun.name == request.job
    return begun.name == request.job and begun.repetition == request.repetition


def _joinable(
    state: State, found: Found, request: OpenIteration, dataset: DatasetInfo
) -> tuple[list[Fact], IterationRecord, tuple[StreamPlace, ...]]:
    """The iteration to join, what happens before, and who makes its streams."""
    if found.record is None:
        begun = begin(state, request, dataset, over=found.over)
        record = IterationRecord(begun)
        return [begun], record, opening_places(state, record, request)
    record = found.record
    check_return(record, request)
    return _overtaken(record, request), record, joining_places(state, record, request)


def _overtaken(record: IterationRecord, request: OpenIteration) -> list[Fact]:
    """Whoever must give way to a client that joins."""
    if record.options.consumers:
        return list(_replaced_consumers(record, request))
    if not record.begun.leased or not request.resumes:
        return []
    return list(rewound(record, request))


def _replaced_consumers(record: IterationRecord, request: OpenIteration) -> Iterator[Fact]:
    """Readers under the same index: one that was lost must not come back behind the newer one."""
    for member in record.members.values():
        same = member.consumer == request.consumer and member.client != request.client
        if same and member.standing in (HERE, LOST):
            yield ClientGone(member.client, SUPERSEDED)


def _joined(
    record: IterationRecord, request: OpenIteration, places: tuple[StreamPlace, ...]
) -> list[Fact]:
    job, consumer = record.work.job, request.consumer if record.options.consumers else -1
    joined = ClientJoined(
        *(request.client, job, record.group_of(request), request.host, consumer),
        *(request.resumes, origin_of(request), request.program),
    )
    made: list[Fact] = [joined]
    if places:
        made.append(StreamsPlaced(job, places))
    if record.begun.leased and (request.consumed or request.held or request.finished):
        check_claims(record, request)
        made.append(RangesClaimed(request.client, request.consumed, request.finished))
        made.append(RangesSetAside(request.client, request.held))
    return made


def _opened(
    state: State,
    record: IterationRecord,
    request: OpenIteration,
    places: tuple[StreamPlace, ...],
    held: tuple[Address, ...],
    twice: tuple[Address, ...],
) -> IterationOpened:
    streams = {info.stream: info for info in record.streams()}
    for place in places:
        before = streams.get(place.stream)
        begins = place.begins
        if begins is None:
            begins = before.begins if before is not None else 0
        streams[place.stream] = StreamInfo(place.stream, place.worker, begins)
    missing = record.missing(besides=request.consumer)
    return IterationOpened(
        work=record.work,
        leased=record.begun.leased,
        # What follows from joining moves the version on: the client is told again, no harm done.
        version=state.version(record),
        workers=offered(state, record, request.host),
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


def offered(state: State, record: IterationRecord, host: str) -> tuple[WorkerInfo, ...]:
    """The workers that a client on `host` may ask."""
    workers = state.roster.offered()
    return tuple(w for w in workers if w.host == host) if is_local(record.options) else workers
