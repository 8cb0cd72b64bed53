"""Consumption: what a client has consumed, and how long streams are, in few bytes for many streams.

Where there are as many streams as elements, an object for each stream would cost hundreds of bytes
per element. So streams that were consumed as a whole are ranges of their numbers.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, overload

import numpy as np

from penstock.service.logic.ranges import Ranges

_UNKNOWN = -1

Default = TypeVar("Default")


class Lengths(MutableMapping[int, int]):
    """The lengths of streams, as far as they are known."""

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
        # Asked for every lease: without an exception for streams that go on.
        known = 0 <= stream < len(self._lengths) and self._lengths[stream] != _UNKNOWN
        return self._lengths[stream] if known else default

    def __setitem__(self, stream: int, length: int) -> None:
        missing = stream + 1 - len(self._lengths)
        if missing > 0:
            self._lengths.extend([_UNKNOWN] * missing)
        self._count += self._lengths[stream] == _UNKNOWN
        self._lengths[stream] = length

    def __delitem__(self, stream: int) -> None:
        self[stream]
        self._lengths[stream] = _UNKNOWN
        self._count -= 1

    def __iter__(self) -> Iterator[int]:
        return (s for s, length in enumerate(self._lengths) if length != _UNKNOWN)

    def __len__(self) -> int:
        return self._count

    def packed(self) -> bytes:
        """The same as bytes, few where streams are alike."""
        return zlib.compress(np.asarray(self._lengths).astype("<i8").tobytes(), 1)

    def unpack(self, packed: bytes) -> None:
        """Becomes what was packed."""
        lengths = np.frombuffer(zlib.decompress(packed), "<i8").astype(np.int64)
        self._lengths = array("q", lengths.tobytes())
        self._count = int((lengths != _UNKNOWN).sum())


class Consumed(Mapping[int, Ranges]):
    """What one client has consumed of each stream; `lengths` are those of the iteration."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._parts: dict[int, Ranges] = {}
        self._whole = Ranges()
        """The numbers of streams of which it has consumed everything."""

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
        """How many elements there are."""
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
        """The length of a stream may be known now: all of it may have been consumed."""
        length, part = self._lengths.get(stream), self._parts.get(stream)
        if length and part is not None and part.count == length:
            del self._parts[stream]
            self._whole.add(stream, stream + 1)

    def packed(self) -> tuple[bytes, tuple[tuple[int, bytes], ...]]:
        """The same as bytes: numbers of streams, and of other streams the parts."""
        parts = sorted(self._parts.items())
        return self._whole.packed(), tuple((stream, part.packed()) for stream, part in parts)

    def unpack(self, whole: bytes, parts: tuple[tuple[int, bytes], ...]) -> None:
        """Becomes what was packed."""
        self._whole = Ranges.unpacked(whole)
        self._parts = {stream: Ranges.unpacked(part) for stream, part in parts}
