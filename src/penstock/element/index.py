"""Indices: which elements to read, as a `range` (read as views) or an array (read as copies).

With random access, take, skip, shard, batch, repeat and shuffle are arithmetic on indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Index = range | Array


def array_of(index: Index) -> Array:
    if isinstance(index, range):
        return np.arange(index.start, index.stop, index.step)
    return index


def scale(index: Index, factor: int, offset: int) -> Index:
    """`index * factor + offset`; of a range, a range."""
    if isinstance(index, range):
        if not index:
            return range(0)
        first, last = index[0] * factor + offset, index[-1] * factor + offset
        step = index.step * factor
        return range(first, last + (1 if step > 0 else -1), step)
    return index * factor + offset


def slice_of(index: range) -> slice:
    """The slice that selects the elements at `index` from a sequence."""
    stop: int | None = index.stop
    if index.step < 0 and index.stop < 0:
        stop = None
    return slice(index.start, stop, index.step)


def groups(index: Index, size: int, length: int) -> tuple[Index, list[int]]:
    """The indices below `length` in the groups `index`, and how many each group has.

    Group i consists of the indices i * size to (i + 1) * size.
    """
    if isinstance(index, range) and index.step == 1:
        start, stop = index.start * size, min(index.stop * size, length)
        full, rest = divmod(stop - start, size)
        return range(start, stop), [size] * full + ([rest] if rest else [])
    first = array_of(index) * size
    members = (first[:, None] + np.arange(size)).ravel()
    sizes = np.minimum(length - first, size)
    return members[members < length], sizes.tolist()
