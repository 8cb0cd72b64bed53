"""Copies: what a user's function gave is the engine's from then on.

A function may fill the same buffer for every element, so arrays that it returns are copied at
once. Numbers and strings cannot change, and (views of) the element that it was given belong to the
engine already: these are kept as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.ragged import Ragged
from penstock.element.values import is_opaque

_FIXED = (np.generic, int, float, complex, bytes, str, type(None))

Owners = frozenset[int]
NOBODY: Owners = frozenset()


def fixed(value: Any) -> bool:
    """Whether nothing in a value can change."""
    if isinstance(value, tuple | list):
        return all(map(fixed, value))
    if type(value) is dict:
        return all(map(fixed, value.values()))
    return isinstance(value, _FIXED) or is_opaque(value)


def owners(given: Any) -> Owners:
    """Whose memory the arrays of an element are."""
    if type(given) is np.ndarray:
        return frozenset((_owner(given),))
    if type(given) is tuple:
        return NOBODY.union(*map(owners, given))
    if type(given) is dict:
        return NOBODY.union(*map(owners, given.values()))
    return NOBODY


def _owner(array: np.ndarray[Any, Any]) -> int:
    return id(array if array.base is None else array.base)


def kept(value: Any, known: Owners = NOBODY) -> Any:
    """`value` with its arrays copied, but for those in memory of `known` owners."""
    kind = type(value)
    if kind is np.ndarray:
        return value if _owner(value) in known else value.copy()
    if kind is tuple:
        return tuple([kept(part, known) for part in value])
    if kind is list:
        return [kept(part, known) for part in value]
    if kind is dict:
        return {key: kept(part, known) for key, part in value.items()}
    if isinstance(value, _FIXED) or is_opaque(value):
        return value
    if isinstance(value, Ragged):
        return Ragged(kept(value.values, known), kept(value.row_splits, known))
    if hasattr(value, "__array__"):
        return np.array(value)
    leaves, tree = nest.flatten(value)
    if tree == nest.LEAF:
        return value
    return nest.unflatten(tree, [kept(leaf, known) for leaf in leaves])
