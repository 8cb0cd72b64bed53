"""Lists of varints: every byte has seven bits of an integer, the low ones first.

All bytes of an integer but its last have bit 8 set. Integers are decoded in blocks, whose arrays
fit into a cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.engine.formats.examples.wire import are_all, is_any

Array = np.ndarray[Any, Any]

_BLOCK = 1 << 16
"""So many integers are decoded together."""

_LONG = 5
"""Integers with at least so many bytes on average are decoded by words of eight bytes."""

_SEVENS = np.uint64(0x7F7F7F7F7F7F7F7F)
_SECOND_SEVENS = np.uint64(0x3F803F803F803F80)
_FOURTEENS, _SECOND_FOURTEENS = np.uint64(0x00003FFF00003FFF), np.uint64(0x0FFFC0000FFFC000)
_LOW_HALF, _HIGH_HALF = np.uint64(0x0FFFFFFF), np.uint64(0x00FFFFFFF0000000)
_KEPT = np.array([(1 << min(7 * (more + 1), 64)) - 1 for more in range(10)], np.uint64)
"""The bits of an integer, by how many bytes follow its first one."""


def decode_varints(octets: Array, stops: Array) -> tuple[Array, Array, Array]:
    """The varints in consecutive ranges that end before `stops`.

    Returns the values, how many each range has, and which ranges do not consist of varints.
    """
    ends = octets < 0x80
    if width := _find_width(ends):
        counts, wrong = _count(stops // width, ends, stops)
        if width == 1:
            return octets.astype(np.int64), counts, wrong
        return _decode_equal(octets, width), counts, wrong
    last = ends.nonzero()[0]
    if len(last) == len(stops) and are_all(last == stops - 1):
        counts, wrong = np.ones(len(stops), np.int64), np.zeros(len(stops), bool)
    else:
        counts, wrong = _count(last.searchsorted(stops), ends, stops)
    first = np.empty_like(last)
    first[:1] = 0
    np.add(last[:-1], 1, out=first[1:])
    if len(octets) < _LONG * len(first):
        values, long = _decode_bytes(octets, first)
    else:
        values, long = _decode_words(octets, first, last)
    if long:
        wrong[np.searchsorted(stops, first[last - first >= 10], side="right")] = True
    return values, counts, wrong


def _find_width(ends: Array) -> int:
    """How many bytes every varint has; 0 if they differ, or have more than ten."""
    width = ends[:10].tobytes().find(1) + 1 or 1
    if len(ends) % width or not are_all(ends[width - 1 :: width]):
        return 0
    return width if np.count_nonzero(ends) * width == len(ends) else 0


def _count(before: Array, ends: Array, stops: Array) -> tuple[Array, Array]:
    """How many varints end in each range, and which ranges do not end with one.

    `before` says how many varints end before each stop.
    """
    counts = before.copy()
    counts[1:] -= before[:-1]
    if not len(ends) or are_all(ended := ends.take(stops - 1, mode="clip")):
        return counts, np.zeros(len(stops), bool)
    begin = np.concatenate(([0], stops[:-1]))
    return counts, (stops > begin) & ~ended


def _decode_equal(octets: Array, width: int) -> Array:
    """The values of varints that have `width` bytes each."""
    values = np.empty(len(octets) // width, np.uint64)
    for at in range(0, len(values), _BLOCK):
        value = values[at : at + _BLOCK]
        part = _pad(octets, at * width, (at + len(value)) * width)
        value[:] = np.ndarray(value.shape, "<u8", part, strides=(width,))
        _join_sevens(value)
        if width < 8:
            value &= _KEPT[width - 1]
        elif width > 8:
            high = part[8::width][: len(value)] & 0x7F
            if width == 10:
                high |= part[9::width][: len(value)] << 7
            value |= high.astype(np.uint64) << np.uint64(56)
    return values.view(np.int64)


def _decode_words(octets: Array, first: Array, last: Array) -> tuple[Array, bool]:
    """The values of the varints between `first` and `last`; and whether any is too long."""
    values, longest = np.empty(len(first), np.uint64), 0
    for at in range(0, len(first), _BLOCK):
        block = slice(at, at + _BLOCK)
        begin, more = first[block], last[block] - first[block]
        longest = max(longest, int(more.max()))
        start = int(begin[0])
        part = _pad(octets, start, int(begin[-1]) + 10)
        begin = begin - start if start else begin
        _read_words(part.view("<u8"), begin, more, values[block])
    return values.view(np.int64), longest >= 10


def _read_words(words: Array, first: Array, more: Array, values: Array) -> None:
    """Writes the values of varints, by how many `more` bytes follow their first ones.

    The bytes of every word are joined, so that its 56 bits are neighbours. The bits of a varint
    begin in one word and end in that or in one of the next two.
    """
    _join_sevens(words)
    place = first >> 3
    words.take(place, out=values, mode="clip")
    used = (first & 7).view(np.uint64)
    used *= np.uint64(7)
    values >>= used
    np.subtract(np.uint64(56), used, out=used)
    place += 1
    high = words.take(place, mode="clip")
    high <<= used
    values |= high
    if more.max() >= 9:  # The last bit of ten bytes from the end of a word on is in a third word.
        spread = ((used == 7) & (more == 9)).nonzero()[0]
        values[spread] |= words.take(place[spread] + 1, mode="clip") << np.uint64(63)
    values &= _KEPT.take(more, mode="clip")


def _pad(octets: Array, start: int, stop: int) -> Array:
    """A copy of some bytes, to which zeros are added: words can be read from each byte on."""
    part = octets[start:stop]
    padded = np.empty(len(part) // 8 * 8 + 24, np.uint8)
    padded[: len(part)] = part
    padded[len(part) :] = 0
    return padded


def _join_sevens(words: Array) -> None:
    """Joins the seven bits of each byte of the words, in place: 56 bits."""
    words &= _SEVENS
    moved = words >> np.uint64(1)
    moved &= _SECOND_SEVENS
    words -= moved
    np.right_shift(words, np.uint64(2), out=moved)
    moved &= _SECOND_FOURTEENS
    words &= _FOURTEENS
    words |= moved
    np.right_shift(words, np.uint64(4), out=moved)
    moved &= _HIGH_HALF
    words &= _LOW_HALF
    words |= moved


def _decode_bytes(octets: Array, first: Array) -> tuple[Array, bool]:
    """The values of the varints that begin at `first`; and whether any is too long."""
    if len(first) <= _BLOCK:
        few, long = _decode_places(octets, first)
        return few.astype(np.int64), long
    values, long = np.empty(len(first), np.int64), False
    for at in range(0, len(first), _BLOCK):
        block = slice(at, at + _BLOCK)
        values[block], odd = _decode_places(octets, first[block])
        long |= odd
    return values, long


def _decode_places(octets: Array, first: Array) -> tuple[Array, bool]:
    """The values: the first byte of all is added, then the second, and so on."""
    octet = octets[first]
    more = octet >> 7
    octet &= 0x7F
    values = octet.astype(np.uint32)
    place = 0
    while place < 9 and is_any(more.view(bool)):
        place += 1
        if place == 4:
            values = values.astype(np.uint64)
        octet = octets[place:].take(first, mode="clip")
        octet *= more
        np.right_shift(octet, 7, out=more)
        octet &= 0x7F
        moved = octet.astype(values.dtype)
        moved <<= values.dtype.type(7 * place)
        values |= moved
    return values, is_any(more.view(bool))
