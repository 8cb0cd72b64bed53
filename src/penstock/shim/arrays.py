"""Arrays made, cast and reduced, with TensorFlow's dtypes: the result has the dtype of the input.

An array without dimensions is returned as a NumPy scalar.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from penstock.data.arguments import describe
from penstock.element.dtypes import DType, as_dtype
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError
from penstock.shim.literals import (
    cast_array,
    convert_value,
    dtype_of,
    leaf_of,
    scalar,
)


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Any:
    """An array (a NumPy scalar, bytes) of a value; `shape` reshapes it or repeats a single one.

    >>> constant([1, 2]), constant(7, np.int64), constant("x")
    (array([1, 2], dtype=int32), np.int64(7), b'x')
    """
    if dtype is None:
        leaf = leaf_of("constant", value)
    else:
        leaf = convert_value("constant", value, as_dtype(dtype))
    if shape is not None:
        leaf = _reshape(leaf, _dims("constant", shape))
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _reshape(leaf: Any, dims: tuple[int, ...]) -> Any:
    if np.size(leaf) == 1:
        # Not `np.full`: it makes strings of NumPy of bytes, which have no trailing zero bytes.
        filled = np.empty(dims, dtype_of(leaf).dtype)
        filled[...] = leaf if isinstance(leaf, bytes) else leaf.reshape(())[()]
        return scalar(filled)
    if np.size(leaf) != math.prod(dims):
        raise InvalidTypeError(f"constant: {np.size(leaf)} values cannot fill the shape {dims}")
    return leaf.reshape(dims)


def _dims(call: str, shape: Any) -> tuple[int, ...]:
    try:
        dims = tuple(map(operator.index, np.atleast_1d(np.asarray(shape, object))))
    except TypeError:
        raise InvalidTypeError(f"{call}: shape must be ints, got {describe(shape)}") from None
    if any(d < 0 for d in dims):
        raise InvalidArgumentError(f"{call}: shape must not be negative, got {shape!r}")
    return dims


def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """`x` in another dtype; floats lose their fraction when they become ints.

    >>> cast([1.8, -1.8], np.int32)
    array([ 1, -1], dtype=int32)
    """
    leaf, target = leaf_of("cast", x), as_dtype(dtype)
    source = dtype_of(leaf)
    if source == target:
        return leaf
    if "string" in (source.name, target.name):
        raise UnimplementedError(f"cast: {source.name} cannot become {target.name}")
    return cast_array(leaf, target)


def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str | None = None
) -> Any:
    """Numbers from `start` (0 if only one is given) up to and without `limit`.

    >>> range(3), range(3, 1, -0.5)
    (array([0, 1, 2], dtype=int32), array([3. , 2.5, 2. , 1.5], dtype=float32))
    """
    ends = (0, start, delta) if limit is None else (start, limit, delta)
    target = _range_dtype(ends) if dtype is None else as_dtype(dtype)
    if not target.is_integer and not target.is_floating:
        raise InvalidTypeError(f"range: dtype must be one of numbers, got {target.name}")
    first, last, step = (_end(end, target) for end in ends)
    if not (step and math.isfinite(last - first) and (last - first) * step >= 0):
        raise InvalidArgumentError(
            f"range: steps of {step} do not lead from {first} to {last}; change the sign of delta"
        )
    if target.is_integer:
        return np.arange(first, last, step, dtype=target.dtype)
    steps = np.arange(math.ceil((last - first) / step))
    return (first + steps * step).astype(target.dtype)


_RANGE_DTYPES = ("int32", "int64", "float16", "float32", "float64")


def _range_dtype(ends: tuple[Any, ...]) -> DType:
    names = [dtype_of(leaf_of("range", end)).name for end in ends]
    if not set(names) <= set(_RANGE_DTYPES):
        raise InvalidArgumentError(
            f"range: cannot infer the dtype from {', '.join(names)}; pass dtype"
        )
    return as_dtype(max(names, key=_RANGE_DTYPES.index))


def _end(value: Any, dtype: DType) -> Any:
    end = convert_value("range", value, dtype)
    if np.ndim(end):
        raise InvalidArgumentError(f"range: needs single numbers, got {describe(value)}")
    return end.item()


def zeros(shape: Any, dtype: Any = np.float32, name: str | None = None) -> Any:
    """Zeros (empty strings, False) in a shape.

    >>> zeros([2]), zeros([], np.int32)
    (array([0., 0.], dtype=float32), np.int32(0))
    """
    target = as_dtype(dtype)
    zero = b"" if target == "string" else 0
    return scalar(np.full(_dims("zeros", shape), zero, target.dtype))


def ones(shape: Any, dtype: Any = np.float32, name: str | None = None) -> Any:
    """Ones (True) in a shape.

    >>> ones([2])
    array([1., 1.], dtype=float32)
    """
    target = as_dtype(dtype)
    if target == "string":
        raise InvalidTypeError("ones: a string cannot be 1; use a dtype of numbers")
    return scalar(np.ones(_dims("ones", shape), target.dtype))


def shape(input: Any, out_type: Any = np.int32, name: str | None = None) -> Any:
    """The shape, as an array.

    >>> shape([[1, 2, 3]])
    array([1, 3], dtype=int32)
    """
    return np.array(np.shape(leaf_of("shape", input)), as_dtype(out_type).dtype)


def square(x: Any, name: str | None = None) -> Any:
    """Every number times itself; too large integers wrap, as in arrays.

    >>> square([1.0, 3.0])
    array([1., 9.], dtype=float32)
    """
    with np.errstate(all="ignore"):
        return np.square(_numbers("square", x))


def _numbers(call: str, value: Any, axis: Any = 0) -> Any:
    """A value as numbers; those of ragged rows, if no axis matters."""
    ragged = isinstance(value, Ragged) and axis is None
    leaf = leaf_of(call, value.flat_values if ragged else value)
    if dtype_of(leaf).is_bool or dtype_of(leaf) == "string":
        name = dtype_of(leaf).name
        raise InvalidArgumentError(f"{call}: needs numbers, got {name}; use cast or NumPy")
    return leaf


def reduce_sum(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The sum, in the same dtype, along `axis` (one, several, or all).

    >>> reduce_sum([[1, 2], [3, 4]], axis=0)
    array([4, 6], dtype=int32)
    """
    numbers = _numbers("reduce_sum", input_tensor, axis)
    return _sum("reduce_sum", numbers, axis=axis, keepdims=keepdims, dtype=numbers.dtype)


def reduce_mean(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The mean, in the same dtype: that of integers is cut off, that of nothing is nan (or 0).

    >>> reduce_mean([1, 2]), reduce_mean([1.0, 2.0])
    (np.int32(1), np.float32(1.5))
    """
    numbers = _numbers("reduce_mean", input_tensor, axis)
    dtype = dtype_of(numbers)
    total = _sum("reduce_mean", numbers, axis=axis, keepdims=keepdims, dtype=_sum_dtype(dtype))
    count = numbers.size // max(np.size(total), 1)
    if dtype.is_integer:
        mean = (total - np.fmod(total, max(count, 1))) // max(count, 1)
    else:
        with np.errstate(all="ignore"):
            mean = total / total.dtype.type(count)
    return mean.astype(numbers.dtype)


def _sum_dtype(dtype: DType) -> Any:
    """The dtype in which the values of a mean are added: wide enough for many small integers."""
    if dtype.is_integer:
        return np.uint64 if dtype.is_unsigned else np.int64
    return np.float32 if dtype.is_floating and dtype.size == 2 else dtype.dtype


def _sum(call: str, numbers: Any, axis: Any, keepdims: bool, dtype: Any) -> Any:
    try:
        axes = None if axis is None else tuple(map(operator.index, np.atleast_1d(axis)))
        with np.errstate(all="ignore"):
            return np.sum(numbers, axes, dtype, keepdims=keepdims)
    except TypeError:
        raise InvalidTypeError(f"{call}: axis must be ints, got {describe(axis)}") from None
    except ValueError:
        rank = np.ndim(numbers)
        message = f"{call}: axis {axis!r} does not fit an array of rank {rank}"
        raise InvalidArgumentError(message) from None
