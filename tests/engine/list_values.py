"""Elements in the list model: how they are stacked, padded and cut, written naively.

A leaf is a NumPy value or bytes; a Python list is a ragged value. `FAULT` represents an element
that could not be made, and everything that needs it is a `FAULT` too.
"""

from typing import Any

import numpy as np


class Fault:
    """A failed element. It equals only itself; also arrays leave the comparison to it."""

    __array_ufunc__ = None

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None

    def __repr__(self) -> str:
        return "FAULT"


FAULT = Fault()


def stack_group(group: list[Any]) -> Any:
    """One element with a leading axis over `group`."""
    first = group[0]
    if FAULT in group:
        return FAULT
    if isinstance(first, tuple):
        return together(tuple, [stack_group(list(column)) for column in zip(*group, strict=True)])
    if isinstance(first, dict):
        parts = [stack_group([element[name] for element in group]) for name in first]
        return together(lambda values: dict(zip(first, values, strict=True)), parts)
    if isinstance(first, list):
        return group
    if isinstance(first, bytes):
        return np.array([*group, None], object)[:-1]
    alike = len({np.shape(leaf) for leaf in group}) == 1
    return np.array(group, first.dtype) if alike else FAULT


def together(make: Any, parts: list[Any]) -> Any:
    return FAULT if FAULT in parts else make(parts)


def parts_of(element: Any) -> tuple[Any, ...]:
    """The arguments that a function gets for an element."""
    return element if type(element) is tuple else (element,)


def pad_group(group: list[Any], shapes: Any, values: Any) -> Any:
    """One padded element of the group: each leaf has the largest shape, or that in `shapes`."""
    if FAULT in group:
        return FAULT
    leaves = list(zip(*map(parts_of, group), strict=True))
    shapes, values = shapes or [None] * len(leaves), values or [None] * len(leaves)
    made = together(tuple, list(map(padded_leaf, leaves, shapes, values)))
    return made if made is FAULT or type(group[0]) is tuple else made[0]


def padded_leaf(group: tuple[Any, ...], shape: Any, value: Any) -> Any:
    largest = [max(sizes) for sizes in zip(*map(np.shape, group), strict=True)]
    wanted = [None] * len(largest) if shape is None else shape.dims
    target = [h if w is None else w for h, w in zip(largest, wanted, strict=True)]
    if any(have > want for have, want in zip(largest, target, strict=True)):
        return FAULT
    out = np.full((len(group), *target), 0 if value is None else value, group[0].dtype)
    for index, leaf in enumerate(group):
        out[(index, *map(slice, np.shape(leaf)))] = leaf
    return out


def rows(element: Any) -> list[Any]:
    """The elements that an element consists of; one fault if its parts disagree."""
    if element is FAULT:
        return [FAULT]
    if not isinstance(element, tuple | dict):
        return list(element)
    parts = list(map(rows, element.values() if isinstance(element, dict) else element))
    if len(set(map(len, parts))) > 1:
        return [FAULT]
    made = zip(*parts, strict=True)
    return [
        dict(zip(element, row, strict=True)) if isinstance(element, dict) else row for row in made
    ]


def empty(element: Any) -> Any:
    """A batch of no rows such as `element`."""
    if isinstance(element, tuple):
        return tuple(map(empty, element))
    return np.asarray(element)[None][:0]


def plain(value: Any) -> Any:
    """An element, of the engine or the model, as nested Python values that compare with `==`."""
    if value is FAULT or isinstance(value, Exception):
        return "FAULT"
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return ["ragged", *map(plain, value)]
    if hasattr(value, "row_splits"):
        return ["ragged", *map(plain, value)]
    if hasattr(value, "__plan__"):
        return ["dataset", *map(plain, value)]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), np.shape(value), value.tolist()]
    return value
