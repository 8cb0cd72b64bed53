"""The values that variables hold: converted, checked, and in memory that nothing else writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.distribute import replica_context
from penstock.distribute.devices import framework_of, resolve
from penstock.distribute.replicas import Replicas
from penstock.distribute.values import texts
from penstock.distribute.values.operators import current_value
from penstock.element.dtypes import as_dtype
from penstock.element.spec import TensorShape
from penstock.element.values import as_value
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OpError,
)


def initial_value_of(value: Any, dtype: Any) -> Any:
    """The initial value, called if it is a function, and converted unless it is a tensor."""
    value = current_value(value() if callable(value) else value)
    if value is None:
        raise InvalidArgumentError("Variable: initial_value is missing; pass an array or a number")
    if framework_of(value) is None or dtype is not None:
        array = texts.as_array(value)
        return _copy_array(_leaf_of(value if array is None else array, dtype))
    return value


def _leaf_of(value: Any, dtype: Any) -> Any:
    """An initial value as a NumPy value of the given dtype."""
    try:
        wanted = None if dtype is None else as_dtype(dtype)
    except OpError as error:
        raise InvalidTypeError(f"Variable: {_reason(error)}") from error
    if wanted is not None:
        _check_range(value, wanted.dtype, "Variable")
    if isinstance(value, _LITERALS) and wanted is not None and not _can_become(value, wanted.dtype):
        raise InvalidTypeError(
            f"Variable: {value!r:.60} cannot become {wanted.name}; convert it first, with cast"
        )
    try:
        leaf = as_value(value, wanted)
    except OpError as error:
        kind = InvalidArgumentError if isinstance(error, ValueError) else InvalidTypeError
        reason = _reason(error).partition(";")[0]
        raise kind(f"Variable: {value!r:.60} is no initial value: {reason}; {_REMEDY}") from error
    if not isinstance(leaf, np.ndarray | np.generic | bytes):
        raise InvalidArgumentError(
            f"Variable: {value!r:.60} ({type(value).__name__}) is no initial value; {_REMEDY}"
        )
    return leaf


_LITERALS = (bool, int, float, complex, list, tuple)


def _can_become(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype can hold numbers of this kind: bool < integer < real < complex.

    The size of the numbers is not checked.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # Rows of different lengths; the caller rejects them.
        return True
    return dtype.kind == "O" or array.size == 0 or _width(array.dtype) <= _width(dtype)


def _width(dtype: np.dtype[Any]) -> int:
    return _WIDTHS.get("f" if dtype.name == "bfloat16" else dtype.kind, len(_WIDTHS))


_WIDTHS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _check_range(value: Any, dtype: np.dtype[Any], call: str) -> None:
    """Raises for integers that a dtype cannot hold; NumPy would wrap them around."""
    if dtype.kind not in "iu" or not isinstance(value, _LITERALS):
        return
    array, info = np.asarray(value), np.iinfo(dtype)
    if (
        array.dtype.kind in "iuO"
        and array.size
        and (np.min(array) < info.min or np.max(array) > info.max)
    ):
        raise InvalidArgumentError(
            f"{call}: {value!r:.60} does not fit into {dtype}, which holds {info.min} to {info.max}"
        )


def check_shape(shape: tuple[int, ...], wanted: Any) -> None:
    """Raises if `shape` is not the shape of the initial value."""
    dims = None if wanted is None else TensorShape(wanted).dims
    if dims is not None and (dims := tuple(dims)) != shape:
        raise InvalidArgumentError(
            f"Variable: shape is {dims}, but the initial value has the shape {shape}, which a "
            "variable keeps; leave shape out"
        )


def _reason(error: OpError) -> str:
    return error.message.removeprefix("penstock: ")


_REMEDY = "pass an array, a number, a string, or lists of them of one length"


def find_home(value: Any, strategy: Any) -> Replicas:
    """The backend and device of a variable that is not distributed.

    They are those of its strategy; without a scope, those of its initial value.
    """
    if framework_of(value) is None or replica_context.has_strategy():
        replicas: Replicas = strategy._replicas
        return replicas
    return Replicas(*resolve([value.device], None, "Variable"))


def refuse_foreign(replicas: Replicas, value: Any, call: str) -> None:
    """Raises for tensors of another framework, which would lose their device and gradients."""
    framework, backend = framework_of(value), replicas.backend
    if framework not in (None, backend.name) and not backend.is_tensor(value):
        raise InvalidArgumentError(
            f"{call}: got a tensor of {framework}, but here the backend is {backend.name!r}; "
            f"make the strategy with backend={framework!r}, or convert the tensor to NumPy"
        )


def refuse_traced(replicas: Replicas, value: Any, call: str) -> None:
    """Raises for placeholders of a compiled function, which have no value to keep."""
    if replicas.backend.is_traced(value):
        raise FailedPreconditionError(
            f"{call}: called inside jax.jit or another transformation of JAX, where values are "
            "not known yet; return the new value and assign it outside"
        )


def array_like(value: Any, old: Any, call: str) -> Any:
    """A NumPy value in memory of its own, in the dtype of `old`."""
    if value is None:
        raise InvalidArgumentError(f"{call}: None is no value; {_REMEDY}")
    if isinstance(old, bytes) or old.dtype.kind == "O":
        return _copy_array(_text_of(value, call))
    try:
        array = np.asarray(value)
    except ValueError as error:
        if isinstance(error, OpError):
            raise
        raise InvalidArgumentError(
            f"{call}: {value!r:.60} is not one array: its rows differ in length; {_REMEDY}"
        ) from error
    _check_range(value, old.dtype, call)
    if not _can_become(array, old.dtype):
        raise InvalidTypeError(
            f"{call}: a value of dtype {array.dtype} cannot become {old.dtype}; convert it first"
        )
    return np.array(array, old.dtype)[()]


def _text_of(value: Any, call: str) -> Any:
    try:
        return as_value(value, "string")
    except OpError as error:
        raise InvalidTypeError(f"{call}: {_reason(error)}; pass strings") from error


def _copy_array(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def freeze(tensor: Any) -> Any:
    """A value for a variable to keep: without gradients, and read-only if it is an array."""
    if isinstance(tensor, np.ndarray):
        tensor.setflags(write=False)
    if framework_of(tensor) == "jax":
        return tensor.copy()
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def copy_apart(tensor: Any) -> Any:
    """The value as a new object; a copy if its framework has no read-only tensors.

    A new object, because `Strategy.run` does not wrap an object that all replicas return.
    """
    if isinstance(tensor, np.ndarray):
        return tensor.view()
    if isinstance(tensor, np.generic):
        return tensor.copy()
    if framework_of(tensor) == "jax":
        # Read-only, but the caller may donate its memory to a compiled function.
        return tensor.copy()
    return tensor.detach().clone() if hasattr(tensor, "detach") else tensor
