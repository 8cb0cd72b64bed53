"""Columns as descriptions and buffers: how connections, processes, states and old files hold them.

A description consists of plain values, for JSON or msgpack. It says what the buffers hold, in turn:

    ["array", dtype, shape]          the numbers, in C order, little-endian
    ["text", shape, size]            the lengths of the strings (int64), then their `size` bytes
    ["ragged", dtype, rows, values]  the row splits, of that dtype, then the values
    ["shapes", rows, dims, values]   the rank of each leaf and the dimensions of all leaves (int64),
                                     then the values of all leaves
    ["leaves", [leaf, ...]]          each leaf by itself
    ["none", rows]                   one byte for each None, so that their number can be checked

Every buffer is padded to a multiple of `ALIGN`. Descriptions come from files and peers, so a reader
trusts none of them: it must call `measure` and compare the result with the number of bytes that it
has, before it calls `unpack` and before it allocates any memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.element.columns import Array, Column
from penstock.element.dtypes import as_dtype, of_numpy
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError

ALIGN = 64
"""Every buffer begins at a multiple of it."""

MALFORMED = (ValueError, TypeError, LookupError, OverflowError, RecursionError)
"""What `measure` and `unpack` raise where a description, or what it describes, is malformed."""

Description = Sequence[Any]

_LARGE = 16 << 10  # From this mean size on, handing on parts one by one is cheaper than joining.
_LARGEST = 1 << 48
_MAX_RANK = 64
_ZEROS = memoryview(bytes(ALIGN))
_INT64 = np.dtype(np.int64)
_RANKS = frozenset(range(_MAX_RANK + 1))


def padded_size(size: int) -> int:
    """The size of a buffer with its padding."""
    return size + -size % ALIGN


class Packing:
    """Describes columns and collects their buffers in `parts`; copies only what is scattered.

    `use` completes the error "a Dataset inside an element cannot be ...".
    """

    def __init__(self, use: str) -> None:
        self.parts: list[memoryview] = []
        self._use = use

    def column(self, column: Column) -> Description:
        if isinstance(column, list):
            return self._pack_list(column)
        return self._pack_ragged(column) if isinstance(column, Ragged) else self._pack_array(column)

    def _add(self, *parts: memoryview) -> None:
        self.parts.extend(part for part in parts if len(part))
        if rest := -sum(map(len, parts)) % ALIGN:
            self.parts.append(_ZEROS[:rest])

    def _pack_array(self, array: Array) -> Description:
        if array.dtype.hasobject:
            return self._pack_text(array)
        name, dtype = _portable(array.dtype)
        if array.nbytes and array.strides[:1] == (0,) and len(array) > 1:
            # One row that is repeated: its memory is handed on once for each time.
            self._add(*[_bytes_of(np.ascontiguousarray(array[:1], dtype))] * len(array))
        else:
            self._add(_bytes_of(np.ascontiguousarray(array, dtype)))
        return "array", name, array.shape

    def _pack_text(self, array: Array) -> Description:
        items = array.ravel().tolist()
        lengths = np.fromiter(map(len, items), _INT64, len(items))
        self._add(_bytes_of(lengths))
        size = int(lengths.sum())
        if size > _LARGE * len(items):
            self._add(*(memoryview(item) for item in items))
        else:
            self._add(memoryview(b"".join(items)))
        return "text", array.shape, size

    def _pack_ragged(self, ragged: Ragged) -> Description:
        splits = ragged.row_splits
        self._add(_bytes_of(splits - splits[0]))
        return "ragged", splits.dtype.name, len(ragged), self.column(ragged.flat)

    def _pack_list(self, leaves: list[Any]) -> Description:
        if all(leaf is None for leaf in leaves):
            self._add(memoryview(bytes(len(leaves))))
            return "none", len(leaves)
        arrays = [_as_array(leaf) for leaf in leaves]
        if any(array is None or array.dtype != arrays[0].dtype for array in arrays):
            return "leaves", [self._pack_leaf(leaf) for leaf in leaves]
        self._add(_bytes_of(np.array([array.ndim for array in arrays], _INT64)))
        dims = [dim for array in arrays for dim in array.shape]
        self._add(_bytes_of(np.array(dims, _INT64)))
        return "shapes", len(leaves), len(dims), self._pack_flat(arrays)

    def _pack_flat(self, arrays: list[Array]) -> Description:
        """The values of all arrays; few large arrays are not copied."""
        count, dtype = sum(array.size for array in arrays), arrays[0].dtype
        if dtype.hasobject or count * dtype.itemsize <= _LARGE * len(arrays):
            return self._pack_array(np.concatenate([array.reshape(-1) for array in arrays]))
        name, dtype = _portable(dtype)
        self._add(*(_bytes_of(np.ascontiguousarray(array, dtype)) for array in arrays))
        return "array", name, (count,)

    def _pack_leaf(self, leaf: Any) -> Description:
        if leaf is None:
            return "none", 0
        if isinstance(leaf, Ragged):
            return self._pack_ragged(leaf)
        if (array := _as_array(leaf)) is None:
            name = type(leaf).__name__
            raise InvalidArgumentError(f"a {name} inside an element cannot be {self._use}")
        return self._pack_array(array)


@lru_cache(maxsize=64)
def _portable(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """The name of a dtype, and the dtype in little-endian order."""
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


def measure(description: Description) -> int:
    """Returns how many bytes a described column takes; raises one of `MALFORMED` if it is none."""
    kind, *rest = description
    match kind:
        case "array":
            dtype, shape = rest
            return padded_size(_number_dtype(dtype).itemsize * _count(shape))
        case "none":
            (rows,) = rest
            return padded_size(_check_size(rows))
        case "text":
            shape, size = rest
            return padded_size(8 * _count(shape)) + padded_size(_check_size(size))
        case "ragged":
            dtype, rows, values = rest
            if dtype not in ("int32", "int64"):
                raise ValueError("row splits are int32 or int64")
            splits = _number_dtype(dtype).itemsize * (_check_size(rows) + 1)
            return padded_size(splits) + measure(values)
        case "shapes":
            rows, dims, values = rest
            if values[0] not in ("array", "text"):
                raise ValueError("values with shapes are an array or strings")
            return (
                padded_size(8 * _check_size(rows))
                + padded_size(8 * _check_size(dims))
                + measure(values)
            )
        case "leaves":
            (leaves,) = rest
            return sum(map(measure, leaves))
    raise ValueError("a column of an unknown kind")


def _count(shape: Sequence[Any]) -> int:
    """The number of values in an array of this shape."""
    if not isinstance(shape, list | tuple) or len(shape) > _MAX_RANK:
        raise ValueError(f"a shape is a list of at most {_MAX_RANK} sizes")
    count = 1
    for size in shape:
        count *= _check_size(size)
    return count


def _check_size(size: Any) -> int:
    if not isinstance(size, int) or not 0 <= size <= _LARGEST:
        raise ValueError("a size is not a number from 0 to 2**48")
    return size


@lru_cache(maxsize=64)
def _number_dtype(name: str) -> np.dtype[Any]:
    dtype = as_dtype(name).dtype
    if dtype.hasobject or dtype.name != name:
        raise ValueError(f"{name!r:.40} is not a type of numbers")
    return dtype


def unpack(
    descriptions: Sequence[Description], body: bytes | memoryview, start: int = 0
) -> list[Column]:
    """The columns whose buffers begin at `start`: read-only views of the body, but for strings.

    `measure` must have confirmed that the buffers end where the body ends.
    """
    unpacking = _Unpacking(body, start)
    return [unpacking.column(description) for description in descriptions]


class _Unpacking:
    """Reads one buffer after the other."""

    def __init__(self, body: bytes | memoryview, start: int) -> None:
        self._body = body
        self._at = start

    def column(self, description: Description) -> Any:
        kind, *rest = description
        match kind:
            case "array":
                return self._unpack_array(_number_dtype(rest[0]), rest[1])
            case "text":
                return self._unpack_text(*rest)
            case "ragged":
                dtype, rows, values = rest
                splits = self._unpack_array(_number_dtype(dtype), (rows + 1,))
                return Ragged.from_row_splits(self.column(values), splits)
            case "shapes":
                return self._shapes(*rest)
            case "leaves":
                return [self._unpack_leaf(leaf) for leaf in rest[0]]
        self._at += padded_size(rest[0])
        return [None] * rest[0]

    def _unpack_array(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        count, at = math.prod(shape), self._at
        if not count:
            return np.empty(shape, dtype)
        self._at = at + padded_size(count * dtype.itemsize)
        return np.frombuffer(self._body, dtype, count, at).reshape(shape)

    def _unpack_text(self, shape: Sequence[int], size: int) -> Array:
        lengths = self._unpack_array(_INT64, (math.prod(shape),))
        at, self._at = self._at, self._at + padded_size(size)
        if lengths.size and (lengths.min() < 0 or lengths.max() > size):
            raise ValueError("strings of impossible lengths")
        if lengths.sum() != size:
            raise ValueError("the lengths of strings do not add up")
        column = np.empty(len(lengths), object)
        column[:] = _cut(self._body, at, size, lengths)
        return column.reshape(shape)

    def _shapes(self, rows: int, total: int, flat: Description) -> list[Any]:
        ranks = self._unpack_array(_INT64, (rows,)).tolist()
        dims = self._unpack_array(_INT64, (total,)).tolist()
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

    def _unpack_leaf(self, description: Description) -> Any:
        leaf = self.column(description)
        if description[0] == "none":
            return None
        return leaf[()] if isinstance(leaf, np.ndarray) and not leaf.ndim else leaf


def _cut(body: bytes | memoryview, at: int, size: int, lengths: Array) -> list[bytes]:
    """Copies of the strings that lie one after the other in the `size` bytes from `at` on."""
    if isinstance(body, memoryview):
        body, at = body[at : at + size], 0
        if size <= _LARGE * len(lengths):
            body = bytes(body)  # Slicing bytes is faster than making bytes of slices.
    ends = (at + np.cumsum(lengths)).tolist()
    bounds = zip([at, *ends], ends, strict=False)
    if isinstance(body, bytes):
        return [body[a:b] for a, b in bounds]
    return [bytes(body[a:b]) for a, b in bounds]
