"""Moving columns to devices: the part that does not depend on the framework.

A column becomes a list with one tensor for each element. Strings, ragged values and None stay on
the host, unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.delivery import Delivery
from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column
from penstock.element.dtypes import to_native
from penstock.element.values import as_value

Move = Callable[[Array, bool, Any], Sequence[Any]]
"""Called with an array, whether no other leaf of the chunk shares its memory, and a device; returns
the rows of the array on the device, one tensor each."""


class ColumnDelivery(Delivery):
    """Moves every column by the function `move`, which must not block.

    `columns[i]` is the number of the device that column i goes to, and -1 if it stays on the host.
    If `columns` is None, all devices get equally many columns, in the order of `handles`.
    """

    def __init__(self, handles: Sequence[Any], columns: Sequence[int] | None, move: Move) -> None:
        self._handles = handles
        self._columns = columns
        self._move_by = move

    def send(self, chunk: Chunk) -> Chunk:
        sharing = Sharing(chunk.columns)
        moved = [
            column if owner < 0 else self._move_column(i, column, sharing, self._handles[owner])
            for i, (column, owner) in enumerate(
                zip(chunk.columns, self._owners(chunk), strict=True)
            )
        ]
        return Chunk(chunk.tree, moved, len(chunk))

    def _owners(self, chunk: Chunk) -> Sequence[int]:
        """The number of the device of each column."""
        if self._columns is not None:
            return self._columns
        count = len(chunk.columns)
        return [i * len(self._handles) // count for i in range(count)]

    def _move_column(self, i: int, column: Column, sharing: Sharing, handle: Any) -> Column:
        if isinstance(column, np.ndarray):
            if not is_movable(column):
                return column
            return list(self._move(column, sharing.is_alone(i, column), handle))
        if not isinstance(column, list):
            return column
        return [
            self._move(np.asarray(leaf)[None], sharing.is_leaf_alone(leaf), handle)[0]
            if is_movable(leaf)
            else leaf
            for leaf in column
        ]

    def _move(self, array: Array, alone: bool, handle: Any) -> Sequence[Any]:
        return self._move_by(array, alone, handle)


def is_movable(leaf: object) -> bool:
    """Whether frameworks have tensors for such values; they have none for strings."""
    return isinstance(leaf, np.ndarray | np.generic) and not leaf.dtype.hasobject


def array_of(value: Any) -> Array | None:
    """A value as an array; None if it is not movable."""
    if isinstance(value, bool | int | float | complex):
        value = as_value(value)
    elif hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
    return np.asarray(value) if is_movable(value) else None


def may_keep_memory(array: Array, alone: bool) -> bool:
    """Whether tensors may use the memory of an array's rows instead of a copy.

    The engine makes an array writable only if no source and no cache shares its memory.
    """
    if not alone or not array.flags.writeable or not array.dtype.isnative:
        return False
    return bool(array[:1].flags.c_contiguous)


def own_rows(array: Array, alone: bool, handle: None = None) -> list[Array]:
    """The rows of an array as arrays of the host that share no memory with other arrays."""
    if not may_keep_memory(array, alone):
        array = to_native(array).copy()
    return [array[i, ...] for i in range(len(array))]


class Sharing:
    """Which leaves of a chunk share memory with other leaves of it."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._overlapping = find_overlapping(columns)
        arrays = [column for column in columns if isinstance(column, np.ndarray)]
        lists = [column for column in columns if isinstance(column, list)]
        leaves = [leaf for column in lists for leaf in column if isinstance(leaf, np.ndarray)]
        self._of_leaves = Counter(map(_owner_of, leaves))
        self._of_arrays = set(map(_owner_of, arrays)) if leaves else set()

    def is_alone(self, i: int, column: Array) -> bool:
        """Whether only column `i` uses its memory."""
        return i not in self._overlapping and _owner_of(column) not in self._of_leaves

    def is_leaf_alone(self, leaf: Any) -> bool:
        """Whether only this leaf of a list uses its memory."""
        if not isinstance(leaf, np.ndarray):
            return True
        owner = _owner_of(leaf)
        return self._of_leaves[owner] == 1 and owner not in self._of_arrays


def _owner_of(array: Array) -> int:
    """The identity of the object that owns the memory of an array."""
    return id(array if array.base is None else array.base)


def find_overlapping(columns: Sequence[Column]) -> set[int]:
    """The indices of columns that share memory with another column, such as a repeated leaf.

    Portions of one batch do not overlap: within each row of steps they are side by side.
    """
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for i, column in enumerate(columns):
        if isinstance(column, np.ndarray) and column.size:
            spans.setdefault(_owner_of(column), []).append((*_span(column[:1]), i))
    found: set[int] = set()
    for owned in spans.values():
        end, last = 0, -1
        for start, stop, i in sorted(owned):
            if start < end:
                found |= {i, last}
            if stop > end:
                end, last = stop, i
    return found


def _span(array: Array) -> tuple[int, int]:
    """The first address of an array's memory, and the address behind it."""
    start: int = array.__array_interface__["data"][0]
    reaches = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    ahead = sum(reach for reach in reaches if reach > 0)
    return start + sum(reaches) - ahead, start + ahead + array.itemsize
