"""Reductions: sums, means, extremes and cumulated values, in the dtype of the argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError, OutOfRangeError, UnfitTypeError
from penstock.shim import arrays as plain
from penstock.tf.operations import axes, integer, name_call, numbers, operation, texts
from penstock.tf.ragged_shapes import DynamicRaggedShape
from penstock.tf.ragged_values import RaggedTensor, fill_rows
from penstock.tf.values import Array, as_tensor, divide_arrays, plain_leaf, to_array

Compute = Callable[[Array, Any, bool], Any]


def _reduction(name: str, compute: Compute, kinds: str = "iufc") -> Callable[..., Any]:
    def reduce_array(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> Any:
        array = numbers(name, input_tensor, kinds if kinds != "f" else "iufc")
        if kinds == "f" and array.dtype.kind in "iu":
            raise UnfitTypeError(f"tf.{name}: needs floats, got {array.dtype.name}; use tf.cast")
        if not array.ndim and axes(axis) not in (None, ()):
            raise InvalidArgumentError(f"tf.{name}: a single value has no dimension {axis}")
        wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        with np.errstate(all="ignore"):
            result = np.asarray(compute(wide, axes(axis), keepdims))
        return result if kinds == "b" else result.astype(array.dtype, copy=False)

    reduce_array.__name__ = name
    on_array = operation(reduce_array)

    def call(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Any:
        if isinstance(input_tensor, RaggedTensor):
            one = _mean_of_row if compute is plain.reduce_mean else on_array
            rows = input_tensor
            if kinds == "f" and rows.dtype.is_integer:
                rows = rows.with_flat_values(plain_leaf(rows.flat_values).astype(np.float64))
            return _reduce_ragged(one, rows, axis, keepdims)
        return on_array(input_tensor, axis, keepdims)

    return name_call(call, name, f"`{name}` along `axis`: one, several, or all dimensions.")


def _reduce_ragged(call: Callable[..., Any], rows: RaggedTensor, axis: Any, keep: bool) -> Any:
    """A reduction of all values, or of each row; of rows of rows, also of the inner ones."""
    depth = len(rows.shape)
    places = [*range(depth)] if axis is None else np.atleast_1d(axes(axis)).tolist()
    if not all(-depth <= place < depth for place in places):
        raise InvalidArgumentError(
            f"tf: ragged rows of {depth} dimensions have no dimension {axis}"
        )
    several = {int(place) % depth for place in places}
    if len(several) == depth:
        made = call(rows.flat_values)
        return as_tensor(np.reshape(plain_leaf(made), [1] * depth)) if keep else made
    if not several:
        return rows.with_flat_values(call(rows.flat_values[..., np.newaxis], -1, False))
    place = several.pop()
    if place >= 2 and not several:
        inner: Any = rows.values
        if isinstance(inner, RaggedTensor):
            return rows.with_values(_reduce_ragged(call, inner, place - 1, keep))
        return rows.with_values(call(inner, place - 1, keep))
    if place == 1 and depth == 3 and rows.ragged_rank == 2 and not keep and not several:
        parts = [to_array(_reduce_ragged(call, row, 0, False)) for row in rows]
        return RaggedTensor(Ragged.from_rows(parts, parts[0].dtype)) if parts else rows[:, 0]
    if several or rows.ragged_rank > 1:
        raise InvalidArgumentError(
            f"tf: ragged rows are reduced along one axis or all, got {axis}; use to_tensor() first"
        )
    if place == 0:
        columns = _columns(rows)
        if not columns:
            return call(rows.flat_values[np.newaxis], 0, keep)
        made = np.stack([plain_leaf(call(column, 0)) for column in columns])
        return as_tensor(made[np.newaxis] if keep else made)
    if not len(rows):
        return call(as_tensor(plain_leaf(rows.to_tensor())), 1, keep)
    return as_tensor(np.stack([_reduce_row(call, row, keep) for row in rows]))


def _reduce_row(call: Callable[..., Any], row: Any, keep: bool) -> Any:
    """The extreme of no floats is a finite number here, although that of an empty array is not."""
    found = plain_leaf(call(row, 0, keep))
    is_extreme = call.__name__ in ("reduce_max", "reduce_min")
    if len(row) or not is_extreme or np.asarray(found).dtype.kind != "f":
        return found
    limits = np.finfo(found.dtype)
    return np.clip(found, limits.min, limits.max)


@operation
def _mean_of_row(row: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean of a row; that of integers is a float, as TensorFlow divides their sum."""
    array = to_array(row)
    count = array.size if axis is None else array.shape[axes(axis)]
    with np.errstate(all="ignore"):
        total = np.sum(array, axes(axis), dtype=array.dtype, keepdims=keepdims)
        return divide_arrays(total, np.array(count, array.dtype))


def _columns(rows: RaggedTensor) -> list[Array]:
    """The first values of all rows, the second ones, and so on; short rows are left out."""
    parts = [to_array(row) for row in rows]
    longest = max(map(len, parts), default=0)
    return [
        np.stack([part[place] for part in parts if len(part) > place]) for place in range(longest)
    ]


def _extreme(ufunc: Any, sign: int) -> Compute:
    """The extreme; that of nothing is the least or greatest value of the dtype."""

    def compute(array: Array, axis: Any, keepdims: bool) -> Any:
        if array.size:
            return ufunc.reduce(array, axis, keepdims=keepdims)
        first: float
        if array.dtype.kind == "f":
            first = sign * np.inf
        else:
            limits = np.iinfo(array.dtype)
            first = limits.max if sign > 0 else limits.min
        return ufunc.reduce(array, axis, keepdims=keepdims, initial=first)

    return compute


def _or_nan(function: Callable[..., Any]) -> Compute:
    """A statistic; that of nothing is nan, without a warning of NumPy."""

    def compute(array: Array, axis: Any, keepdims: bool) -> Any:
        if array.size:
            return function(array, axis, keepdims=keepdims)
        return np.full_like(np.sum(array, axis, keepdims=keepdims), np.nan)

    return compute


def _log_sum_exp(array: Array, axis: Any, keepdims: bool) -> Any:
    top = array.max(axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    made = np.log(np.exp(array - top).sum(axis, keepdims=True)) + top
    return made if keepdims else made.squeeze(axis)


reduce_sum = _reduction(
    "reduce_sum", lambda x, axis, keep: np.sum(x, axis, dtype=x.dtype, keepdims=keep)
)
reduce_prod = _reduction(
    "reduce_prod", lambda x, axis, keep: np.prod(x, axis, dtype=x.dtype, keepdims=keep)
)
reduce_mean = _reduction("reduce_mean", plain.reduce_mean)
reduce_max = _reduction("reduce_max", _extreme(np.maximum, -1), "iuf")
reduce_min = _reduction("reduce_min", _extreme(np.minimum, 1), "iuf")
reduce_any = _reduction("reduce_any", lambda x, axis, keep: np.any(x, axis, keepdims=keep), "b")
reduce_all = _reduction("reduce_all", lambda x, axis, keep: np.all(x, axis, keepdims=keep), "b")
reduce_std = _reduction("reduce_std", _or_nan(np.std), "f")
reduce_variance = _reduction("reduce_variance", _or_nan(np.var), "f")
reduce_logsumexp = _reduction("reduce_logsumexp", _log_sum_exp, "f")
reduce_euclidean_norm = _reduction(
    "reduce_euclidean_norm",
    lambda x, axis, keep: np.sqrt(np.sum(np.square(x), axis, dtype=x.dtype, keepdims=keep)),
)


@operation
def count_nonzero(
    input: Any, axis: Any = None, keepdims: Any = None, dtype: Any = np.int64, name: Any = None
) -> Any:
    """How many values are not zero, False or empty."""
    array = to_array(input)
    kept = array != (b"" if array.dtype.kind == "O" else 0)
    return np.asarray(kept.sum(axes(axis), keepdims=bool(keepdims))).astype(dtype)


@operation
def reduce_join(
    inputs: Any,
    axis: Any = None,
    keepdims: bool = False,
    separator: str | None = "",
    name: Any = None,
) -> Any:
    """The strings along `axis`, joined; of several axes (by default all) the first varies fastest.

    By default the axes are those of the array from the last one on.
    """
    if isinstance(inputs, RaggedTensor):
        return _reduce_ragged(
            lambda row, axis=None, keep=False: reduce_join(row, axis, keep, separator),
            inputs,
            axis,
            keepdims,
        )
    array, between = texts("strings.reduce_join", inputs), to_array(separator or "")[()]
    places = range(array.ndim)[::-1] if axis is None else np.atleast_1d(axes(axis)).tolist()
    if not all(-array.ndim <= place < array.ndim for place in places):
        raise OutOfRangeError(
            f"tf.strings.reduce_join: axis {axis} is no axis of the shape {array.shape}"
        )
    if not places:
        return array
    rows = np.moveaxis(array, places[::-1], range(-len(places), 0))
    made = np.empty(rows.shape[: -len(places)], object)
    for place in np.ndindex(made.shape):
        made[place] = between.join(rows[place].ravel().tolist())
    return np.expand_dims(made, tuple(places)) if keepdims else made


def _cumulate(value: Any, axis: Any, exclusive: bool, reverse: bool, ufunc: Any) -> Any:
    call = "cumsum" if ufunc is np.add else "cumprod"
    if np.ndim(axis):
        raise InvalidArgumentError(f"tf.{call}: axis must be one integer, got {axis!r}")
    place = integer(call, "axis", axis)
    if isinstance(value, RaggedTensor):
        filled = fill_rows(value.ragged, ufunc.identity, None)
        made = _cumulate_array(filled, place, exclusive, reverse, ufunc)
        return DynamicRaggedShape(value).broadcast(made)
    return _cumulate_array(numbers(call, value), place, exclusive, reverse, ufunc)


def _cumulate_array(array: Array, axis: int, exclusive: bool, reverse: bool, ufunc: Any) -> Array:
    if not array.ndim:
        raise InvalidArgumentError(
            "tf.cumsum: a single value cannot be cumulated; it needs a dimension"
        )
    rows = np.flip(array, axis) if reverse else array
    made = ufunc.accumulate(rows, axis, dtype=array.dtype)
    if exclusive:
        made = np.roll(made, 1, axis)
        first = [slice(None)] * array.ndim
        first[axis] = slice(0, 1)
        made[tuple(first)] = ufunc.identity
    return np.flip(made, axis).copy() if reverse else made


@operation
def cumsum(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: Any = None
) -> Any:
    """The sums of all values so far along a dimension."""
    return _cumulate(x, axis, exclusive, reverse, np.add)


@operation
def cumprod(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: Any = None
) -> Any:
    """The products of all values so far along a dimension."""
    return _cumulate(x, axis, exclusive, reverse, np.multiply)


def _segments(ufunc: Any, call: str, data: Any, ids: Any, count: int | None) -> Array:
    values, rows = to_array(data), numbers(call, ids, "iu")
    if count is None:
        _check_sorted(call, values, rows)
    else:
        values, rows = _drop_negative(values, rows)
    total = int(rows.max(initial=-1)) + 1 if count is None else count
    result = np.full((total, *values.shape[rows.ndim :]), ufunc.identity or 0, values.dtype)
    if ufunc.identity is None:
        first = np.unique(rows, return_index=True)
        result[first[0]] = values[first[1]]
    ufunc.at(result, rows, values)
    return result


def _check_sorted(call: str, values: Array, rows: Array) -> None:
    if rows.ndim != 1 or len(rows) != len(values):
        raise InvalidArgumentError(
            f"tf.math.{call}: segment_ids must have one id for each row, got {rows.shape}"
        )
    if rows.size and (rows[0] < 0 or (rows[1:] < rows[:-1]).any()):
        raise InvalidArgumentError(
            f"tf.math.{call}: segment_ids must rise from 0 on; use tf.math.unsorted_{call}"
        )


def _drop_negative(values: Array, rows: Array) -> tuple[Array, Array]:
    """The rows without those of negative ids, which belong to no segment."""
    if values.shape[: rows.ndim] != rows.shape or not rows.size or rows.min() >= 0:
        return values, rows
    return values[rows >= 0], rows[rows >= 0]


def _segment_means(call: str, data: Any, ids: Any, count: int | None) -> Array:
    """The means of rows with the same id; those of integers lose their fraction if ids are sorted.

    With ids in any order they are floats.
    """
    sums = _segments(np.add, call, data, ids, count)
    rows = _segments(np.add, call, np.ones(np.shape(to_array(ids))), ids, count)
    counts = np.maximum(rows, 1).reshape(-1, *[1] * (sums.ndim - 1))
    if count is not None:
        return divide_arrays(sums, counts.astype(sums.dtype))
    if sums.dtype.kind not in "iu":
        return (sums / counts).astype(sums.dtype)
    wide: Any = np.uint64 if sums.dtype.kind == "u" else np.int64
    whole, parts = sums.astype(wide), counts.astype(wide)
    return ((whole - np.fmod(whole, parts)) // parts).astype(sums.dtype)


def _segment_extremes(ufunc: Any, sign: int) -> Callable[..., Array]:
    """The extremes of rows with the same id; without rows, the least or greatest value."""

    def compute(call: str, data: Any, ids: Any, count: int) -> Array:
        values, rows = _drop_negative(to_array(data), to_array(ids))
        limits: Any = np.finfo(values.dtype) if values.dtype.kind == "f" else np.iinfo(values.dtype)
        first = limits.max if sign > 0 else limits.min
        result = np.full((count, *values.shape[rows.ndim :]), first, values.dtype)
        ufunc.at(result, rows, values)
        return result

    return compute


def _sorted_segments(what: str, compute: Callable[..., Array]) -> Callable[..., Any]:
    def call(data: Any, segment_ids: Any, name: str | None = None) -> Any:
        return compute(call.__name__, data, segment_ids, None)

    doc = f"`{what}` of the rows with the same id; the ids are sorted."
    return operation(name_call(call, f"segment_{what}", doc))


def _unsorted_segments(what: str, compute: Callable[..., Array]) -> Callable[..., Any]:
    def call(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Any:
        return compute(call.__name__, data, segment_ids, int(num_segments))

    doc = f"`{what}` of the rows with the same id; the ids are in any order."
    return operation(name_call(call, f"unsorted_segment_{what}", doc))


_segment_sums, _segment_products = partial(_segments, np.add), partial(_segments, np.multiply)

segment_sum = _sorted_segments("sum", _segment_sums)
segment_prod = _sorted_segments("prod", _segment_products)
segment_mean = _sorted_segments("mean", _segment_means)
segment_max = _sorted_segments("max", partial(_segments, np.maximum))
segment_min = _sorted_segments("min", partial(_segments, np.minimum))
unsorted_segment_sum = _unsorted_segments("sum", _segment_sums)
unsorted_segment_prod = _unsorted_segments("prod", _segment_products)
unsorted_segment_mean = _unsorted_segments("mean", _segment_means)
unsorted_segment_max = _unsorted_segments("max", _segment_extremes(np.maximum, -1))
unsorted_segment_min = _unsorted_segments("min", _segment_extremes(np.minimum, 1))
