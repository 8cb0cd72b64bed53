"""Strings: `bytes` in arrays of objects.

NumPy's own string dtypes remove trailing zero bytes, so strings are never converted to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]


def bytes_of(value: Any) -> bytes:
    if not isinstance(value, str):
        return bytes(value)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"penstock: {value!r:.60} has half a character (a surrogate) and cannot become UTF-8; "
            "convert it to bytes: the name of a file with os.fsencode"
        ) from None


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


def refuse_large_integers(value: Any, array: Array) -> None:
    """Raises if NumPy made an `array` of other numbers from the integers of a (nested) list.

    It makes uint64 of integers from 2**63 on, and float64 of them and others.
    """
    made = array.dtype.kind
    if made not in "ufO" or (made == "f" and not (np.abs(array) >= 2.0**63).any()):
        return
    given = kinds(value)
    if int not in given or not all(issubclass(kind, int | np.integer) for kind in given):
        return
    if made != "u" or not any(issubclass(kind, np.unsignedinteger) for kind in given):
        raise InvalidArgumentError(
            f"penstock: the integers of {value!r:.60} do not all fit into int64; if they fit into "
            "uint64, make an array of them: numpy.array(..., numpy.uint64)"
        )


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
