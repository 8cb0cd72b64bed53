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


def drawn(numbers: Array) -> Array:
    """The numbers to draw by."""
    return numbers["number"] if numbers.dtype == PLACED else numbers


def placed(numbers: Array, places: Any) -> Array:
    """Numbers with places."""
    made = np.empty(len(numbers), PLACED)
    made["number"], made["place"] = numbers, places
    return made


def inherited(numbers: Array, origin: Array | None) -> Array:
    """The numbers of what was made of the one element whose number is `origin`."""
    if origin is None or origin.dtype != PLACED:
        return numbers
    return placed(numbers, origin["place"][0])


def put_place(error: Exception, numbers: Array | None) -> Exception:
    """Notes the place of the element whose number is the first, and which could not be made."""
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
    """The place of what could not be made, if it has one."""
    place: int | None = error.__dict__.get("place")
    return place


class Trail:
    """What one opened piece has told so far.

    `began` and `ended` are bytes of a file: where the first record of a part of it begins, and
    where the first record begins that is behind the part. `inputs` are the lengths of those inputs
    of an `interleave` that have come to their end, -1 for one that could not be opened; there are
    `count` of them, if that is known.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, int] = {}
        self.count: int | None = None
        self.began: int | None = None
        self.ended: int | None = None

    def part(self, began: int | None, ended: int | None) -> None:
        """A part of a file was read, up to its end if that is told."""
        self.began = self.began if began is None else began
        self.ended = self.ended if ended is None else ended

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """The lengths of all inputs, once they are known."""
        if self.count is None:
            return None
        # A state that was saved behind the failure of the only input does not tell of it.
        missing = {0: -1} if self.count == 1 else {}
        found = {**missing, **self.inputs}
        complete = all(index in found for index in range(self.count))
        return tuple(found[index] for index in range(self.count)) if complete else None
