"""Columns as the buffers of a record batch, and back, by their layouts.

A record batch lists the length of every field and of its children, and where their buffers are.
Nothing is missing in a column, so the buffers that would say what is missing are empty. What is
read may make no sense, although its checksums are right: then a reader raises one of `MALFORMED`,
and allocates no memory for values that the buffers do not have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.element.columns import Array, Column
from penstock.element.ragged import Ragged
from penstock.engine.formats.arrow_layouts import MOST_VALUES, Layout, number_dtype
from penstock.errors import InvalidArgumentError

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_LARGE = 16 << 10  # From this mean size on, writing strings one by one is cheaper than joining.

Part = Any
"""Some bytes of a buffer: a contiguous array, or bytes."""


class BatchBuffers:
    """Collects the lengths and the buffers of the columns of one record batch."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.buffers: list[list[Part]] = []

    def add(self, column: Column, layout: Layout) -> None:
        match layout:
            case ["none"]:
                self.lengths.append(len(column))
            case ["number" | "text", *_]:
                self._leaves(_array_of(column), layout)
            case ["fixed", shape, inner]:
                self._add_fixed(_array_of(column), shape, inner)
            case ["list", splits, inner]:
                ragged = column if isinstance(column, Ragged) else _ragged_of(column)
                self._begin_field(len(ragged))
                offsets = ragged.row_splits - ragged.row_splits[0]
                self.buffers.append([offsets.astype(splits, copy=False)])
                self.add(ragged.flat, inner)
            case ["varied", rank, inner]:
                self._add_varied(column, rank, inner)

    def _begin_field(self, length: int) -> None:
        """Begins a field that has no missing values."""
        self.lengths.append(length)
        self.buffers.append([])

    def _leaves(self, array: Array, layout: Layout) -> None:
        if layout[0] == "text":
            self._text(array.tolist())
        else:
            self._numbers(array, number_dtype(layout[1]))

    def _numbers(self, array: Array, dtype: np.dtype[Any]) -> None:
        self._begin_field(len(array))
        values = np.ascontiguousarray(array, dtype)
        if dtype.kind == "b":
            values = np.packbits(values, bitorder="little")
        elif dtype.kind == "c":
            self._begin_field(2 * len(values))
        self.buffers.append([values.view(np.uint8)])

    def _text(self, items: list[bytes]) -> None:
        self._begin_field(len(items))
        offsets = np.zeros(len(items) + 1, _INT64)
        np.cumsum(np.fromiter(map(len, items), _INT64, len(items)), out=offsets[1:])
        is_large = offsets[-1] > _LARGE * len(items)
        self.buffers += [[offsets], list(items) if is_large else [b"".join(items)]]

    def _add_fixed(self, array: Array, shape: Sequence[int], inner: Layout) -> None:
        counts = np.cumprod(shape) if inner[0] == "text" else [math.prod(shape)]
        self._begin_field(len(array))
        for count in counts[:-1]:
            self._begin_field(len(array) * int(count))
        self._leaves(array.reshape(-1), inner)

    def _add_varied(self, column: Column, rank: int | None, inner: Layout) -> None:
        rows, shapes = len(column), _shapes_of(column)
        if rank != 1:
            self._begin_field(rows)
        self._begin_field(rows)
        sizes = np.fromiter(map(math.prod, shapes), _INT64, rows)
        self.buffers.append([_offsets_of(sizes, _INT64 if rank in (1, None) else _INT32)])
        self._leaves(_flatten_leaves(column), inner)
        if rank == 1:
            return
        self._begin_field(rows)
        dims = np.array([dim for shape in shapes for dim in shape], _INT64)
        if rank is None:
            ranks = np.fromiter(map(len, shapes), _INT64, rows)
            self.buffers.append([_offsets_of(ranks, _INT64)])
        self._numbers(dims, _INT64 if rank is None else _INT32)


def _offsets_of(lengths: Array, dtype: np.dtype[Any]) -> Array:
    offsets = np.zeros(len(lengths) + 1, _INT64)
    np.cumsum(lengths, out=offsets[1:])
    return _convert_offsets(offsets, dtype)


def _convert_offsets(offsets: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == _INT32 and offsets[-1] > MOST_VALUES:
        raise InvalidArgumentError(
            f"{offsets[-1]} values are too many for row splits of int32; use int64"
        )
    return offsets.astype(dtype, copy=False)


def _array_of(column: Column) -> Array:
    """A column of leaves of one shape as an array."""
    if not isinstance(column, list):
        return column  # type: ignore[return-value]
    array = np.empty((len(column), *np.shape(column[0])), getattr(column[0], "dtype", object))
    for place, leaf in enumerate(column):
        array[place] = leaf
    return array


def _ragged_of(leaves: Column) -> Ragged:
    """Leaves that are `Ragged` as one `Ragged` of them, with row splits of the same dtype."""
    rows = [leaf.row_splits - leaf.row_splits[0] for leaf in leaves]
    counts = np.array([len(splits) - 1 for splits in rows])
    starts = _offsets_of(np.array([splits[-1] for splits in rows]), _INT64)
    joined = [splits[:-1] + start for splits, start in zip(rows, starts[:-1], strict=True)]
    splits = _convert_offsets(np.concatenate([*joined, starts[-1:]]), rows[0].dtype)
    flats = [leaf.flat for leaf in leaves]
    if isinstance(flats[0], Ragged):
        inner: Any = _join_ragged(flats)
    else:
        inner = np.concatenate(flats)
    return Ragged(Ragged(inner, splits), _offsets_of(counts, _INT64))


def _join_ragged(parts: list[Any]) -> Ragged:
    joined = _ragged_of(parts).values
    assert isinstance(joined, Ragged)
    return joined


def _shapes_of(column: Column) -> list[tuple[int, ...]]:
    if isinstance(column, np.ndarray):
        return [column.shape[1:]] * len(column)
    return [leaf.shape if type(leaf) is np.ndarray else np.shape(leaf) for leaf in column]


def _flatten_leaves(column: Column) -> Array:
    """The values of all leaves of a column."""
    if isinstance(column, np.ndarray):
        return column.reshape(-1)
    if any(isinstance(leaf, bytes) for leaf in column):
        column = [_array_of([leaf]) if isinstance(leaf, bytes) else leaf for leaf in column]
    return np.concatenate([leaf.ravel() for leaf in column])


class BatchColumns:
    """Reads the buffers of one record batch in turn: views of its body, but for strings."""

    def __init__(self, body: bytes, buffers: Array) -> None:
        self._body = body
        self._buffers: Iterator[list[int]] = iter(buffers.tolist())

    def column(self, layout: Layout, rows: int) -> Any:
        match layout:
            case ["none"]:
                return [None] * rows
            case ["number" | "text", *_]:
                return self._leaves(rows, layout)
            case ["fixed", shape, inner]:
                for _ in range(len(shape) if inner[0] == "text" else 1):
                    self._skip_validity()
                return self._leaves(rows * math.prod(shape), inner).reshape(rows, *shape)
            case ["list", splits, inner]:
                self._skip_validity()
                row_splits = self._array(np.dtype(splits), rows + 1)
                values = self.column(inner, int(row_splits[-1]))
                return Ragged.from_row_splits(values, row_splits)
        return self._read_varied(rows, layout[1], layout[2])

    def check_end(self) -> None:
        if next(self._buffers, None) is not None:
            raise ValueError("more buffers than the columns have")

    def _next(self) -> tuple[int, int]:
        offset, length = next(self._buffers, (0, -1))
        if not 0 <= offset <= offset + length <= len(self._body):
            raise ValueError("a buffer outside of the record batch")
        return offset, length

    def _skip_validity(self) -> None:
        if self._next()[1]:
            raise ValueError("a column with missing values")

    def _array(self, dtype: np.dtype[Any], count: int) -> Array:
        offset, length = self._next()
        if not 0 <= count * dtype.itemsize <= length:
            raise ValueError(f"a buffer of {length} bytes for {count} values")
        return np.frombuffer(self._body, dtype, count, offset) if count else np.empty(0, dtype)

    def _leaves(self, count: int, layout: Layout) -> Array:
        self._skip_validity()
        if layout[0] == "text":
            return self._text(count)
        dtype = number_dtype(layout[1])
        if dtype.kind == "b":
            bits = self._array(np.dtype(np.uint8), (count + 7) // 8)
            flags = np.unpackbits(bits, count=count, bitorder="little").view(bool)
            flags.flags.writeable = False
            return flags
        if dtype.kind == "c":
            self._skip_validity()
        return self._array(dtype, count)

    def _text(self, count: int) -> Array:
        offsets = self._offsets(_INT64, count)
        start, length = self._next()
        if offsets[-1] > length:
            raise ValueError("strings outside of their buffer")
        ends = (start + offsets).tolist()
        body, column = self._body, np.empty(count, object)
        column[:] = [body[a:b] for a, b in itertools.pairwise(ends)]
        return column

    def _offsets(self, dtype: np.dtype[Any], rows: int) -> Array:
        offsets = self._array(dtype, rows + 1)
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets that do not rise from 0")
        return offsets

    def _read_varied(self, rows: int, rank: int | None, inner: Layout) -> Column:
        if rank != 1:
            self._skip_validity()
        self._skip_validity()
        offsets = self._offsets(_INT64 if rank in (1, None) else _INT32, rows)
        values = self._leaves(int(offsets[-1]), inner)
        if rank == 1:
            shapes = np.diff(offsets)[:, None]
        elif rank is None:
            return self._any_rank(values, offsets)
        else:
            self._skip_validity()
            self._skip_validity()
            shapes = self._array(_INT32, rows * rank).reshape(rows, rank).astype(_INT64)
        return _cut(values, offsets, shapes)

    def _any_rank(self, values: Array, offsets: Array) -> Column:
        self._skip_validity()
        rows = len(offsets) - 1
        places = self._offsets(_INT64, rows)
        self._skip_validity()
        dims = self._array(_INT64, int(places[-1]))
        if len(ranks := set(np.diff(places).tolist())) == 1:
            return _cut(values, offsets, dims.reshape(rows, ranks.pop()))
        if max(ranks) > 64:
            raise ValueError("an array of more than 64 dimensions")
        ends = offsets.tolist()
        shapes = [dims[a:b].tolist() for a, b in itertools.pairwise(places)]
        return [
            _reshape(values[a:b], shape)
            for a, b, shape in zip(ends, ends[1:], shapes, strict=False)
        ]


def _reshape(values: Array, shape: list[int]) -> Any:
    if min(shape, default=0) < 0:
        raise ValueError("a negative dimension")
    return values.reshape(shape) if shape else values.reshape(1)[0]


def _cut(values: Array, offsets: Array, shapes: Array) -> Column:
    """The leaves that lie one after the other: an array if their shapes are equal, else a list."""
    if shapes.size and shapes.min() < 0:
        raise ValueError("a negative dimension")
    if shapes.shape[1] and shapes.shape[0] and (np.prod(shapes, axis=1) != np.diff(offsets)).any():
        raise ValueError("shapes that do not fit their values")
    if len(shapes) and (shapes == shapes[0]).all():
        return values.reshape(len(shapes), *shapes[0].tolist())
    ends = offsets.tolist()
    if shapes.shape[1] == 1:
        return [values[a:b] for a, b in itertools.pairwise(ends)]
    bounds = zip(ends, ends[1:], shapes.tolist(), strict=False)
    return [values[a:b].reshape(shape) for a, b, shape in bounds]
