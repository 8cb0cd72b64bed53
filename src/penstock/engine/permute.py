"""Keyed bijections: a shuffle as arithmetic on positions, without memory for what it shuffles.

`shuffle_index(index, ...)` returns the elements at some positions. It is a pure function: every
process that computes a position, in any order, gets the same element. So is `BlockOrder.elements`,
for a shuffle by blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from penstock.element.columns import Array
from penstock.element.index import Index, array_of
from penstock.plan.block_lengths import Lengths, block_lengths
from penstock.plan.nodes import ShuffleBlocks
from penstock.plan.seeds import derive, derive_array

_SMALL = 1 << 6
_TABLE = 1 << 14
_ROUNDS = 4
_MANY = 64
_STRETCH = 1 << 15


def shuffle_index(index: Index, length: int | None, buffer: int, key: int) -> Array:
    """The elements at the positions `index` of a shuffle with a window of `buffer`.

    An element comes at most `buffer - 1` places before its turn. A window that holds everything is
    one bijection. A smaller window is two layers of blocks, whose sizes add up to the window; the
    blocks of the second layer lie across the borders of the first.
    """
    if isinstance(index, range) and index.step == 1 and len(index) >= _MANY:
        return _cut(index, _STRETCH, lambda number: _stretch(number, length, buffer, key))
    positions = array_of(index)
    if length is not None and buffer >= length:
        return permute_block(positions, length, key)
    first = buffer // 2 + 1
    second = buffer + 1 - first
    middle = _layer(positions, length, second, second // 2, derive(key, 2))
    return _layer(middle, length, first, 0, derive(key, 1))


def _cut(index: range, size: int, stretch: Callable[[int], Array]) -> Array:
    """Cuts the positions from whole stretches of `size`, which are cached for iteration."""
    first, last = index.start // size, (index.stop - 1) // size
    parts = [stretch(number) for number in range(first, last + 1)]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole[index.start - first * size : index.stop - first * size]


@lru_cache(maxsize=4)
def _stretch(number: int, length: int | None, buffer: int, key: int) -> Array:
    start = number * _STRETCH
    stop = start + _STRETCH if length is None else min(start + _STRETCH, length)
    return shuffle_index(np.arange(start, stop), length, buffer, key)


def _layer(positions: Array, length: int | None, size: int, offset: int, key: int) -> Array:
    """Every block of `size` (the first is shorter by `offset`) permuted in itself."""
    if size == 1:
        return positions
    blocks = (positions + offset) // size
    first, last = int(blocks.min()), int(blocks.max())
    if size <= _TABLE and (last - first) * size <= 4 * len(positions):
        numbers = np.arange(first, last + 1)
        start = max(first * size - offset, 0)
        return _span(numbers, length, size, offset, key).take(positions - start)
    numbers, rows = np.unique(blocks, return_inverse=True)
    starts, stops = _edges(numbers, length, size, offset)
    result = np.empty_like(positions)
    if size <= _SMALL:
        tables = _tables(stops - starts, size, derive_array(key, numbers))
        np.add(tables[rows, positions - starts[rows]], starts[rows], out=result)
        return result
    for row, block_key in enumerate(derive_array(key, numbers)):
        here = rows == row
        local, count = positions[here] - starts[row], int(stops[row] - starts[row])
        result[here] = permute_block(local, count, int(block_key)) + starts[row]
    return result


def _edges(numbers: Array, length: int | None, size: int, offset: int) -> tuple[Array, Array]:
    starts = np.maximum(numbers * size - offset, 0)
    stops = (numbers + 1) * size - offset
    return starts, stops if length is None else np.minimum(stops, length)


def _span(numbers: Array, length: int | None, size: int, offset: int, key: int) -> Array:
    """The elements at all positions of some consecutive blocks."""
    starts, stops = _edges(numbers, length, size, offset)
    keys = derive_array(key, numbers)
    if size <= _SMALL:
        tables = _tables(stops - starts, size, keys) + starts[:, None]
        span: Array = tables[np.arange(size) < (stops - starts)[:, None]]
        return span
    blocks = zip(starts.tolist(), stops.tolist(), keys.tolist(), strict=True)
    return np.concatenate([_table(stop - start, key) + start for start, stop, key in blocks])


def _tables(lengths: Array, size: int, keys: Array) -> Array:
    """Many small permutations at once, one per row, each of its own length."""
    hashes = derive_array(0, keys[:, None] + np.arange(size, dtype=np.uint64))
    hashes[np.arange(size) >= lengths[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(hashes, axis=1, kind="stable")


def permute_block(positions: Array, length: int, key: int) -> Array:
    """The elements at some positions of one bijection of `range(length)`."""
    if length <= _TABLE:
        return _table(length, key)[positions]
    return _walk(positions, length, key)


@lru_cache(maxsize=16)
def _table(length: int, key: int) -> Array:
    """A permutation as a table: positions ranked by their hashes."""
    return np.argsort(derive_array(key, np.arange(length)), kind="stable")


def _walk(positions: Array, length: int, key: int) -> Array:
    """Mixes within the next power of two, repeatedly, until the result is below `length`."""
    bits = max((length - 1).bit_length(), 1)
    kind = np.uint32 if bits <= 32 else np.uint64
    values = _mix(positions.astype(kind), bits, key)
    outside = np.flatnonzero(values >= kind(length)) if length < 1 << bits else ()
    while len(outside):
        again = _mix(values[outside], bits, key)
        values[outside] = again
        outside = outside[again >= kind(length)]
    return values.astype(np.int64)


def _mix(values: Array, bits: int, key: int) -> Array:
    """A bijection of `range(2**bits)`: odd multiplications and shifted xors undo one by one."""
    kind = values.dtype.type
    mask, shift = kind((1 << bits) - 1), kind((bits + 1) // 2)
    scratch = np.empty_like(values)
    for factor, term in _rounds(key):
        values *= kind(factor & int(mask))
        values += kind(term & int(mask))
        values &= mask
        np.right_shift(values, shift, out=scratch)
        values ^= scratch
    return values


@lru_cache(maxsize=64)
def _rounds(key: int) -> list[tuple[int, int]]:
    """An odd factor and a term for every round."""
    return [(derive(key, i) | 1, derive(key, i, 1)) for i in range(_ROUNDS)]


# A shuffle by blocks. The blocks are permuted and divided into windows of neighbours; the elements
# of a window are permuted. Reading one window after the other reads each block once.

_BLOCKS_STRETCH = 1 << 14


def block_order(node: ShuffleBlocks, key: int) -> BlockOrder:
    """The order of the elements of a node, with a key."""
    lengths = block_lengths(node.input)
    if lengths is None:  # The plan was rewritten: it is one block.
        lengths = np.array([node.cardinality], np.int64)
    return BlockOrder(lengths, node.blocks, key)


class BlockOrder:
    """Which element is at each position, for blocks of these lengths and windows of `window`.

    Windows have as many blocks as each other, or one less, so that the last one is not small.
    """

    def __init__(self, lengths: Lengths, window: int, key: int) -> None:
        count = len(lengths)
        self._key = key
        order = permute_block(np.arange(count), count, derive(key, 1))
        self._firsts = (np.cumsum(lengths) - lengths)[order]
        """The first element of each block, in the new order."""
        self._ends = np.cumsum(lengths[order])
        """The position after the last of each block, if only blocks were permuted."""
        self._begins = self._ends - lengths[order]
        windows = -(-count // window)
        edges = np.arange(1, windows + 1) * count // max(windows, 1)
        self._window_ends = self._ends[edges - 1]
        self._stretches: dict[int, Array] = {}

    def cut(self, index: range) -> list[range]:
        """A range of positions, divided where windows end."""
        inside = (self._window_ends > index.start) & (self._window_ends < index.stop)
        edges = [index.start, *self._window_ends[inside].tolist(), index.stop]
        return [range(*edge) for edge in pairwise(edges)]

    def elements(self, index: Index) -> Array:
        """The elements at some positions."""
        if not isinstance(index, range) or index.step != 1 or len(index) >= _BLOCKS_STRETCH:
            return self._find(array_of(index))
        return _cut(index, _BLOCKS_STRETCH, self._stretch)

    def _stretch(self, number: int) -> Array:
        """The elements at many neighbouring positions; the last two are cached for iteration."""
        found = self._stretches.get(number)
        if found is None:
            stop = min((number + 1) * _BLOCKS_STRETCH, int(self._ends[-1]))
            found = self._find(np.arange(number * _BLOCKS_STRETCH, stop))
            kept = list(self._stretches.items())[-1:]
            self._stretches = dict([*kept, (number, found)])
        return found

    def _find(self, positions: Array) -> Array:
        owners = np.searchsorted(self._window_ends, positions, side="right")
        mixed = np.empty_like(positions)
        for window in np.unique(owners).tolist():
            here = owners == window
            start = int(self._window_ends[window - 1]) if window else 0
            size = int(self._window_ends[window]) - start
            local = permute_block(positions[here] - start, size, derive(self._key, 2, window))
            mixed[here] = local + start
        blocks = np.searchsorted(self._ends, mixed, side="right")
        return self._firsts[blocks] + mixed - self._begins[blocks]
