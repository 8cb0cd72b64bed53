"""`tf.math`: operations on every number, on every pair of numbers, and on matrices."""

from __future__ import annotations

import functools
import math as python_math
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.errors import InternalError, InvalidArgumentError, InvalidTypeError, OpError
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.operations import axes, binary, elementwise, numbers, on_both, operation, unary
from penstock.tf.reductions import (
    count_nonzero,
    cumprod,
    cumsum,
    reduce_all,
    reduce_any,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_std,
    reduce_sum,
    reduce_variance,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sum,
)
from penstock.tf.selection import (
    argmax,
    argmin,
    bincount,
    confusion_matrix,
    in_top_k,
    invert_permutation,
    top_k,
)
from penstock.tf.values import (
    Array,
    check_matrices,
    divide_arrays,
    divide_down,
    match_operands,
    to_array,
)

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "add_n",
    "angle",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bincount",
    "ceil",
    "clip_by_value",
    "confusion_matrix",
    "conj",
    "cos",
    "cosh",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "divide",
    "divide_no_nan",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floordiv",
    "floormod",
    "greater",
    "greater_equal",
    "imag",
    "in_top_k",
    "invert_permutation",
    "is_finite",
    "is_inf",
    "is_nan",
    "is_non_decreasing",
    "is_strictly_increasing",
    "l2_normalize",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_sigmoid",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "multiply_no_nan",
    "negative",
    "not_equal",
    "polyval",
    "pow",
    "real",
    "reciprocal",
    "reciprocal_no_nan",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "rint",
    "round",
    "rsqrt",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "squared_difference",
    "subtract",
    "tan",
    "tanh",
    "top_k",
    "truediv",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sum",
    "xdivy",
    "xlogy",
    "zero_fraction",
]

abs = unary("abs", np.abs, "iufc")
sqrt = unary("sqrt", np.sqrt)
rsqrt = unary("rsqrt", lambda x: 1 / np.sqrt(x))
square = unary("square", np.square, "iufc")
exp = unary("exp", np.exp)
expm1 = unary("expm1", np.expm1)
log = unary("log", np.log)
log1p = unary("log1p", np.log1p)
sin = unary("sin", np.sin)
cos = unary("cos", np.cos)
tan = unary("tan", np.tan)
asin = unary("asin", np.arcsin)
acos = unary("acos", np.arccos)
atan = unary("atan", np.arctan)
sinh = unary("sinh", np.sinh)
cosh = unary("cosh", np.cosh)
tanh = unary("tanh", np.tanh)


def _in_float32(compute: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of floats; it rounds those of float16 once, at its end."""
    return lambda x: compute(x.astype(np.float32) if x.dtype == np.float16 else x)


sigmoid = unary("sigmoid", _in_float32(lambda x: 1 / (1 + np.exp(-x))))
softplus = unary("softplus", _in_float32(lambda x: np.logaddexp(x, 0)), "f", "features")
erf = unary("erf", np.vectorize(python_math.erf, otypes=[np.float64]), "f")
acosh = unary("acosh", np.arccosh)
asinh = unary("asinh", np.arcsinh)
atanh = unary("atanh", np.arctanh)
angle = unary(
    "angle", lambda x: np.angle(x) if x.dtype.kind == "c" else np.pi * (x < 0), first="input"
)
conj = unary("conj", np.conj, "iufc")
softsign = unary("softsign", lambda x: x / (1 + np.abs(x)), "f", "features")
log_sigmoid = unary("log_sigmoid", lambda x: -np.logaddexp(-x, 0).astype(x.dtype), "f")
relu = unary("relu", lambda x: np.maximum(x, 0), "iuf", "features")
floor = unary("floor", np.floor, "f")
ceil = unary("ceil", np.ceil, "f")
rint = unary("rint", np.rint, "f")
round = unary("round", np.rint, "iuf")
sign = unary("sign", np.sign, "iufc")
negative = unary("negative", np.negative, "iufc")
reciprocal = unary("reciprocal", np.reciprocal, "iufc")
is_nan = unary("is_nan", np.isnan, "f")
is_inf = unary("is_inf", np.isinf, "f")
is_finite = unary("is_finite", np.isfinite, "f")
logical_not = unary("logical_not", np.logical_not, "b")
real = unary("real", np.real, "fc", "input")
imag = unary("imag", np.imag, "fc", "input")


def _floordiv(x: Any, y: Any) -> Any:
    _check_divisor(InvalidArgumentError, "floordiv", x, y)
    return divide_down(x, y)


def _floormod(x: Any, y: Any) -> Any:
    _check_divisor(InvalidArgumentError, "math.floormod", x, y)
    return np.mod(x, y)


def _check_divisor(error: type[OpError], call: str, x: Any, y: Any) -> None:
    if _both(x, y)[0].dtype.kind in "iu" and not np.all(y):
        raise error(f"tf.{call}: Integer division by zero")


def _both(x: Any, y: Any) -> tuple[Array, Array]:
    """Operands as arrays of one dtype; one of them may be a number of Python."""
    dtype = x.dtype if isinstance(x, np.ndarray) else y.dtype
    return np.asarray(x, dtype), np.asarray(y, dtype)


def _of_arrays(compute: Callable[[Array, Array], Array]) -> Callable[[Any, Any], Array]:
    """A function of arrays of one dtype as one of operands."""

    @functools.wraps(compute)
    def call(x: Any, y: Any) -> Array:
        return compute(*_both(x, y))

    return call


def _or_zero(values: Array, is_kept: Array) -> Array:
    return np.where(is_kept, values, np.zeros_like(values))


@_of_arrays
def _truncatediv(left: Array, right: Array) -> Array:
    if left.dtype.kind == "f":
        return np.trunc(left / right)
    _check_divisor(InternalError, "truncatediv", left, right)
    return (left - np.fmod(left, right)) // right


@_of_arrays
def _truncatemod(left: Array, right: Array) -> Array:
    _check_divisor(InternalError, "truncatemod", left, right)
    return np.fmod(left, right)


@_of_arrays
def _divide_no_nan(left: Array, right: Array) -> Array:
    return _or_zero(divide_arrays(left, right), right != 0)


@_of_arrays
def _multiply_no_nan(left: Array, right: Array) -> Array:
    return _or_zero(left * right, right != 0)


@_of_arrays
def _xdivy(left: Array, right: Array) -> Array:
    return _or_zero(left / right, left != 0)


@_of_arrays
def _xlogy(left: Array, right: Array) -> Array:
    return _or_zero(left * np.log(right), left != 0)


@_of_arrays
def _squared_difference(left: Array, right: Array) -> Array:
    difference = left - right
    return difference * np.conj(difference)


_COMPARED = "biufcO"

add = binary("add", np.add, "iufcO")
subtract = binary("subtract", np.subtract)
multiply = binary("multiply", np.multiply)
floordiv = binary("floordiv", _floordiv, "iuf")
floormod = binary("floormod", _floormod, "iuf")
mod = floormod
pow = binary("pow", np.power)
maximum = binary("maximum", np.maximum, "iuf")
minimum = binary("minimum", np.minimum, "iuf")
squared_difference = binary("squared_difference", _squared_difference)
divide_no_nan = binary("divide_no_nan", _divide_no_nan, "iuf")
multiply_no_nan = binary("multiply_no_nan", _multiply_no_nan, "f")
xdivy = binary("xdivy", _xdivy, "f")
xlogy = binary("xlogy", _xlogy, "f")
truncatediv = binary("truncatediv", _truncatediv, "iuf")
truncatemod = binary("truncatemod", _truncatemod, "iuf")
equal = binary("equal", np.equal, _COMPARED)
not_equal = binary("not_equal", np.not_equal, _COMPARED)
less = binary("less", np.less, "iuf")
less_equal = binary("less_equal", np.less_equal, "iuf")
greater = binary("greater", np.greater, "iuf")
greater_equal = binary("greater_equal", np.greater_equal, "iuf")
logical_and = binary("logical_and", np.logical_and, "b")
logical_or = binary("logical_or", np.logical_or, "b")
logical_xor = binary("logical_xor", np.logical_xor, "b")


@on_both
def truediv(x: Any, y: Any, name: str | None = None) -> Any:
    """The quotient; integers become floats."""
    left, right = match_operands("divide", (x, y))
    with np.errstate(all="ignore"):
        return np.true_divide(left, right)


divide = truediv


def atan2(y: Any, x: Any, name: str | None = None) -> Any:
    """The angle of every point, by its two coordinates."""
    return _atan2(y, x)


_atan2 = binary("atan2", np.arctan2, "f")


@operation
def add_n(inputs: Any, name: str | None = None) -> Any:
    """The sum of several tensors of one shape."""
    arrays = [to_array(one) for one in inputs]
    if any(array.shape != arrays[0].shape for array in arrays):
        raise InvalidArgumentError(f"tf.add_n: the shapes differ: {[one.shape for one in arrays]}")
    if any(array.dtype != arrays[0].dtype for array in arrays):
        names = ", ".join(array.dtype.name for array in arrays)
        raise InvalidArgumentError(f"tf.add_n: the tensors have the dtypes {names}; use tf.cast")
    return sum(arrays[1:], arrays[0].copy())


@elementwise
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """Values below the minimum become the minimum, above the maximum the maximum."""
    array, low, high = match_operands("clip_by_value", (t, clip_value_min, clip_value_max))
    array = np.asarray(array)
    return np.maximum(np.minimum(array, high), low).astype(array.dtype, copy=False)


@operation
def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """Each vector divided by its length."""
    array = numbers("l2_normalize", x, "f")
    total = np.sum(np.square(array), axes(axis), keepdims=True)
    return array / np.sqrt(np.maximum(total, np.asarray(epsilon, array.dtype)))


@operation
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: Any = None,
    grad_a: bool = False,
    grad_b: bool = False,
    name: str | None = None,
) -> Any:
    """The product of matrices."""
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise InvalidArgumentError("tf.matmul: a matrix is transposed or adjoint, not both")
    if output_type is not None:
        kind = as_dtype(output_type).dtype
        a, b = (to_array(one).astype(kind) for one in (a, b))
    left, right = (np.asarray(one) for one in match_operands("matmul", (a, b)))
    check_matrices("tf.matmul", left, right)
    left = np.conj(left) if adjoint_a else left
    right = np.conj(right) if adjoint_b else right
    left = left.swapaxes(-1, -2) if transpose_a or adjoint_a else left
    return np.matmul(left, right.swapaxes(-1, -2) if transpose_b or adjoint_b else right)


@operation
def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Any:
    """A product that sums over the given dimensions."""
    where = to_array(axes).tolist()
    return np.tensordot(*_both(*match_operands("tensordot", (a, b))), where)


@operation
def norm(
    tensor: Any, ord: Any = "euclidean", axis: Any = None, keepdims: Any = None, name: Any = None
) -> Any:
    """The length of vectors: euclidean, 1, 2 or infinity."""
    array = numbers("norm", tensor, "f")
    flat = array.ravel() if axis is None else array
    kind = None if isinstance(ord, str) else ord
    made = np.linalg.norm(flat, kind, axis, keepdims=bool(keepdims))
    return np.asarray(made, array.dtype)


@operation
def softmax(logits: Any, axis: Any = -1, name: str | None = None) -> Any:
    """Exponentials divided by their sum."""
    array = numbers("softmax", logits, "f")
    if not array.size:
        return array
    powers = np.exp(array - array.max(int(axis), keepdims=True))
    return powers / powers.sum(int(axis), keepdims=True)


@operation
def bitcast(input: Any, type: Any, name: str | None = None) -> Any:
    """The same bytes as another dtype; a narrower one adds a dimension, a wider one takes one."""
    array, target = np.asarray(numbers("bitcast", input), order="C"), np.dtype(type)
    old, new = array.dtype.itemsize, target.itemsize
    if old == new:
        return array.view(target)
    if old > new:
        return array.reshape(*array.shape, 1).view(target)
    if not array.ndim or array.shape[-1] * old != new:
        raise InvalidArgumentError(
            f"tf.bitcast: the last dimension of {array.shape} must have {new} bytes"
        )
    return array.view(target).reshape(array.shape[:-1])


@elementwise
def reciprocal_no_nan(x: Any, name: str | None = None) -> Any:
    """One divided by every number; 0 for 0."""
    array = numbers("reciprocal_no_nan", x, "f")
    return np.where(array == 0, np.zeros_like(array), 1 / np.where(array == 0, 1, array))


@operation
def polyval(coeffs: Any, x: Any, name: str | None = None) -> Any:
    """A polynomial, by its coefficients from the highest power on."""
    array = to_array(x)
    total = np.zeros_like(array)
    for one in coeffs:
        total = total * array + to_array(one, array.dtype)
    return total


@operation
def log_softmax(logits: Any, axis: Any = -1, name: str | None = None) -> Any:
    """Logarithms of `softmax`."""
    array = numbers("log_softmax", logits, "f")
    if not array.size:
        return array
    shifted = array - array.max(int(axis), keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(int(axis), keepdims=True))


@operation
def complex(real: Any, imag: Any, name: str | None = None) -> Any:
    """Complex numbers of their parts."""
    left, right = (np.asarray(one) for one in match_operands("complex", (real, imag)))
    wide: Any = np.complex64 if left.dtype == np.float32 else np.complex128
    return left.astype(wide) + wide(1j) * right


_axes = axes


@operation
def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """Vectors that are longer than `clip_norm` shortened to it."""
    array = numbers("clip_by_norm", t, "f")
    length = np.sqrt(np.sum(np.square(array), _axes(axes), keepdims=True))
    most = to_array(clip_norm, array.dtype)
    return array * most / np.maximum(length, most)


@operation
def einsum(equation: str, *inputs: Any, **_: Any) -> Any:
    """Sums of products, by the summation convention of Einstein."""
    return np.einsum(equation, *[np.asarray(one) for one in match_operands("einsum", inputs)])


@operation
def zero_fraction(value: Any, name: str | None = None) -> Any:
    """The share of zeros."""
    array = numbers("zero_fraction", value)
    return np.float32(np.mean(array == 0)) if array.size else np.float32(np.nan)


@operation
def is_non_decreasing(x: Any, name: str | None = None) -> Any:
    """Whether no number is less than the one before."""
    flat = _flat_numbers("is_non_decreasing", x)
    return bool(np.all(flat[1:] >= flat[:-1]))


@operation
def is_strictly_increasing(x: Any, name: str | None = None) -> Any:
    """Whether every number is greater than the one before."""
    flat = _flat_numbers("is_strictly_increasing", x)
    return bool(np.all(flat[1:] > flat[:-1]))


def _flat_numbers(call: str, value: Any) -> Array:
    array = to_array(value)
    if array.dtype.kind not in "iuf":
        raise InvalidTypeError(f"tf.math.{call}: needs numbers, got {array.dtype.name}")
    return array.ravel()


__getattr__ = refuse_names_of_tf("math", __all__)
