"""Rewinding: a client goes on from a saved state, and what was read since then is read again.

Whoever read on from the same client before is overtaken, unless both go on from one and the same
merged state: then they are readers of one job, side by side.
"""

from __future__ import annotations

import hashlib

import msgspec

from penstock.service.logic.facts import ClientRewound
from penstock.service.logic.iterations import HERE, LEFT, SUPERSEDED, ClientRecord, IterationRecord
from penstock.service.protocol.messages import Address, OpenIteration


def origin_of(request: OpenIteration) -> str:
    """Equal for clients that go on from the same saved states."""
    if not request.resumes:
        return ""
    states = (sorted(request.resumes), sorted(request.consumed, key=_order), request.finished)
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
    merged = len(request.resumes) > 1 and member.origin == origin
    return merged and member.standing in (HERE, LEFT)


def _again(member: ClientRecord, request: OpenIteration, origin: str) -> bool:
    """Whether this is the one that asks, which was lost and comes back."""
    return member.client == request.client and member.origin == origin


def _has_something(member: ClientRecord) -> bool:
    return bool(member.consumed) or member.standing != SUPERSEDED
