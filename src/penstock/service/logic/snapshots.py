"""Snapshots: a whole state in as few facts as possible.

Applied to a new state they give an equal one: one with the same snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.service.logic.facts import (
    ClientGone,
    ClientJoined,
    ConsumptionKept,
    DatasetStored,
    DispatcherStarted,
    Fact,
    GroupReached,
    IterationBegun,
    LeasesKept,
    LengthsKept,
    NumbersGiven,
    RepetitionsOver,
    StreamPlace,
    StreamsPlaced,
    WorkerJoined,
)
from penstock.service.logic.iterations import HERE, ClientRecord, IterationRecord
from penstock.service.logic.leases import Group
from penstock.service.logic.state import State
from penstock.service.protocol.messages import Address


def snapshot(state: State) -> tuple[Fact, ...]:
    """The facts that a state consists of."""
    return tuple(_facts(state))


def _facts(state: State) -> Iterator[Fact]:
    if state.starts:
        yield DispatcherStarted(state.dispatcher, state.starts, tuple(state.lives.items()))
    names = {dataset_id: request for request, dataset_id in state.requests.items()}
    for dataset_id, info in state.datasets.items():
        lasting = state.is_lasting(dataset_id)
        yield DatasetStored(info, names.get(dataset_id, ""), lasting=lasting)
    for worker in state.roster.workers.values():
        yield WorkerJoined(worker.info)
    for record in state.iterations.values():
        yield from _iteration(record)
    for job in state.jobs.values():
        if job.over:
            some = next(iter(job.iterations.values()))
            yield RepetitionsOver(some, tuple(job.over), tuple(job.programs))
    yield NumbersGiven(state.dataset_numbers, state.iteration_numbers, state.facts)


def _iteration(record: IterationRecord) -> Iterator[Fact]:
    begun, job = record.begun, record.work.job
    yield IterationBegun(
        *(begun.name, begun.repetition, begun.dataset_id, begun.options),
        *(begun.work, begun.leased, begun.length, record.ready),
        by_id=begun.by_id,
    )
    if record.ends:
        yield LengthsKept(job, record.ends.packed())
    for client in record.members.values():
        yield from _client(client)
    for name, group in record.groups.items():
        yield _group(job, name, group)
    for client in record.members.values():
        yield from _leases(client, record.groups[client.group])
    # Placed before the last client leaves, a stream would lose its place again.
    places = tuple(sorted(record.places, key=_stream))
    if places:
        yield StreamsPlaced(job, places)


def _stream(place: StreamPlace) -> int:
    return place.stream


def _client(client: ClientRecord) -> Iterator[Fact]:
    yield ClientJoined(
        *(client.client, client.job, client.group, client.host),
        *(client.consumer, client.resumes, client.origin, client.program),
    )
    if client.consumed:
        yield ConsumptionKept(client.client, *client.consumed.packed())
    if client.standing != HERE:
        yield ClientGone(client.client, client.standing)


def _group(job: str, name: str, group: Group) -> GroupReached:
    reached = ((stream, track.reached) for stream, track in sorted(group.tracks.items()))
    return GroupReached(job, name, group.begun, tuple(reached))


def _leases(client: ClientRecord, group: Group) -> Iterator[Fact]:
    if client.standing != HERE:
        return
    held = [
        Address(stream, start, stop)
        for stream, track in sorted(group.tracks.items())
        for start, stop in track.held.get(client.client, ())
    ]
    if held or client.number:
        yield LeasesKept(client.client, tuple(held), client.number, client.answer)
