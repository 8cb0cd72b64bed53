"""Fills: every batch made as long as all others, so that every portion has one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError


@dataclass(frozen=True)
class Fill:
    """Batches of up to `batch` rows are given `rows`, by `mode`: "drop", "pad" or "repeat"."""

    mode: str
    batch: int
    rows: int

    def apply(self, chunk: Chunk) -> Chunk | None:
        """The batches, filled; None if none of them is left."""
        sizes = self._count_rows(chunk)
        if self.mode == "drop":
            full = np.flatnonzero(sizes == self.batch)
            if len(full) == len(chunk):
                return chunk
            return chunk.take(full) if len(full) else None
        made = [self._fill_column(column) for column in chunk.columns]
        if self.mode == "repeat":
            return Chunk(chunk.tree, made, len(chunk))
        mask = np.arange(self.rows) < sizes[:, None]
        return Chunk(tree_with_mask(chunk.tree), [*made, mask], len(chunk))

    def _count_rows(self, chunk: Chunk) -> Any:
        counts = [
            [len(leaf) for leaf in column] for column in chunk.columns if column[0] is not None
        ]
        sizes = np.array(counts[0])
        if any(count != counts[0] for count in counts) or sizes.max() > self.batch:
            raise InvalidArgumentError(
                f"InputOptions(last_batch={self.mode!r}): batches of {self.batch} rows are "
                f"expected, but the components of an element have {sorted({c[0] for c in counts})}"
                " rows; let no operator behind batch change the number of rows"
            )
        return sizes

    def _fill_column(self, column: Column) -> Column:
        if type(column) is np.ndarray and column.ndim > 1 and column.shape[1] == self.rows:
            return column
        return columns.make([self._fill_leaf(leaf) for leaf in column])

    def _fill_leaf(self, leaf: Any) -> Any:
        if leaf is None or len(leaf) == self.rows:
            return leaf
        if self.mode == "repeat":
            again = np.arange(self.rows) % max(len(leaf), 1)
            return leaf.take(again) if isinstance(leaf, Ragged) else leaf[again]
        if isinstance(leaf, Ragged):
            more = np.full(self.rows - len(leaf), leaf.row_splits[-1])
            return Ragged(leaf.values, np.concatenate([leaf.row_splits, more]))
        longer = np.zeros((self.rows, *leaf.shape[1:]), leaf.dtype)
        if leaf.dtype.hasobject:
            longer.fill(b"")
        longer[: len(leaf)] = leaf
        return longer


def tree_with_mask(tree: nest.Tree) -> nest.Tree:
    """The structure of an element and its mask."""
    return nest.graft(nest.PAIR, (tree, nest.LEAF))
