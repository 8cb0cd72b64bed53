"""Random access to tables: positions to blocks, and a bounded cache of the blocks read last.

Every use of a plan's table in this process shares its open files and its cache, so a worker that
computes one range after the other decodes a block once. They are closed when the plan is dropped.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from copy import copy

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.index import Index, array_of
from penstock.engine.formats import TABLES
from penstock.engine.formats.files import has_changed, version_of
from penstock.engine.formats.remote_files import FileVersion
from penstock.engine.formats.tables import Selection, TableBlock, TableReader
from penstock.engine.gather import TakeRows
from penstock.engine.memory_tables import MemoryReader
from penstock.errors import DataLossError, FailedPreconditionError, NotFoundError, OpError
from penstock.plan.nodes import TableFile, TableRows

_CACHE_BYTES = 256 << 20
"""The most memory that the blocks of one table may occupy, if there is more than one."""

_OPEN_FILES = 64

_MAPPED = ("arrow", "numpy")
"""Formats whose local files are mapped into memory: what is written to a file changes its rows."""

_PERIOD = 1024
"""After so many rows, mapped files are compared again with what they were when opened."""

_WASTEFUL_BLOCKS = 256
"""After so many blocks were read, a warning is logged if most of their rows were not used."""

_WASTE = 8
"""Rows that are decoded for each row that is used, from which on the warning is logged."""

log = logging.getLogger("penstock")

_tables: weakref.WeakKeyDictionary[TableRows, TableAccess] = weakref.WeakKeyDictionary()
_tables_lock = threading.Lock()
"""Guards `_tables`."""


def open_table(node: TableRows) -> TableAccess:
    """The rows of a table. Equal nodes of this process share them."""
    with _tables_lock:
        found = _tables.get(node)
        if found is None:
            found = _tables[node] = TableAccess(node)
        found.begin_period()
        return found


class TableAccess:
    """The rows of a table by position. `_lock` guards the open files and the cache.

    Threads change `_checked` and `_rows` without it: then a mapped file is compared once more than
    needed, or some rows later.
    """

    def __init__(self, node: TableRows) -> None:
        self._call, self._options = node.call, dict(node.options)
        self._format, self._files, self._data = node.format, node.files, node.data
        self._selections = [
            Selection(self._call, file.path, node.columns, dict(node.fill)) for file in node.files
        ]
        counts = [rows for file in node.files for rows in file.blocks]
        self._ends = np.cumsum(counts, dtype=np.int64)
        """The position after the last row of each block."""
        self._begins = self._ends - counts
        sizes = [len(file.blocks) for file in node.files]
        self._first_block = np.cumsum([0, *sizes])
        self._file_of = np.repeat(np.arange(len(sizes)), sizes)
        """The file of each block."""
        self._stamps: dict[int, FileVersion] = {}
        """By mapped file that was opened: what it was then."""
        self._checked: set[int] = set()
        """The mapped files that were compared with their stamps in this period."""
        self._rows = 0
        """How many rows were read in this period. Threads count without `_lock`: a lost count only
        makes the period longer."""
        self._lock = threading.Lock()
        self._readers: OrderedDict[int, TableReader] = OrderedDict()
        self._blocks = _BlockCache()
        self._failed = -1
        """The block that could not be read, if the last block that was asked for could not."""
        self._last = -1
        """The block that was read last: the one after it is fetched ahead."""
        is_read_whole = node.format == "parquet" or any("://" in file.path for file in node.files)
        self._waste = _WasteMeter(self._call, is_read_whole)

    def keep_blocks(self, count: int) -> None:
        """Keeps at least `count` blocks in memory, because a shuffle reads so many in turn."""
        with self._lock:
            self._blocks.least = max(self._blocks.least, count)

    def begin_period(self) -> None:
        """Lets the next read of every mapped file notice that the file has changed."""
        self._checked, self._rows = set(), 0

    def read(self, index: Index, take: TakeRows) -> Chunk:
        """The rows at an index."""
        self._rows += len(index)
        if self._rows >= _PERIOD:
            self.begin_period()
        if isinstance(index, range) and index.step == 1:
            return self._read_range(index, take)
        numbers = array_of(index)
        owners = np.searchsorted(self._ends, numbers, side="right")
        found = np.unique(owners)
        if len(found) == 1:
            return self._read_block(int(found[0]), numbers, take)
        parts = [self._read_block(int(block), numbers[owners == block], take) for block in found]
        order = np.argsort(owners, kind="stable")
        return Chunk.join(parts).take(np.argsort(order, kind="stable"))

    def _read_range(self, index: range, take: TakeRows) -> Chunk:
        first, last = np.searchsorted(self._ends, [index.start, index.stop - 1], side="right")
        parts = []
        for block in range(int(first), int(last) + 1):
            rows = range(
                max(index.start, int(self._begins[block])), min(index.stop, int(self._ends[block]))
            )
            if rows:
                parts.append(self._read_block(block, rows, take))
        return Chunk.join(parts)

    def _read_block(self, block: int, index: Index, take: TakeRows) -> Chunk:
        begin = int(self._begins[block])
        found = self._find_block(block)
        self._waste.count_used(len(index))
        if isinstance(index, range):
            return found.rows(range(index.start - begin, index.stop - begin), take)
        return found.rows(index - begin, take)

    def _find_block(self, block: int) -> TableBlock:
        with self._lock:
            self._failed = block
            if self._stamps:
                self._check_mapped(int(self._file_of[block]))
            found = self._blocks.get(block)
            if found is None:
                found = self._load(block)
                self._blocks.put(block, found)
            if isinstance(found, Exception):
                # A copy: an exception keeps the frames of every place where it was raised.
                raise copy(found) from found.__cause__
            self._failed = -1
            return found

    def count_failing(self, position: int) -> int:
        """How many rows from a position on are in a block that could not be read just now."""
        with self._lock:
            failed = self._failed
        if failed < 0 or not self._begins[failed] <= position < self._ends[failed]:
            return 0
        return int(self._ends[failed]) - position

    def _load(self, block: int) -> TableBlock | Exception:
        """Reads a block. Damage is kept like a block, so that each of its rows fails at once."""
        file = int(self._file_of[block])
        number = block - int(self._first_block[file])
        first = sum(self._files[file].blocks[:number])
        self._waste.count_read(self._files[file].blocks[number])
        selection = self._selections[file]
        try:
            reader = self._reader(file)
            in_order, self._last = block == self._last + 1, block
            ahead = len(self._files[file].blocks) - number - 1 if in_order else 0
            is_checked = reader.prefetch(number, ahead, selection)
            if self._data is None and not is_checked:
                self._check_version(self._files[file])
            return reader.read(number, first, selection)
        except DataLossError as error:
            return error

    def _reader(self, file: int) -> TableReader:
        if (found := self._readers.get(file)) is not None:
            self._readers.move_to_end(file)
            return found
        while len(self._readers) >= _OPEN_FILES:
            self._readers.popitem(last=False)[1].close()
        stamp = self._stamp_of(file)
        reader = self._readers[file] = self._open_reader(self._files[file])
        if stamp is not None:
            self._stamps[file] = stamp
        return reader

    def _stamp_of(self, file: int) -> FileVersion | None:
        """None if a file is not mapped, or is not there any more."""
        path = self._files[file].path
        if self._format not in _MAPPED or self._data is not None or "://" in path:
            return None
        try:
            return version_of(path, self._call)
        except OpError:
            return None

    def _check_mapped(self, file: int) -> None:
        """Raises if a mapped file has changed since it was opened.

        Its rows would be other ones, and a read behind its end would end the process by SIGBUS. A
        file that was deleted keeps its rows while it is mapped.
        """
        if file in self._checked or (known := self._stamps.get(file)) is None:
            return
        if self._stamp_of(file) not in (known, None):
            self._check_version(self._files[file])
            raise self._change_error(self._files[file], "it was written again")
        self._checked.add(file)

    def _open_reader(self, file: TableFile) -> TableReader:
        if self._data is not None:
            return MemoryReader(self._data)
        if file.size >= 0:
            self._check_version(file)
        reader = TABLES[self._format](file.path, self._call, **self._options)
        if (reader.footer, reader.blocks) != (file.footer, file.blocks):
            reader.close()
            raise self._change_error(file, "it describes other rows")
        return reader

    def _check_version(self, file: TableFile) -> None:
        try:
            now = version_of(file.path, self._call)
        except NotFoundError as error:
            raise NotFoundError(
                f"{self._call}: {file.path!r} does not exist here; it did where the dataset was "
                "made, so put it at the same path on every machine that reads it"
            ) from error
        known = FileVersion(file.size, file.modified)
        if has_changed(file.path, known, now):
            what = "it was written again"
            if now.size != known.size:
                what = f"it had {known.size} bytes and has {now.size}"
            raise self._change_error(file, what)

    def _change_error(self, file: TableFile, what: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self._call}: {file.path!r} has changed since the dataset was made: {what}; "
            "make the dataset again"
        )

    def __del__(self) -> None:
        for reader in getattr(self, "_readers", {}).values():
            reader.close()


class _BlockCache:
    """The blocks read last, up to `_CACHE_BYTES`, and at least `least` of them."""

    def __init__(self) -> None:
        self.least = 1
        self._blocks: OrderedDict[int, TableBlock | Exception] = OrderedDict()
        self._bytes = 0

    def get(self, number: int) -> TableBlock | Exception | None:
        found = self._blocks.get(number)
        if found is not None:
            self._blocks.move_to_end(number)
        return found

    def put(self, number: int, block: TableBlock | Exception) -> None:
        self._blocks[number] = block
        self._bytes += _size(block)
        while self._bytes > _CACHE_BYTES and len(self._blocks) > self.least:
            self._bytes -= _size(self._blocks.popitem(last=False)[1])


def _size(block: TableBlock | Exception) -> int:
    return 1 << 12 if isinstance(block, Exception) else block.nbytes


class _WasteMeter:
    """Logs one warning if reads in random order read many more rows than they use."""

    def __init__(self, call: str, is_counted: bool) -> None:
        self._call, self._is_counted = call, is_counted
        self._blocks = self._decoded = self._used = 0

    def count_used(self, rows: int) -> None:
        self._used += rows

    def count_read(self, rows: int) -> None:
        self._blocks += 1
        self._decoded += rows
        if not self._is_counted or self._blocks < _WASTEFUL_BLOCKS:
            return
        if self._decoded > _WASTE * max(self._used, 1):
            self._is_counted = False
            log.warning(
                "%s: %d whole blocks were read for %d rows, because the order is random; "
                "use shuffle(blocks=8), or write smaller row groups (docs/files.md)",
                self._call,
                self._blocks,
                self._used,
            )
