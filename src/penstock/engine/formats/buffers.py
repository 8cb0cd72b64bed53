"""Columns as descriptions and raw buffers: how the memory of a chunk looks outside of it.

A description is JSON and says what lies in the buffers, one after the other:

    ["array", dtype, shape]          the numbers, in C order, little-endian
    ["text", shape, size]            the lengths of the strings (int64), then their bytes
    ["ragged", dtype, rows, values]  row splits of that dtype, then the values
    ["shapes", rows, sum, flat]      the rank of each leaf, the dimensions of all, then all values
    ["list", leaves]                 each leaf by itself
    ["none", rows]

Every buffer begins at a multiple of `blocks.ALIGN`. No size is believed before it is compared with
the bytes that are there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.element.columns import Array, Column
from penstock.element.dtypes import as_dtype, of_numpy
from penstock.element.ragged import Ragged
from penstock.engine.formats.blocks import ALIGN
from penstock.errors import InvalidArgumentError

MAX_ROWS = 1 << 20
"""No chunk outside of memory has more elements, for some need no bytes that could be counted."""

Description = list[Any]


class Packed:
    """Buffers on their way out."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []

    def add(self, data: bytes | memoryview) -> None:
        self.parts.append(data)
        if len(data) % ALIGN:
            self.parts.append(bytes(-len(data) % ALIGN))

    def column(self, column: Column) -> Description:
        """Adds a column and describes it."""
        if isinstance(column, list):
            return self._list(column)
        return self._ragged(column) if isinstance(column, Ragged) else self._array(column)

    def _array(self, array: Array) -> Description:
        if array.dtype == object:
            return self._text(array)
        dtype = of_numpy(array.dtype)
        plain = np.ascontiguousarray(array, dtype.dtype)
        self.add(plain.reshape(-1).view(np.uint8).data)
        return ["array", dtype.name, list(array.shape)]

    def _text(self, array: Array) -> Description:
        items = array.ravel().tolist()
        self.add(np.fromiter(map(len, items), np.int64, len(items)).tobytes())
        data = b"".join(items)
        self.add(data)
        return ["text", list(array.shape), len(data)]

    def _ragged(self, ragged: Ragged) -> Description:
        splits = ragged.row_splits
        self.add((splits - splits[0]).tobytes())
        return ["ragged", splits.dtype.name, len(ragged), self.column(ragged.flat)]

    def _list(self, leaves: list[Any]) -> Description:
        if all(leaf is None for leaf in leaves):
            return ["none", len(leaves)]
        arrays = [_as_array(leaf) for leaf in leaves]
        if any(array is None or array.dtype != arrays[0].dtype for array in arrays):
            return ["list", [self._leaf(leaf) for leaf in leaves]]
        dims = [dim for array in arrays for dim in array.shape]
        self.add(np.array([array.ndim for array in arrays], np.int64).tobytes())
        self.add(np.array(dims, np.int64).tobytes())
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        return ["shapes", len(leaves), len(dims), self._array(flat)]

    def _leaf(self, leaf: Any) -> Description:
        if leaf is None or isinstance(leaf, Ragged):
            return ["none", 0] if leaf is None else self._ragged(leaf)
        array = _as_array(leaf)
        if array is None:
            raise InvalidArgumentError(
                f"a {type(leaf).__name__} inside an element cannot be written to a file"
            )
        return self._array(array)


def _as_array(leaf: Any) -> Any:
    """A leaf as an array; None if it is something else."""
    if isinstance(leaf, bytes):
        array = np.empty((), object)
        array[()] = leaf
        return array
    return np.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else None


class Unpacked:
    """Buffers that came in: views of `data`, whose first `start` bytes are something else."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._at = start

    def column(self, description: Description) -> Any:
        """The column that was described; ValueError and its like where that cannot be."""
        match description:
            case ["array", str(dtype), [*shape]]:
                return self._array(as_dtype(dtype).dtype, shape)
            case ["text", [*shape], int(size)]:
                return self._text(shape, size)
            case ["ragged", ("int32" | "int64") as dtype, int(rows), values]:
                splits = self._array(np.dtype(dtype), [rows + 1])
                return Ragged.from_row_splits(self.column(values), splits)
            case ["shapes", int(rows), int(dims), flat]:
                return self._shapes(rows, dims, flat)
            case ["list", [*leaves]]:
                return [self._leaf(leaf) for leaf in leaves]
            case ["none", int(rows)] if rows <= MAX_ROWS:
                return [None] * rows
        raise ValueError(f"{description!r:.80} is not a column")

    def _take(self, size: int) -> int:
        """Where the next buffer begins."""
        at = self._at
        if not 0 <= size <= len(self._data) - at:
            raise ValueError(f"a buffer of {size} bytes, where {len(self._data) - at} are left")
        self._at = at + size + -size % ALIGN
        return at

    def _array(self, dtype: np.dtype[Any], shape: list[int]) -> Array:
        count = math.prod(shape)
        at = self._take(count * dtype.itemsize)
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(self._data, dtype, count, at).reshape(shape)

    def _text(self, shape: list[int], size: int) -> Array:
        lengths = self._array(np.dtype(np.int64), [math.prod(shape)])
        at = self._take(size)
        if (lengths.size and lengths.min() < 0) or lengths.sum() != size:
            raise ValueError("the lengths of strings do not add up")
        ends = (at + np.cumsum(lengths)).tolist()
        column = np.empty(len(lengths), object)
        starts = [at, *ends[:-1]]
        column[:] = [self._data[a:b] for a, b in zip(starts, ends, strict=False)]
        return column.reshape(shape)

    def _shapes(self, rows: int, total: int, flat: Description) -> list[Any]:
        ranks = self._array(np.dtype(np.int64), [rows]).tolist()
        dims = self._array(np.dtype(np.int64), [total]).tolist()
        values = self.column(flat)
        leaves, dim, start = [], 0, 0
        for rank in ranks:
            shape = dims[dim : dim + rank]
            end = start + math.prod(shape)
            leaves.append(values[start:end].reshape(shape) if rank else values[start])
            dim, start = dim + rank, end
        if start != len(values) or dim != total:
            raise ValueError("the shapes do not add up")
        return leaves

    def _leaf(self, description: Description) -> Any:
        if description[0] == "none":
            return None
        leaf = self.column(description)
        return leaf[()] if isinstance(leaf, np.ndarray) and not leaf.ndim else leaf
