"""Trails: what the streams of a piece find out that the reader of all pieces needs to know.

The *turn* of an element is an integer by which a client puts the elements of all inputs of an
`interleave` in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array

WITH_TURNS = np.dtype([("number", np.uint64), ("turn", np.int64)])
"""The numbers of elements, and their turns."""


def drawing_numbers(numbers: Array) -> Array:
    return numbers["number"] if numbers.dtype == WITH_TURNS else numbers


def add_turns(numbers: Array, turns: Any) -> Array:
    """Combines the numbers of elements with their turns."""
    made = np.empty(len(numbers), WITH_TURNS)
    made["number"], made["turn"] = numbers, turns
    return made


def inherit_turn(numbers: Array, origin: Array | None) -> Array:
    """The numbers of elements that were made of one element, with its number in `origin`."""
    if origin is None or origin.dtype != WITH_TURNS:
        return numbers
    return add_turns(numbers, origin["turn"][0])


def put_turn(error: Exception, numbers: Array | None) -> Exception:
    """Attaches the turn of the element that failed, the first of `numbers`, to `error`."""
    if numbers is not None and numbers.dtype == WITH_TURNS and len(numbers):
        error.__dict__.setdefault("turn", int(numbers["turn"][0]))
    return error


def with_turns(chunk: Chunk) -> Chunk:
    """The elements as they travel: their turns are one column more."""
    if chunk.numbers is None or chunk.numbers.dtype != WITH_TURNS:
        return chunk
    turns = np.ascontiguousarray(chunk.numbers["turn"])
    return Chunk(chunk.tree, [*chunk.columns, turns], len(chunk))


def turn_of(error: BaseException) -> int | None:
    """The turn that `put_turn` attached to an error, if it did."""
    turn: int | None = error.__dict__.get("turn")
    return turn


class Trail:
    """What the streams of one piece have found out so far.

    `began` and `ended` are bytes of a file: where the first record of a part begins, and where the
    first record behind the part begins. `inputs` are the lengths of the inputs of an `interleave`
    that have ended, -1 for an input that could not be opened; `count` is the number of inputs, once
    it is known. `calling` are the operators that call functions, each with the function that says
    how many elements it has used.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, int] = {}
        self.count: int | None = None
        self.began: int | None = None
        self.ended: int | None = None
        self.calling: list[tuple[Any, Callable[[], int]]] = []

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
