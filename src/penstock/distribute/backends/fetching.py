"""Fetching rows by their numbers: what every framework does alike before a GPU reads them.

A GPU reads rows by itself where they are large or lie one behind the other; small ones are gathered
by the host first, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.distribute.backends.cuda import LOCKED, Driver
from penstock.distribute.backends.moving import Array
from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Column

_WORTH_FETCHING = 32 << 10
"""Bytes of a copy below which the host is faster. Measured: twelve threads gather 31 GB/s of rows
of any size; the GPU reads 4 GB/s in pieces of 16 KB, 35 in pieces of 32 KB, 54 of 64 KB."""

FetchLeaf = Callable[[int, int, Array], Sequence[Any]]
"""Of a leaf, for an owner, at an array of row numbers: the rows, one tensor for each step."""


@dataclass(frozen=True)
class Copies:
    """Copies out of locked memory: where to (counted from some address), from where, bytes."""

    cuda: Driver
    offsets: Array
    sources: Array
    sizes: Array

    def begin(self, address: int, stream: int) -> bool:
        """Begins them, on a stream of the GPU that was entered; whether that was possible."""
        to = self.offsets + np.uint64(address)
        with LOCKED.mutex:
            # It may have been unlocked since: then the copies cannot begin, or are made at once.
            return self.cuda.copy_rows(to, self.sources, self.sizes, stream)


class RowFetch:
    """Rows in memory, and whether a GPU can read them by itself."""

    def __init__(self, rows: Chunk, cuda: Driver) -> None:
        self.rows = rows
        self.cuda = cuda

    def copies(self, leaf: int, numbers: Array) -> Copies | None:
        """How a GPU gets the rows of a leaf; None if it had better not fetch them itself."""
        column: Any = self.rows.columns[leaf]
        nbytes = column.nbytes // max(len(column), 1)
        flat = numbers.ravel()
        if not flat.size * nbytes:
            return None
        starts = np.flatnonzero(np.diff(flat, prepend=flat[0] - 2) != 1)
        if flat.size * nbytes < _WORTH_FETCHING * len(starts):
            return None
        if not LOCKED.lock(column, self.cuda):
            return None
        address = column.__array_interface__["data"][0]
        return Copies(
            self.cuda,
            (starts * nbytes).astype(np.uint64),
            (flat[starts] * nbytes + address).astype(np.uint64),
            (np.diff(starts, append=flat.size) * nbytes).astype(np.uint64),
        )


def owners_of_row_numbers(owners: Sequence[int], leaves: int) -> list[int]:
    """Whose the columns of a chunk of numbers are, where each stands for so many leaves."""
    hosts = [owner for owner in owners if owner < 0]
    return hosts + [owner for owner in owners if owner >= 0][::leaves]


def fetch_rows(chunk: Chunk, rows: Chunk, owners: Sequence[int], fetch: FetchLeaf) -> Chunk:
    """A chunk of numbers as the chunk of the rows that they mean; strings stay on the host."""
    trees: list[nest.Tree] = []
    made: list[Column] = []
    for numbers, owner in zip(chunk.columns, owners, strict=True):
        trees.append(nest.LEAF if owner < 0 else rows.tree)
        if owner < 0:
            made.append(numbers)
            continue
        for leaf, column in enumerate(rows.columns):
            made.append(_fetch_column(column, numbers, partial(fetch, leaf, owner)))
    return Chunk(nest.graft(chunk.tree, tuple(trees)), made, len(chunk))


def _fetch_column(
    column: Column, numbers: Column, fetch: Callable[[Array], Sequence[Any]]
) -> Column:
    def step(part: Array) -> Sequence[Any]:
        return _take_on_host(column, part) if column.dtype.hasobject else fetch(part)  # type: ignore[union-attr]

    if isinstance(numbers, np.ndarray):
        return list(step(numbers))
    return [step(one[None])[0] for one in numbers]


def _take_on_host(column: Column, numbers: Array) -> Any:
    taken: Any = columns.take(column, numbers.ravel())
    return taken.reshape(*numbers.shape, *taken.shape[1:])
