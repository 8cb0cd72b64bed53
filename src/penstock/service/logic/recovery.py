"""Recovery: a whole state as a snapshot of facts, and the detection of facts that were lost.

Facts are counted, through restarts too. Every reply to a reader names the last fact that it rests
on, and the reader names that fact in its next request. A dispatcher that does not know the fact was
restored from a journal that was cut, or from an older copy: it refuses the request, and serves the
reader again once the reader has reported which elements it has handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from penstock.service.logic.dispatcher_records import HERE, ClientRecord, IterationRecord
from penstock.service.logic.facts import (
    ClientGone,
    ClientJoined,
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
from penstock.service.logic.leases import Group
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
