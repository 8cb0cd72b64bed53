"""The wire format of protocol buffers, read in many messages at once.

A *range* is a start and a stop in the joined bytes. Positions that were computed from damaged
bytes stay within them: a range never exceeds the range around it, and zeros follow the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array

FIRST, SECOND = 0x0A, 0x12
"""The tags of fields 1 and 2, if their values are messages, strings or packed lists."""

_ZEROS = 512
"""Longer than the head of any field, so that a head can be read at every position."""

_TOO_LONG = 1 << 40
"""Replaces the length in a varint of more than five bytes: it exceeds every range."""

_SHORT, _LONG = 10, 256
"""Ranges that are shorter on average are copied by index, longer ones one by one. Above the second
length, views of them take less time than copies."""

_SMALL, _MANY = 64, 50
"""Strings of up to so many bytes are made together, if there are so many of each size."""


def is_any(flags: Array) -> bool:
    """Whether a flag is set; as `flags.any()`, but faster for a few hundred."""
    return bool(np.count_nonzero(flags))


def are_all(flags: Array) -> bool:
    """Whether all flags are set; as `flags.all()`, but faster for a few hundred."""
    return bool(np.count_nonzero(flags) == flags.size)


class ByteRanges(NamedTuple):
    """ByteRanges, each found in another range: its `owner`."""

    owners: Array
    starts: Array
    stops: Array

    def in_order(self) -> ByteRanges:
        """Sorted by owner; the ranges of one owner keep their order."""
        if (self.owners[1:] >= self.owners[:-1]).all():
            return self
        order = np.argsort(self.owners, kind="stable")
        return ByteRanges(self.owners[order], self.starts[order], self.stops[order])


class Wire:
    """The bytes of many messages, one after another."""

    def __init__(self, messages: Sequence[bytes], longest: int, lengths: Array) -> None:
        """`longest` is the most bytes that are read from a position on, by `words`."""
        self._join(messages, longest)
        self.stops = lengths.cumsum()
        self.starts = self.stops - lengths

    def _join(self, parts: Sequence[bytes], longest: int) -> None:
        self.data = b"".join([*parts, bytes(_ZEROS + longest)])
        self.limit = len(self.data) - _ZEROS - longest
        """Where the bytes of messages end, and zeros begin."""
        self.octets = np.frombuffer(self.data, np.uint8)
        self.words = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))
        """The eight bytes from each position on."""

    def read_lengths(self, at: Array) -> tuple[Array, Array]:
        """The lengths that are encoded at the positions, and where their bytes end."""
        octets = self.octets[at]
        if octets.tobytes().isascii():  # All of them have one byte.
            return octets, at + 1
        more = octets >> 7
        lengths, ends = (octets & 0x7F).astype(np.int64), at + 1
        for place in range(1, 5):
            octets = self.octets[place:][at]
            octets *= more
            ends += more
            np.right_shift(octets, 7, out=more)
            octets &= 0x7F
            lengths |= octets.astype(np.int64) << (7 * place)
            if not is_any(more):
                return lengths, ends
        return np.where(more, _TOO_LONG, lengths), ends

    def split(self, starts: Array, stops: Array) -> tuple[ByteRanges, Array]:
        """The values of field 1 in each range, and which ranges do not consist of them exactly.

        All ranges advance by one value in each round. The first values of all come first.
        """
        owners, at, limits = np.arange(len(starts)), starts, stops
        rounds = []
        while True:
            alive = at < limits
            if not are_all(alive):
                owners, at, limits = owners[alive], at[alive], limits[alive]
            if not len(at):
                break
            lengths, begin = self.read_lengths(at + 1)
            end = begin + lengths
            rounds.append((owners, at, begin, end))
            at = end
        return self._check_rounds(rounds, stops)

    def _check_rounds(self, rounds: list[Any], stops: Array) -> tuple[ByteRanges, Array]:
        none = np.zeros(0, np.int64)
        rounds = rounds if len(rounds) == 1 else [(none,) * 4, *rounds]
        owners, tags, begin, end = map(np.concatenate, zip(*rounds, strict=True))
        limits = stops[owners]
        bad = (self.octets[tags] != FIRST) | (end > limits)
        wrong = np.zeros(len(stops), bool)
        if is_any(bad):
            wrong[owners[bad]] = True
            begin, end = np.minimum(begin, limits), np.minimum(end, limits)
        return ByteRanges(owners, begin, end), wrong

    def reach(self, at: Array) -> tuple[Array, Array]:
        """Where messages continue, whose fields before end at `at`; and where the messages stop."""
        return at, self.stops

    def end_names(self, starts: Array, sizes: Array, stops: Array) -> Array:
        """Where names end that begin at `starts`, in entries that end at `stops`."""
        ends: Array = np.minimum(starts + sizes, stops)
        return ends

    def windows(self, size: int) -> Array:
        """The `size` bytes from each position on."""
        shape = (len(self.data) - size + 1,)
        return np.ndarray(shape, f"V{size}", self.data, strides=(1,))

    def copy(
        self, starts: Array, stops: Array, *, before: bytes = b"", after: bytes = b""
    ) -> Array:
        """The bytes of all ranges, one after another, between other bytes."""
        lengths = stops - starts
        total = int(lengths.sum())
        if total and are_all(lengths == lengths[0]):
            octets = self.windows(int(lengths[0]))[starts].view(np.uint8)
        elif total > _SHORT * len(starts):
            kind = memoryview if total > _LONG * len(starts) else bytes
            parts = self.slices(starts, stops, kind)
            return np.frombuffer(b"".join([before, *parts, after]), np.uint8)
        else:
            places = np.repeat(starts - (lengths.cumsum() - lengths), lengths)
            octets = self.octets[places + np.arange(total)]
        if not before and not after:
            return octets
        around = np.frombuffer(before + after, np.uint8)
        return np.concatenate((around[: len(before)], octets, around[len(before) :]))

    def strings(self, starts: Array, stops: Array) -> Array:
        """The bytes of each range, as an array of strings."""
        lengths = stops - starts
        small = lengths.max(initial=0) <= _SMALL
        counts = np.bincount(lengths).tolist() if small else []
        if not small or sum(map(bool, counts)) * _MANY > len(starts):
            return np.fromiter(self.slices(starts, stops), object, len(starts))
        # NumPy makes many strings of one size faster than Python cuts them.
        order, made = lengths.argsort(kind="stable"), list[bytes]()
        for size, count in enumerate(counts):
            same = starts[order[len(made) : len(made) + count]]
            made += self.windows(size)[same].tolist() if size else [b""] * count
        strings = np.empty(len(starts), object)
        strings[order] = np.fromiter(made, object, len(made))
        return strings

    def slices(self, starts: Array, stops: Array, kind: type = bytes) -> list[Any]:
        """The bytes of each range; of kind `memoryview`, they are not copied."""
        data = self.data if kind is bytes else kind(self.data)
        places = zip(starts.tolist(), stops.tolist(), strict=False)  # Strict takes 10 % longer.
        return [data[start:stop] for start, stop in places]


_ONE_OCTET = [bytes((value,)) for value in range(0x80)]


def encode_length(value: int) -> bytes:
    """The varint of an integer that is not negative."""
    if value < 0x80:
        return _ONE_OCTET[value]
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
