"""Choosing: which elements a reader of a named job gets next.

Pieces of a plan are leased in the local order: a reader goes on with the lowest piece that no
other reader is at. Streams of workers are leased side by side, because none comes before another.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import count

from penstock.plan.shape import ENDLESS
from penstock.service.logic.iterations import ClientRecord
from penstock.service.logic.state import State
from penstock.service.protocol.messages import Address

MOST_GRANTS = 8
"""So many ranges are handed out at once, at most."""

_FOREVER = 1 << 62
"""Where a stream stops whose end is not known."""


def choose(state: State, client: ClientRecord, want: int, ended: dict[int, int]) -> list[Address]:
    """About `want` elements for a client, where `ended` are lengths that are not in the state."""
    in_order = state.iterations[client.job].work.form == "split"
    kind = _InOrder if in_order else _SideBySide
    return kind(state, client, ended).choose(max(1, want))


class _Choice:
    """What is free for a client."""

    def __init__(self, state: State, client: ClientRecord, ended: dict[int, int]) -> None:
        self._state = state
        self._client = client.client
        self._record = state.iterations[client.job]
        self._group = state.group(client)
        self._ended = ended

    def _end(self, stream: int) -> int | None:
        return self._ended.get(stream, self._record.ends.get(stream))

    def _returned(self, stream: int) -> Iterator[tuple[int, int]]:
        """What was given back of a stream."""
        end = self._end(stream)
        for start, stop in self._group.tracks[stream].free:
            stop = stop if end is None else min(stop, end)
            if start < stop:
                yield start, stop

    def _reached(self, stream: int) -> int:
        track = self._group.tracks.get(stream)
        return track.reached if track is not None else 0

    def _fresh(self) -> Iterator[int]:
        """Streams that no client has begun."""
        begun, total = self._group.begun, self._record.total
        numbers = count(begun) if total == ENDLESS else range(begun, total)
        return (stream for stream in numbers if self._end(stream) != 0)


class _SideBySide(_Choice):
    """What was given back goes first, then a part of every stream: the one that waited longest
    first. With random access there is one stream, and any worker makes any part of it."""

    def choose(self, want: int) -> list[Address]:
        found: list[Address] = []
        for stream in self._group.returned:
            for start, stop in self._returned(stream):
                found.append(Address(stream, start, min(stop, start + want)))
                want -= stop - start
                if want <= 0 or len(found) == MOST_GRANTS:
                    return found
        streams = self._streams(MOST_GRANTS - len(found))
        size = -(-want // max(1, len(streams)))
        return found + [self._next(stream, size) for stream in streams]

    def _next(self, stream: int, size: int) -> Address:
        start, end = self._reached(stream), self._end(stream)
        return Address(stream, start, start + size if end is None else min(start + size, end))

    def _streams(self, most: int) -> list[int]:
        """The streams to go on with, one for each worker that could do something for it."""
        most = max(1, self._state.roster.count_usable(most)) if self._record.bound else 1
        chosen: dict[int, None] = {}
        for stream in self._candidates():
            if stream not in chosen and self._end(stream) != 0 and stream not in self._ended:
                chosen[stream] = None
                if len(chosen) == most:
                    break
        return list(chosen)

    def _candidates(self) -> Iterator[int]:
        yield from self._group.idle
        yield from self._fresh()
        yield from self._group.open


class _InOrder(_Choice):
    """A run of the local order, as far as the ends of streams are known. Of some streams behind it
    the client gets one element: it has them made ahead, and other clients begin elsewhere.

    Where nothing else is left, a client takes over what another one has not come to.
    """

    def choose(self, want: int) -> list[Address]:
        found: list[Address] = []
        ahead = self._share()
        for stream in self._lowest():
            run = want > 0 and len(found) < MOST_GRANTS
            if run:
                spans = list(self._rest(stream, want))
                want -= sum(stop - start for start, stop in spans)
            else:
                spans = [] if self._holds(stream) else list(self._rest(stream, 1))
            found += [Address(stream, *span) for span in spans]
            ahead -= not run or want <= 0
            if ahead <= 0:
                break
        return found or self._taken_over(want)

    def _share(self) -> int:
        """How many streams a client may be at, so that all workers have something to make."""
        usable = self._state.roster.count_usable(_FOREVER)
        others = len(self._group.holders) - (self._client in self._group.holders)
        return max(2, max(MOST_GRANTS, usable) // (others + 1))

    def _lowest(self) -> Iterator[int]:
        """Streams that no other client is at, in the local order."""
        group = self._group
        mine = (stream for stream in group.at.get(self._client, ()) if stream in group.open)
        return merge(sorted({*group.returned, *group.idle, *mine}), self._fresh())

    def _holds(self, stream: int) -> bool:
        return stream in self._group.at.get(self._client, ())

    def _rest(self, stream: int, want: int) -> Iterator[tuple[int, int]]:
        """What is free of a stream, up to `want` elements: what was given back, then what is new,
        unless only others are at it."""
        group = self._group
        for start, stop in self._returned(stream) if stream in group.returned else ():
            yield start, min(stop, start + want)
            want -= stop - start
            if want <= 0:
                return
        apart = stream not in group.open or stream in group.idle or self._holds(stream)
        if apart and (new := self._new(stream, want)) is not None:
            yield new

    def _new(self, stream: int, want: int) -> tuple[int, int] | None:
        """What no client was given of a stream, up to `want` elements."""
        start, end = self._reached(stream), self._end(stream)
        stop = start + want if end is None else min(start + want, end)
        return (start, stop) if start < stop else None

    def _taken_over(self, want: int) -> list[Address]:
        """Elements of a stream that others are at; if it can be, of one that they have not come to:
        it is not the lowest of any client."""
        busy: set[str] = set()
        found: list[Address] = []
        for stream in sorted(self._group.open):
            if (new := self._new(stream, want)) is not None:
                found.append(Address(stream, *new))
                if busy.issuperset(self._group.tracks[stream].held):
                    return found[-1:]
                busy.update(self._group.tracks[stream].held)
        return found[:1]
