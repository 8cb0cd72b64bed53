"""Operators for objects that act as a value, such as variables and `Mirrored`.

Each operator is applied to the current value, which may belong to any framework.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.distribute.values.trees import map_leaves
from penstock.errors import InvalidTypeError, NoSuchEntryError


class ActsAsValue:
    """Arithmetic, comparison, indexing and conversion of `_current_value()`."""

    __slots__ = ()

    def _current_value(self) -> Any:
        """The value of the current replica, or of all of them outside of `run`."""

    @property
    def shape(self) -> Any:
        return np.shape(value) if isinstance(value := self._current_value(), bytes) else value.shape

    @property
    def dtype(self) -> Any:
        return self._current_value().dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(current_value(self), dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        return getattr(ufunc, method)(*map(current_value, inputs), **keywords)

    def __jax_array__(self) -> Any:
        return self._current_value()

    def __eq__(self, other: object) -> Any:
        value = self._current_value()
        return value == _match_operand(value, other)

    def __ne__(self, other: object) -> Any:
        value = self._current_value()
        return value != _match_operand(value, other)

    def __getitem__(self, key: Any) -> Any:
        value, key = self._current_value(), map_leaves(current_value, key)
        _check_key(type(self).__name__, key, tuple(np.shape(value)))
        try:
            return value[key]
        except IndexError as error:
            raise _no_entry(type(self).__name__, key, tuple(np.shape(value))) from error

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*map_leaves(current_value, args), **map_leaves(current_value, kwargs or {}))

    def __len__(self) -> int:
        return len(self._current_value())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._current_value())

    def __bool__(self) -> bool:
        return bool(self._current_value())

    def __int__(self) -> int:
        return int(self._current_value())

    def __float__(self) -> float:
        return float(self._current_value())

    def __index__(self) -> int:
        return operator.index(self._current_value())

    def __format__(self, spec: str) -> str:
        return format(self._current_value(), spec) if spec else str(self)


def current_value(value: Any) -> Any:
    """The current value of a variable or `Mirrored`; anything else is returned unchanged."""
    return value._current_value() if isinstance(value, ActsAsValue) else value


def _check_key(name: str, key: Any, shape: tuple[int, ...]) -> None:
    """Raises for indices that frameworks treat differently: JAX clamps them to the last entry."""
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, str | bytes | float):
            raise InvalidTypeError(f"{name}: an index must be ints or slices, got {key!r}")
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if not shape or not -shape[0] <= key < shape[0]:
            raise _no_entry(name, key, shape)


def _no_entry(name: str, key: Any, shape: tuple[int, ...]) -> NoSuchEntryError:
    return NoSuchEntryError(f"{name}: index {key!r:.60} does not fit the shape {shape}")


def _match_operand(value: Any, other: Any) -> Any:
    """The second operand; a list beside an array is converted to the array's dtype."""
    other = current_value(other)
    if not isinstance(other, list | tuple) or not isinstance(value, np.ndarray | np.generic):
        return other
    array, dtype = np.asarray(other), np.asarray(value).dtype
    return array.astype(dtype) if np.can_cast(array.dtype, dtype, "same_kind") else array


def _make_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: ActsAsValue, *others: Any) -> Any:
        value = self._current_value()
        return function(value, *(_match_operand(value, other) for other in others))

    return apply


def _make_reflected_operator(
    function: Callable[[Any, Any], Any],
) -> Callable[[ActsAsValue, Any], Any]:
    def apply(self: ActsAsValue, other: Any) -> Any:
        value = self._current_value()
        return function(_match_operand(value, other), value)

    return apply


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")

for _name in (*BINARY, "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(ActsAsValue, f"__{_name}__", _make_operator(getattr(operator, f"__{_name}__")))
for _name in BINARY:
    setattr(
        ActsAsValue, f"__r{_name}__", _make_reflected_operator(getattr(operator, f"__{_name}__"))
    )
