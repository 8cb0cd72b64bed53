"""Concrete functions: what `get_concrete_function` of a `tf.function` returns.

Nothing is traced: the function is called, after a look at its arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.distribute.values.variables import Variable
from penstock.element import nest
from penstock.element.spec import TensorSpec
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.values import Tensor, as_tensor

_CONSTANTS = int | float | complex | str | bytes | None


def bind_specs(called: Callable[..., Any], args: Any, kwargs: Any) -> ConcreteFunction:
    """The function for arguments of these specs, or of the specs of these tensors."""
    signature = inspect.signature(called)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidTypeError(f"function.get_concrete_function: {error}") from None
    bound.apply_defaults()
    return ConcreteFunction(called, signature, bound)


class ConcreteFunction:
    """A function for arguments of known specs; Python's values among them are fixed.

    >>> from penstock import tf
    >>> double = tf.function(lambda x, times=2: x * times)
    >>> concrete = double.get_concrete_function(tf.TensorSpec([], tf.int32))
    >>> concrete(tf.constant(4)).numpy(), concrete.structured_input_signature[0][1]
    (np.int32(8), 2)
    """

    def __init__(
        self,
        called: Callable[..., Any],
        signature: inspect.Signature,
        bound: inspect.BoundArguments,
    ) -> None:
        functools.update_wrapper(self, called, updated=())
        self._called, self._signature = called, signature
        self._specs = {name: _specs_of(value) for name, value in bound.arguments.items()}

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


def _specs_of(value: Any) -> Any:
    """An argument with specs in the place of tensors."""
    leaves, tree = nest.flatten(value)
    return nest.unflatten(tree, [_spec_of(leaf) for leaf in leaves])


def _spec_of(leaf: Any) -> Any:
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
