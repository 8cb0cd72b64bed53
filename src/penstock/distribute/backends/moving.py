"""Moving columns to devices: the part that does not depend on the framework.

A column that belongs to a replica becomes a list with one tensor for each step. Strings, ragged
values and None stay on the host, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.values import as_value

Array = np.ndarray[Any, Any]

Move = Callable[[Array, bool, Any], Sequence[Any]]
"""Called with an array, whether no other column shares its memory, and a device; returns the rows
of the array on the device, one tensor each."""


class ColumnDelivery:
    """Moves every column by the function `move`, which must not block."""

    def __init__(self, handles: Sequence[Any], columns: Sequence[int], move: Move) -> None:
        self._handles = handles
        self._columns = columns
        self._move = move

    def of_rows(self, rows: Chunk) -> ColumnDelivery | None:
        return None

    def send(self, chunk: Chunk) -> Chunk:
        shared = find_overlapping(chunk.columns)
        moved = [
            column
            if owner < 0
            else self._move_column(column, i not in shared, self._handles[owner])
            for i, (column, owner) in enumerate(zip(chunk.columns, self._columns, strict=True))
        ]
        return Chunk(chunk.tree, moved, len(chunk))

    def _move_column(self, column: Column, alone: bool, handle: Any) -> Column:
        if isinstance(column, np.ndarray):
            return list(self._move(column, alone, handle)) if is_movable(column) else column
        if not isinstance(column, list):
            return column
        return [
            self._move(np.asarray(leaf)[None], False, handle)[0] if is_movable(leaf) else leaf
            for leaf in column
        ]

    def receive(self, values: list[Any]) -> list[Any]:
        return values

    def close(self) -> None:
        pass


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
    """Whether a tensor may use an array's memory instead of a copy.

    The engine makes an array writable only if no source and no cache shares its memory.
    """
    return alone and array.flags.writeable and array.dtype.isnative and min(array.strides) >= 0


def to_native(array: Array) -> Array:
    """The array in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def find_overlapping(columns: Sequence[Column]) -> set[int]:
    """The indices of columns that share memory with another column, such as a repeated leaf.

    Portions of one batch do not overlap: within each row of steps they are side by side.
    """
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for i, column in enumerate(columns):
        if isinstance(column, np.ndarray) and column.size:
            owner = column if column.base is None else column.base
            spans.setdefault(id(owner), []).append((*_span(column[:1]), i))
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
