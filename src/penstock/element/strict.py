"""Strict strings: bytes that raise if they are compared with text or formatted, and warn in `str`.

`b"a" == "a"` is False and `f"{b'a'}"` is `"b'a'"`, so a filter that compares with text silently
drops every element. Some calls of users' functions get strict strings instead of plain bytes; the
engine converts results back and never stores a strict string.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk

_LONGEST = 4096
"""Longer strings are not made strict, because that copies them."""

_STR_WARNING = (
    "strings are bytes, and str(), %s and print() write them with their b and quotes, like b'a'; "
    "use their decode(), or repr() if that is what you mean"
)

_GIVE_BYTES = (
    "__add__ __mul__ __mod__ capitalize center expandtabs join ljust lower lstrip partition "
    "removeprefix removesuffix replace rjust rpartition rsplit rstrip split splitlines strip "
    "swapcase title translate upper zfill"
).split()


class StrictBytes(np.bytes_):  # type: ignore[misc]  # Final for type checkers only.
    """Bytes that cannot be compared with text or formatted; slices of them are strict, too.

    It derives from `np.bytes_`: NumPy does not treat other subclasses of bytes as strings.

    >>> StrictBytes(b"a.txt").split(b".")[0] == b"a"
    True
    >>> StrictBytes(b"a.txt")[:1] == "a"
    Traceback (most recent call last):
    TypeError: strings are bytes, and b'a' equals no str; compare it with b'a', or decode() it first
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        _refuse_text(self, other)
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        _refuse_text(self, other)
        return bytes.__ne__(self, other)

    __hash__ = bytes.__hash__
    __repr__ = bytes.__repr__

    def __str__(self) -> str:
        # Not an error, because `print(x)` comes here, too. The text is the same for all strings, so
        # that Python shows it once for each line.
        warnings.warn(_STR_WARNING, stacklevel=2)
        return bytes.__repr__(self)

    def __format__(self, spec: str) -> str:
        raise TypeError(
            f"strings are bytes, and {bytes(self)!r:.60} would be written with its b and quotes; "
            "format what its decode() gives"
        )

    def __getitem__(self, key: Any) -> Any:
        return strict(bytes.__getitem__(self, key))

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)

    # NumPy's own copies lose zero bytes at the end, before NumPy 2.4.
    def __copy__(self) -> StrictBytes:
        return self

    def __deepcopy__(self, memo: Any) -> StrictBytes:
        return self


def _refuse_text(value: bytes, other: Any) -> None:
    if isinstance(other, str) or getattr(getattr(other, "dtype", None), "kind", "") == "U":
        text = other if isinstance(other, str) else ""
        raise TypeError(
            f"strings are bytes, and {bytes(value)!r:.60} equals no str; compare it with "
            f"{text.encode()!r:.60}, or decode() it first"
        )


def _strict_method(name: str) -> Any:
    plain = getattr(bytes, name)

    def method(self: bytes, *arguments: Any, **named: Any) -> Any:
        return strict(plain(self, *arguments, **named))

    method.__name__ = name
    return method


for _name in _GIVE_BYTES:
    setattr(StrictBytes, _name, _strict_method(_name))

StrictBytes.__name__ = "bytes"  # For functions that read the name of a value's type.


def holds_strings(chunk: Chunk) -> bool:
    """Whether a leaf of the elements is a string or an array of strings."""
    return any(_is_of_strings(column) for column in chunk.columns)


def _is_of_strings(column: Any) -> bool:
    array = column[0] if isinstance(column, list) else column
    return type(array) is np.ndarray and array.dtype.kind == "O"


def strict(value: Any) -> Any:
    """A copy of `value` with strict strings; in an array, only the first string is strict."""
    kind = type(value)
    if kind is bytes:
        return StrictBytes(value) if len(value) <= _LONGEST else value
    if kind is np.ndarray:
        return _strict_array(value) if value.dtype.kind == "O" and value.size else value
    if kind is tuple or kind is list:
        return kind(map(strict, value))
    if kind is dict:
        return {key: strict(part) for key, part in value.items()}
    leaves, tree = nest.flatten(value)
    if tree == nest.LEAF:
        return value
    return nest.unflatten(tree, [strict(leaf) for leaf in leaves])


def _strict_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    made = array.copy()
    made.flat[0] = strict(made.flat[0])
    made.flags.writeable = array.flags.writeable
    return made


def plain(value: Any) -> Any:
    """A function's result with plain bytes; conversion to a chunk replaces those in arrays."""
    kind = type(value)
    if kind is StrictBytes:
        return bytes(value)
    if kind is tuple or kind is list:
        return kind(map(plain, value))
    if kind is dict:
        return {key: plain(part) for key, part in value.items()}
    return value
