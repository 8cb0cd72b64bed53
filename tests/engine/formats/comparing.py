"""Elements of chunk files, and their comparison to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.ragged import Ragged
from penstock.engine.formats.chunks import read_chunks


def elements_of(path: str, compression: str | None = None, skip: int = 0) -> list[Any]:
    found = read_chunks(path, compression, skip=skip)
    return [element for chunk in found for element in chunk.elements()]


def exact(leaf: Any) -> Any:
    """A leaf as something that `==` compares to the last bit."""
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
