"""Elements: numbers that say where they stand, and failures that say whose place they take."""

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
    """An element that fails, as it was meant to."""


def failed_value(error: OutOfRangeError) -> int:
    """The element in whose place an error came."""
    return int(error.message.split()[0])
