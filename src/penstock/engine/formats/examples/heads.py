"""Batches of long examples: only the heads of long values are joined, not their bytes.

So the bytes of an image are copied once, into the result, and those of a feature that is not
wanted are not copied at all. Positions count the bytes that were left out: a long range stops
behind the piece that has its head, so that only the lengths of such a range can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.engine.formats.examples.wire import FIRST, ByteRanges, Wire, are_all, is_any
from penstock.engine.heap import keep_freed_batches

Array = np.ndarray[Any, Any]

_LONG_RECORD, _LONG_BATCH = 24 << 10, 4 << 20
"""Records of so many bytes on average are joined without their long values, if a batch has so
many. Shorter ones are joined in less time than their heads are found."""

_LARGE_BATCH = 28 << 20
"""Larger batches would be joined in memory that the system clears each time."""

_HEAD, _NAME, _LENGTHS = 512, 128, 12
"""Fields with fewer bytes are joined as a whole, of the others at least so many bytes: they have
names with fewer bytes, and the lengths that follow. Both are more if the wanted names are long.
The last is more than the bytes before a name in its entry."""

_SHORT = 256
"""Ranges of up to so many bytes are always joined: a long entry has a longer value."""


def join_records(records: Sequence[bytes], longest: int) -> Wire:
    """The wire of a batch; `longest` is the most bytes that are read from a position on."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    total = int(lengths.sum())
    if total < max(_LONG_BATCH, min(_LARGE_BATCH, _LONG_RECORD * len(records))):
        return Wire(records, longest, lengths)
    keep_freed_batches(total)
    return HeadWire(records, longest, lengths)


class HeadWire(Wire):
    """Pieces of records: their beginnings, and more wherever `split` finds a field."""

    def __init__(self, messages: Sequence[bytes], longest: int, lengths: Array) -> None:
        self._messages, self._longest = messages, longest
        self._head = _HEAD + longest
        self._name = _NAME + longest
        self._pieces: list[bytes] = []
        self._owners = self._begins = self._offsets = self._ends = np.zeros(0, np.int64)
        self._sizes = self._owners
        rows = np.arange(len(messages))
        self.starts = self._fetch(rows, np.zeros_like(rows), np.full(len(rows), 2 * self._head))
        self.stops = self.starts + lengths

    def _fetch(self, rows: Array, begins: Array, sizes: Array) -> Array:
        """Joins pieces of messages, by where they begin there; returns where they begin here."""
        messages = self._messages
        places = zip(rows.tolist(), begins.tolist(), (begins + sizes).tolist(), strict=True)
        pieces = [messages[row][begin:end] for row, begin, end in places]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        ends = lengths.cumsum() + self.limit if self._pieces else lengths.cumsum()
        self._pieces += pieces
        self._join(self._pieces, self._longest)
        self._owners = np.concatenate((self._owners, rows))
        self._begins = np.concatenate((self._begins, begins))
        self._sizes = np.concatenate((self._sizes, sizes))
        self._ends = np.concatenate((self._ends, ends))
        self._offsets = np.concatenate((self._offsets, ends - lengths))
        return ends - lengths

    def _find_pieces(self, starts: Array) -> Array:
        """Which pieces have the bytes at positions."""
        return self._offsets.searchsorted(starts, side="right") - 1

    def split(self, starts: Array, stops: Array) -> tuple[ByteRanges, Array]:
        owners, at, limits = np.arange(len(starts)), starts, stops
        pieces = self._find_pieces(starts)
        wrong = np.zeros(len(starts), bool)
        rounds = [(owners[:0], at[:0], at[:0])]
        while True:
            alive = at < limits
            if not are_all(alive):
                owners, at, limits, pieces = owners[alive], at[alive], limits[alive], pieces[alive]
            if not len(at):
                break
            at, limits, pieces = self._fetch_heads(at, limits, pieces)
            lengths, begin = self.read_lengths(at + 1)
            end = begin + lengths
            bad = (self.octets[at] != FIRST) | (end > limits)
            if is_any(bad):
                wrong[owners[bad]] = True
                end = np.where(bad, limits, end)
            rounds.append((owners[~bad], begin[~bad], end[~bad]))
            at = end
        return ByteRanges(*map(np.concatenate, zip(*rounds, strict=True))), wrong

    def _fetch_heads(self, at: Array, limits: Array, pieces: Array) -> tuple[Array, Array, Array]:
        """The positions of fields whose heads are joined; those in new pieces are others."""
        ends = self._ends[pieces]
        lengths, begin = self.read_lengths(np.minimum(at + 1, self.limit))
        needed = np.minimum(begin + np.minimum(lengths.astype(np.int64), self._head), limits)
        needed = np.where(at + 8 > ends, np.minimum(at + self._head, limits), needed)
        missing = (needed > ends).nonzero()[0]
        if not len(missing):
            return at, limits, pieces
        old = pieces[missing]
        begins = self._begins[old] + at[missing] - self._offsets[old]
        count = len(self._offsets)
        # Pieces of a message double their size, so that few of them have many short fields.
        fetched = self._fetch(self._owners[old], begins, 2 * self._sizes[old])
        at, limits, pieces = at.copy(), limits.copy(), pieces.copy()
        limits[missing] += fetched - at[missing]
        at[missing] = fetched
        pieces[missing] = count + np.arange(len(missing))
        return at, limits, pieces

    def end_names(self, starts: Array, sizes: Array, stops: Array) -> Array:
        ends = np.minimum(super().end_names(starts, sizes, stops), self.limit)
        unread = (sizes >= self._name) & (stops - starts >= self._head - _LENGTHS)
        return np.where(unread, self.limit, ends)

    def copy(self, starts: Array, stops: Array) -> Array:
        lengths = stops - starts
        if lengths.max(initial=0) <= _SHORT:
            return super().copy(starts, stops)
        octets, at = np.empty(int(lengths.sum()), np.uint8), 0  # NumPy asks for huge pages.
        for message, begin, size in zip(*self._locate(starts), lengths.tolist(), strict=True):
            if size:
                octets[at : at + size] = np.frombuffer(message, np.uint8, size, begin)
                at += size
        return octets

    def slices(self, starts: Array, stops: Array) -> list[bytes]:
        messages, begins = self._locate(starts)
        places = zip(messages, begins, (stops - starts).tolist(), strict=True)
        return [message[begin : begin + size] for message, begin, size in places]

    def _locate(self, starts: Array) -> tuple[list[bytes], list[int]]:
        """The messages that have the bytes at positions, and where."""
        pieces, messages = self._find_pieces(starts), self._messages
        begins = self._begins[pieces] + starts - self._offsets[pieces]
        return [messages[row] for row in self._owners[pieces].tolist()], begins.tolist()
