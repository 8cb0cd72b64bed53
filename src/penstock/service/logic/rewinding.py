"""Rewinding: a client goes on from a saved state, and what was read since then is read again.

Whoever read on from the same client before is overtaken, unless both go on from one and the same
merged state: then they are readers of one job, side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from penstock.service.logic.facts import ClientRewound, Fact
from penstock.service.logic.iterations import HERE, LEFT, SUPERSEDED, ClientRecord, IterationRecord
from penstock.service.logic.ranges import Ranges
from penstock.service.protocol.messages import Address, OpenIteration


def origin_of(request: OpenIteration) -> str:
    """Equal for clients that go on from the same saved states."""
    if not request.resumes:
        return ""
    addresses = sorted((*request.consumed, *request.held), key=_order)
    states = (sorted(request.resumes), addresses, request.finished)
    return hashlib.sha256(msgspec.msgpack.encode(states)).hexdigest()[:16]


def _order(address: Address) -> tuple[int, int]:
    return address.stream, address.start


def rewound(record: IterationRecord, request: OpenIteration) -> list[ClientRewound]:
    """The clients whose reading is undone: those that are resumed, and all who went on from them.

    Members are looked at in the order they came, so nobody is seen before whom it goes on from.
    """
    origin = origin_of(request)
    line = set(request.resumes)
    for member in record.members.values():
        follows = any(ancestor in line for ancestor in member.resumes)
        if follows and not _beside(member, request, origin) and not _again(member, request, origin):
            line.add(member.client)
    members = (record.members[client] for client in record.members if client in line)
    return [ClientRewound(member.client) for member in members if _has_something(member)]


def _beside(member: ClientRecord, request: OpenIteration, origin: str) -> bool:
    """Whether somebody reads beside the one that asks, both from one merged state."""
    merged = request.merged or len(request.resumes) > 1
    return merged and member.origin == origin and member.standing in (HERE, LEFT)


def _again(member: ClientRecord, request: OpenIteration, origin: str) -> bool:
    """Whether this is the one that asks, which was lost and comes back."""
    return member.client == request.client and member.origin == origin


def _has_something(member: ClientRecord) -> bool:
    return bool(member.consumed) or member.standing != SUPERSEDED


def set_aside(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact]
) -> tuple[Address, ...]:
    """What a client gets of `request.held` once `before` has happened: what nobody else has."""
    ends = {**record.ends, **dict(request.finished)}
    taken = _taken_by_others(record, request, before, {at.stream for at in request.held})
    return tuple(
        Address(at.stream, start, stop)
        for at in request.held
        for start, stop in taken[at.stream].outside(
            at.start, min(at.stop, ends.get(at.stream, at.stop))
        )
    )


def repeated(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact]
) -> tuple[Address, ...]:
    """Of what a client says that it has consumed, what others have got, too."""
    if request.merged or len(request.resumes) > 1:
        return ()  # All who go on from merged states say the same, and the first of them has it.
    taken = _taken_by_others(record, request, before, {at.stream for at in request.consumed})
    return _overlaps(request, taken)


def unclaimed(record: IterationRecord, request: OpenIteration) -> tuple[Address, ...]:
    """The same for a client that asks again: all that it said and that was not noted for it."""
    if request.merged or len(request.resumes) > 1:
        return ()
    mine = record.members[request.client].consumed
    return tuple(
        Address(at.stream, start, stop)
        for at in request.consumed
        for start, stop in mine.get(at.stream, Ranges()).outside(at.start, at.stop)
    )


def _overlaps(request: OpenIteration, taken: dict[int, Ranges]) -> tuple[Address, ...]:
    return tuple(
        Address(at.stream, start, stop)
        for at in request.consumed
        for start, stop in taken[at.stream].inside(at.start, at.stop)
    )


def _taken_by_others(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact], streams: set[int]
) -> dict[int, Ranges]:
    undone = {fact.client for fact in before if isinstance(fact, ClientRewound)}
    return _taken(record, record.group_of(request), {*undone, request.client}, streams)


def _taken(
    record: IterationRecord, name: str, undone: set[str], streams: set[int]
) -> dict[int, Ranges]:
    """What the others of a group have of some streams."""
    taken = {stream: Ranges() for stream in streams}
    others = [m for m in record.members.values() if m.group == name and m.client not in undone]
    for member in others:
        for stream in streams & member.consumed.keys():
            for start, stop in member.consumed[stream]:
                taken[stream].add(start, stop)
    held = record.groups[name].held() if name in record.groups else ()
    for stream, client, start, stop in held:
        if stream in streams and client not in undone:
            taken[stream].add(start, stop)
    return taken


def leased_again(record: IterationRecord, request: OpenIteration) -> tuple[Address, ...]:
    """The same for a client that asks again, and has it."""
    group = record.groups[record.members[request.client].group]
    return tuple(
        Address(at.stream, start, stop)
        for at in request.held
        if at.stream in group.tracks
        for start, stop in group.tracks[at.stream]
        .held.get(request.client, Ranges())
        .inside(at.start, at.stop)
    )
