"""Layouts: how the leaves of elements lie in a column of an Arrow file.

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

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array, Column
from penstock.element.dtypes import as_dtype, of_numpy
from penstock.element.ragged import Ragged
from penstock.element.spec import NoneTensorSpec, RaggedTensorSpec, TensorSpec
from penstock.engine.formats.flat_tables import Scalar
from penstock.errors import InvalidArgumentError

Layout = list[Any]

MOST_VALUES = (1 << 31) - 1
"""As many values can be in a FixedSizeList, and behind the offsets of a List."""

_LARGEST, _MAX_RANK = 1 << 48, 64


def layout_of(column: Column) -> Layout | None:
    """The layout of a column; None if its leaves are of different kinds."""
    if isinstance(column, Ragged):
        inner = layout_of(column.values)
        return None if inner is None else ["list", column.row_splits.dtype.name, inner]
    return _list_layout(column) if isinstance(column, list) else _array_layout(column)


def _array_layout(array: Array) -> Layout:
    return _layout_of_fixed(array.shape[1:], _leaf_layout(array.dtype))


def _layout_of_fixed(shape: Sequence[Any], inner: Layout) -> Layout:
    if not shape:
        return inner
    size = math.prod(shape)
    if 2 * size > MOST_VALUES:  # A complex number is two values.
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
    few = len(ranks) == 1 and sum(map(np.size, leaves)) <= MOST_VALUES
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
            if len(shape) > _MAX_RANK or not all(_is_size(size) for size in shape):
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


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and 0 <= size <= _LARGEST


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
