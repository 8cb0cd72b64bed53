"""What a variable holds: values made fit for it, on its device, and safe from later changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.distribute import context
from penstock.distribute.devices import FRAMEWORKS, resolve
from penstock.distribute.replicas import Replicas
from penstock.distribute.values import texts
from penstock.distribute.values.operators import acting
from penstock.element.values import as_value
from penstock.errors import InvalidArgumentError, InvalidTypeError


def initial_value_of(value: Any, dtype: Any) -> Any:
    value = acting(value() if callable(value) else value)
    if value is None:
        raise InvalidArgumentError("Variable: initial_value is missing; pass an array or a number")
    if framework_of(value) is None or dtype is not None:
        array = texts.as_array(value)
        return _copied(as_value(value if array is None else array, dtype))
    return value


def framework_of(value: Any) -> str | None:
    """The framework that a tensor comes from; None for everything that is NumPy's or Python's."""
    return FRAMEWORKS.get(type(value).__module__.partition(".")[0])


def home(value: Any, strategy: Any) -> Replicas:
    """Where a variable lives that is not distributed: with its strategy, or where its value is."""
    if framework_of(value) is None or context.has_strategy():
        replicas: Replicas = strategy._replicas
        return replicas
    return Replicas(*resolve([value.device], None, "Variable"))


def array_like(value: Any, old: Any, call: str) -> Any:
    """A NumPy value of its own, in the dtype of the old one."""
    if isinstance(old, bytes) or old.dtype.kind == "O":
        return _copied(as_value(value, "string"))
    array = np.asarray(value)
    if not np.can_cast(array.dtype, old.dtype, "same_kind"):
        raise InvalidTypeError(
            f"{call}: a value of dtype {array.dtype} cannot become {old.dtype}; convert it first"
        )
    return np.array(array, old.dtype)[()]


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def frozen(tensor: Any) -> Any:
    """A value that nobody can change by what they read, as far as its framework allows it."""
    if isinstance(tensor, np.ndarray):
        tensor.setflags(write=False)
    return tensor.detach() if hasattr(tensor, "detach") else tensor
