"""Recovery: a state as a snapshot of facts, facts that were lost, and readers that resume states.

Facts are counted, through restarts too. Every reply to a reader names the last fact that it rests
on, and the reader names that fact in its next request. A dispatcher that does not know the fact was
restored from a journal that was cut, or from an older copy: it refuses the request, and serves the
reader again once the reader has reported which elements it has handed out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from penstock.service.logic.dispatcher_records import (
    HERE,
    LEFT,
    SUPERSEDED,
    ClientRecord,
    IterationRecord,
)
from penstock.service.logic.facts import (
    ClientGone,
    ClientJoined,
    ClientRewound,
    ConsumptionKept,
    DatasetStored,
    DispatcherStarted,
    Fact,
    GroupReached,
    LeasesKept,
    LengthsKept,
    NumbersGiven,
    RepetitionsOver,
    StreamPlace,
    StreamsPlaced,
    WorkerJoined,
)
from penstock.service.logic.leases import Group, Ranges
from penstock.service.logic.state import State, intervals_of
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    LastFact,
    Lease,
    Leave,
    OpenIteration,
    Reply,
    Request,
    StreamRange,
)

_MAX_NAMED = 8
"""The most ranges in a message."""


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
        yield _group_fact(job, name, group)
    for client in record.members.values():
        yield from _lease_facts(client, record.groups[client.group])
    # After the clients: when the last client of an iteration leaves, its streams lose their places.
    places = tuple(sorted(record.places, key=_stream_of))
    if places:
        yield StreamsPlaced(job, places)


def _stream_of(place: StreamPlace) -> int:
    return place.stream


def _client_facts(client: ClientRecord) -> Iterator[Fact]:
    yield ClientJoined(
        client=client.client,
        job=client.job,
        group=client.group,
        host=client.host,
        consumer=client.consumer,
        resumes=client.resumes,
        origin=client.origin,
        program=client.program,
    )
    if client.consumed:
        yield ConsumptionKept(client.client, *client.consumed.pack())
    if client.standing != HERE:
        yield ClientGone(client.client, client.standing)


def _group_fact(job: str, name: str, group: Group) -> GroupReached:
    reached = ((stream, track.reached) for stream, track in sorted(group.tracks.items()))
    return GroupReached(job, name, group.begun, tuple(reached))


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
    if knows(state, request.last):
        return None
    end = _last_known_fact(state, request.last.life)
    return (
        f"service: the dispatcher has lost facts: reader {request.client} knows of fact "
        f"{request.last.number}, and the journal ended with fact {end} when it was opened; its "
        "disk did not keep what it was given, or it is an older copy. Readers report what they got"
    )


def knows(state: State, fact: LastFact) -> bool:
    """Whether a fact that a reader knows of was not lost."""
    return fact.number <= _last_known_fact(state, fact.life)


def _last_known_fact(state: State, life: str) -> int:
    """The number of the last known fact of one start of the dispatcher; 0 if that is unknown."""
    lives = list(state.lives)
    if life not in lives:
        return 0
    later = lives[lives.index(life) + 1 :]
    return state.lives[later[0]] if later else state.facts


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


def describe_ranges(ranges: Iterator[StreamRange] | tuple[StreamRange, ...]) -> str:
    """Ranges in words, for a message."""
    found = iter(ranges)
    named = [_describe_range(at) for at in islice(found, _MAX_NAMED)]
    more = sum(1 for _ in found)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _describe_range(at: StreamRange) -> str:
    last = f"to {at.stop - 1}" if at.stop >= 0 else "on"
    return f"elements {at.start} {last} of stream {at.stream}"


# Readers that resume saved states: whose reading is undone, and what other readers have got


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
