"""Memory-mapped columns: gathers from a file that is larger than memory.

The kernel reads ahead around every touched page and keeps what was touched in the process. For
gathers both are waste, so it is told to read only what is asked for, and, now and then, to take
the pages out of the process again (they stay in the page cache).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.index import Array

TakeRows = Callable[[Column, Array], Column]
"""How rows are gathered from a column."""

_RELEASE = 32 << 20
_SHARED = ("r", "r+", "w+")


class Mapped:
    """The mapped files behind some columns; does nothing where there are none."""

    def __init__(self, rows: Chunk) -> None:
        self._maps = [found for column in rows.columns if (found := _mapping(column)) is not None]
        self._touched = 0
        self._advised = False

    def gather(self, rows: Chunk, index: Array, take: TakeRows) -> Chunk:
        """The rows at `index`, without keeping the file's pages."""
        if self._maps and not self._advised:
            self._advised = True
            self._advise("MADV_RANDOM")
        picked = Chunk(rows.tree, [take(column, index) for column in rows.columns], len(index))
        if not self._maps:
            return picked
        self._touched += picked.nbytes
        if self._touched > _RELEASE:
            self._touched = 0
            self._advise("MADV_DONTNEED")
        return picked

    def _advise(self, name: str) -> None:
        advice = getattr(mmap, name, None)
        for mapping in self._maps:
            if advice is not None:
                mapping.madvise(advice)


def _mapping(column: Any) -> mmap.mmap | None:
    """The map behind an array, if its pages can be read again from the file.

    Not for copy-on-write maps: what was written there lives nowhere else.
    """
    while isinstance(column, np.ndarray):
        if isinstance(column, np.memmap):
            return getattr(column, "_mmap", None) if column.mode in _SHARED else None
        column = column.base
    return None
