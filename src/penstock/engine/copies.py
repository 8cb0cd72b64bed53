"""Copies: arrays that a user's function returned belong to the engine from then on.

A function may fill the same buffer for every element, so arrays that it returns are copied at once.
Numbers and strings cannot change, and the function's argument and views of it belong to the engine
already: these are not copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.ragged import Ragged
from penstock.element.values import as_array, is_opaque

_FIXED = (np.generic, int, float, complex, bytes, str, type(None))

Owners = frozenset[int]
NO_OWNERS: Owners = frozenset()


def is_fixed(value: Any) -> bool:
    """Whether nothing in a value can change."""
    if isinstance(value, tuple | list):
        return all(map(is_fixed, value))
    if type(value) is dict:
        return all(map(is_fixed, value.values()))
    return isinstance(value, _FIXED) or is_opaque(value)


def owners(given: Any) -> Owners:
    """The ids of the arrays that own the memory of an element's arrays."""
    if type(given) is np.ndarray:
        return frozenset((_owner(given),))
    if type(given) is tuple:
        return NO_OWNERS.union(*map(owners, given))
    if type(given) is dict:
        return NO_OWNERS.union(*map(owners, given.values()))
    return NO_OWNERS


def _owner(array: np.ndarray[Any, Any]) -> int:
    return id(array if array.base is None else array.base)


def copy_unowned(value: Any, known: Owners = NO_OWNERS) -> Any:
    """`value` with its arrays copied, except arrays in memory of `known` owners."""
    kind = type(value)
    if kind is np.ndarray:
        return value if _owner(value) in known else value.copy()
    if kind is tuple:
        return tuple([copy_unowned(part, known) for part in value])
    if kind is list:
        return [copy_unowned(part, known) for part in value]
    if kind is dict:
        return {key: copy_unowned(part, known) for key, part in value.items()}
    if isinstance(value, _FIXED) or is_opaque(value):
        return value
    if isinstance(value, Ragged):
        return Ragged(copy_unowned(value.values, known), copy_unowned(value.row_splits, known))
    if hasattr(value, "__array__"):
        return np.array(as_array(value))
    leaves, tree = nest.flatten(value)
    if tree == nest.LEAF:
        return value
    return nest.unflatten(tree, [copy_unowned(leaf, known) for leaf in leaves])
