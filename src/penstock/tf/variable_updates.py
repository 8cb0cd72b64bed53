"""Changes of some entries of a `tf.Variable`: slices that can be assigned, and `scatter_*`.

A variable is never changed in place: each change makes a new array and assigns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.distribute.values.indexed_slices import IndexedSlices
from penstock.distribute.values.storage import array_like
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.values import Array, Tensor, plain_key, to_plain

Change = Callable[[Array], Array]
"""Makes the new value of a variable of the old one."""


class VariableSlice(Tensor):
    """A part of a variable's value, as a tensor; `assign` changes that part of the variable."""

    _update: Callable[[Change, str], Any] | None = None
    _key: Any = None

    @classmethod
    def of(cls, part: Tensor, update: Callable[[Change, str], Any], key: Any) -> VariableSlice:
        made = part.view(cls)
        made._update, made._key = update, key
        return made

    def assign(self, value: Any, name: str | None = None) -> Any:
        """Assigns a value to this part of the variable; returns the variable."""
        if self._update is None:
            raise InvalidTypeError("Tensor.assign: only a slice of a variable can be assigned")
        return self._update(
            lambda old: change_slice(old, self._key, value, "Variable[...].assign"),
            "Variable[...].assign",
        )


def is_slice(key: Any) -> bool:
    """Whether an index consists of integers, slices, `...` and `newaxis` only."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(_is_position(part) for part in parts)


def _is_position(part: Any) -> bool:
    if part is None or part is Ellipsis or isinstance(part, slice | int | np.integer):
        return not isinstance(part, bool)
    return isinstance(part, np.ndarray) and part.ndim == 0 and np.asarray(part).dtype.kind in "iu"


def change_slice(old: Array, key: Any, value: Any, call: str) -> Array:
    """The array with a value at an index; the value is broadcast."""
    new, fitting = np.array(old), _fit(old, value, call)
    try:
        new[plain_key(key)] = fitting
    except ValueError:
        part = np.shape(new[plain_key(key)])
        raise InvalidArgumentError(
            f"{call}: a value of shape {np.shape(fitting)} does not fit a slice of shape {part}"
        ) from None
    return new


def _fit(old: Array, value: Any, call: str) -> Array:
    """A value in the dtype of the variable; tensors are not converted."""
    if isinstance(value, Tensor) and np.asarray(value).dtype != old.dtype:
        raise InvalidArgumentError(
            f"{call}: the variable has the dtype {old.dtype}, got a tensor of {value.dtype.name}; "
            "use tf.cast"
        )
    return np.asarray(array_like(to_plain(value), old, call))


def _divide_at(array: Array, where: Any, values: Array) -> None:
    if array.dtype.kind not in "iu":
        np.divide.at(array, where, values)
        return
    rows = np.broadcast_to(values, array[where].shape)
    for index in np.ndindex(np.shape(where[0])):  # Integers are divided towards zero.
        row = tuple(part[index] for part in where)
        old, by = array[row], rows[index]
        array[row] = np.sign(old) * np.sign(by) * (np.abs(old) // np.abs(by))


def _set_at(array: Array, where: Any, values: Array) -> None:
    array[where] = values


CHANGES: dict[str, Callable[[Array, Any, Array], None]] = {
    "update": _set_at,
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": _divide_at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}
"""What `Variable.scatter_<name>` does with the rows at some places of an array."""


def check_slices(delta: Any, call: str) -> None:
    """Raises unless the argument of a `scatter_*` is `IndexedSlices`."""
    if not isinstance(delta, IndexedSlices):
        raise InvalidTypeError(
            f"{call}: needs tf.IndexedSlices(values, indices), got {delta!r:.60}"
        )


def change_rows(how: str, old: Array, delta: IndexedSlices, call: str) -> Array:
    """The array after a change of some of its rows."""
    check_slices(delta, call)
    numbers = _integers(delta.indices, call)
    if np.ndim(old) == 0:
        raise InvalidArgumentError(f"{call}: the variable is a single value and has no rows")
    return _change_at(how, old, (numbers,), delta.values, call)


def change_entries(how: str, old: Array, indices: Any, updates: Any, call: str) -> Array:
    """The array after a change at some places: each row of `indices` is the index of a place."""
    numbers = _integers(indices, call)
    if not numbers.ndim or not 0 < numbers.shape[-1] <= np.ndim(old):
        raise InvalidArgumentError(
            f"{call}: indices of shape {numbers.shape} do not fit a variable of shape "
            f"{np.shape(old)}; their last dimension is the length of an index"
        )
    return _change_at(how, old, tuple(np.moveaxis(numbers, -1, 0)), updates, call)


def _integers(indices: Any, call: str) -> Array:
    numbers = np.asarray(to_plain(indices))
    if not numbers.size:
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise InvalidTypeError(f"{call}: indices must be integers, got {numbers.dtype}")
    return numbers


def _change_at(how: str, old: Array, where: tuple[Array, ...], updates: Any, call: str) -> Array:
    for numbers, size in zip(where, np.shape(old), strict=False):
        if wrong := [int(number) for number in np.ravel(numbers) if not 0 <= number < size]:
            raise InvalidArgumentError(f"{call}: the index {wrong[0]} is not in [0, {size})")
    values, new = _fit(old, updates, call), np.array(old)
    expected = (*np.shape(where[0]), *np.shape(old)[len(where) :])
    if values.shape not in ((), expected):
        raise InvalidArgumentError(
            f"{call}: values of shape {values.shape} do not fit the shape {expected} of the "
            "places to change"
        )
    with np.errstate(all="ignore"):
        CHANGES[how](new, where, values)
    return new


def add_up(slices: IndexedSlices) -> Array:
    """The dense array of some rows: rows of one number are added, and missing rows are zero."""
    if slices.shape is None:
        raise InvalidArgumentError(
            "tf.convert_to_tensor: the IndexedSlices have no dense_shape; pass it to them"
        )
    values = np.asarray(to_plain(slices.values))
    dense = np.zeros(slices.shape, values.dtype)
    np.add.at(dense, _integers(slices.indices, "tf.convert_to_tensor"), values)
    return dense
