"""Gathers: rows picked from arrays, the expensive work of a shuffled batch, and from mapped files.

Several threads share large gathers. A `Team` cuts the work into more slices than there are threads,
and each thread takes the next slice as soon as it is free. The caller waits until all slices are
done, and not for threads that found none left.
"""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element import columns
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.joined_strings import JoinedStrings
from penstock.engine.mapped_files import find_map
from penstock.engine.pool import Pool

TakeRows = Callable[[columns.Column, Array], columns.Column]
"""How rows are gathered from a column."""

_RELEASE = 32 << 20

_WORTH_SHARING = 2 << 20
"""Bytes below which handing a slice to another thread costs more than it saves."""

_SLICES_EACH = 2
"""Slices for each thread: with more, threads end together, but wait longer for the interpreter."""


class Team:
    """Threads that share work with the thread that calls `share`."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._pool: Pool | None = None

    def share(self, work: Callable[[slice], None], length: int) -> None:
        """Calls `work` with slices of `range(length)` until all is done, in several threads."""
        slices = _SlicedWork(work, length, min(length, self.threads * _SLICES_EACH))
        for _ in range(min(self.threads, slices.count) - 1):
            self._start_pool().submit(slices.take)
        slices.take()
        slices.wait()

    def _start_pool(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.threads - 1, self._name)
            self._pool.stop_with(self)
        return self._pool

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.stop(join=True)


class _SlicedWork:
    """Work in slices. Each thread that calls `take` does slices until none is left.

    No lock is needed: `next` of an `itertools.count` is atomic, and the last thread to finish a
    slice sets `_done` after every `_error` was written.
    """

    def __init__(self, work: Callable[[slice], None], length: int, count: int) -> None:
        self.count = count
        self._work = work
        self._cuts = [length * i // count for i in range(count + 1)]
        self._taken, self._finished = itertools.count(), itertools.count(1)
        self._done = threading.Event()
        self._error: BaseException | None = None

    def take(self) -> None:
        """Does one slice after the other until none is left."""
        while (number := next(self._taken)) < self.count:
            try:
                self._work(slice(self._cuts[number], self._cuts[number + 1]))
            except BaseException as error:
                # Also KeyboardInterrupt and the like: the caller waits for this slice.
                self._error = error
            if next(self._finished) == self.count:
                self._done.set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error


class Gather(Team):
    """Gathers rows from an array; many bytes by several threads."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, "penstock-gather")

    def __call__(self, column: columns.Column, indices: Array) -> columns.Column:
        if type(column) is not np.ndarray or not self._shares(column, indices):
            return columns.take(column, indices)
        out = np.empty((len(indices), *column.shape[1:]), column.dtype)
        self.into(out, column, indices)
        return out

    def into(self, out: Array, column: Array, indices: Array) -> None:
        if self._shares(column, indices):
            self.share(lambda rows: _take_into(column, indices[rows], out[rows]), len(out))
        else:
            _take_into(column, indices, out)

    def copy(self, out: Array, source: Array) -> None:
        if source.nbytes >= _WORTH_SHARING and self.threads > 1:
            self.share(lambda rows: np.copyto(out[rows], source[rows]), len(out))
        else:
            np.copyto(out, source)

    def _shares(self, column: Array, indices: Array) -> bool:
        many = column.strides[0] * len(indices) >= _WORTH_SHARING
        return many and self.threads > 1 and not column.dtype.hasobject


def _take_into(column: Array, indices: Array, out: Array) -> None:
    # With mode="raise", NumPy would copy through a buffer, to check all bounds first.
    np.take(column, indices, 0, out, "clip")


class MappedFiles:
    """The memory-mapped files behind some columns; does nothing where there are none.

    A file may be larger than memory. The kernel reads ahead around every touched page and keeps
    what was touched in the process. For gathers both are waste, so `madvise` makes it read only
    what is asked for and, now and then, take the pages out of the process (they stay in the page
    cache).
    """

    def __init__(self, rows: Chunk) -> None:
        found = [find_map(column) for column in rows.columns]
        self._maps: list[mmap.mmap] = [each._mmap for each in found if each is not None]  # type: ignore[attr-defined]
        self._touched = 0
        self._advised = False

    def gather(self, rows: Chunk, index: Array, take: TakeRows) -> Chunk:
        """The rows at `index`, without keeping the file's pages."""
        if self._maps and not self._advised:
            self._advised = True
            self._advise("MADV_RANDOM")
        given: list[Any] = rows.columns
        taken = [c.take(index) if isinstance(c, JoinedStrings) else take(c, index) for c in given]
        picked = Chunk(rows.tree, taken, len(index))
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
