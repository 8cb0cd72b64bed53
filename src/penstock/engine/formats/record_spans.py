"""Tables of records of any length, of which it is known where each begins and ends.

Records of a local file are read singly, wherever they lie, so a shuffle reads what it needs. Of a
file behind a URL a block is read as a whole. Where blocks begin depends on the file alone, so that
every machine divides it alike.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.index import Index, array_of
from penstock.engine.formats.extras import crc32c
from penstock.engine.formats.files import open_bytes, read_exactly, translate_errors
from penstock.engine.formats.remote_files import prefetch_blocks
from penstock.engine.formats.tables import RowsOnDemand, Selection, TableReader
from penstock.errors import DataLossError, FailedPreconditionError

BLOCK_BYTES = 4 << 20
"""A block has the records that begin in so many bytes."""

Span = tuple[int, int]
"""The first byte, or row, and the one after the last."""

Run = tuple[bytes, list[int]]
"""The bytes of consecutive records; where in the file each begins, and where the last one ends."""

ReadSpans = Callable[[list[Span]], list[bytes]]
"""Returns the bytes of some spans of a file."""


class SpanReader(TableReader):
    """One file of records. Subclasses say where records are and what they contain."""

    def __init__(self, path: str, call: str) -> None:
        self._path, self._call = path, call
        self._local = None if "://" in path else LocalBytes(path, call)
        self._remote: BinaryIO | None = None
        self._starts = self._find_starts()
        numbers = self._starts[:-1] // BLOCK_BYTES
        self.blocks = tuple(np.unique(numbers, return_counts=True)[1].tolist())
        self.footer = crc32c(self._starts.tobytes())

    @abstractmethod
    def _find_starts(self) -> Array:
        """Where each record begins, and at last where the last one ends."""

    @abstractmethod
    def decode(self, runs: list[Run], selection: Selection) -> Chunk:
        """The elements that are in records. Any thread may call it, also after `close`."""

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        if self._local is not None:
            return False
        return prefetch_blocks(self._open_remote(), number, ahead, self._ranges)

    def _ranges(self, number: int) -> list[Span]:
        first = sum(self.blocks[:number])
        return [(int(self._starts[first]), int(self._starts[first + self.blocks[number]]))]

    def read(self, number: int, first: int, selection: Selection) -> RowsOnDemand:
        starts = self._starts[first : first + self.blocks[number] + 1]
        if self._local is not None:
            return self._block(starts, self._local.read, selection, starts.nbytes)
        begin, end = int(starts[0]), int(starts[-1])
        return self._block_of_bytes(starts, self._read_remote(begin, end), begin, selection)

    def _block_of_bytes(
        self, starts: Array, data: bytes, begin: int, selection: Selection
    ) -> RowsOnDemand:
        """A block whose bytes are in memory; they begin at byte `begin` of the file."""
        return self._block(
            starts,
            lambda places: [data[start - begin : stop - begin] for start, stop in places],
            selection,
            nbytes=starts.nbytes + len(data),
        )

    def _block(
        self, starts: Array, read: ReadSpans, selection: Selection, nbytes: int
    ) -> RowsOnDemand:
        def read_rows(index: Index) -> Chunk:
            places: list[list[int]] = [
                starts[first : stop + 1].tolist() for first, stop in _runs(index)
            ]
            found = read([(run[0], run[-1]) for run in places])
            return self.decode(list(zip(found, places, strict=True)), selection)

        return RowsOnDemand(read_rows, nbytes)

    def _open_remote(self) -> BinaryIO:
        if self._remote is None:
            self._remote = open_bytes(self._path, call=self._call)
        return self._remote

    def _read_remote(self, start: int, stop: int) -> bytes:
        file = self._open_remote()
        with translate_errors(self._path, self._call):
            try:
                return read_exactly(file, start, stop - start)
            except EOFError as error:
                raise DataLossError(
                    f"{self._call}: {self._path!r} ends before byte {stop}: {error}"
                ) from None

    def close(self) -> None:
        if self._local is not None:
            self._local.release()
        if self._remote is not None:
            self._remote.close()


def _runs(index: Index) -> list[Span]:
    """The rows of an index, in its order, as runs of consecutive rows."""
    if isinstance(index, range) and index.step == 1:
        return [(index.start, index.stop)]
    runs: list[Span] = []
    first = stop = -1
    for row in array_of(index).tolist():
        if row != stop:
            if stop >= 0:
                runs.append((first, stop))
            first = row
        stop = row + 1
    return [*runs, (first, stop)]


class LocalBytes:
    """The bytes of a local file, at any place, for any thread; an error if the file changes.

    After `release` the file is opened again when it is needed, so that a program that holds many
    files open does not run out of descriptors.
    """

    def __init__(self, path: str, call: str) -> None:
        self._path, self._call = path, call
        self._file: _Descriptor | None = None
        self._version = self._open_file().version()
        self.size = self._version[0]

    def _open_file(self) -> _Descriptor:
        found = self._file
        if found is None:
            with translate_errors(self._path, self._call):
                found = self._file = _Descriptor(self._path)
        return found

    def read(self, places: list[Span]) -> list[bytes]:
        """The bytes of some spans."""
        file = self._open_file()
        with translate_errors(self._path, self._call):
            found = [os.pread(file.number, stop - start, start) for start, stop in places]
            for number, (start, stop) in enumerate(places):
                while len(found[number]) < stop - start:  # The system may return fewer bytes.
                    found[number] += self._read_more(file, start + len(found[number]), stop)
        self._check(file)
        return found

    def _read_more(self, file: _Descriptor, start: int, stop: int) -> bytes:
        more = os.pread(file.number, stop - start, start)
        if not more:
            self._check(file)
            raise DataLossError(f"{self._call}: {self._path!r} ends before byte {stop}")
        return more

    def _check(self, file: _Descriptor) -> None:
        if file.version() != self._version:
            raise FailedPreconditionError(
                f"{self._call}: {self._path!r} has changed since the dataset was made: it was "
                "written again; make the dataset again"
            )

    def release(self) -> None:
        """Drops the open file. Threads that read it keep it open until they are done."""
        self._file = None


class _Descriptor:
    """An open file, closed when the last thread drops it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def version(self) -> tuple[int, int]:
        found = os.fstat(self.number)
        return found.st_size, found.st_mtime_ns

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)
