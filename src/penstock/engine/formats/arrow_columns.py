"""Arrow arrays as columns of elements, and Arrow types as specs.

Nothing is converted silently: a type that elements cannot have is refused with a reason, and a
missing value is an error unless there is a value to fill in. docs/files.md has the table of types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.dtypes import of_numpy
from penstock.element.dtypes import string as string_dtype
from penstock.element.index import Index, array_of
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.engine.formats.exact_values import find_changed, is_bytes, is_list, is_string
from penstock.engine.formats.extras import arrow
from penstock.engine.formats.tables import Selection
from penstock.engine.gather import TakeRows
from penstock.errors import InvalidArgumentError

MISSING = object()


class UnreadableTypeError(Exception):
    """An Arrow type that elements cannot have; the text is the reason."""


class MissingValueError(Exception):
    """A missing value, in row `row` of an array."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def specs_of(schema: Any) -> dict[str, Any]:
    """The spec of every column; the reason, as a text, for a column that cannot be read.

    Most files of a dataset have the schema of the file before, whose specs are kept.
    """
    global _latest
    known, specs = _latest
    if known is None or not schema.equals(known):
        specs = _find_specs(schema)
        _latest = schema, specs
    return dict(specs)


_latest: tuple[Any, dict[str, Any]] = (None, {})
"""A schema and its specs. It is replaced as a whole, so that threads need no lock."""


def _find_specs(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in schema:
        if field.name in found:
            found[field.name] = "the table has two columns of this name"
            continue
        try:
            found[field.name] = spec_of(field.type)
        except UnreadableTypeError as error:
            found[field.name] = str(error)
    return found


def spec_of(kind: Any) -> Any:
    """The spec of an element's value in a column of an Arrow type; a dict for a struct."""
    if arrow.types.is_struct(kind):
        return {field.name: spec_of(field.type) for field in kind}
    if arrow.types.is_null(kind):
        raise UnreadableTypeError("it has no values at all")
    if _is_variable_tensor(kind):
        data, shape = kind.storage_type
        return TensorSpec([None] * shape.type.list_size, _layout(data.type.value_type)[2])
    shape, ragged_rank, dtype = _layout(kind)
    if ragged_rank:
        return RaggedTensorSpec(shape, dtype, ragged_rank - 1)
    return TensorSpec(shape, dtype)


def _layout(kind: Any) -> tuple[tuple[int | None, ...], int, Any]:
    """The shape of a value, how many of its leading dimensions are ragged, and the dtype."""
    if arrow.types.is_dictionary(kind):
        return _layout(kind.value_type)
    if _is_tensor(kind):
        order = kind.permutation or range(len(kind.shape))  # Of the dimensions, as they are stored.
        return tuple(kind.shape[dimension] for dimension in order), 0, _layout(kind.value_type)[2]
    if hasattr(kind, "storage_type"):
        return _layout(kind.storage_type)
    if is_list(kind):
        shape, rank, dtype = _layout(kind.value_type)
        return (None, *shape), rank + 1, dtype
    if arrow.types.is_fixed_size_list(kind):
        shape, rank, dtype = _layout(kind.value_type)
        return (kind.list_size, *shape), rank + 1 if rank else 0, dtype
    if _is_text(kind) or arrow.types.is_decimal(kind):
        return (), 0, string_dtype
    return (), 0, _dtype_of(kind)


def _dtype_of(kind: Any) -> Any:
    if arrow.types.is_boolean(kind):
        return of_numpy(np.dtype(bool))
    if arrow.types.is_temporal(kind) and not arrow.types.is_interval(kind):
        return of_numpy(np.dtype(f"int{kind.bit_width}"))
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
        return of_numpy(np.dtype(kind.to_pandas_dtype()))
    inside = "; give its fields columns of their own" if arrow.types.is_struct(kind) else ""
    raise UnreadableTypeError(f"its type is {kind}, which elements cannot have{inside}")


def _is_text(kind: Any) -> bool:
    return is_string(kind) or is_bytes(kind)


def _is_tensor(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor"


def _is_variable_tensor(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.variable_shape_tensor"


def convert(array: Any, fill: Any = MISSING) -> Any:
    """An Arrow array as a column; as a dict of columns, if it has structs.

    Raises MissingValueError for the first missing value, if there is nothing to fill in.
    """
    kind = array.type
    if arrow.types.is_dictionary(kind):
        return _from_dictionary(array, fill)
    if _is_tensor(kind):
        return _from_tensors(array, fill)
    if _is_variable_tensor(kind):
        values, shapes = map(convert, _refuse_nulls(array).storage.flatten())
        return [row.reshape(shape) for row, shape in zip(values, shapes.tolist(), strict=True)]
    if hasattr(kind, "storage_type"):
        return convert(array.storage, fill)
    if arrow.types.is_struct(kind):
        return _from_structs(array, fill)
    if is_list(kind):
        return _from_lists(array, fill)
    if arrow.types.is_fixed_size_list(kind):
        return _from_fixed_lists(array, fill)
    array = _fill_nulls(array, fill)
    if arrow.types.is_decimal(kind):
        array = array.cast("string")
    if arrow.types.is_decimal(kind) or _is_text(kind):
        return array.cast("binary").to_numpy(zero_copy_only=False)
    if arrow.types.is_temporal(kind):
        array = array.view(f"int{kind.bit_width}")
    return array.to_numpy(zero_copy_only=False)


def _fill_nulls(array: Any, fill: Any) -> Any:
    if not array.null_count:
        return array
    if fill is MISSING:
        return _refuse_nulls(array)
    return arrow.compute.fill_null(array, scalar_of(fill, array.type))


def scalar_of(fill: Any, kind: Any) -> Any:
    """A value to fill in, as an Arrow scalar; ValueError or TypeError if it does not fit."""
    if arrow.types.is_temporal(kind):
        return _exact_scalar(fill, f"int{kind.bit_width}").cast(kind)
    if arrow.types.is_decimal(kind) and isinstance(fill, str | bytes):
        fill = fill if isinstance(fill, str) else fill.decode()
        return arrow.scalar(fill).cast(kind)
    if _is_text(kind):
        if not isinstance(fill, str | bytes):
            raise TypeError("it is not a string")
        return arrow.scalar(fill, kind)
    if arrow.types.is_boolean(kind) and not isinstance(fill, bool | np.bool_):
        raise TypeError("it is not a bool")
    return _exact_scalar(fill, kind)


def _exact_scalar(fill: Any, kind: Any) -> Any:
    array = arrow.array([fill], kind)
    if array.null_count:
        raise TypeError("it is a missing value")
    if find_changed([fill], array) is not None:
        raise ValueError(f"it would become {array[0]}")
    return array[0]


def _refuse_nulls(array: Any) -> Any:
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        raise MissingValueError(int(missing.argmax()))
    return array


def _from_dictionary(array: Any, fill: Any) -> Any:
    """Every distinct value is converted once."""
    if array.null_count or array.dictionary.null_count:
        return convert(array.dictionary_decode(), fill)
    values = convert(array.dictionary)
    return values[array.indices.to_numpy(zero_copy_only=False)]


def _from_structs(array: Any, fill: Any) -> dict[str, Any]:
    if fill is MISSING:
        _refuse_nulls(array)
    parts = zip(array.type, array.flatten(), strict=True)
    return {field.name: convert(part, fill) for field, part in parts}


def _from_lists(array: Any, fill: Any) -> Ragged:
    """A missing list becomes an empty one, if there is a value to fill in."""
    if array.null_count:
        if fill is MISSING:
            _refuse_nulls(array)
        array = arrow.compute.coalesce(array, arrow.scalar([], array.type))
    splits = array.offsets.to_numpy()
    splits = splits - splits[0] if splits[0] else splits
    try:
        return Ragged(convert(array.flatten(), fill), splits)
    except MissingValueError as error:
        row = int(np.searchsorted(splits, error.row, side="right")) - 1
        raise MissingValueError(row) from None


def _from_tensors(array: Any, fill: Any) -> Any:
    kind = array.type
    column = _from_fixed_lists(array.storage, fill).reshape(len(array), *kind.shape)
    order = kind.permutation or range(len(kind.shape))
    return column.transpose(0, *(1 + dimension for dimension in order))


def _from_fixed_lists(array: Any, fill: Any) -> Any:
    """All items of a missing list are missing, if there is a value to fill in."""
    size = array.type.list_size
    if array.null_count and fill is not MISSING:
        values = _items_of_fixed_lists(array)
    else:
        values = _refuse_nulls(array).flatten()
    try:
        column = convert(values, fill)
    except MissingValueError as error:
        raise MissingValueError(error.row // size) from None
    if isinstance(column, Ragged):
        return Ragged(column, np.arange(len(array) + 1) * size)
    return column.reshape(len(array), size, *column.shape[1:])


def _items_of_fixed_lists(array: Any) -> Any:
    """The items of all lists; null for those of a missing list, which Arrow leaves undefined."""
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    is_there = np.repeat(array.is_valid().to_numpy(zero_copy_only=False), size)
    return arrow.compute.if_else(arrow.array(is_there), items, arrow.scalar(None, items.type))


class ArrowBlock:
    """The rows of an Arrow record batch.

    Numbers are views of Arrow's memory. All other columns are converted when their rows are read.
    String views are copied to strings before: Arrow cannot gather them, nor fill in their nulls.
    """

    def __init__(self, batch: Any, first: int, selection: Selection, mapped: bool = False) -> None:
        self._first = first
        self._selection = selection
        found = {name: batch.column(name) for name in selection.columns}
        self._arrays = {name: _without_string_views(array) for name, array in found.items()}
        self._length = batch.num_rows
        self._views = {name: _view_of(array) for name, array in self._arrays.items()}
        copied = (array for name, array in self._arrays.items() if array is not found[name])
        size = sum(array.nbytes for array in (copied if mapped else self._arrays.values()))
        self.nbytes = size + _OVERHEAD * (1 + len(self._arrays))

    def rows(self, index: Index, take: TakeRows) -> Chunk:
        columns = {name: self._column(name, index, take) for name in self._arrays}
        leaves, tree = nest.flatten(columns)
        return Chunk(tree, leaves, len(index))

    def _column(self, name: str, index: Index, take: TakeRows) -> Any:
        view = self._views[name]
        is_slice = isinstance(index, range) and index.step == 1
        if view is not None:
            return view[index.start : index.stop] if is_slice else take(view, array_of(index))  # type: ignore[union-attr]
        array = self._arrays[name]
        if is_slice:
            array = array.slice(index.start, len(index))  # type: ignore[union-attr]
        else:
            array = _take(array, array_of(index))
        return convert_column(array, name, self._selection, array_of(index) + self._first)


_OVERHEAD = 1 << 11
"""About what the objects of one column occupy, besides their values."""


def _view_of(array: Any) -> Array | None:
    """The array as a view, if it has plain numbers or fixed-size lists of them, and no nulls."""
    if array.null_count:
        return None
    if arrow.types.is_fixed_size_list(array.type):
        values = _view_of(array.flatten())
        shape = (len(array), array.type.list_size)
        return None if values is None else values.reshape(*shape, *values.shape[1:])
    if not (arrow.types.is_integer(array.type) or arrow.types.is_floating(array.type)):
        return None
    view: Array = array.to_numpy(zero_copy_only=True)
    return view


def _without_string_views(array: Any) -> Any:
    kind = _without_views(array.type)
    return array if kind == array.type else array.cast(kind)


def _without_views(kind: Any) -> Any:
    """An Arrow type with strings in place of string views."""
    if arrow.types.is_string_view(kind):
        return arrow.large_string()
    if arrow.types.is_binary_view(kind):
        return arrow.large_binary()
    if arrow.types.is_dictionary(kind):
        return arrow.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    if arrow.types.is_struct(kind):
        return arrow.struct([field.with_type(_without_views(field.type)) for field in kind])
    if not (is_list(kind) or arrow.types.is_fixed_size_list(kind)):
        return kind
    values = kind.value_field.with_type(_without_views(kind.value_type))
    if arrow.types.is_fixed_size_list(kind):
        return arrow.list_(values, kind.list_size)
    return arrow.large_list(values) if arrow.types.is_large_list(kind) else arrow.list_(values)


def _take(array: Any, rows: Array) -> Any:
    """Rows of an array, in any order."""
    if _has_shifted_lists(array):
        # The `take` of Arrow 26 ignores offsets of nested fixed-size lists: it copies other rows.
        parts = (array.slice(row, 1) for row in rows.tolist())
        return arrow.concat_arrays([array.slice(0, 0), *parts])
    return array.take(arrow.array(rows))


def _has_shifted_lists(array: Any, is_shifted: bool = False, depth: int = 0) -> bool:
    """Whether an array has fixed-size lists in fixed-size lists, some of which have an offset.

    `depth` counts the fixed-size lists around the array; `is_shifted` says if one has an offset.
    """
    kind = array.type
    if hasattr(kind, "storage_type"):
        return _has_shifted_lists(array.storage, is_shifted, depth)
    if arrow.types.is_fixed_size_list(kind):
        is_shifted = is_shifted or array.offset > 0
        return (is_shifted and depth > 0) or _has_shifted_lists(array.values, is_shifted, depth + 1)
    if arrow.types.is_struct(kind):
        parts = (array.field(number) for number in range(kind.num_fields))
        return any(_has_shifted_lists(part) for part in parts)
    if is_list(kind):
        return _has_shifted_lists(array.values)
    return depth > 1 and (is_shifted or array.offset > 0)


def convert_column(array: Any, name: str, selection: Selection, rows: Array) -> Any:
    """A column, or an error that names the column, the table and the row."""
    fill = selection.fill.get(name, MISSING)
    try:
        return convert(array, fill)
    except MissingValueError as error:
        table = repr(selection.path) if selection.path else "the table"
        raise InvalidArgumentError(
            f"{selection.call}: {table}, row {int(rows[error.row])}: "
            f"{missing_value_words(name, array.type)}"
        ) from None


def missing_value_words(name: str, kind: Any) -> str:
    """What is wrong, and what to do, where a column has no value."""
    example = _example(kind)
    remedy = "leave the column out with columns=[...]"
    if example is not None:
        remedy = f"give a value for it, as in fill={{{name!r}: {example}}}, or {remedy}"
    return f"column {name!r} has no value (null); {remedy}"


def _example(kind: Any) -> str | None:
    """A value that can be filled into a column, as a program writes it; None if none can."""
    candidates: dict[str, Any] = {"0": 0, "''": "", "False": False}
    for leaf in filter(arrow.types.is_fixed_size_binary, _leaf_kinds(kind)):
        candidates[f"bytes({leaf.byte_width})"] = bytes(leaf.byte_width)
    return next((code for code, value in candidates.items() if fits(value, kind) is None), None)


def check_fill(call: str, fill: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The value to fill in for each column, from one value for all or a dict by column.

    One value for all is for the columns that it fits.
    """
    if fill is None:
        return {}
    if not isinstance(fill, Mapping):
        fitting = {name: fill for name, kind in kinds.items() if fits(fill, kind) is None}
        if kinds and not fitting:
            types = ", ".join(f"{name!r}: {kind}" for name, kind in kinds.items())
            raise InvalidArgumentError(
                f"{call}: fill={fill!r} fits no column; give a value of the type of one, which "
                f"are {types:.200}"
            )
        return fitting
    for name, value in fill.items():
        if name not in kinds:
            raise InvalidArgumentError(
                f"{call}: fill has a value for {name!r}, but the columns are {', '.join(kinds)}; "
                "name some of these"
            )
        if (problem := fits(value, kinds[name])) is not None:
            raise InvalidArgumentError(
                f"{call}: fill has {value!r} for column {name!r} of type {kinds[name]}: {problem}; "
                f"{_fill_remedy(kinds[name])}"
            )
    return dict(fill)


def _fill_remedy(kind: Any) -> str:
    if arrow.types.is_struct(kind):
        return (
            "one value fills all fields of a struct, so it must fit each of them; else write the "
            "fields as columns, or leave the struct out with columns=[...]"
        )
    if is_list(kind) and (example := _example(kind)) is not None:
        return (
            f"give a value for its items, such as {example}, and a missing list becomes an empty "
            "one; or leave the column out with columns=[...]"
        )
    return "give a value that the column can hold, or leave the column out with columns=[...]"


def fits(fill: Any, kind: Any) -> str | None:
    """Why a value cannot be filled into a column of an Arrow type; None if it can."""
    if _is_variable_tensor(kind):
        return "a missing tensor has no shape"
    try:
        for leaf in _leaf_kinds(kind):
            scalar_of(fill, leaf)
    except (ValueError, TypeError, OverflowError) as error:
        return str(error)
    return None


def _leaf_kinds(kind: Any) -> Iterator[Any]:
    """The types of the values inside lists, structs and dictionaries."""
    if arrow.types.is_struct(kind):
        for field in kind:
            yield from _leaf_kinds(field.type)
    elif hasattr(kind, "value_type"):
        yield from _leaf_kinds(kind.value_type)
    elif hasattr(kind, "storage_type"):
        yield from _leaf_kinds(kind.storage_type)
    else:
        yield kind
