"""`tf.function`: a decorator after which a function returns tensors.

Nothing is traced or compiled; what the function does, it does at every call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock import shim
from penstock.errors import OutOfRangeError
from penstock.tf.arrays import convert_to_tensor
from penstock.tf.concrete_functions import ConcreteFunction, bind_specs

_BECOME_TENSORS = (bool, int, float, complex, str, bytes, np.generic)


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    **experimental: Any,
) -> Any:
    """The function as it is written, whose numbers, texts and arrays are returned as tensors.

    Args:
        func: The function.
        input_signature: What its arguments must be, which is checked at each call.
        autograph: Ignored, as are all that follow: functions run as they are written.

    >>> import penstock.tf as tf
    >>> @tf.function
    ... def count(dataset):
    ...     number = 0
    ...     for _ in dataset:
    ...         number += 1
    ...     return number
    >>> count(tf.data.Dataset.range(3)).numpy()
    np.int32(3)
    """
    checked = shim.function(func, input_signature, **experimental)
    if func is None:
        return functools.partial(function, input_signature=input_signature)
    return FunctionOfTensors(checked)


class FunctionOfTensors:
    """A function, or a method, whose results are tensors."""

    def __init__(self, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, call)
        self._call = call

    @property
    def python_function(self) -> Callable[..., Any]:
        """The function that was decorated."""
        made: Callable[..., Any] = getattr(self._call, "python_function", self._call)
        return made

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The function for arguments of these specs, or of the specs of these tensors.

        Python's values among the arguments are fixed.
        """
        declared = getattr(self._call, "input_signature", None)
        if not args and not kwargs and declared is not None:
            args = declared
        return bind_specs(self, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionOfTensors:
        return self if instance is None else FunctionOfTensors(self._bind(instance, owner))

    def _bind(self, instance: Any, owner: type | None) -> Callable[..., Any]:
        if not hasattr(self._call, "__get__"):
            return self._call
        bound: Callable[..., Any] = self._call.__get__(instance, owner)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return _convert(self._call(*args, **kwargs))
        except StopIteration as end:
            # As in TensorFlow's functions: loops over training steps catch this error.
            raise OutOfRangeError(
                f"{getattr(self, '__name__', 'function')}: the iterator has no more elements"
            ) from end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionOfTensors) and other._call == self._call

    def __hash__(self) -> int:
        return hash(self._call)

    def __reduce__(self) -> Any:
        # By its name, where that is the decorated function: the plain one cannot be found by it.
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", "")
        found = None if module == "__main__" else getattr(sys.modules.get(str(module)), name, None)
        return name if found is self else (FunctionOfTensors, (self._call,))


def _convert(value: Any) -> Any:
    """A result with tensors; values of training frameworks and datasets stay as they are."""
    kind = type(value)
    if kind is np.ndarray or isinstance(value, _BECOME_TENSORS):
        return convert_to_tensor(value)
    if kind is list or kind is tuple:
        return kind(map(_convert, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(_convert, value))
    return {key: _convert(part) for key, part in value.items()} if kind is dict else value
