"""Leaves of elements as tensors: which leaves are converted, and which memory is copied.

Writing to a tensor must change no array, nor the reverse. An array of the engine is writeable only
if no source, no cache and no other element shares its memory; all other arrays are copied.
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
"""Makes a tensor of an array; True means that its memory is not shared and may be kept."""


def convert(where: str, element: Any, make: Make) -> Any:
    """`element` with its numbers as tensors. Strings, ragged values and None stay as they are."""
    leaves, tree = nest.flatten(element)
    taken: set[int] = set()
    return nest.unflatten(tree, [_convert_leaf(where, leaf, make, taken) for leaf in leaves])


def _convert_leaf(where: str, leaf: Any, make: Make, taken: set[int]) -> Any:
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


def own_array(array: Array, alone: bool) -> Array:
    """`array`, contiguous, in memory of its own; copied unless it is `alone` in its memory."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array if alone and array.flags.carray else np.array(array, order="C")
