"""Elements of chunk files, and their comparison to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.engine.formats.chunks import read_chunks
from penstock.errors import DataLossError
from tests.effort import spread


def elements_of(path: str, compression: str | None = None, skip: int = 0) -> list[Any]:
    found = read_chunks(path, compression, skip=skip)
    return [element for chunk in found for element in chunk.elements()]


def exact(leaf: Any) -> Any:
    """A leaf, or a column of leaves, as something that `==` compares to the last bit."""
    if isinstance(leaf, list):
        return [exact(item) for item in leaf]
    if isinstance(leaf, Ragged):
        return "ragged", leaf.row_splits.dtype, leaf.row_lengths.tolist(), exact(leaf.flat)
    if isinstance(leaf, np.ndarray | np.generic):
        data = leaf.ravel().tolist() if leaf.dtype == object else leaf.tobytes()
        return type(leaf), leaf.dtype, leaf.shape, data
    return leaf


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        leaves, tree = nest.flatten(one)
        other_leaves, other_tree = nest.flatten(other)
        assert tree == other_tree
        assert [exact(leaf) for leaf in leaves] == [exact(leaf) for leaf in other_leaves]


def assert_damaged(path: Path, packing: str | None, elements: list[Any]) -> None:
    """Checks that reading fails, and that the elements before the failure are right."""
    found: list[Chunk] = []
    problem = "is damaged at byte|was written|is not a complete GZIP file"
    with pytest.raises(DataLossError, match=f"read_chunks: '{path}' ({problem})"):
        found.extend(read_chunks(str(path), packing))
    before = [element for chunk in found for element in chunk.elements()]
    assert_same(before, elements[: len(before)])


def flips_of(data: bytes) -> Iterator[bytes]:
    """Copies with one flipped bit each, at places all over the data."""
    for place in spread(range(len(data)), 300):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        yield bytes(flipped)
