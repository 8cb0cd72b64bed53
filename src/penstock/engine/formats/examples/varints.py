"""Lists of varints: every byte has seven bits of an integer, the low ones first.

All bytes of an integer but its last have bit 8 set. So an integer begins behind the last byte of
the integer before it. Integers are decoded in blocks, whose arrays fit into a cache.
"""

from __future__ import annotations

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.examples.protobuf_lists import find_protobuf
from penstock.engine.formats.examples.wire import are_all, is_any
from penstock.engine.heap import allocate_bytes

BEFORE, AFTER = b"\xff" * 7 + b"\0", bytes(24)
"""The bytes around those of integers. So the first integer, too, begins behind a last byte, and
words of eight bytes can be read from each byte on."""

_BLOCK = 1 << 16
"""So many integers are decoded together."""

_LONG = 5
"""Integers with at least so many bytes on average are decoded by words of eight bytes."""

_LOOP = 3.5
"""Integers with at least so many bytes on average may be decoded by a loop in C."""

_MANY, _FEW = 1 << 12, 5
"""If more than so many integers are left, but less than a fifth, then only these are decoded on."""

_SAMPLE, _SMALL = 1 << 12, (2, 3)
"""The first so many bytes show whether there are negative integers of few bits. These have ten
bytes, but after so many of them only ones follow, which need not be decoded."""

_SEVENS = np.uint64(0x7F7F7F7F7F7F7F7F)
_SECOND_SEVENS = np.uint64(0x3F803F803F803F80)
_KEPT = np.array([(1 << min(7 * width, 64)) - 1 for width in range(11)], np.uint64)
"""The bits of an integer, by how many bytes it has."""


def decode_varints(octets: Array, stops: Array) -> tuple[Array, Array, Array]:
    """The varints in consecutive ranges that end before `stops`.

    `octets` has their bytes between `BEFORE` and `AFTER`; `stops` count from the first of them.

    Returns the values, how many each range has, and which ranges do not consist of varints.
    """
    octets = octets[len(BEFORE) - 1 :]
    ends = octets[: len(octets) - len(AFTER)] < 0x80
    wrong = ~ends.take(stops)
    wrong[1:] &= stops[1:] > stops[:-1]
    count = int(np.count_nonzero(ends)) - 1
    if width := _find_width(ends, count):
        return _decode_equal(octets[1:], width, count), _count(stops // width), wrong
    if _suits_protobuf(ends, count) and (protobuf := find_protobuf()) and protobuf.makes_arrays:
        values = protobuf.decode_integers(octets[1 : len(ends)], ends[1:])
        if values is not None:
            return values, _count(_count_ends(ends[1:], stops)), wrong
    values, before, too_long = _decode_blocks(octets, ends, stops, count)
    if too_long:
        last = ends.nonzero()[0]
        wrong[stops.searchsorted(last[:-1][last[1:] - last[:-1] > 10], side="right")] = True
    return values, _count(before), wrong


def _count(before: Array) -> Array:
    """How many each range has, by how many end before the stops."""
    counts = before.copy()
    counts[1:] -= before[:-1]
    return counts


def _suits_protobuf(ends: Array, count: int) -> bool:
    """Whether a loop in C is faster than NumPy: for long integers whose widths seldom change."""
    if len(ends) < _LOOP * count:
        return False
    widths = np.diff(ends[:_SAMPLE].nonzero()[0])
    changes = np.count_nonzero(widths[1:] != widths[:-1])
    # Measured: NumPy takes 1 ns for each byte. C takes 3 ns for each integer, and 7 for a change.
    return bool(10 * changes < widths.sum() - 2.5 * len(widths))


def _count_ends(ends: Array, stops: Array) -> Array:
    """How many varints end before each stop."""
    bits = np.packbits(ends, bitorder="little")
    words = np.zeros(len(bits) // 8 + 1, np.uint64)
    words.view(np.uint8)[: len(bits)] = bits
    counts = np.bitwise_count(words)
    before = counts.cumsum(dtype=np.int64)
    before -= counts
    place = stops >> 6
    begun = words[place] & ((np.uint64(1) << (stops & 63).astype(np.uint64)) - np.uint64(1))
    found: Array = before[place] + np.bitwise_count(begun)
    return found


def _find_width(ends: Array, count: int) -> int:
    """How many bytes every varint has; 0 if they differ, or have more than ten."""
    width = (len(ends) - 1) // max(count, 1)
    if width * count != len(ends) - 1 or not 0 < width <= 10:
        return 0
    return width if are_all(ends[::width]) else 0


def _decode_equal(octets: Array, width: int, count: int) -> Array:
    """The values of varints that have `width` bytes each."""
    if width == 1:
        return octets[:count].astype(np.int64)
    values = allocate_bytes(8 * count).view(np.uint64)
    for at in range(0, count, _BLOCK):
        value = values[at : at + _BLOCK]
        part = octets[at * width :]
        np.bitwise_and(np.ndarray(value.shape, "<u8", part, strides=(width,)), _SEVENS, out=value)
        _join_sevens(value)
        if width < 8:
            value &= _KEPT[width]
        elif width > 8:
            high = part[8::width][: len(value)] & 0x7F
            if width == 10:
                high |= part[9::width][: len(value)] << 7
            value |= high.astype(np.uint64) << np.uint64(56)
    return values.view(np.int64)


def _decode_blocks(
    octets: Array, ends: Array, stops: Array, count: int
) -> tuple[Array, Array, bool]:
    """The values of varints of any widths, how many end before each stop, and if any is too long.

    Behind each last byte begins a varint, except for the last byte of all: zeros follow it.
    """
    values, before = allocate_bytes(8 * count + 8).view(np.int64), np.arange(1, len(stops) + 1)
    is_single = 0 < count == len(stops) and stops[0] > 0 and are_all(stops[1:] > stops[:-1])
    is_short = len(ends) < _LONG * count or _are_small(octets, ends)
    decode = _decode_bytes if is_short else _decode_words
    size = 8 * (_BLOCK * len(ends) // (8 * count + 8) + 1)
    done, too_long = 0, False
    for at in range(0, len(ends), size):
        last = ends[at : at + size].nonzero()[0]
        if not is_single:
            first, stop = stops.searchsorted((at, at + size))
            found = last.searchsorted(stops[first:stop] - at, side="right")
            before[first:stop] = found + (done - 1)
        if len(last):
            too_long |= decode(octets[at + 1 :], last, values[done : done + len(last)])
        done += len(last)
    return values[:-1], before, too_long


def _decode_bytes(octets: Array, first: Array, values: Array, width: int = 10) -> bool:
    """Writes the varints that begin at `first`: adds the first bytes of all, then the second ones.

    Returns whether a varint has more than `width` bytes.
    """
    octet = octets.take(first)
    more = octet >> 7
    octet &= 0x7F
    value = octet.astype(np.uint32)
    for place in range(1, width):
        left = np.count_nonzero(more.view(bool))
        negative = None
        if place in _SMALL and width == 10 and _FEW * left >= len(first) > _MANY:
            negative = _find_negative(octets, first, more, place)
        if negative is not None:
            more ^= negative
            value = value.view(np.int32) - (negative.astype(np.int32) << 7 * place)
        if negative is not None or _MANY < _FEW * left < len(first):
            rest = more.view(bool).nonzero()[0]
            high = np.empty(len(rest), np.int64)
            too_long = _decode_bytes(octets[place:], first[rest], high, width - place)
            np.copyto(values, value, casting="unsafe")
            values[rest] |= high << (7 * place)
            return too_long
        if not left:
            break
        if place == 4:
            value = value.astype(np.uint64)
        octet = octets[place:].take(first)
        octet *= more
        np.right_shift(octet, 7, out=more)
        octet &= 0x7F
        moved = octet.astype(value.dtype)
        moved <<= value.dtype.type(7 * place)
        value |= moved
    np.copyto(values, value, casting="unsafe")
    return is_any(more.view(bool))


def _are_small(octets: Array, ends: Array) -> bool:
    """Whether most of the first integers with ten bytes are negative and have few bits."""
    last = ends[:_SAMPLE].nonzero()[0]
    first = last[:-1][last[1:] - last[:-1] == 10]
    return 4 * len(first) > len(last) and bool(
        2 * np.count_nonzero(octets[1:][first + 4] == 0xFF) > len(first)
    )


def _find_negative(octets: Array, first: Array, more: Array, place: int) -> Array | None:
    """Which varints have ones up to their tenth byte; None if less than half of the longer."""
    longer = first[:: len(first) // 256 + 1][more[:: len(first) // 256 + 1].view(bool)]
    if 2 * np.count_nonzero(octets[8:].take(longer) == 0xFF) <= len(longer):
        return None
    ones = octets[place : first[-1] + 16]
    for step in (1, 2, 5 - place):  # Each byte with the 8 - place bytes behind it.
        ones = ones[:-step] & ones[step:]
    negative: Array = more & (ones.take(first) == 0xFF).view(np.uint8)
    negative &= octets[9:].take(first) == 1
    return negative


def _decode_words(octets: Array, first: Array, values: Array) -> bool:
    """As `_decode_bytes`. The bytes of every word are joined, so that its 56 bits are neighbours.

    The bits of a varint begin in one word and end in that or in one of the next two.
    """
    end = int(first[-1])
    words = octets[: 8 * (end // 8 + 3)].view("<u8") & _SEVENS
    _join_sevens(words)
    place, value = first >> 3, values.view(np.uint64)
    words.take(place, out=value, mode="clip")
    begin = (first & 7).view(np.uint64)
    begin *= np.uint64(7)
    value >>= begin
    np.subtract(np.uint64(56), begin, out=begin)
    high = words[1:].take(place, mode="clip")
    high <<= begin
    value |= high
    sizes = np.empty_like(first)
    np.subtract(first[1:], first[:-1], out=sizes[:-1])
    sizes[-1] = np.append(octets[end : end + 10] < 0x80, True).argmax() + 1
    longest = sizes.max()
    if longest >= 10:  # The last bit of ten bytes from the end of a word on is in a third word.
        spread = ((begin == 7) & (sizes == 10)).nonzero()[0]
        value[spread] |= words[2:].take(place[spread], mode="clip") << np.uint64(63)
    value &= _KEPT.take(sizes, mode="clip")
    return bool(longest > 10)


def _join_sevens(words: Array) -> None:
    """Joins eight times seven bits to 56, in place."""
    moved = words >> np.uint64(1)
    moved &= _SECOND_SEVENS
    words -= moved
    halves, half = words.view(np.uint32), moved.view(np.uint32)
    np.right_shift(halves, np.uint32(16), out=half)
    half *= np.uint32(3 << 14)
    halves -= half
    np.right_shift(words, np.uint64(32), out=moved)
    moved *= np.uint64(15 << 28)
    words -= moved
