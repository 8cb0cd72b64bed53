"""Sets of ordinals as sorted ranges that neither touch nor overlap.

A range is (start, stop), stop left out. What is added twice is there once.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np


class Ranges:
    """A set of ordinals; `count` is how many there are."""

    __slots__ = ("_starts", "_stops", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        # Arrays, because a long epoch read by many leaves millions of ranges behind.
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
        place = bisect_right(self._starts, ordinal)
        return place > 0 and ordinal < self._stops[place - 1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def stop(self) -> int:
        """Behind the last ordinal; 0 if there is none."""
        return self._stops[-1] if self._stops else 0

    def copy(self) -> Ranges:
        """The same, which does not change with this one."""
        made = Ranges()
        made._starts, made._stops, made.count = self._starts[:], self._stops[:], self.count
        return made

    def packed(self) -> bytes:
        """As bytes, few for ranges that follow each other regularly."""
        starts, stops = np.asarray(self._starts), np.asarray(self._stops)
        edges = np.stack([starts, stops], axis=1).ravel()
        return zlib.compress(np.diff(edges, prepend=0).astype("<i8").tobytes(), 1)

    @classmethod
    def unpacked(cls, packed: bytes) -> Ranges:
        """What was packed."""
        edges = np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8")).reshape(-1, 2)
        made = cls()
        made._starts.frombytes(edges[:, 0].astype(np.int64).tobytes())
        made._stops.frombytes(edges[:, 1].astype(np.int64).tobytes())
        made.count = int((edges[:, 1] - edges[:, 0]).sum())
        return made

    def add(self, start: int, stop: int) -> None:
        """Puts `start` to `stop` in."""
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
        """Takes `start` to `stop` out, as far as they are in."""
        first = bisect_right(self._stops, start)
        behind = bisect_left(self._starts, stop)
        if start >= stop or first >= behind:
            return
        left, right = self._starts[first], self._stops[behind - 1]
        if behind - first == 1 and (start <= left or right <= stop):
            self._shorten(first, left, right, start, stop)
        else:
            rest = ((left, start), (stop, right))
            self._replace(first, behind, [pair for pair in rest if pair[0] < pair[1]])

    def _shorten(self, place: int, left: int, right: int, start: int, stop: int) -> None:
        """Takes one end of one range out, or all of it."""
        self.count -= min(right, stop) - max(left, start)
        if start > left:
            self._stops[place] = start
        elif stop < right:
            self._starts[place] = stop
        else:
            del self._starts[place], self._stops[place]

    def _replace(self, first: int, behind: int, ranges: Iterable[tuple[int, int]]) -> None:
        starts = array("q", [start for start, _ in ranges])
        stops = array("q", [stop for _, stop in ranges])
        self.count += sum(stops) - sum(starts)
        self.count -= sum(self._stops[first:behind]) - sum(self._starts[first:behind])
        self._starts[first:behind] = starts
        self._stops[first:behind] = stops

    def inside(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of `start` to `stop` that are in."""
        first = bisect_right(self._stops, start)
        behind = bisect_left(self._starts, stop)
        if start >= stop:
            return []
        return [
            (max(start, self._starts[place]), min(stop, self._stops[place]))
            for place in range(first, behind)
        ]

    def outside(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of `start` to `stop` that are not in."""
        gaps = []
        for left, right in self.inside(start, stop):
            if start < left:
                gaps.append((start, left))
            start = right
        if start < stop:
            gaps.append((start, stop))
        return gaps
