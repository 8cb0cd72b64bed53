"""Columns on a wire: a typed description, and buffers that are sent and read where they are.

The tree of the elements does not travel, for the client knows it. Every buffer begins at a multiple
of `ALIGN`; what is unpacked are read-only views of the body. No memory is taken for a description
that its body does not fill to the byte.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column
from penstock.element.dtypes import of_numpy
from penstock.element.ragged import Ragged
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.service.protocol.descriptions import (
    ALIGN,
    DenseColumn,
    Described,
    EmptyColumn,
    LeavesColumn,
    RaggedColumn,
    ShapesColumn,
    TextColumn,
    decoded,
    dtype_of,
    encoded,
    padded,
)

_LARGE = 16 << 10  # From this mean size on, sending parts one by one is cheaper than joining them.

_BAD = (msgspec.MsgspecError, ValueError, TypeError, IndexError, OverflowError, RecursionError)
_ZEROS = memoryview(bytes(ALIGN))
_INT64 = np.dtype(np.int64)
_RANKS = frozenset(range(65))


def pack_columns(chunk: Chunk) -> tuple[bytes, list[memoryview]]:
    """The description of a chunk's columns, and their bytes: views, copied only where scattered."""
    packing = _Packing()
    described = [packing.column(column) for column in chunk.columns]
    return encoded(described), packing.parts


def unpack_columns(description: bytes, body: memoryview) -> list[Column]:
    """The columns that `body` holds; DataLossError where it does not hold what is described."""
    if (size := body_size(description)) != len(body):
        raise DataLossError(f"data connection: {len(body)} bytes of elements, described as {size}")
    try:
        unpacking = _Unpacking(body.toreadonly())
        return [unpacking.column(column) for column in decoded(description)[0]]
    except _BAD as error:
        raise DataLossError(f"data connection: damaged columns ({error})") from None


def body_size(description: bytes) -> int:
    """How many bytes the described columns take; DataLossError where it is no description."""
    try:
        return decoded(description)[1]
    except _BAD as error:
        raise DataLossError(f"data connection: not a description ({error})") from None


class _Packing:
    """Buffers on their way out."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def _add(self, *parts: memoryview) -> None:
        self.parts.extend(part for part in parts if len(part))
        if rest := -sum(map(len, parts)) % ALIGN:
            self.parts.append(_ZEROS[:rest])

    def column(self, column: Column) -> Described:
        if isinstance(column, list):
            return self._list(column)
        return self._ragged(column) if isinstance(column, Ragged) else self._array(column)

    def _array(self, array: Array) -> Described:
        if array.dtype.hasobject:
            return self._text(array)
        name, dtype = _plain(array.dtype)
        if array.nbytes and len(array) > 1 and array.strides[0] == 0:
            # One row, there many times: sent from where it is.
            row = _bytes_of(np.ascontiguousarray(array[:1], dtype))
            self._add(*[row] * len(array))
        else:
            self._add(_bytes_of(np.ascontiguousarray(array, dtype)))
        return DenseColumn(name, array.shape)

    def _text(self, array: Array) -> TextColumn:
        items = array.ravel().tolist()
        lengths = np.fromiter(map(len, items), _INT64, len(items))
        self._add(_bytes_of(lengths))
        size = int(lengths.sum())
        if size > _LARGE * len(items):
            self._add(*(memoryview(item) for item in items))
        else:
            self._add(memoryview(b"".join(items)))
        return TextColumn(array.shape, size)

    def _ragged(self, ragged: Ragged) -> RaggedColumn:
        splits = ragged.row_splits
        self._add(_bytes_of(splits - splits[0]))
        kind: Any = splits.dtype.name
        return RaggedColumn(kind, len(ragged), self.column(ragged.flat))

    def _list(self, leaves: list[Any]) -> Described:
        if all(leaf is None for leaf in leaves):
            self._add(memoryview(bytes(len(leaves))))
            return EmptyColumn(len(leaves))
        arrays = [_as_array(leaf) for leaf in leaves]
        if any(array is None or array.dtype != arrays[0].dtype for array in arrays):
            return LeavesColumn(tuple(map(self._leaf, leaves)))
        self._add(_bytes_of(np.array([array.ndim for array in arrays], _INT64)))
        dims = [dim for array in arrays for dim in array.shape]
        self._add(_bytes_of(np.array(dims, _INT64)))
        return ShapesColumn(len(leaves), len(dims), self._flat(arrays))

    def _flat(self, arrays: list[Array]) -> DenseColumn | TextColumn:
        """The values of all: from where they are, if that are few large pieces."""
        count, dtype = sum(array.size for array in arrays), arrays[0].dtype
        if dtype.hasobject or count * dtype.itemsize <= _LARGE * len(arrays):
            flat: Any = self._array(np.concatenate([array.reshape(-1) for array in arrays]))
            return flat  # type: ignore[no-any-return]
        name, dtype = _plain(dtype)
        self._add(*(_bytes_of(np.ascontiguousarray(array, dtype)) for array in arrays))
        return DenseColumn(name, (count,))

    def _leaf(self, leaf: Any) -> Described:
        if leaf is None:
            return EmptyColumn(0)
        if isinstance(leaf, Ragged):
            return self._ragged(leaf)
        if (array := _as_array(leaf)) is None:
            raise InvalidArgumentError(
                f"a {type(leaf).__name__} inside an element cannot be sent to another process"
            )
        return self._array(array)


@lru_cache(maxsize=64)
def _plain(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """The name of a dtype, and the dtype in this machine's order of bytes."""
    found = of_numpy(dtype)
    return found.name, found.dtype


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _as_array(leaf: Any) -> Any:
    """A leaf as an array; None if it is something else."""
    if isinstance(leaf, bytes):
        array = np.empty((), object)
        array[()] = leaf
        return array
    return np.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else None


class _Unpacking:
    """Views of a body that is as long as its description says."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def column(self, described: Described) -> Any:
        match described:
            case DenseColumn(dtype, shape):
                return self._array(dtype_of(dtype), shape)
            case TextColumn(shape, size):
                return self._text(shape, size)
            case RaggedColumn(dtype, rows, values):
                splits = self._array(dtype_of(dtype), (rows + 1,))
                return Ragged.from_row_splits(self.column(values), splits)
            case ShapesColumn(rows, dims, flat):
                return self._shapes(rows, dims, flat)
            case LeavesColumn(leaves):
                return [self._leaf(leaf) for leaf in leaves]
            case EmptyColumn(rows):
                self._at += padded(rows)
                return [None] * rows

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        count, at = math.prod(shape), self._at
        if not count:
            return np.empty(shape, dtype)
        self._at = at + padded(count * dtype.itemsize)
        return np.frombuffer(self._body, dtype, count, at).reshape(shape)

    def _text(self, shape: tuple[int, ...], size: int) -> Array:
        lengths = self._array(_INT64, (math.prod(shape),))
        data = self._body[self._at : self._at + size]
        self._at += padded(size)
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= size):
            raise ValueError("strings of impossible lengths")
        if lengths.sum() != size:
            raise ValueError("the lengths of strings do not add up")
        column = np.empty(len(lengths), object)
        column[:] = _cut(data, lengths)
        return column.reshape(shape)

    def _shapes(self, rows: int, total: int, flat: DenseColumn | TextColumn) -> list[Any]:
        ranks, dims = self._array(_INT64, (rows,)).tolist(), self._array(_INT64, (total,)).tolist()
        values = self.column(flat)
        if min(dims, default=0) < 0 or not set(ranks) <= _RANKS or sum(ranks) != total:
            raise ValueError("the shapes do not add up")
        leaves, dim, start = [], 0, 0
        for rank in ranks:
            shape = dims[dim : dim + rank]
            end = start + math.prod(shape)
            leaves.append(values[start:end].reshape(shape) if rank else values[start])
            dim, start = dim + rank, end
        if values.ndim != 1 or start != len(values):
            raise ValueError("the shapes do not use up the values")
        return leaves

    def _leaf(self, described: Described) -> Any:
        if isinstance(described, EmptyColumn):
            return None
        leaf = self.column(described)
        return leaf[()] if isinstance(leaf, np.ndarray) and not leaf.ndim else leaf


def _cut(data: memoryview, lengths: Array) -> list[bytes]:
    """The strings that lie in `data` one after the other, as copies."""
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends][:-1]
    if len(data) > _LARGE * len(ends):
        return [bytes(data[a:b]) for a, b in zip(starts, ends, strict=True)]
    whole = bytes(data)
    return [whole[a:b] for a, b in zip(starts, ends, strict=True)]
