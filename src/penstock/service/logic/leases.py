"""Leases: which elements of an iteration a group of readers was given, by whom each is held.

Of every stream, what lies before `reached` is either held by one client, or free, or consumed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.service.logic.ranges import Ranges


@dataclass(slots=True)
class Track:
    """What became of the elements of one stream; nothing from `reached` on was handed out yet."""

    reached: int = 0
    free: Ranges = field(default_factory=Ranges)
    held: dict[str, Ranges] = field(default_factory=dict)

    def holdings(self, client: str) -> Ranges:
        return self.held.setdefault(client, Ranges())

    def reach(self, ordinal: int) -> None:
        """All before `ordinal` was handed out, as far as it is not free."""
        if ordinal > self.reached:
            self.free.add(self.reached, ordinal)
            self.reached = ordinal


def _find_gaps(parts: list[Ranges], stop: int) -> Ranges:
    """What lies before `stop` and in none of the parts."""
    gaps, at = Ranges(), 0
    for start, end in heapq.merge(*parts):
        gaps.add(at, start)
        at = max(at, end)
    gaps.add(at, stop)
    return gaps


class Group:
    """The readers of an iteration that share its elements; `ends` are the lengths of streams."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = ends
        self.begun = 0
        """Streams before this one were begun."""
        self.tracks: dict[int, Track] = {}
        """Begun streams of which not all is consumed."""
        self.done = Ranges()
        """Streams of which all is consumed."""
        self.open: dict[int, None] = {}
        """Streams that go on behind `reached`; the one that waited longest comes first."""
        self.idle: dict[int, None] = {}
        """Those of them of which nobody holds anything."""
        self.returned: dict[int, None] = {}
        """Streams with free elements."""
        self.holders: dict[str, int] = {}
        """How much each client holds; the one that was silent longest comes first."""
        self.at: dict[str, dict[int, None]] = {}
        """The streams of which each client holds something."""

    def begin(self, streams: int) -> None:
        for stream in range(self.begun, streams):
            self.tracks[stream] = Track()
            self._classify(stream)
        self.begun = max(self.begun, streams)

    def restore(
        self, begun: int, reached: dict[int, int], consumed: dict[int, list[Ranges]]
    ) -> None:
        """Goes on where a group was: what nobody has consumed before `reached` is free.

        All of begun streams that are not in `reached` is consumed.
        """
        self.begun = begun
        self.done = Ranges(((0, begun),))
        for stream, ordinal in reached.items():
            self.done.remove(stream, stream + 1)
            self.tracks[stream] = Track(ordinal, _find_gaps(consumed[stream], ordinal))
            self._classify(stream)

    def lease(self, client: str, stream: int, start: int, stop: int) -> None:
        """Gives free or new elements to a client."""
        track = self._track(stream)
        if start == track.reached:
            track.reached = stop
        else:
            track.reach(stop)
            track.free.remove(start, stop)
        track.holdings(client).add(start, stop)
        self.at.setdefault(client, {})[stream] = None
        self._count_held(client, stop - start)
        self.open.pop(stream, None)
        self._classify(stream)

    def consume(self, client: str, stream: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Of what a client holds, `start` to `stop` was used; gives what that is."""
        track = self.tracks.get(stream)
        if track is None or client not in track.held:
            return []
        used = track.held[client].inside(start, stop)
        self._drop(client, stream, start, stop)
        self._classify(stream)
        return used

    def claim(self, client: str, stream: int, start: int, stop: int) -> list[tuple[int, int]]:
        """What of `start` to `stop` nobody else has, was used by a client; gives what that is."""
        stop = min(stop, self.ends.get(stream, stop))
        track = self._track(stream)
        track.reach(stop)
        used = self.consume(client, stream, start, stop) + track.free.inside(start, stop)
        track.free.remove(start, stop)
        self._classify(stream)
        return used

    def set_aside(self, client: str, stream: int, start: int, stop: int) -> None:
        """What of `start` to `stop` nobody has is given to a client."""
        track = self._track(stream)
        track.reach(min(stop, self.ends.get(stream, stop)))
        for first, last in track.free.inside(start, stop):
            self.lease(client, stream, first, last)
        self._classify(stream)

    def give_back(self, client: str) -> None:
        """Frees all that a client holds."""
        if client not in self.holders:
            return
        for stream in self.at.pop(client):
            track = self.tracks[stream]
            for start, stop in track.held.pop(client):
                track.free.add(start, stop)
            self._classify(stream)
        del self.holders[client]

    def undo(self, stream: int, ranges: Ranges) -> None:
        """What was consumed is free again."""
        track = self._track(stream)
        for start, stop in ranges:
            track.free.add(start, stop)
        self._classify(stream)

    def end(self, stream: int, length: int) -> None:
        """A stream turned out to have `length` elements: whatever lies behind them is void."""
        track = self.tracks.get(stream)
        if track is None:
            return
        behind = max(track.reached, length)
        for client in list(track.held):
            self._drop(client, stream, length, behind)
        track.free.remove(length, behind)
        track.reached = min(track.reached, length)
        self._classify(stream)

    def consumed_to(self, stream: int) -> int:
        """Behind the last element of a stream that was consumed."""
        track = self.tracks.get(stream)
        if track is None:
            return self.ends.get(stream, 0)
        used = Ranges(((0, track.reached),))
        for start, stop in (*track.free, *(r for held in track.held.values() for r in held)):
            used.remove(start, stop)
        return used.stop

    def heard(self, client: str) -> None:
        if client in self.holders:
            self.holders[client] = self.holders.pop(client)

    def held(self) -> Iterator[tuple[int, str, int, int]]:
        """All leases: stream, client, start, stop."""
        for stream, track in self.tracks.items():
            for client, ranges in track.held.items():
                yield from ((stream, client, start, stop) for start, stop in ranges)

    def _track(self, stream: int) -> Track:
        self.begin(stream + 1)
        track = self.tracks.get(stream)
        if track is None:
            self.done.remove(stream, stream + 1)
            track = self.tracks[stream] = Track(self.ends[stream])
        return track

    def _count_held(self, client: str, more: int) -> None:
        held = self.holders.get(client, 0) + more
        if held:
            self.holders[client] = held
        else:
            self.holders.pop(client, None)

    def _drop(self, client: str, stream: int, start: int, stop: int) -> None:
        track = self.tracks[stream]
        held = track.held[client]
        before = held.count
        held.remove(start, stop)
        self._count_held(client, held.count - before)
        if not held:
            del track.held[client]
            self._forget_holding(client, stream)

    def _forget_holding(self, client: str, stream: int) -> None:
        streams = self.at[client]
        del streams[stream]
        if not streams:
            del self.at[client]

    def _classify(self, stream: int) -> None:
        """Puts a stream where it belongs now."""
        track, end = self.tracks.get(stream), self.ends.get(stream)
        if track is None:
            return
        more = end is None or track.reached < end
        if not more and not track.free and not track.held:
            del self.tracks[stream]
            self.done.add(stream, stream + 1)
        for streams, there in (
            (self.open, more),
            (self.idle, more and not track.held),
            (self.returned, track.free.count > 0),
        ):
            if there:
                streams.setdefault(stream)
            else:
                streams.pop(stream, None)
