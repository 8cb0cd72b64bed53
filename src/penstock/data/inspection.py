"""Looks at datasets without training: the first elements, differences, and speed.

The functions are methods of `Dataset`, which is any dataset here.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.ragged import Ragged
from penstock.element.values import BareText, is_opaque, short_repr
from penstock.errors import InvalidTypeError

_END = object()
_SIDES = ("in the first dataset", "in the second")


def peek(dataset: Any, count: int) -> list[Any]:
    """The first elements. What runs ahead of them is stopped."""
    with iter(dataset) as iterator:
        return list(itertools.islice(iterator, count))


def find_difference(first: Any, second: Any) -> str:
    """Where two datasets first differ, in words; empty if they are equal."""
    if not isinstance(second, type(first)):
        raise InvalidTypeError(f"Dataset.diff: other must be a Dataset, got {short_repr(second)}")
    with iter(first) as one, iter(second) as two:
        pairs = itertools.zip_longest(one, two, fillvalue=_END)
        for number, pair in enumerate(pairs):
            if pair[0] is _END or pair[1] is _END:
                ended = _SIDES[0] if pair[0] is _END else _SIDES[1]
                return f"element {number} does not exist {ended}, which has only {number}"
            if place := _difference(*pair):
                return f"element {number}{place}"
    return ""


def _difference(one: Any, two: Any) -> str:
    """What follows the name of an element in the sentence about it; empty if both are equal."""
    (leaves, tree), (other_leaves, other_tree) = nest.flatten(one), nest.flatten(two)
    if tree != other_tree:
        shown = [
            nest.unflatten(each, [BareText("*")] * each.num_leaves) for each in (tree, other_tree)
        ]
        return f" has the structure {shown[0]!r} {_SIDES[0]}, {shown[1]!r} {_SIDES[1]}"
    many = len(leaves) > 1
    for number, (mine, other) in enumerate(zip(leaves, other_leaves, strict=True)):
        if place := _difference_of_leaves(mine, other):
            return f", component {number},{place}" if many else place
    return ""


def _difference_of_leaves(one: Any, two: Any) -> str:
    kinds = _kind(one), _kind(two)
    if kinds[0] != kinds[1]:
        return f" is {kinds[0]} {_SIDES[0]}, {kinds[1]} {_SIDES[1]}"
    if is_opaque(one):
        found = find_difference(one, two)
        return f" is a dataset: its {found}" if found else ""
    if isinstance(one, Ragged):
        equal = np.array_equal(one.row_splits, two.row_splits) and not _difference_of_leaves(
            one.values, two.values
        )
        return "" if equal else f" is {short_repr(one)} {_SIDES[0]}, {short_repr(two)} {_SIDES[1]}"
    return _difference_of_arrays(np.asarray(one), np.asarray(two))


def _kind(leaf: Any) -> str:
    """What must be equal before values can be compared."""
    if isinstance(leaf, Ragged) or is_opaque(leaf):
        return f"a {type(leaf).__name__}"
    array = np.asarray(leaf)
    dtype = "string" if array.dtype.kind in "OS" else array.dtype.name
    return f"{dtype} of shape {array.shape}" if array.shape else f"a scalar of {dtype}"


def _difference_of_arrays(one: Any, two: Any) -> str:
    differ = one != two
    if one.dtype.kind in "fc":
        differ &= ~(np.isnan(one) & np.isnan(two))
    if not np.any(differ):
        return ""
    places = np.argwhere(differ)
    at = tuple(places[0].tolist())
    shown = f" at {list(at)}" if at else ""
    return f"{shown} is {one[at]} {_SIDES[0]}, {two[at]} {_SIDES[1]}"


@dataclass(frozen=True)
class Benchmark:
    """How fast a dataset was read; prints as a sentence or two."""

    elements: int
    seconds: float
    """From the first element to the last."""
    first: float
    """Seconds until the first element."""
    megabytes: float
    bottleneck: str

    @property
    def elements_per_second(self) -> float:
        return max(self.elements - 1, 0) / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        share = self.megabytes * max(self.elements - 1, 0) / max(self.elements, 1)
        return (
            f"{self.elements_per_second:,.0f} elements/s, {share / max(self.seconds, 1e-9):,.1f} "
            f"MB/s ({self.elements} elements in {self.seconds:.2f} s), the first after "
            f"{self.first:.3f} s\nbottleneck: {self.bottleneck}"
        )


def benchmark(dataset: Any, seconds: float) -> Benchmark:
    """Reads for at most `seconds`, and at least one element."""
    started = time.perf_counter()
    with iter(dataset) as iterator:
        begun = started
        count = 0
        for count, _ in enumerate(iterator, 1):
            now = time.perf_counter()
            if count == 1:
                begun = now
            if now - begun >= seconds:
                break
        ended = time.perf_counter()
        profile = iterator.profile()
    nbytes = profile.operators[0].nbytes if profile.operators else 0
    return Benchmark(count, ended - begun, begun - started, nbytes / 1e6, profile.bottleneck)
