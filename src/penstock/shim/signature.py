"""`function`: a decorator that leaves the function alone, except to check its arguments.

Nothing is traced or compiled; what the function does, it does at every call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from penstock.data.arguments import describe
from penstock.data.arguments import signature as check_specs
from penstock.element import nest
from penstock.element.spec import TensorSpec, TypeSpec
from penstock.element.values import as_value, spec_of_leaf
from penstock.errors import InvalidTypeError, OpError
from penstock.shim.literals import convert_value, is_literal


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    **experimental: Any,
) -> Any:
    """The function itself: it runs as it is, and `input_signature` is checked at each call.

    >>> import numpy as np
    >>> @function(input_signature=[TensorSpec([None], np.int32)])
    ... def double(x):
    ...     return x * 2
    >>> double([1, 2])
    array([2, 4], dtype=int32)
    """
    if unknown := [name for name in experimental if not name.startswith("experimental_")]:
        raise InvalidTypeError(f"function: there is no argument {unknown[0]}")
    if func is None:
        return functools.partial(function, input_signature=input_signature)
    if not callable(func):
        raise InvalidTypeError(f"function: needs something to call, got {describe(func)}")
    return func if input_signature is None else _CheckedFunction(func, _specs(input_signature))


def _specs(signature: Sequence[Any]) -> tuple[Any, ...]:
    if not isinstance(signature, list | tuple):
        raise InvalidTypeError(
            f"function: input_signature must be a list or tuple of specs, got {describe(signature)}"
        )
    checked: tuple[Any, ...] = check_specs("function", tuple(signature), "input_signature")
    return checked


class _CheckedFunction:
    """A function whose positional arguments are checked, and Python's numbers in them converted."""

    def __init__(self, func: Callable[..., Any], specs: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, func)
        self.python_function, self.input_signature = func, specs
        self._signature = inspect.signature(func)
        self._name = getattr(func, "__name__", type(func).__name__)

    def __get__(self, instance: Any, owner: type | None = None) -> _CheckedFunction:
        if instance is None:
            return self
        return _CheckedFunction(MethodType(self.python_function, instance), self.input_signature)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._bind(args, kwargs)
        specs, names = self.input_signature, list(self._signature.parameters)
        calls = (f"{self._name}: {names[min(i, len(names) - 1)]}" for i in range(len(specs)))
        checked = map(_check_argument, calls, specs, bound.args)
        return self.python_function(*checked, *bound.args[len(specs) :], **bound.kwargs)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidTypeError(f"{self._name}: {error}") from None
        given, expected = len(bound.args), len(self.input_signature)
        bound.apply_defaults()
        if not given <= expected <= len(bound.args):
            raise InvalidTypeError(
                f"{self._name}: input_signature describes {expected} arguments, got {given}"
            )
        return bound


def _check_argument(call: str, spec: Any, value: Any) -> Any:
    leaves, tree = nest.flatten(spec)
    try:
        values = nest.flatten_up_to(tree, value)
    except (ValueError, TypeError):
        raise InvalidTypeError(f"{call} must be {spec}, got {_describe_spec(value)}") from None
    return nest.unflatten(
        tree, [_fit_leaf(call, *pair) for pair in zip(leaves, values, strict=True)]
    )


def _fit_leaf(call: str, spec: TypeSpec, value: Any) -> Any:
    if isinstance(spec, TensorSpec) and is_literal(value):
        value = convert_value(call, value, spec.dtype)
    if not spec.fits(value):
        raise InvalidTypeError(f"{call} must be {spec}, got {_describe_spec(value)}")
    return value


def _describe_spec(value: Any) -> str:
    try:
        return repr(nest.map_structure(lambda leaf: spec_of_leaf(as_value(leaf)), value))
    except OpError:
        return describe(value)
