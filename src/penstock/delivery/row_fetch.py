"""Fetching rows by their numbers: the part that does not depend on the framework.

A GPU reads rows by itself if they are large or contiguous. Small rows are gathered by the host
first, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.delivery.cuda import Driver, address_of
from penstock.delivery.locked_memory import LOCKED
from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column

_WORTH_FETCHING = 32 << 10
"""Bytes of a copy below which the host is faster. Measured: twelve threads gather 31 GB/s of rows
of any size; the GPU reads 4 GB/s in copies of 16 KB, 35 in copies of 32 KB, 54 of 64 KB."""

FetchLeaf = Callable[[int, int, Array], Sequence[Any]]
"""Called with a leaf, an owner and row numbers; returns the rows, one tensor for each element."""


@dataclass(frozen=True)
class Copies:
    """Copies out of locked memory: offsets at the destination, source addresses, and sizes."""

    cuda: Driver
    offsets: Array
    sources: Array
    sizes: Array

    def begin(self, address: int, stream: int) -> bool:
        """Starts the copies on a stream of the current GPU; returns whether it could."""
        to = self.offsets + np.uint64(address)
        with LOCKED.mutex:
            # A fork may have unlocked the source since: then the copies fail, or are synchronous.
            return self.cuda.copy_rows(to, self.sources, self.sizes, stream)


def plan_copies(column: Array, numbers: Array, cuda: Driver) -> Copies | None:
    """How a GPU reads rows from the host's memory; None if the host should gather them instead."""
    nbytes = column.nbytes // max(len(column), 1)
    flat = numbers.ravel()
    if not flat.size * nbytes:
        return None
    starts = np.flatnonzero(np.diff(flat, prepend=flat[0] - 2) != 1)
    if flat.size * nbytes < _WORTH_FETCHING * len(starts):
        return None
    if not LOCKED.lock(column, cuda):
        return None
    return Copies(
        cuda=cuda,
        offsets=(starts * nbytes).astype(np.uint64),
        sources=(flat[starts] * nbytes + address_of(column)).astype(np.uint64),
        sizes=(np.diff(starts, append=flat.size) * nbytes).astype(np.uint64),
    )


def owners_of_row_numbers(owners: Sequence[int] | None, leaves: int) -> list[int] | None:
    """The owners of columns of row numbers, each of which replaces `leaves` columns of rows."""
    if owners is None:
        return None
    hosts = [owner for owner in owners if owner < 0]
    return hosts + [owner for owner in owners if owner >= 0][::leaves]


def fetch_rows(chunk: Chunk, rows: Chunk, owners: Sequence[int], fetch: FetchLeaf) -> Chunk:
    """Replaces row numbers in a chunk by the rows; strings stay on the host."""
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
