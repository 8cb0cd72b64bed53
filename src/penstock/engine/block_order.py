"""The order of a shuffle by blocks, as arithmetic on positions.

The blocks are permuted and divided into windows of neighbours; the elements of a window are
permuted. Reading one window after the other reads each block once. Every position can be
computed alone, as with `permute.shuffle_index`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from penstock.element.columns import Array
from penstock.element.index import Index, array_of
from penstock.engine.permute import permute_block
from penstock.plan.block_lengths import Lengths, block_lengths
from penstock.plan.nodes import ShuffleBlocks
from penstock.plan.seeds import derive

_STRETCH = 1 << 14


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
        if not isinstance(index, range) or index.step != 1 or len(index) >= _STRETCH:
            return self._find(array_of(index))
        first, last = index.start // _STRETCH, (index.stop - 1) // _STRETCH
        whole = np.concatenate([self._stretch(number) for number in range(first, last + 1)])
        return whole[index.start - first * _STRETCH : index.stop - first * _STRETCH]

    def _stretch(self, number: int) -> Array:
        """The elements at many neighbouring positions; the last two are cached for iteration."""
        found = self._stretches.get(number)
        if found is None:
            stop = min((number + 1) * _STRETCH, int(self._ends[-1]))
            found = self._find(np.arange(number * _STRETCH, stop))
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
