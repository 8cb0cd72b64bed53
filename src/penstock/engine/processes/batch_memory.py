"""Batch memory: shared memory in which call processes write the rows of large batches.

If the results of a parallel map are batched next, its call processes write every result to its
place in the batch. The program, which makes all batches in one thread, copies no row.

A cell of this memory holds one batch. It is used again when no array shows it any more. A task
refers to its batch until a process has answered it, so no process writes to a cell that was given
to another batch.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import resource
import threading
from collections import deque
from typing import NamedTuple

import numpy as np

from penstock.element.buffers import padded_size
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.nest import Tree
from penstock.element.reused import ReusedMemory
from penstock.engine.processes.chunk_memory import (
    LIMIT,
    SegmentRef,
    retire_lent_at_fork,
    size_class,
)
from penstock.engine.processes.descriptors import make_sealed_file

LARGE_BATCH = range(1 << 20, 1 << 30)
"""The bytes of a batch for which memory is allocated before all of its rows are there."""

_MOST_CELLS = 256
"""A program that keeps more batches than this gets copies."""

_SHARE_OF_FILES = 16
"""Cells, of two open files each, may use one in so many of the open files that are allowed."""


def _count_cells() -> int:
    """How many cells a program may have: few, if it may open few files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_CELLS
    return min(_MOST_CELLS, allowed // (2 * _SHARE_OF_FILES))


_NUMBERS = itertools.count(1)


class BatchLayout(NamedTuple):
    """How a batch lies in a cell: the dtype and the shape of a row, for each column."""

    size: int
    columns: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, rows: Chunk, size: int) -> BatchLayout | None:
        """The layout of a batch of `size` such rows; None if it is not large.

        Also None if a column is not an array of a dtype that has a name of its own.
        """
        described = []
        for column in rows.columns:
            if type(column) is not np.ndarray or column.dtype.hasobject:
                return None
            if np.dtype(column.dtype.str) != column.dtype:  # Such as bfloat16.
                return None
            described.append((column.dtype.str, column.shape[1:]))
        layout = cls(size, tuple(described))
        return layout if layout.nbytes in LARGE_BATCH else None

    @property
    def nbytes(self) -> int:
        return sum(padded_size(self.size * nbytes) for nbytes in self._row_sizes())

    def _row_sizes(self) -> list[int]:
        return [np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.columns]

    def arrays(self, memory: memoryview) -> list[Array]:
        """The columns of the batch, as views of a cell."""
        made: list[Array] = []
        start = 0
        for (dtype, shape), nbytes in zip(self.columns, self._row_sizes(), strict=True):
            made.append(np.ndarray((self.size, *shape), dtype, memory, start))
            start += padded_size(self.size * nbytes)
        return made

    def fits(self, rows: Chunk) -> bool:
        """Whether rows can be written to the batch as they are."""
        found = tuple(
            (c.dtype.str, c.shape[1:]) if type(c) is np.ndarray else None for c in rows.columns
        )
        return found == self.columns


class SentRows(NamedTuple):
    """Where a call process writes results: from row `start` on, in the batch of a cell."""

    cell: int
    start: int
    layout: BatchLayout


def write_rows(rows: Chunk, target: SentRows, memory: memoryview) -> bool:
    """Writes results to their place in a batch; returns False if they do not fit."""
    layout, start = target.layout, target.start
    if not layout.fits(rows) or start + rows.size > layout.size:
        return False
    for array, column in zip(layout.arrays(memory), rows.columns, strict=True):
        array[start : start + rows.size] = column
    return True


class BatchCell:
    """The memory of one batch, in a file that call processes map."""

    def __init__(self, room: int) -> None:
        self.number = next(_NUMBERS)
        self.room = room
        self.descriptor = make_sealed_file("penstock", room)
        try:
            self.memory = ReusedMemory.over(mmap.mmap(self.descriptor, room))
        except BaseException:
            os.close(self.descriptor)
            raise

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            os.close(self.descriptor)


class SharedBatch:
    """A batch in a cell, whose rows call processes write."""

    def __init__(self, cell: BatchCell, layout: BatchLayout, memory: memoryview) -> None:
        self.cell, self.layout = cell, layout
        self._arrays = layout.arrays(memory)

    def rows(self, tree: Tree, start: int, count: int) -> Chunk:
        """Rows that were written, as views."""
        return Chunk(tree, [array[start : start + count] for array in self._arrays], count)


class TaskRows(NamedTuple):
    """The rows of a batch that a task makes, from `start` on."""

    batch: SharedBatch
    start: int

    @property
    def sent(self) -> SentRows:
        return SentRows(self.batch.cell.number, self.start, self.batch.layout)


class BatchCells:
    """The cells of a program: lends one to each batch, and reuses those of freed batches."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit, self._most = limit, _count_cells()
        self._lock = threading.Lock()
        """Guards the next three fields."""
        self._cells: dict[int, BatchCell] = {}
        self._free: list[int] = []
        self._references: dict[int, SegmentRef] = {}
        # Without a lock: arrays may be freed in any thread, even in a thread that holds it.
        self._unused: deque[int] = deque()
        retire_lent_at_fork(self)

    def retire_lent(self) -> None:
        with self._lock:
            self._references.clear()  # A reference that is gone does not call back.
            self._take_back()
            self._cells = {number: self._cells[number] for number in self._free}

    def lend(self, layout: BatchLayout) -> SharedBatch | None:
        """Memory for a batch; None if the batches that the program keeps have used it up."""
        with self._lock:
            cell = self._find(size_class(layout.nbytes))
            if cell is None:
                return None
            memory = cell.memory[: layout.nbytes]
            reference = SegmentRef(memory, self._mark_unused)
            reference.segment, reference.is_retired = cell.number, False
            self._references[cell.number] = reference
        return SharedBatch(cell, layout, memory.data)

    def knows(self, cell: int) -> bool:
        """Whether a cell may be lent again; processes unmap all other cells."""
        return cell in self._cells

    def _mark_unused(self, reference: SegmentRef) -> None:
        self._unused.append(reference.segment)

    def _take_back(self) -> None:
        while self._unused:
            self._free.append(self._unused.popleft())

    def _find(self, room: int) -> BatchCell | None:
        self._take_back()
        if room > self._limit:
            return None
        for index, number in enumerate(reversed(self._free)):  # The last one is in the caches.
            if self._cells[number].room == room:
                del self._free[-1 - index]
                return self._cells[number]
        while self._free and not self._has_room(room):
            del self._cells[self._free.pop(0)]
        return self._make(room) if self._has_room(room) else None

    def _has_room(self, room: int) -> bool:
        used = sum(cell.room for cell in self._cells.values())
        return len(self._cells) < self._most and used + room <= self._limit

    def _make(self, room: int) -> BatchCell | None:
        try:
            cell = BatchCell(room)
        except (OSError, MemoryError):
            return None
        self._cells[cell.number] = cell
        return cell


class BatchPlaces:
    """Where the results of one map belong in batches of `size`; the first one begins at `first`."""

    def __init__(self, size: int, first: int) -> None:
        self._size, self._first = size, first
        self._layout: BatchLayout | None = None
        self._batch: SharedBatch | None = None
        """The batch of the last task that was placed."""
        self._next = -1
        """The ordinal behind that task."""

    def round_rows(self, ordinal: int, rows: int) -> int:
        """About `rows` elements from `ordinal` on, so that tasks divide batches evenly."""
        size = self._size
        left = size - (ordinal - self._first) % size
        if rows >= size:
            return left if left < size else rows - rows % size
        return min(left, math.ceil(size / math.ceil(size / rows)))

    def learn(self, made: Chunk) -> None:
        """Learns from results how batches lie in memory."""
        if self._layout is None:
            self._layout = BatchLayout.of(made, self._size)

    def place(self, ordinal: int, rows: int, cells: BatchCells) -> TaskRows | None:
        """Where a task writes its results; None if the program joins them by copying."""
        start = (ordinal - self._first) % self._size
        if self._layout is None or rows >= self._size or start + rows > self._size:
            return None
        if start == 0:
            self._batch = cells.lend(self._layout)
        elif ordinal != self._next:
            self._batch = None  # The rows before were not placed.
        self._next = ordinal + rows
        return None if self._batch is None else TaskRows(self._batch, start)
