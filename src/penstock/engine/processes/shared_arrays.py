"""Shared arrays in the processes that read them: mapped at once, filled as rows are needed.

Every reader of an array's rows calls `LazyRows.require` before it reads them. An array that other
code may read (a variable of a function) is filled as a whole before that code gets it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.index import Index
from penstock.element.joined_strings import JoinedStrings
from penstock.engine.endings import Ending
from penstock.engine.mapped_files import open_file_array
from penstock.engine.processes.array_holder import (
    ArrayHolder,
    HolderConnection,
    NoHolderError,
    ReadBytes,
)
from penstock.engine.processes.array_memory import BLOCK, ArrayMemory, runs_of
from penstock.errors import OpError
from penstock.plan.array_references import ArrayReference, FileArray, SharedArray
from penstock.plan.joined_data import JoinedData
from penstock.plan.nodes import Node, Slices, Snapshot, TableRows

_ATTEMPTS, _PAUSE = 100, 0.01
"""How often a process looks for the holder, and seconds between two attempts: the name of a holder
that ends is free a little later."""

_AHEAD = (4 << 20) // BLOCK
"""Blocks that are requested together when rows are read in order."""


class HolderLink:
    """This process's link to the holder of an array, or the holder itself. Not thread-safe.

    Where a machine has no holder, the process that needs one becomes it, and gets the bytes by
    `fetch`. When the holder ends, one of the processes that have the memory becomes it.
    """

    def __init__(self, reference: SharedArray, fetch: ReadBytes, unit: int) -> None:
        self._reference, self._fetch, self._unit = reference, fetch, unit
        self._holder: ArrayHolder | HolderConnection = self._find_holder(None)
        self.memory = self._holder.memory

    def _find_holder(self, memory: ArrayMemory | None) -> ArrayHolder | HolderConnection:
        name, size = self._reference.name, self._reference.nbytes
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(NoHolderError):
                return HolderConnection(name, size)
            memory = memory or ArrayMemory(size)
            with contextlib.suppress(OSError):  # Another process has the name.
                return ArrayHolder(name, memory, self._fetch, self._unit)
            time.sleep(_PAUSE)
        # Another user's process has taken the name.
        return ArrayHolder(None, memory or ArrayMemory(size), self._fetch, self._unit)

    def provide(self, runs: list[tuple[int, int]]) -> None:
        """Blocks until some blocks of `memory` are filled."""
        while True:
            try:
                self._holder.provide(runs)
                return self._copy(runs)
            except NoHolderError:
                self._holder.close()
                self._holder = self._find_holder(self.memory)
            except OpError:
                if isinstance(self._holder, ArrayHolder):
                    raise
                # The holder may belong to another service, which has ended or lacks the array.
                self._holder.close()
                self._holder = ArrayHolder(None, self.memory, self._fetch, self._unit)

    def _copy(self, runs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks of a holder that came later, and therefore has memory of its own."""
        theirs = self._holder.memory
        if theirs is self.memory or theirs.identity == self.memory.identity:
            return
        for first, stop in runs:
            end = min(stop * BLOCK, self.memory.size)
            self.memory.write(first, theirs.bytes[first * BLOCK : end].data)

    def close(self) -> None:
        self._holder.close()


class ArrayReader:
    """One shared array in this process. Thread-safe."""

    def __init__(self, reference: SharedArray, fetch: ReadBytes, unit: int) -> None:
        self.reference = reference
        self._lock = threading.Lock()
        self._link = HolderLink(reference, fetch, unit)  #: guarded by _lock
        self.memory = self._link.memory
        self._complete = False
        Ending(self, self._link.close, atexit=False)
        _READERS.add(self)

    def require(self, blocks: slice | Array = slice(None)) -> None:
        """Blocks until some blocks are filled, or all."""
        if self._complete:
            return
        filled = self.memory.flags[blocks].all()
        with self._lock:  # Also a barrier: no byte is read before the flags were.
            if not filled:
                self._fill(blocks)
                self._complete = bool(self.memory.flags.all())

    def _fill(self, blocks: slice | Array) -> None:
        wanted = np.zeros(self.memory.blocks, np.bool_)
        wanted[blocks] = True
        self._link.provide(runs_of(np.flatnonzero(wanted & ~self.memory.flags)))

    def leave_to_parent(self) -> None:
        """In a forked child: the next request finds a closed link, and looks for the holder."""
        self._lock = threading.Lock()
        self._link.close()


_READERS: weakref.WeakSet[ArrayReader] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for reader in list(_READERS):
        reader.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


class _SharedMemory(np.ndarray[Any, Any]):
    """The base of arrays in shared memory; it leads from a column to its reader."""

    reader: ArrayReader


class _PrivateMemory(np.ndarray[Any, Any]):
    """The base of arrays that a process may change. Its reader may hold them for other ones."""

    reader: ArrayReader


def find_reader(array: Any) -> ArrayReader | None:
    """The reader of the shared memory that an array lies in; None for other arrays."""
    while isinstance(array, np.ndarray):
        if isinstance(array, _SharedMemory):
            return array.reader
        array = array.base
    return None


def refer_to_shared(array: Array) -> SharedArray | None:
    """The reference that an array was opened by, if it is the whole array."""
    reader = find_reader(array)
    if reader is None:
        return None
    found = reader.reference
    here = reader.memory.bytes.ctypes.data == array.ctypes.data and array.flags.c_contiguous
    if here and (array.shape, array.dtype) == (found.shape, found.dtype):
        return found
    reader.require()
    return None


class OpenArrays:
    """Opens the references of one plan.

    `fetch(name)` reads an array that no process of this machine holds, `unit` bytes at a time.
    """

    def __init__(self, fetch: Callable[[str], ReadBytes], unit: int = BLOCK) -> None:
        self._fetch, self._unit = fetch, unit
        self._opened: list[ArrayReader] = []
        self._writeable: dict[ArrayReference, Array] = {}

    def open(self, reference: ArrayReference) -> Array:
        """The array of a reference: the same one again if functions may change it."""
        if reference in self._writeable:
            return self._writeable[reference]
        array = self._open_array(reference)
        if reference.writeable:
            self._writeable[reference] = array
        return array

    def _open_array(self, reference: ArrayReference) -> Array:
        if isinstance(reference, FileArray):
            return open_file_array(reference)
        reader = ArrayReader(reference, self._fetch(reference.name), self._unit)
        memory: _PrivateMemory | _SharedMemory
        # Over the map itself: NumPy replaces a base that is a view of an array by that array.
        if reference.writeable:
            reader.require()
            private = reader.memory.map_privately()
            memory = _PrivateMemory(reference.shape, reference.dtype, private)
        else:
            self._opened.append(reader)
            memory = _SharedMemory(reference.shape, reference.dtype, reader.memory.map)
        memory.reader = reader
        return memory.view(np.ndarray)

    def fill_hidden(self, plan: Node) -> None:
        """Fills the arrays that are not rows of the plan's own sources: anything may read them."""
        lazy: set[ArrayReader | None] = set()
        for column in _row_columns(plan):
            if isinstance(column, JoinedStrings):
                column.require = _LazyStrings(column).require
                lazy |= {find_reader(column.data), find_reader(column.starts)}
            else:
                lazy.add(find_reader(column))
        for reader in self._opened:
            if reader not in lazy:
                reader.require()


def _row_columns(plan: Node) -> Iterator[Any]:
    """The columns that are read through `LazyRows` only, and strings, which are joined.

    A snapshot also computes digests.
    """
    if isinstance(plan, Slices) and isinstance(plan.data, JoinedData):
        yield from plan.data.rows.columns
    elif isinstance(plan, Slices | TableRows) and plan.data is not None:
        yield from plan.data.chunk.columns
    if not isinstance(plan, Snapshot):
        for part in plan.inputs:
            yield from _row_columns(part)


def find_lazy_rows(rows: Chunk) -> LazyRows | None:
    """The columns of rows whose bytes may not have arrived; None if there are none."""
    found = []
    for column in rows.columns:
        reader = find_reader(column)
        if reader is not None and refer_to_shared(np.asarray(column)) is not None:
            found.append((reader, reader.reference.nbytes // len(column)))
    return LazyRows(found) if found else None


class LazyRows:
    """Columns, each by its reader and the bytes of one row."""

    def __init__(self, columns: list[tuple[ArrayReader, int]]) -> None:
        self._columns = columns

    def require(self, index: Index) -> None:
        """Blocks until the rows at an index have arrived."""
        for reader, size in self._columns:
            if len(index):
                reader.require(_blocks_of(index, size))


class _LazyStrings:
    """Strings: where they begin arrives as a whole, their bytes arrive as they are needed."""

    def __init__(self, column: JoinedStrings) -> None:
        self._starts = column.starts
        self._reader, self._starts_reader = find_reader(column.data), find_reader(column.starts)

    def require(self, indices: Array | None) -> None:
        """Blocks until the strings at some indices have arrived, or all."""
        if self._starts_reader is not None:
            self._starts_reader.require()
        if self._reader is None:
            return
        if indices is None:
            self._reader.require()
            return
        begins, ends = self._starts[indices], self._starts[indices + 1]
        some = begins < ends
        if not some.any():
            return
        firsts, lasts = begins[some] // BLOCK, (ends[some] - 1) // BLOCK
        if indices[-1] - indices[0] == len(indices) - 1 > 0:  # They are read in order.
            first, stop = int(firsts[0]), int(lasts[-1]) + 1
            self._reader.require(slice(first, max(stop, first + _AHEAD)))
        else:
            self._reader.require(_join_spans(firsts, lasts))


def _blocks_of(index: Index, size: int) -> slice | Array:
    """The blocks that hold the rows at an index, where a row has `size` bytes."""
    if isinstance(index, range):
        low, high = min(index[0], index[-1]), max(index[0], index[-1])
        first, stop = low * size // BLOCK, -(-(high + 1) * size // BLOCK)
        return slice(first, max(stop, first + _AHEAD) if index.step == 1 else stop)
    return _join_spans(index * size // BLOCK, (index * size + max(size, 1) - 1) // BLOCK)


def _join_spans(firsts: Array, lasts: Array) -> Array:
    """The blocks from each first to its last one."""
    spans = np.arange(int((lasts - firsts).max()) + 1)
    return np.unique(np.minimum(firsts[:, None] + spans, lasts[:, None]))
