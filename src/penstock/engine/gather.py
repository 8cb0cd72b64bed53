"""Gathers: rows picked from arrays, the dear part of a shuffled batch; threads share large ones."""

from __future__ import annotations

import itertools
import weakref

import numpy as np

from penstock.element import columns
from penstock.element.index import Array
from penstock.engine.pool import Pool

_WORTH_SHARING = 2 << 20
"""Bytes below which handing a part to another thread costs more than it saves."""


class Gather:
    """Gathers rows from an array; many bytes by several threads, each a part of the result."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: Pool | None = None

    def __call__(self, column: columns.Column, indices: Array) -> columns.Column:
        if type(column) is not np.ndarray or self._threads < 2 or column.dtype.hasobject:
            return columns.take(column, indices)
        share = column.strides[0] * len(indices) if len(indices) >= 2 * self._threads else 0
        if share < _WORTH_SHARING:
            return columns.take(column, indices)
        out = np.empty((len(indices), *column.shape[1:]), column.dtype)
        cuts = [len(indices) * i // self._threads for i in range(self._threads + 1)]
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        pool = self._threaded()
        others = [pool.submit(_take_into, column, indices[p], out[p]) for p in parts[1:]]
        _take_into(column, indices[parts[0]], out[parts[0]])
        for other in others:
            other.result()
        return out

    def _threaded(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self._threads - 1, "penstock-gather")
            weakref.finalize(self, self._pool.stop)
        return self._pool

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.stop(join=True)


def _take_into(column: Array, indices: Array, out: Array) -> None:
    # NumPy checks bounds before it copies unless told otherwise, and then through a buffer.
    np.take(column, indices, 0, out, "clip")
