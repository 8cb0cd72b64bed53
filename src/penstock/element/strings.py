"""Strings: `bytes` in arrays of objects.

NumPy's own string dtypes remove trailing zero bytes, so strings are never converted to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]


def bytes_of(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def make_column(items: list[bytes]) -> Array:
    """Strings as one array, with a row for each."""
    column = np.empty(len(items), object)
    column[:] = items
    return column


def from_array(array: Array) -> Array:
    """An array of bytes from an array of strings (dtype S, U or object)."""
    items = array.ravel().tolist()
    if {*map(type, items)} != {bytes}:
        items = [_string_item(item) for item in items]
    result = np.empty(array.shape, object)
    result.ravel()[:] = items
    return result


def _string_item(item: Any) -> bytes:
    if isinstance(item, str | bytes):
        return bytes_of(item)
    raise InvalidArgumentError(
        f"penstock: an object array holds strings only, got {type(item).__name__}; convert it to "
        "a dtype, or use a dict or a tuple of arrays"
    )


def from_list(value: Any) -> Array:
    """An array of bytes from a (nested) list of strings; ValueError if rows differ in length.

    >>> from_list([["a", b"b\\0"], ["c", "d"]]).tolist()
    [[b'a', b'b\\x00'], [b'c', b'd']]
    """
    array = np.array(value, object)
    if any(isinstance(item, list | tuple) for item in array.flat):
        raise ValueError("rows differ in length")
    return from_array(array)


def kinds(value: Any) -> set[type]:
    """The types of the values in a (nested) list."""
    if isinstance(value, range):
        return {int}
    if isinstance(value, list | tuple):
        return set().union(*map(kinds, value))
    return {type(value)}


def holds_only_strings(value: Any) -> bool:
    """Whether a (nested) list contains strings only, and at least one."""
    found = kinds(value)
    return bool(found) and all(issubclass(kind, str | bytes) for kind in found)
