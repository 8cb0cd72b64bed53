"""Batches of long examples: only the heads of long values are joined, not their bytes.

So the bytes of an image are copied once, into the result, and those of a feature that is not
wanted are not copied at all. Positions count the bytes that were left out: a long range stops
behind the fragment that has its head, so that only the lengths of such a range can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.examples.reading import count_fields
from penstock.engine.formats.examples.wire import FIRST, ByteRanges, Wire, are_all, is_any
from penstock.engine.heap import allocate_bytes, keep_freed_batches

_LONG_FIELD, _LONG_BATCH = 10 << 10, 4 << 20
"""Records are joined without their long values if their fields have so many bytes on average, and
a batch so many. Other records are joined in less time than their heads are found."""

_LARGE_FIELD, _LARGE_BATCH = 2 << 10, 28 << 20
"""In such a batch, shorter fields are enough: it would be joined in memory that the system clears
each time."""

_HEAD, _NAME, _LENGTHS = 512, 128, 12
"""A field of fewer bytes than the first is joined as a whole. Of a longer field, at least the bytes
of a name of the second length are joined, and the lengths that follow. Both are more if the wanted
names are long. The third is more than the bytes before a name in its entry."""

_NONE = np.zeros(0, np.int64)

_SHORT_ROW = 32 << 10
"""Rows with fewer bytes on average are copied together, longer rows one by one."""

_SHORT = 256
"""Ranges of up to so many bytes are always joined: a long entry has a longer value."""


def join_records(records: Sequence[bytes], longest: int) -> Wire:
    """The wire of a batch; `longest` is the most bytes that are read from a position on."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    total = int(lengths.sum())
    if total < _LONG_BATCH or not _has_long_fields(records, total):
        return Wire(records, longest, lengths)
    keep_freed_batches(total)
    return HeadWire(records, longest, lengths)


def _has_long_fields(records: Sequence[bytes], total: int) -> bool:
    """Whether fields are long on average, if every record has as many fields as the first one."""
    least = _LONG_FIELD if total < _LARGE_BATCH else _LARGE_FIELD
    return total >= least * count_fields(records[0]) * len(records)


class HeadWire(Wire):
    """Fragments of records: their beginnings, and more wherever `split` finds a field."""

    def __init__(self, messages: Sequence[bytes], longest: int, lengths: Array) -> None:
        self._messages, self._longest, self._lengths = messages, longest, lengths
        self._head = _HEAD + longest
        self._name = _NAME + longest
        self._fragments: list[bytes] = []
        self._owners = self._begins = self._offsets = self._ends = self._sizes = _NONE
        rows = np.arange(len(messages))
        self.starts = self._fetch(rows, np.zeros_like(rows), np.full(len(rows), 2 * self._head))
        self.stops = self.starts + lengths

    def _fetch(self, rows: Array, begins: Array, sizes: Array) -> Array:
        """Joins fragments of messages, by where they begin there; returns where they begin here."""
        messages = self._messages
        places = zip(rows.tolist(), begins.tolist(), (begins + sizes).tolist(), strict=True)
        fragments = [messages[row][begin:end] for row, begin, end in places]
        lengths = np.minimum(sizes, self._lengths[rows] - begins)
        ends = lengths.cumsum() + (self.limit if self._fragments else 0)
        self._fragments += fragments
        self._join(self._fragments, self._longest)
        self._owners = np.concatenate((self._owners, rows))
        self._begins = np.concatenate((self._begins, begins))
        self._sizes = np.concatenate((self._sizes, sizes))
        self._ends = np.concatenate((self._ends, ends))
        starts: Array = ends - lengths
        self._offsets = np.concatenate((self._offsets, starts))
        return starts

    def _find_fragments(self, starts: Array) -> Array:
        """Which fragments have the bytes at positions."""
        return self._offsets.searchsorted(starts, side="right") - 1

    def split(self, starts: Array, stops: Array) -> tuple[ByteRanges, Array]:
        owners, at, limits = np.arange(len(starts)), starts, stops
        fragments = self._find_fragments(starts)
        wrong = np.zeros(len(starts), bool)
        rounds = [(owners[:0], at[:0], at[:0])]
        while True:
            alive = at < limits
            if not are_all(alive):
                owners, at = owners[alive], at[alive]
                limits, fragments = limits[alive], fragments[alive]
            if not len(at):
                break
            at, limits, fragments, (lengths, begin) = self._fetch_heads(at, limits, fragments)
            end = begin + lengths
            bad = (self.octets[at] != FIRST) | (end > limits)
            if is_any(bad):
                wrong[owners[bad]] = True
                end = np.where(bad, limits, end)
            rounds.append((owners[~bad], begin[~bad], end[~bad]))
            at = end
        return ByteRanges(*map(np.concatenate, zip(*rounds, strict=True))), wrong

    def _fetch_heads(
        self, at: Array, limits: Array, fragments: Array
    ) -> tuple[Array, Array, Array, tuple[Array, Array]]:
        """Joins the heads of fields that are not joined yet; returns the positions of all fields.

        A field in a new fragment gets a new position.

        Also returns the lengths of the fields, and where these begin.
        """
        ends = self._ends[fragments]
        lengths, begin = self.read_lengths(np.minimum(at + 1, self.limit))
        needed = np.minimum(begin + np.minimum(lengths.astype(np.int64), self._head), limits)
        missing = ((needed > ends) | (at + 8 > ends) & (limits > ends)).nonzero()[0]
        if not len(missing):
            return at, limits, fragments, (lengths, begin)
        old = fragments[missing]
        begins = self._begins[old] + at[missing] - self._offsets[old]
        count = len(self._offsets)
        # Fragments behind short fields double their size, so that few have many such fields.
        is_short = at[missing] <= ends[missing]
        sizes = np.where(is_short, 2 * self._sizes[old], 2 * self._head)
        fetched = self._fetch(self._owners[old], begins, sizes)
        at, limits, fragments = at.copy(), limits.copy(), fragments.copy()
        limits[missing] += fetched - at[missing]
        at[missing] = fetched
        fragments[missing] = count + np.arange(len(missing))
        return at, limits, fragments, self.read_lengths(at + 1)

    def reach(self, at: Array) -> tuple[Array, Array]:
        rows = np.arange(len(at))
        at, stops, *_ = self._fetch_heads(at, self.stops, rows)
        return at, stops

    def end_names(self, starts: Array, sizes: Array, stops: Array) -> Array:
        ends = np.minimum(super().end_names(starts, sizes, stops), self.limit)
        unread = (sizes >= self._name) & (stops - starts >= self._head - _LENGTHS)
        return np.where(unread, self.limit, ends)

    def copy(
        self, starts: Array, stops: Array, *, before: bytes = b"", after: bytes = b""
    ) -> Array:
        lengths = stops - starts
        if lengths.max(initial=0) <= _SHORT:
            return super().copy(starts, stops, before=before, after=after)
        views = self.slices(starts, stops, memoryview)
        total = len(before) + int(lengths.sum()) + len(after)
        if total < _SHORT_ROW * len(views):
            return np.frombuffer(bytearray().join([before, *views, after]), np.uint8)
        octets = allocate_bytes(total)
        target, at = octets.data, 0
        for view in (before, *views, after):
            target[at : at + len(view)] = view
            at += len(view)
        return octets

    def slices(self, starts: Array, stops: Array, kind: type = bytes) -> list[Any]:
        messages, begins = self._locate(starts)
        messages = messages if kind is bytes else list(map(kind, messages))
        places = zip(messages, begins, (stops - starts).tolist(), strict=True)
        return [message[begin : begin + size] for message, begin, size in places]

    def _locate(self, starts: Array) -> tuple[list[Any], list[int]]:
        """The messages that have the bytes at positions, and where."""
        fragments, messages = self._find_fragments(starts), self._messages
        begins = self._begins[fragments] + starts - self._offsets[fragments]
        return [messages[row] for row in self._owners[fragments].tolist()], begins.tolist()
