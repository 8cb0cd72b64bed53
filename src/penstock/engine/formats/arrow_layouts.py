"""Layouts: how the leaves of elements lie in a column of an Arrow file, and in its buffers.

    ["none"]                  Null: every leaf is None
    ["number", dtype]         numbers, one for each element
    ["text"]                  LargeBinary: strings
    ["fixed", shape, inner]   FixedSizeList: arrays of one shape; of two and more dimensions, the
                              extension arrow.fixed_shape_tensor; strings in nested lists
    ["list", splits, inner]   List or LargeList, by the dtype of the row splits: `Ragged`
    ["varied", rank, inner]   arrays of different shapes: LargeList for rank 1, the extension
                              arrow.variable_shape_tensor for more; if ranks differ (None), a
                              struct of the values and the shape

The schema of a file holds the layouts of its columns as JSON, so they consist of plain values. A
column fits into a layout if `covers` says so for its own layout.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from penstock.element import strings
from penstock.element.columns import Array, Column
from penstock.element.dtypes import as_dtype, of_numpy
from penstock.element.ragged import Ragged
from penstock.element.spec import NoneTensorSpec, RaggedTensorSpec, TensorSpec
from penstock.engine.formats.flat_tables import Scalar
from penstock.errors import InvalidArgumentError

Layout = list[Any]

_MOST_VALUES = (1 << 31) - 1
"""As many values can be in a FixedSizeList, and behind the offsets of a List."""

_LARGEST, _MAX_RANK = 1 << 48, 64


def layout_of(column: Column) -> Layout | None:
    """The layout of a column; None if its leaves are of different kinds."""
    if isinstance(column, Ragged):
        inner = layout_of(column.values)
        return None if inner is None else ["list", column.row_splits.dtype.name, inner]
    if isinstance(column, list):
        return _list_layout(column)
    return _layout_of_fixed(column.shape[1:], _leaf_layout(column.dtype))


def _layout_of_fixed(shape: Sequence[Any], inner: Layout) -> Layout:
    if not shape:
        return inner
    size = math.prod(shape)
    if 2 * size > _MOST_VALUES:  # A complex number is two values.
        return ["varied", None, inner]
    if not size:  # Polars reads no lists of the fixed size 0.
        return ["varied", len(shape), inner]
    return ["fixed", list(shape), inner]


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    return of_numpy(dtype).name


def _leaf_layout(dtype: np.dtype[Any]) -> Layout:
    return ["text"] if dtype.hasobject else ["number", _name_of(dtype)]


def _list_layout(leaves: list[Any]) -> Layout | None:
    kinds = set(map(type, leaves))
    if kinds == {type(None)}:
        return ["none"]
    if kinds == {Ragged}:
        first = layout_of(leaves[0])
        alike = all(layout_of(leaf) == first for leaf in leaves[1:])
        return ["list", "int64", first] if alike and first is not None else None
    if len(kinds) > 1 and not kinds.isdisjoint({type(None), Ragged}):
        return None
    is_plain = kinds == {np.ndarray}
    dtypes = {leaf.dtype for leaf in leaves} if is_plain else set(map(_dtype_of, leaves))
    if len(dtypes) > 1:
        return None
    inner = _leaf_layout(dtypes.pop())
    shapes = {leaf.shape for leaf in leaves} if is_plain else set(map(np.shape, leaves))
    if len(shapes) == 1:
        return _layout_of_fixed(shapes.pop(), inner)
    ranks = set(map(len, shapes))
    few = len(ranks) == 1 and sum(map(np.size, leaves)) <= _MOST_VALUES
    return ["varied", ranks.pop() if few else None, inner]


def _dtype_of(leaf: Any) -> np.dtype[Any]:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype
    if isinstance(leaf, bytes):
        return np.dtype(object)
    raise InvalidArgumentError(
        f"a {type(leaf).__name__} inside an element cannot be written to a file"
    )


def widen(layout: Layout, spec: Any) -> Layout:
    """The layout for all leaves that a spec describes, of which `layout` is the first."""
    if not isinstance(spec, TensorSpec) or layout[0] not in ("number", "text", "fixed", "varied"):
        return layout
    dims = spec.shape.dims
    if dims is None:
        return ["varied", None, _innermost(layout)]
    rank = None if layout[0] == "varied" and layout[1] is None else len(dims)
    return ["varied", rank, _innermost(layout)] if None in dims else layout


def layout_of_spec(spec: Any) -> Layout | None:
    """The layout for a file without elements; None if the spec does not say enough."""
    match spec:
        case NoneTensorSpec():
            return ["none"]
        case TensorSpec(shape, dtype):
            dims = shape.dims
            if dims is None or None in dims:
                return widen(_leaf_layout(dtype.dtype), spec)
            return _layout_of_fixed(dims, _leaf_layout(dtype.dtype))
        case RaggedTensorSpec(shape, dtype, rank, splits):
            inner = (shape.dims or (None,))[rank + 1 :]
            if shape.dims is None or None in inner:
                return None
            layout = _layout_of_fixed(inner, _leaf_layout(dtype.dtype))
            for _ in range(rank):
                layout = ["list", splits.name, layout]
            return ["list", "int64", layout]
    return None


def covers(layout: Layout, other: Layout) -> bool:
    """Whether a column whose own layout is `other` can be written in `layout`."""
    if layout == other:
        return True
    if layout[0] != "varied" or other[0] not in ("number", "text", "fixed", "varied"):
        return False
    return layout[1] in (None, _rank(other)) and _innermost(layout) == _innermost(other)


def _rank(layout: Layout) -> int | None:
    if layout[0] == "varied":
        rank: int | None = layout[1]
        return rank
    return len(layout[1]) if layout[0] == "fixed" else 0


def _innermost(layout: Layout) -> Layout:
    inner: Layout = layout[2] if layout[0] in ("fixed", "varied") else layout
    return inner


def check_layout(layout: Any) -> None:
    """Raises ValueError if `layout`, which comes from a file, is none."""
    match layout:
        case ["none"] | ["text"]:
            return
        case ["number", str(dtype)]:
            number_dtype(dtype)
        case ["fixed", [*shape], (["text"] | ["number", str()]) as inner]:
            is_shape = all(isinstance(size, int) and 0 <= size <= _LARGEST for size in shape)
            if len(shape) > _MAX_RANK or not is_shape:
                raise ValueError("a shape is a list of at most 64 sizes")
            check_layout(inner)
        case ["list", "int32" | "int64", (["text" | "number" | "fixed" | "list", *_]) as inner]:
            check_layout(inner)
        case ["varied", None, (["text"] | ["number", str()]) as inner]:
            check_layout(inner)
        case ["varied", int(rank), (["text"] | ["number", str()]) as inner]:
            if not 0 < rank <= _MAX_RANK:
                raise ValueError("a rank from 1 to 64")
            check_layout(inner)
        case _:
            raise ValueError(f"{layout!r:.80} is not a layout")


@lru_cache(maxsize=64)
def number_dtype(name: str) -> np.dtype[Any]:
    """The dtype of numbers with this name."""
    dtype = as_dtype(name).dtype
    if dtype.hasobject or dtype.name != name:
        raise ValueError(f"{name!r:.40} is not a type of numbers")
    return dtype


# Fields of the schema

_NULL, _INT, _FLOAT, _BOOL, _LIST, _STRUCT = 1, 2, 3, 6, 12, 13
_FIXED_LIST, _LARGE_BINARY, _LARGE_LIST = 16, 19, 21

_EXTENSION, _EXTENSION_METADATA = "ARROW:extension:name", "ARROW:extension:metadata"
DTYPE = "penstock.dtype"
"""The key in the metadata of a field whose numbers Arrow has no type for."""


class _Type(NamedTuple):
    kind: int
    table: dict[int, Any]
    children: Sequence[dict[int, Any]] = ()
    metadata: dict[str, str] = {}  # noqa: RUF012 (never changed)


def field_of(name: str, layout: Layout) -> dict[int, Any]:
    """The table `Field` of a column."""
    kind, table, children, metadata = _type_of(layout)
    field = {0: name, 1: Scalar("<B", 1), 2: Scalar("<B", kind), 3: table, 5: list(children)}
    return field | ({6: key_values(metadata)} if metadata else {})


def key_values(metadata: dict[str, str]) -> list[dict[int, Any]]:
    """Custom metadata, as tables `KeyValue`."""
    return [{0: key, 1: value} for key, value in metadata.items()]


def _type_of(layout: Layout) -> _Type:
    match layout:
        case ["none"]:
            return _Type(_NULL, {})
        case ["text"]:
            return _Type(_LARGE_BINARY, {})
        case ["number", dtype]:
            return _number_type(dtype)
        case ["fixed", shape, ["text"]]:
            inner = layout[2] if len(shape) == 1 else ["fixed", shape[1:], ["text"]]
            return _Type(_FIXED_LIST, {0: Scalar("<i", shape[0])}, [field_of("item", inner)])
        case ["fixed", shape, inner]:
            size = {0: Scalar("<i", math.prod(shape))}
            metadata = _tensor("arrow.fixed_shape_tensor", {"shape": shape})
            return _Type(
                _FIXED_LIST, size, [field_of("item", inner)], metadata if len(shape) > 1 else {}
            )
        case ["list", splits, inner]:
            kind = _LIST if splits == "int32" else _LARGE_LIST
            return _Type(kind, {}, [field_of("item", inner)])
        case ["varied", 1, inner]:
            return _type_of(["list", "int64", inner])
        case ["varied", None, inner]:
            return _struct(["list", "int64", inner], ["list", "int64", ["number", "int64"]])
    _, rank, inner = layout
    struct = _struct(["list", "int32", inner], ["fixed", [rank], ["number", "int32"]])
    return struct._replace(metadata=_tensor("arrow.variable_shape_tensor", {}))


def _struct(data: Layout, shape: Layout) -> _Type:
    return _Type(_STRUCT, {}, [field_of("data", data), field_of("shape", shape)])


def _tensor(name: str, parameters: dict[str, Any]) -> dict[str, str]:
    return {_EXTENSION: name, _EXTENSION_METADATA: json.dumps(parameters)}


def _number_type(name: str) -> _Type:
    dtype = number_dtype(name)
    if dtype.kind == "b":
        return _Type(_BOOL, {})
    if name == "bfloat16":
        return _number_type("uint16")._replace(metadata={DTYPE: name})
    if dtype.kind == "c":
        part = field_of("item", ["number", f"float{dtype.itemsize * 4}"])
        return _Type(_FIXED_LIST, {0: Scalar("<i", 2)}, [part], {DTYPE: name})
    if dtype.kind == "f":
        return _Type(_FLOAT, {0: Scalar("<h", dtype.itemsize.bit_length() - 2)})
    is_signed = Scalar("<B", dtype.kind == "i")
    return _Type(_INT, {0: Scalar("<i", 8 * dtype.itemsize), 1: is_signed})


# Columns as the buffers of a record batch, and back
#
# A record batch lists the length of every field and of its children, and where their buffers are.
# Nothing is missing in a column, so the buffers that would say what is missing are empty. What is
# read may make no sense, although its checksums are right: then a reader raises one of `MALFORMED`,
# and allocates no memory for values that the buffers do not have.

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
        offsets = _offsets_of(np.fromiter(map(len, items), _INT64, len(items)), _INT64)
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
    if dtype == _INT32 and offsets[-1] > _MOST_VALUES:
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
        inner: Any = _ragged_of(flats).values
    else:
        inner = np.concatenate(flats)
    return Ragged(Ragged(inner, splits), _offsets_of(counts, _INT64))


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
        body = self._body
        return strings.make_column([body[a:b] for a, b in itertools.pairwise(ends)])

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
