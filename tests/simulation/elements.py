"""Elements: numbers that name their position, and failures that name the element they replace."""

from __future__ import annotations

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.errors import OutOfRangeError

TREE = nest.flatten(0)[1]


def chunk_of(values: list[int]) -> Chunk:
    return Chunk(TREE, [np.array(values, dtype=np.int64)], len(values))


def values_of(chunk: Chunk) -> list[int]:
    return chunk.columns[0].tolist()  # type: ignore[union-attr, no-any-return]


class FailingError(OutOfRangeError):
    """The failure of an element that the plan lists in `failing`."""


def failed_value(error: OutOfRangeError) -> int:
    """The element that an error replaces."""
    return int(error.message.split()[0])
