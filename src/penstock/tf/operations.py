"""What all operations share: arguments become arrays, results tensors, and errors name the call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from penstock.distribute.values.variables import Variable
from penstock.errors import InvalidArgumentError, OpError, UnfitTypeError
from penstock.tf.ragged_values import RaggedTensor
from penstock.tf.values import Array, Tensor, as_tensor, match_operands, plain_leaf, to_array

P = ParamSpec("P")
Call = TypeVar("Call", bound=Callable[..., Any])


def operation(function: Callable[P, Any]) -> Callable[P, Any]:
    """Decorates a function that returns arrays: it returns tensors, and its errors name it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return as_result(function(*args, **kwargs))
        except OpError:
            raise
        except (ValueError, IndexError, OverflowError) as error:
            raise InvalidArgumentError(f"tf.{function.__name__}: {error}") from error

    return call


def as_result(result: Any) -> Any:
    """Arrays, NumPy scalars and strings as tensors, also in a list or tuple."""
    kind = type(result)
    if kind is np.ndarray or isinstance(result, np.generic | bytes | bool):
        return as_tensor(result)
    if kind is list or kind is tuple:
        return kind(map(as_result, result))
    if hasattr(kind, "_fields"):
        return kind(*map(as_result, result))
    return result


def elementwise(function: Callable[P, Any]) -> Callable[P, Any]:
    """An operation that treats every value of its first argument alone; it may be ragged."""
    call = operation(function)

    @functools.wraps(function)
    def on_ragged(*args: P.args, **kwargs: P.kwargs) -> Any:
        first = args[0] if args else None
        if not isinstance(first, RaggedTensor):
            return call(*args, **kwargs)
        flat: Any = call(first.flat_values, *args[1:], **kwargs)  # type: ignore[arg-type]
        return flat if flat is None else first.with_flat_values(flat)

    return on_ragged


def image_operation(function: Callable[P, Any]) -> Callable[P, Any]:
    """Decorates an operation on batches (4-D): its first argument may also be an image (3-D)."""
    first = next(iter(inspect.signature(function).parameters))
    compute: Callable[..., Any] = function

    @operation
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            if first not in kwargs:
                return compute(**kwargs)  # Python says which argument is missing.
            args = (kwargs.pop(first),)
        images = to_array(args[0])
        if images.ndim == 4:
            return compute(images, *args[1:], **kwargs)
        if images.ndim != 3:
            raise InvalidArgumentError(
                f"tf.image.{function.__name__}: images must have 3 or 4 dimensions, got the shape "
                f"{images.shape}"
            )
        return compute(images[None], *args[1:], **kwargs)[0]

    return call


def name_call(call: Call, name: str, doc: str) -> Call:
    """A function that another function made, with the name and the docstring of its operation."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def unary(
    name: str, compute: Callable[[Any], Any], kinds: str = "fc", first: str = "x"
) -> Callable[..., Any]:
    """An operation on numbers of the given kinds ("i" for integers, "f" for floats, ...).

    `first` is TensorFlow's name of the argument.
    """

    def call(x: Any, name: str | None = None) -> Any:
        array = numbers(call.__name__, x, kinds)
        with np.errstate(all="ignore"):
            return np.asarray(compute(array)).astype(_result_dtype(array, compute), copy=False)

    made = elementwise(name_call(call, name, f"`{name}` of every number."))
    return made if first == "x" else _rename_first(made, first)


def _rename_first(call: Callable[..., Any], first: str) -> Callable[..., Any]:
    """A call whose first argument has another name."""

    @functools.wraps(call)
    def call_renamed(*args: Any, **named: Any) -> Any:
        return call(named.pop(first), *args, **named) if first in named else call(*args, **named)

    old, *others = inspect.signature(call).parameters.values()
    call_renamed.__dict__["__signature__"] = inspect.Signature([old.replace(name=first), *others])
    return call_renamed


def _result_dtype(array: Array, compute: Callable[[Any], Any]) -> Any:
    """That of the argument, except for predicates and the parts of complex numbers."""
    result = compute(array[:0] if array.ndim else array[None][:0])
    return result.dtype if result.dtype.kind in "b" or array.dtype.kind == "c" else array.dtype


def binary(
    name: str, compute: Callable[[Any, Any], Any], kinds: str = "iufc"
) -> Callable[..., Any]:
    """An operation on pairs of numbers of one dtype."""

    def call(x: Any, y: Any, name: str | None = None) -> Any:
        left, right = match_operands(call.__name__, (x, y))
        for operand in (left, right):
            if isinstance(operand, np.ndarray) and not _is_of(operand, kinds):
                raise _wrong_kind(call.__name__, operand)
        with np.errstate(all="ignore"):
            return compute(left, right)

    return on_both(name_call(call, name, f"`{name}` of every pair of values."))


def on_both(function: Callable[..., Any]) -> Callable[..., Any]:
    """A binary operation whose operands may be ragged, with the same rows."""
    call = operation(function)

    @functools.wraps(function)
    def on_ragged(x: Any, y: Any, name: str | None = None) -> Any:
        ragged = next((value for value in (x, y) if isinstance(value, RaggedTensor)), None)
        if ragged is None:
            return call(x, y)
        flat = [
            one.flat_values if one is ragged else ragged.operand_like(one, function.__name__)
            for one in (x, y)
        ]
        return ragged.with_flat_values(call(*flat))

    return on_ragged


def numbers(call: str, value: Any, kinds: str = "iufc") -> Array:
    """An array of numbers; InvalidArgumentError if it is of another kind."""
    array = to_array(value, None, call)
    if not _is_of(array, kinds):
        if kinds != "b" or not has_free_dtype(value, array, kinds):
            raise _wrong_kind(call, array)
        return array.astype(bool)
    return array


def has_free_dtype(value: Any, array: Array, kind: str) -> bool:
    """Whether an operation decides the dtype of a value: of an empty list, or if it wants bools."""
    if isinstance(value, Tensor | Variable):
        return False
    if isinstance(value, np.ndarray | np.generic):
        return kind == "b" and array.dtype.kind in "iuf"
    return not array.size


def _is_of(array: Array, kinds: str) -> bool:
    """Whether the values of an array are of one of the kinds; NumPy does not know bfloat16."""
    return array.dtype.kind in kinds or ("f" in kinds and array.dtype.name == "bfloat16")


def _wrong_kind(call: str, array: Array) -> UnfitTypeError:
    name = "string" if array.dtype.kind == "O" else array.dtype.name
    return UnfitTypeError(f"tf.{call}: does not take values of {name}; use tf.cast")


def texts(call: str, value: Any) -> Array:
    """An array of strings."""
    array = to_array(value, None, call)
    if array.dtype.kind != "O":
        if has_free_dtype(value, array, "O"):
            return array.astype(object)
        raise UnfitTypeError(f"tf.{call}: needs strings, got {array.dtype.name}")
    return array


def map_texts(
    call: str, value: Any, function: Callable[[bytes], Any], dtype: Any = object
) -> Array:
    """A function of every string, whose results are strings unless `dtype` is given."""
    array = texts(call, value)
    result = np.empty(array.shape, dtype)
    if array.ndim == 0:
        result[()] = function(array[()])
    else:
        result.ravel()[:] = [function(text) for text in array.ravel().tolist()]
    return result


def vector(items: Sequence[Any], dtype: Any = object) -> Array:
    """An array of one dimension: of strings, unless `dtype` is given.

    `np.array` would give strings a dtype of NumPy, which removes trailing zero bytes.
    """
    result = np.empty(len(items), dtype)
    result[:] = items
    return result


def integer(call: str, name: str, value: Any) -> int:
    """One integer, also of a tensor."""
    array = plain_leaf(value) if isinstance(value, Tensor) else value
    if np.ndim(array) or np.asarray(array).dtype.kind not in "iub":
        raise UnfitTypeError(f"tf.{call}: {name} must be one integer, got {value!r}")
    return int(array)


def dims(call: str, shape: Any) -> tuple[int, ...]:
    """A shape, of a tensor, a list of integers or tensors, or one integer."""
    if type(shape) in (list, tuple) and all(type(one) is int for one in shape):
        return tuple(shape)
    array = np.atleast_1d(to_array(shape, None, call))
    if array.ndim > 1 or (array.size and array.dtype.kind not in "iu"):
        raise UnfitTypeError(f"tf.{call}: a shape must be a list of integers, got {shape!r}")
    return tuple(int(one) for one in array)


def axes(axis: Any) -> Any:
    """An axis, several, or None, as NumPy takes them."""
    if axis is None:
        return None
    array = to_array(axis)
    if array.size and array.dtype.kind not in "iub":
        raise UnfitTypeError(f"tf: axis must be one integer or several, got {axis!r}")
    return int(array) if array.ndim == 0 else tuple(int(one) for one in array)
