"""Leases: which elements of an iteration the clients of a group hold, and which are free.

Invariant: every element of a stream before `reached` is held by one client, or free, or consumed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.service.logic.ranges import Ranges


@dataclass(slots=True)
class Track:
    """The leases of one stream; no element from `reached` on was ever leased."""

    reached: int = 0
    free: Ranges = field(default_factory=Ranges)
    held: dict[str, Ranges] = field(default_factory=dict)

    def holdings(self, client: str) -> Ranges:
        return self.held.setdefault(client, Ranges())

    def reach(self, ordinal: int) -> None:
        """Moves `reached` up to `ordinal`; the elements in between become free."""
        if ordinal > self.reached:
            self.free.add(self.reached, ordinal)
            self.reached = ordinal


def _find_gaps(parts: list[Ranges], stop: int) -> Ranges:
    """The ordinals before `stop` that are in none of the parts."""
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
        """The number of begun streams: all before this one."""
        self.tracks: dict[int, Track] = {}
        """The begun streams that are not consumed completely."""
        self.done = Ranges()
        """The streams that are consumed completely."""
        self.open: dict[int, None] = {}
        """Streams with elements behind `reached`; the one that has waited longest comes first."""
        self.idle: dict[int, None] = {}
        """The open streams of which no client holds a part."""
        self.returned: dict[int, None] = {}
        """Streams with free elements."""
        self.holders: dict[str, int] = {}
        """How many elements each client holds; the one that has been silent longest comes first."""
        self.at: dict[str, dict[int, None]] = {}
        """The streams of which each client holds a part."""

    def begin(self, streams: int) -> None:
        for stream in range(self.begun, streams):
            self.tracks[stream] = Track()
            self._classify(stream)
        self.begun = max(self.begun, streams)

    def restore(
        self, begun: int, reached: dict[int, int], consumed: dict[int, list[Ranges]]
    ) -> None:
        """Restores a group from a snapshot: unconsumed elements before `reached` are free.

        Begun streams that are not in `reached` are consumed completely.
        """
        self.begun = begun
        self.done = Ranges(((0, begun),))
        for stream, ordinal in reached.items():
            self.done.remove(stream, stream + 1)
            self.tracks[stream] = Track(ordinal, _find_gaps(consumed[stream], ordinal))
            self._classify(stream)

    def lease(self, client: str, stream: int, start: int, stop: int) -> None:
        """Leases free or new elements to a client."""
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
        """Marks what a client holds of `start` to `stop` as consumed; returns these ranges."""
        track = self.tracks.get(stream)
        if track is None or client not in track.held:
            return []
        used = track.held[client].inside(start, stop)
        self._drop(client, stream, start, stop)
        self._classify(stream)
        return used

    def claim(self, client: str, stream: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Marks `start` to `stop` as consumed by a client, except what other clients hold or have
        consumed; returns these ranges."""
        stop = min(stop, self.ends.get(stream, stop))
        track = self._track(stream)
        track.reach(stop)
        used = self.consume(client, stream, start, stop) + track.free.inside(start, stop)
        track.free.remove(start, stop)
        self._classify(stream)
        return used

    def set_aside(self, client: str, stream: int, start: int, stop: int) -> None:
        """Leases to a client what is free of `start` to `stop`."""
        track = self._track(stream)
        track.reach(min(stop, self.ends.get(stream, stop)))
        for first, last in track.free.inside(start, stop):
            self.lease(client, stream, first, last)
        self._classify(stream)

    def give_back(self, client: str) -> None:
        """Frees all elements that a client holds."""
        if client not in self.holders:
            return
        for stream in self.at.pop(client):
            track = self.tracks[stream]
            for start, stop in track.held.pop(client):
                track.free.add(start, stop)
            self._classify(stream)
        del self.holders[client]

    def undo(self, stream: int, ranges: Ranges) -> None:
        """Frees elements that were consumed."""
        track = self._track(stream)
        for start, stop in ranges:
            track.free.add(start, stop)
        self._classify(stream)

    def end(self, stream: int, length: int) -> None:
        """Sets the length of a stream; leases behind its end are void."""
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
        """The ordinal behind the last consumed element of a stream."""
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
        """Updates `open`, `idle`, `returned` and `done` after a change of a stream's track."""
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
