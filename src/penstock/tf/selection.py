"""Operations that pick, order and scatter values."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError
from penstock.tf.operations import dims, integer, numbers, operation
from penstock.tf.ragged_values import RaggedTensor, group_rows, wrap_rows
from penstock.tf.values import Array, match_operands, to_array


@operation
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """Values of `x` where the condition is True, else of `y`; alone, the indices of True."""
    if isinstance(condition, RaggedTensor):
        return _where_ragged(condition, x, y)
    mask = to_array(condition)
    if x is None and y is None:
        return np.argwhere(mask).astype(np.int64)
    if x is None or y is None:
        raise InvalidArgumentError("tf.where: x and y must both be given, or neither")
    left, right = match_operands("where", (x, y))
    return np.where(mask.astype(bool), left, right)


def _where_ragged(condition: RaggedTensor, x: Any, y: Any) -> Any:
    if x is None and y is None:
        return _find_true(condition.ragged)
    # Lists have the dtype of their values, not that of the condition.
    both = (to_array(one) if isinstance(one, list) else one for one in (x, y))
    flat = [condition.operand_like(one, "where") for one in both]
    return condition.with_flat_values(where(condition.flat_values, *flat))


def _find_true(rows: Any) -> Array:
    """The index of each true value: of its row, of its place in the row, and further inside."""
    if not isinstance(rows, Ragged):
        return np.argwhere(rows.astype(bool))
    places = _find_true(rows.flat)
    starts = rows.row_splits - rows.row_splits[0]
    numbers = np.searchsorted(starts, places[:, 0], "right") - 1
    places[:, 0] -= starts[numbers]
    return np.column_stack([numbers, places])


@operation
def gather(
    params: Any,
    indices: Any,
    validate_indices: Any = None,
    axis: Any = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Any:
    """The slices at `indices` along a dimension."""
    if isinstance(indices, RaggedTensor) and not isinstance(params, RaggedTensor):
        return indices.with_flat_values(gather(params, indices.flat_values, axis=axis))
    if isinstance(params, RaggedTensor):
        if axis not in (None, 0) or batch_dims or isinstance(indices, RaggedTensor):
            raise InvalidArgumentError("tf.gather: of ragged rows, only rows; loop over the rows")
        return _gather_rows(params.ragged, _in_range("gather", indices, len(params)))
    array = to_array(params)
    where = batch_dims if axis is None else integer("gather", "axis", axis)
    if batch_dims:
        return _gather_each(array, numbers("gather", indices, "iu"), where, batch_dims)
    return np.take(array, _in_range("gather", indices, array.shape[where]), where)


def _gather_rows(rows: Ragged, places: Array) -> Any:
    """The rows at places: one row, rows, or rows in one more dimension for each of the places."""
    if not places.ndim:
        return wrap_rows(rows[int(places)])
    return RaggedTensor(group_rows(rows.take(places.ravel()), places.shape))


def _gather_each(array: Array, places: Array, axis: int, batch_dims: int) -> Array:
    """The slices of each batch at its own places."""
    depth = batch_dims + places.ndim if batch_dims < 0 else batch_dims
    where = axis + array.ndim if axis < 0 else axis
    if array.shape[:depth] != places.shape[:depth] or not depth <= where < array.ndim:
        raise InvalidArgumentError(
            f"tf.gather: batch_dims={batch_dims} and axis={axis} do not fit the shapes "
            f"{array.shape} and {places.shape}"
        )
    rest = places.ndim - depth
    batch = np.indices(places.shape[:depth], sparse=True)
    index = [one.reshape(*one.shape, *[1] * rest) for one in batch]
    picked = _in_range("gather", places, array.shape[where])
    found = np.moveaxis(array, where, depth)[*index, picked]
    return np.moveaxis(found, range(depth, depth + rest), range(where, where + rest))


def _in_range(call: str, indices: Any, count: int) -> Array:
    places = numbers(call, indices, "iu")
    if places.size and not (places.min() >= 0 and places.max() < count):
        wrong = places[(places < 0) | (places >= count)].ravel()[0]
        raise InvalidArgumentError(f"tf.{call}: index {wrong} is not in [0, {count})")
    return places


@operation
def gather_nd(params: Any, indices: Any, batch_dims: int = 0, name: str | None = None) -> Any:
    """The values (or slices) at rows of indices."""
    array = to_array(params)
    if batch_dims:
        raise InvalidArgumentError("tf.gather_nd: batch_dims must be 0; use tf.gather")
    return array[_index_of_rows("gather_nd", indices, array.shape)]


def _index_of_rows(call: str, indices: Any, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Rows of indices as the index of an array, inside of its shape."""
    columns = np.moveaxis(numbers(call, indices, "iu"), -1, 0)
    return tuple(_in_range(call, places, shape[axis]) for axis, places in enumerate(columns))


@operation
def boolean_mask(
    tensor: Any, mask: Any, axis: Any = None, name: str | None = "boolean_mask"
) -> Any:
    """The values where the mask is True."""
    if isinstance(tensor, RaggedTensor) and not isinstance(mask, RaggedTensor):
        return RaggedTensor(tensor.ragged.take(np.flatnonzero(to_array(mask))))
    array, kept = to_array(tensor), to_array(mask).astype(bool)
    where = 0 if axis is None else int(axis)
    if kept.ndim == 0:
        raise InvalidArgumentError("tf.boolean_mask: mask cannot be scalar")
    if array.shape[where : where + kept.ndim] != kept.shape:
        raise InvalidArgumentError(
            f"tf.boolean_mask: the mask has the shape {kept.shape}, the tensor {array.shape}"
        )
    return array[(slice(None),) * where + (kept,)]


Unique = namedtuple("Unique", ["y", "idx"])
UniqueWithCounts = namedtuple("UniqueWithCounts", ["y", "idx", "count"])
TopKV2 = namedtuple("TopKV2", ["values", "indices"])


@operation
def unique(x: Any, out_idx: Any = np.int32, name: str | None = None) -> Any:
    """The different values in the order of their first occurrence, and where each value is."""
    values, places, _ = _unique(to_array(x))
    return Unique(values, places.astype(as_dtype(out_idx).dtype))


@operation
def unique_with_counts(x: Any, out_idx: Any = np.int32, name: str | None = None) -> Any:
    """`unique`, and how often each value occurs."""
    values, places, counts = _unique(to_array(x))
    kind = as_dtype(out_idx).dtype
    return UniqueWithCounts(values, places.astype(kind), counts.astype(kind))


def _unique(array: Array) -> tuple[Array, Array, Array]:
    if array.ndim != 1:
        raise InvalidArgumentError(f"tf.unique: expects a 1D vector, got shape {array.shape}")
    values, first, places, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return values[order], rank[places], counts[order]


@operation
def argmax(
    input: Any, axis: Any = None, output_type: Any = np.int64, name: str | None = None
) -> Any:
    """Where the greatest value is along a dimension, by default the first; nan is never it."""
    return _find_extreme(np.argmax, -np.inf, input, axis, output_type)


@operation
def argmin(
    input: Any, axis: Any = None, output_type: Any = np.int64, name: str | None = None
) -> Any:
    """Where the least value is along a dimension, by default the first; nan is never it."""
    return _find_extreme(np.argmin, np.inf, input, axis, output_type)


def _find_extreme(find: Any, worst: float, value: Any, axis: Any, output_type: Any) -> Any:
    """Where `np.argmax` or `np.argmin` finds a value; nan counts as the worst one."""
    call = find.__name__
    array = numbers(call, value, "biufc")
    if not array.ndim:
        raise InvalidArgumentError(f"tf.{call}: needs at least one dimension, got a single value")
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), worst, array)
    return find(array, 0 if axis is None else integer(call, "axis", axis)).astype(
        as_dtype(output_type).dtype
    )


def _is_descending(call: str, direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise InvalidArgumentError(f"tf.{call}: direction must be ASCENDING or DESCENDING")
    return direction == "DESCENDING"


@operation
def sort(values: Any, axis: Any = -1, direction: str = "ASCENDING", name: str | None = None) -> Any:
    """The values in order along a dimension."""
    made = np.sort(to_array(values), integer("sort", "axis", axis))
    return np.flip(made, int(axis)).copy() if _is_descending("sort", direction) else made


@operation
def argsort(
    values: Any,
    axis: Any = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Any:
    """The indices that put the values in order; equal values stay in order."""
    array, where = numbers("argsort", values), integer("argsort", "axis", axis)
    if _is_descending("argsort", direction):
        return _falling_order(array, where).astype(np.int32)
    return np.argsort(array, where, kind="stable").astype(np.int32)


def _falling_order(array: Array, axis: int) -> Array:
    """The indices from the greatest value to the least; equal values stay in order."""
    last = np.flip(np.argsort(np.flip(array, axis), axis, kind="stable"), axis)
    return array.shape[axis] - 1 - last


@operation
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    side: str = "left",
    out_type: Any = np.int32,
    name: str | None = None,
) -> Any:
    """Where values belong in sorted rows."""
    rows, wanted = match_operands("searchsorted", (sorted_sequence, values))
    rows, wanted = np.asarray(rows), np.asarray(wanted)
    if side not in ("left", "right"):
        raise InvalidArgumentError(f"tf.searchsorted: side must be left or right, got {side!r}")
    count = math.prod(rows.shape[:-1])
    flat, sought = rows.reshape(count, rows.shape[-1]), wanted.reshape(count, -1)
    made = [np.searchsorted(row, one, side) for row, one in zip(flat, sought, strict=True)]  # type: ignore[call-overload]
    return np.stack(made).reshape(wanted.shape).astype(as_dtype(out_type).dtype)


@operation
def top_k(
    input: Any,
    k: Any = 1,
    sorted: bool = True,
    index_type: Any = np.int32,
    name: str | None = None,
) -> Any:
    """The `k` greatest values of each row, and their indices."""
    array = numbers("math.top_k", input, "iuf")
    if not array.ndim or not 0 <= int(k) <= array.shape[-1]:
        raise InvalidArgumentError(f"tf.math.top_k: k is {int(k)}, but the shape is {array.shape}")
    order = _falling_order(array, -1)[..., : int(k)]
    return TopKV2(np.take_along_axis(array, order, -1), order.astype(_index_dtype(index_type)))


def _index_dtype(index_type: Any) -> Any:
    dtype = as_dtype(index_type)
    if dtype.name not in ("int16", "int32", "int64"):
        raise InvalidArgumentError(
            f"tf.math.top_k: index_type must be int16, int32 or int64, got {dtype.name}"
        )
    return dtype.dtype


@operation
def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Any:
    """Zeros in a shape, with updates added at rows of indices."""
    values = to_array(updates)
    result = np.zeros(dims("scatter_nd", shape), values.dtype)
    if values.dtype.kind == "O":
        result[...] = b""
    np.add.at(result, _index_of_rows("scatter_nd", indices, result.shape), values)
    return result


@operation
def tensor_scatter_nd_update(
    tensor: Any, indices: Any, updates: Any, name: str | None = None
) -> Any:
    """A copy of a tensor, with updates at rows of indices."""
    result = to_array(tensor).copy()
    places = _index_of_rows("tensor_scatter_nd_update", indices, result.shape)
    result[places] = to_array(updates, result.dtype)
    return result


@operation
def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: Any = np.int32,
    name: str | None = None,
    axis: Any = None,
    binary_output: bool = False,
) -> Any:
    """How often each integer occurs: in all, or with `axis=-1` in each row."""
    if isinstance(arr, RaggedTensor):
        if axis is not None:
            raise InvalidArgumentError("tf.math.bincount: ragged rows are counted without axis")
        arr = arr.flat_values
    places = to_array(arr)
    places = places if places.size else places.astype(np.int64)
    more = None if weights is None else to_array(weights)
    size = max(int(minlength or 0), int(places.max(initial=-1)) + 1)
    size = size if maxlength is None else min(size, int(maxlength))
    rows = places if axis is not None and int(axis) == -1 and places.ndim > 1 else [places.ravel()]
    amounts = [None] * len(rows) if more is None else more.reshape(len(rows), -1)
    pairs = zip(rows, amounts, strict=True)
    made = np.stack([np.bincount(row, one, size)[:size] for row, one in pairs])
    made = np.minimum(made, 1) if binary_output else made
    return (made if rows is places else made[0]).astype(
        as_dtype(dtype).dtype if more is None else more.dtype
    )


@operation
def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> Any:
    """The rows by the number of their partition."""
    if num_partitions < 1:
        raise InvalidArgumentError(
            f"tf.dynamic_partition: num_partitions must be at least 1, got {num_partitions}"
        )
    array, places = to_array(data), _in_range("dynamic_partition", partitions, num_partitions)
    return [array[places == number] for number in range(num_partitions)]


@operation
def in_top_k(targets: Any, predictions: Any, k: Any, name: str | None = None) -> Any:
    """Whether each target is among the `k` greatest predictions of its row."""
    rows, wanted = to_array(predictions), to_array(targets).astype(np.int64)
    known = (wanted >= 0) & (wanted < rows.shape[1])
    own = np.take_along_axis(rows, np.where(known, wanted, 0)[:, None], 1)
    known &= np.isfinite(own[:, 0])
    return known & ((rows > own).sum(1) < int(k))


@operation
def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    weights: Any = None,
    dtype: Any = np.int32,
    name: str | None = None,
) -> Any:
    """How often each label got each prediction."""
    rows, columns = to_array(labels).astype(np.int64), to_array(predictions).astype(np.int64)
    found = int(max(rows.max(initial=-1), columns.max(initial=-1))) + 1
    count = found if num_classes is None else int(num_classes)
    _in_range("math.confusion_matrix", rows, count)
    _in_range("math.confusion_matrix", columns, count)
    result = np.zeros((count, count), as_dtype(dtype).dtype)
    np.add.at(result, (rows, columns), 1 if weights is None else to_array(weights))
    return result


@operation
def invert_permutation(x: Any, name: str | None = None) -> Any:
    """Where each number is."""
    array = _in_range("math.invert_permutation", x, len(to_array(x)))
    if len(np.unique(array)) != len(array):
        raise InvalidArgumentError("tf.math.invert_permutation: a number occurs twice")
    result = np.empty_like(array)
    result[array] = np.arange(len(array), dtype=array.dtype)
    return result


@operation
def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: Any = None,
    batch_axis: Any = None,
    name: str | None = None,
) -> Any:
    """The first values of each row in reverse."""
    rows = np.moveaxis(to_array(input), (int(batch_axis or 0), int(seq_axis)), (0, 1)).copy()
    for number, length in enumerate(to_array(seq_lengths).tolist()):
        if not 0 <= length <= rows.shape[1]:
            raise InvalidArgumentError(
                f"tf.reverse_sequence: a length of {length}, but rows have {rows.shape[1]} values"
            )
        rows[number, :length] = rows[number, :length][::-1].copy()
    return np.moveaxis(rows, (0, 1), (int(batch_axis or 0), int(seq_axis)))


@operation
def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Any:
    """The places of values in an array, from their places in its flat form."""
    array = to_array(indices)
    return np.stack(np.unravel_index(array, tuple(to_array(dims).tolist()))).astype(array.dtype)
