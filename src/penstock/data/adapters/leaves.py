"""The leaves of elements on their way to a framework: which become tensors, and whose memory it is.

A tensor must not change when somebody else writes to an array, nor the reverse. The engine hands
out arrays that can be written to only where no source, no cache and no other element shares them;
all others are to be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.arguments import is_dataset
from penstock.element import nest
from penstock.errors import InvalidTypeError

Array = np.ndarray[Any, Any]
Make = Callable[[Array, bool], Any]
"""A tensor of an array; the flag says that the memory is not shared and may be kept."""


def convert(where: str, element: Any, make: Make) -> Any:
    """`element` with its numbers as tensors. Strings, ragged values and None stay as they are."""
    leaves, tree = nest.flatten(element)
    taken: set[int] = set()
    return nest.unflatten(tree, [_converted(where, leaf, make, taken) for leaf in leaves])


def _converted(where: str, leaf: Any, make: Make, taken: set[int]) -> Any:
    if isinstance(leaf, np.generic):
        return make(np.array(leaf), True)
    if is_dataset(leaf):
        raise InvalidTypeError(f"{where}: an element is a dataset; flatten it with flat_map")
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind == "O":
        return leaf
    # Two leaves of one element may be the same array, or parts of one.
    owner = id(leaf if leaf.base is None else leaf.base)
    alone = leaf.flags.writeable and owner not in taken
    taken.add(owner)
    return make(leaf, alone)


def owned(array: Array, alone: bool) -> Array:
    """`array` in memory that nobody else sees, as C lays it out."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array if alone and array.flags.carray else np.array(array, order="C")
