"""References to large arrays: what a plan holds instead of their bytes when it is sent.

A reference is plain data. The engine makes references of arrays and arrays of references.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.errors import InvalidArgumentError

LARGE = 1 << 20
"""Bytes from which on an array is sent as a reference, if there is one."""


@dataclass(frozen=True)
class FileArray:
    """An array that is mapped from a file, which every process maps by itself."""

    path: str
    file_size: int
    offset: int
    """Where the first element is, in bytes."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writeable: bool = False
    """Whether a process may change the array: its own copy of the pages that it changes."""


@dataclass(frozen=True)
class SharedArray:
    """An array of which every machine has one copy, in C order, that its processes share."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    writeable: bool = False
    """As in `FileArray`."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


ArrayReference = FileArray | SharedArray

Refer = Callable[[Array], ArrayReference | None]
"""Returns the reference to an array; None if its bytes must be sent."""

Resolve = Callable[[ArrayReference], Array]
"""Returns the array of a reference."""


def is_large(array: Array) -> bool:
    """Whether an array is large enough to be sent as a reference."""
    return array.nbytes >= LARGE and not array.dtype.hasobject


def refer_to_none(array: Array) -> None:
    """Has the bytes of every array sent."""
    return


def resolve_none(reference: ArrayReference) -> Array:
    """For plans that were encoded without references."""
    raise InvalidArgumentError(f"decode: this plan has an array elsewhere ({reference})")
