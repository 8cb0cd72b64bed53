"""Remembering: whether a dispatcher still knows what it has told its readers.

Facts are counted, through restarts too. Every answer to a reader names the last fact that it rests
on, and the reader names it when it asks again. A dispatcher that does not know that fact came back
from a journal that was cut, or is an older copy: it says so, and serves the reader again once that
has told what it has handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from penstock.service.logic.iterations import IterationRecord
from penstock.service.logic.state import State
from penstock.service.protocol.messages import (
    Address,
    ClientBeat,
    ClientBeaten,
    IterationOpened,
    LastFact,
    Lease,
    Leased,
    Leave,
    Reply,
    Request,
)

_NAMED = 8
"""So many streams are named in a message."""


def stamped(state: State, reply: Reply) -> Reply:
    """An answer with the last fact that it rests on; `state` knows all of them."""
    if not state.lives or not isinstance(reply, IterationOpened | Leased | ClientBeaten):
        return reply
    life = next(reversed(state.lives))
    return msgspec.structs.replace(reply, last=LastFact(life, state.facts))


def lost_facts(state: State, request: Request) -> str | None:
    """In words, what a reader was told and this dispatcher does not know; None if it knows all."""
    if not isinstance(request, Lease | ClientBeat | Leave) or request.last is None:
        return None
    if knows(state, request.last):
        return None
    end = _end(state, request.last.life)
    return (
        f"service: the dispatcher has lost facts: reader {request.client} was told of fact "
        f"{request.last.number}, and the journal ended with fact {end} when it was opened; its "
        "disk did not keep what it was given, or it is an older copy. Readers tell what they got"
    )


def knows(state: State, fact: LastFact) -> bool:
    """Whether a fact that a reader was told of was not lost."""
    return fact.number <= _end(state, fact.life)


def _end(state: State, life: str) -> int:
    """The last fact that is known of those of one start of the dispatcher."""
    lives = list(state.lives)
    if life not in lives:
        return 0
    later = lives[lives.index(life) + 1 :]
    return state.lives[later[0]] if later else state.facts


def in_doubt(state: State) -> list[str]:
    """In words, per named iteration, what readers that are gone may have got without a trace."""
    return [
        f"job {record.begun.name!r}, repetition {record.begun.repetition}: {spans(_ahead(record))}"
        for record in state.iterations.values()
        if record.begun.leased and not record.finished
    ]


def _ahead(record: IterationRecord) -> Iterator[Address]:
    for group in record.groups.values():
        for stream in sorted(group.open):
            yield Address(stream, group.tracks[stream].reached, record.ends.get(stream, -1))


def spans(addresses: Iterator[Address] | tuple[Address, ...]) -> str:
    """Addresses as a person reads them."""
    found = iter(addresses)
    named = [_span(at) for at in islice(found, _NAMED)]
    more = sum(1 for _ in found)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _span(at: Address) -> str:
    last = f"to {at.stop - 1}" if at.stop >= 0 else "on"
    return f"elements {at.start} {last} of stream {at.stream}"
