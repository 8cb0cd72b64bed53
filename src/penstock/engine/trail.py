"""Trails: what the streams of a piece find out that the reader of all pieces needs to know."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array

WIDTH = 1 << 40
"""Places of one input of an `interleave` are this far apart from those of the next."""

PLACED = np.dtype([("number", np.uint64), ("place", np.int64)])
"""Numbers of elements, and their places among the inputs of an `interleave`."""


def drawing_numbers(numbers: Array) -> Array:
    """The numbers to draw by."""
    return numbers["number"] if numbers.dtype == PLACED else numbers


def add_places(numbers: Array, places: Any) -> Array:
    """Combines the numbers of elements with their places."""
    made = np.empty(len(numbers), PLACED)
    made["number"], made["place"] = numbers, places
    return made


def inherit_place(numbers: Array, origin: Array | None) -> Array:
    """The numbers of elements that were made of one element, with its number in `origin`."""
    if origin is None or origin.dtype != PLACED:
        return numbers
    return add_places(numbers, origin["place"][0])


def put_place(error: Exception, numbers: Array | None) -> Exception:
    """Attaches the place of the element that failed, the first of `numbers`, to `error`."""
    if numbers is not None and numbers.dtype == PLACED and len(numbers):
        error.__dict__.setdefault("place", int(numbers["place"][0]))
    return error


def with_places(chunk: Chunk) -> Chunk:
    """The elements as they travel: their places are one column more."""
    if chunk.numbers is None or chunk.numbers.dtype != PLACED:
        return chunk
    places = np.ascontiguousarray(chunk.numbers["place"])
    return Chunk(chunk.tree, [*chunk.columns, places], len(chunk))


def place_of(error: BaseException) -> int | None:
    """The place that `put_place` attached to an error, if it did."""
    place: int | None = error.__dict__.get("place")
    return place


class Trail:
    """What the streams of one piece have found out so far.

    `began` and `ended` are bytes of a file: where the first record of a part begins, and where the
    first record behind the part begins. `inputs` are the lengths of the inputs of an `interleave`
    that have ended, -1 for an input that could not be opened; `count` is the number of inputs, once
    it is known.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, int] = {}
        self.count: int | None = None
        self.began: int | None = None
        self.ended: int | None = None

    def part(self, began: int | None, ended: int | None) -> None:
        """Notes where a part of a file began and ended, as far as that is known."""
        self.began = self.began if began is None else began
        self.ended = self.ended if ended is None else ended

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """The lengths of all inputs, once they are known."""
        if self.count is None:
            return None
        # A state that was saved after the only input failed has no entry for it.
        missing = {0: -1} if self.count == 1 else {}
        found = {**missing, **self.inputs}
        complete = all(index in found for index in range(self.count))
        return tuple(found[index] for index in range(self.count)) if complete else None
