"""`tf.function`: a decorator after which a function returns tensors; its concrete functions.

Nothing is traced or compiled; what the function does, it does at every call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.distribute.values.variables import Variable
from penstock.element import nest
from penstock.element.spec import TensorSpec
from penstock.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError
from penstock.shim import signature
from penstock.tf.arrays import convert_to_tensor
from penstock.tf.values import Tensor, as_tensor

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
    checked = signature.function(func, input_signature, **experimental)
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
        return ConcreteFunction(self, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionOfTensors:
        if instance is None or not hasattr(self._call, "__get__"):
            return self
        return FunctionOfTensors(self._call.__get__(instance, owner))

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


# Concrete functions: what `get_concrete_function` returns
#
# Nothing is traced: the function is called, after a look at its arguments.


_CONSTANTS = int | float | complex | str | bytes | None


class ConcreteFunction:
    """A function for arguments of known specs; Python's values among them are fixed.

    >>> from penstock import tf
    >>> double = tf.function(lambda x, times=2: x * times)
    >>> concrete = double.get_concrete_function(tf.TensorSpec([], tf.int32))
    >>> concrete(tf.constant(4)).numpy(), concrete.structured_input_signature[0][1]
    (np.int32(8), 2)
    """

    def __init__(self, called: Callable[..., Any], args: Any, kwargs: Any) -> None:
        functools.update_wrapper(self, called, updated=())
        self._called, self._signature = called, inspect.signature(called)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidTypeError(f"function.get_concrete_function: {error}") from None
        bound.apply_defaults()
        self._specs = {
            name: nest.map_structure(_spec_of, value) for name, value in bound.arguments.items()
        }

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The specs and fixed values of the arguments."""
        bound = inspect.BoundArguments(self._signature, dict(self._specs))
        return bound.args, bound.kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self, "__name__", "function")
        try:
            given = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidTypeError(f"{name}: {error}") from None
        for parameter, specs in self._specs.items():
            call = f"{name}: {parameter}"
            if parameter not in given:
                given[parameter] = _fixed_value(specs, call)
            else:
                _check_leaves(specs, given[parameter], call)
        bound = inspect.BoundArguments(self._signature, given)
        return self._called(*bound.args, **bound.kwargs)


def _spec_of(leaf: Any) -> Any:
    """The spec of a tensor; other values of an argument stay as they are."""
    if isinstance(leaf, np.ndarray | np.generic):
        leaf = as_tensor(leaf)
    if isinstance(leaf, Tensor | Variable):
        return TensorSpec(leaf.shape, leaf.dtype)
    return leaf


def _fixed_value(specs: Any, call: str) -> Any:
    """An argument that was left out; raises unless it consists of fixed values."""
    if not all(isinstance(leaf, _CONSTANTS) for leaf in nest.flatten(specs)[0]):
        raise InvalidTypeError(f"{call}: a required argument is missing")
    return specs


def _check_leaves(specs: Any, value: Any, call: str) -> None:
    leaves, tree = nest.flatten(specs)
    try:
        values = nest.flatten_up_to(tree, value)
    except (ValueError, TypeError):
        raise InvalidTypeError(f"{call} must be {specs!r:.60}, got {value!r:.60}") from None
    for spec, one in zip(leaves, values, strict=True):
        _check_leaf(spec, one, call)


def _check_leaf(spec: Any, value: Any, call: str) -> None:
    if isinstance(spec, _CONSTANTS) and (type(value) is not type(spec) or value != spec):
        raise InvalidTypeError(f"{call} is fixed: it is {spec!r:.40}, got {value!r:.40}")
    if isinstance(spec, TensorSpec) and isinstance(value, Tensor) and value.dtype != spec.dtype:
        raise InvalidArgumentError(
            f"{call} must have the dtype {spec.dtype.name}, got {value.dtype.name}; use tf.cast"
        )
