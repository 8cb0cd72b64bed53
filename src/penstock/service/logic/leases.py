"""Leases: which elements the clients of a group hold and have consumed, and which are free.

`Ranges` is a set of ordinals, stored as ranges (start, stop) without their stop. Where there are as
many streams as elements, an object for each stream would cost hundreds of bytes per element. So
streams that a client has consumed completely are kept as ranges of stream numbers.

Invariant: every element of a stream before `reached` is held by one client, or free, or consumed.
"""

from __future__ import annotations

import heapq
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np

from penstock.service.protocol.messages import StreamRange

_UNKNOWN = -1

_MAX_NAMED = 8
"""The most ranges in a message."""

Default = TypeVar("Default")


class Ranges:
    """A set of ordinals; `count` is how many there are."""

    __slots__ = ("_starts", "_stops", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        # Arrays, because a long epoch with many readers leaves millions of ranges.
        self._starts = array("q")
        self._stops = array("q")
        self.count = 0
        for start, stop in ranges:
            self.add(start, stop)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, ordinal: int) -> bool:
        index = bisect_right(self._starts, ordinal)
        return index > 0 and ordinal < self._stops[index - 1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def stop(self) -> int:
        """The ordinal behind the last one; 0 if the set is empty."""
        return self._stops[-1] if self._stops else 0

    def copy(self) -> Ranges:
        """An independent copy."""
        made = Ranges()
        made._starts, made._stops, made.count = self._starts[:], self._stops[:], self.count
        return made

    def pack(self) -> bytes:
        """The set as compressed bytes: few if the ranges are regular."""
        starts, stops = np.asarray(self._starts), np.asarray(self._stops)
        edges = np.stack([starts, stops], axis=1).ravel()
        return zlib.compress(np.diff(edges, prepend=0).astype("<i8").tobytes(), 1)

    @classmethod
    def from_packed(cls, packed: bytes) -> Ranges:
        """The set that `pack` returned as bytes."""
        edges = np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8")).reshape(-1, 2)
        made = cls()
        made._starts.frombytes(edges[:, 0].astype(np.int64).tobytes())
        made._stops.frombytes(edges[:, 1].astype(np.int64).tobytes())
        made.count = int((edges[:, 1] - edges[:, 0]).sum())
        return made

    def add(self, start: int, stop: int) -> None:
        """Adds the ordinals from `start` on, before `stop`."""
        if start >= stop:
            return
        last = self._stops[-1] if self._stops else -1
        if start > last:
            self._starts.append(start)
            self._stops.append(stop)
            self.count += stop - start
        elif start == last:
            self._stops[-1] = stop
            self.count += stop - start
        else:
            self._merge(start, stop)

    def _merge(self, start: int, stop: int) -> None:
        first = bisect_left(self._stops, start)
        behind = bisect_right(self._starts, stop)
        if first < behind:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[behind - 1])
        self._replace(first, behind, ((start, stop),))

    def remove(self, start: int, stop: int) -> None:
        """Removes the ordinals from `start` on, before `stop`."""
        first = bisect_right(self._stops, start)
        behind = bisect_left(self._starts, stop)
        if start >= stop or first >= behind:
            return
        left, right = self._starts[first], self._stops[behind - 1]
        if behind - first == 1 and (start <= left or right <= stop):
            self._shorten_range(first, left, right, start, stop)
        else:
            rest = ((left, start), (stop, right))
            self._replace(first, behind, [pair for pair in rest if pair[0] < pair[1]])

    def _shorten_range(self, index: int, left: int, right: int, start: int, stop: int) -> None:
        """Removes one end of one range, or all of it."""
        self.count -= min(right, stop) - max(left, start)
        if start > left:
            self._stops[index] = start
        elif stop < right:
            self._starts[index] = stop
        else:
            del self._starts[index], self._stops[index]

    def _replace(self, first: int, behind: int, ranges: Iterable[tuple[int, int]]) -> None:
        starts = array("q", [start for start, _ in ranges])
        stops = array("q", [stop for _, stop in ranges])
        self.count += sum(stops) - sum(starts)
        self.count -= sum(self._stops[first:behind]) - sum(self._starts[first:behind])
        self._starts[first:behind] = starts
        self._stops[first:behind] = stops

    def inside(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of `start` to `stop` that are in the set."""
        first = bisect_right(self._stops, start)
        behind = bisect_left(self._starts, stop)
        if start >= stop:
            return []
        return [
            (max(start, self._starts[index]), min(stop, self._stops[index]))
            for index in range(first, behind)
        ]

    def outside(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of `start` to `stop` that are not in the set."""
        gaps = []
        for left, right in self.inside(start, stop):
            if start < left:
                gaps.append((start, left))
            start = right
        if start < stop:
            gaps.append((start, stop))
        return gaps


class Lengths(Mapping[int, int]):
    """The known lengths of streams, as an array."""

    def __init__(self) -> None:
        self._lengths = array("q")
        self._count = 0

    def __getitem__(self, stream: int) -> int:
        if not 0 <= stream < len(self._lengths) or self._lengths[stream] == _UNKNOWN:
            raise KeyError(stream)
        return self._lengths[stream]

    @overload
    def get(self, stream: int) -> int | None: ...

    @overload
    def get(self, stream: int, default: Default) -> int | Default: ...

    def get(self, stream: int, default: Any = None) -> Any:
        # Called for every lease: raising for every stream of unknown length would be slow.
        known = 0 <= stream < len(self._lengths) and self._lengths[stream] != _UNKNOWN
        return self._lengths[stream] if known else default

    def __setitem__(self, stream: int, length: int) -> None:
        missing = stream + 1 - len(self._lengths)
        if missing > 0:
            self._lengths.extend([_UNKNOWN] * missing)
        self._count += self._lengths[stream] == _UNKNOWN
        self._lengths[stream] = length

    def __iter__(self) -> Iterator[int]:
        return (s for s, length in enumerate(self._lengths) if length != _UNKNOWN)

    def __len__(self) -> int:
        return self._count

    def pack(self) -> bytes:
        """The lengths as compressed bytes: few if streams are alike."""
        return zlib.compress(np.asarray(self._lengths).astype("<i8").tobytes(), 1)

    def unpack(self, packed: bytes) -> None:
        """Replaces the contents by what `pack` returned."""
        lengths = np.frombuffer(zlib.decompress(packed), "<i8").astype(np.int64)
        self._lengths = array("q", lengths.tobytes())
        self._count = int((lengths != _UNKNOWN).sum())


class ConsumedRanges(Mapping[int, Ranges]):
    """What one client has consumed of each stream; `lengths` are those of the iteration."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._parts: dict[int, Ranges] = {}
        self._whole = Ranges()
        """The numbers of the streams that it has consumed completely."""

    def __getitem__(self, stream: int) -> Ranges:
        if stream in self._whole:
            return Ranges(((0, self._lengths[stream]),))
        return self._parts[stream]

    def __iter__(self) -> Iterator[int]:
        yield from self._parts
        for start, stop in self._whole:
            yield from range(start, stop)

    def __len__(self) -> int:
        return len(self._parts) + self._whole.count

    @property
    def count(self) -> int:
        """How many elements the client has consumed."""
        whole = (s for start, stop in self._whole for s in range(start, stop))
        parts = sum(ranges.count for ranges in self._parts.values())
        return parts + sum(self._lengths[stream] for stream in whole)

    def add(self, stream: int, ranges: list[tuple[int, int]]) -> None:
        if not ranges or stream in self._whole:
            return
        consumed = self._parts.setdefault(stream, Ranges())
        for start, stop in ranges:
            consumed.add(start, stop)
        self.settle(stream)

    def settle(self, stream: int) -> None:
        """Moves a stream to the complete ones if all of its elements are consumed."""
        length, part = self._lengths.get(stream), self._parts.get(stream)
        if length and part is not None and part.count == length:
            del self._parts[stream]
            self._whole.add(stream, stream + 1)

    def pack(self) -> tuple[bytes, tuple[tuple[int, bytes], ...]]:
        """As bytes: the numbers of complete streams, and the parts of other streams."""
        parts = sorted(self._parts.items())
        return self._whole.pack(), tuple((stream, part.pack()) for stream, part in parts)

    def unpack(self, whole: bytes, parts: tuple[tuple[int, bytes], ...]) -> None:
        """Replaces the contents by what `pack` returned."""
        self._whole = Ranges.from_packed(whole)
        self._parts = {stream: Ranges.from_packed(part) for stream, part in parts}


@dataclass(slots=True)
class Track:
    """The leases of one stream; no element from `reached` on was ever leased."""

    reached: int = 0
    free: Ranges = field(default_factory=Ranges)
    held: dict[str, Ranges] = field(default_factory=dict)

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
        """Streams with elements behind `reached`, the longest waiting stream first."""
        self.idle: dict[int, None] = {}
        """The open streams of which no client holds a part."""
        self.returned: dict[int, None] = {}
        """Streams with free elements."""
        self.holders: dict[str, int] = {}
        """How many elements each client holds, the longest silent client first."""
        self.held_streams: dict[str, dict[int, None]] = {}
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
        track = self._find_track(stream)
        if start == track.reached:
            track.reached = stop
        else:
            track.reach(stop)
            track.free.remove(start, stop)
        track.held.setdefault(client, Ranges()).add(start, stop)
        self.held_streams.setdefault(client, {})[stream] = None
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
        track = self._find_track(stream)
        track.reach(stop)
        used = self.consume(client, stream, start, stop) + track.free.inside(start, stop)
        track.free.remove(start, stop)
        self._classify(stream)
        return used

    def set_aside(self, client: str, stream: int, start: int, stop: int) -> None:
        """Leases to a client what is free of `start` to `stop`."""
        track = self._find_track(stream)
        track.reach(min(stop, self.ends.get(stream, stop)))
        for first, last in track.free.inside(start, stop):
            self.lease(client, stream, first, last)
        self._classify(stream)

    def give_back(self, client: str) -> None:
        """Frees all elements that a client holds."""
        if client not in self.holders:
            return
        for stream in self.held_streams.pop(client):
            track = self.tracks[stream]
            for start, stop in track.held.pop(client):
                track.free.add(start, stop)
            self._classify(stream)
        del self.holders[client]

    def undo(self, stream: int, ranges: Ranges) -> None:
        """Frees elements that were consumed."""
        track = self._find_track(stream)
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

    def note_call(self, client: str) -> None:
        """Moves a client to the end of `holders`: the dispatcher has just heard it."""
        if client in self.holders:
            self.holders[client] = self.holders.pop(client)

    def _find_track(self, stream: int) -> Track:
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
            del track.held[client], self.held_streams[client][stream]
            if not self.held_streams[client]:
                del self.held_streams[client]

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


def describe_ranges(ranges: Iterator[StreamRange] | tuple[StreamRange, ...]) -> str:
    """Ranges in words, for a message."""
    found = iter(ranges)
    named = [_describe_range(at) for at in islice(found, _MAX_NAMED)]
    more = sum(1 for _ in found)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _describe_range(at: StreamRange) -> str:
    last = f"to {at.stop - 1}" if at.stop >= 0 else "on"
    return f"elements {at.start} {last} of stream {at.stream}"
