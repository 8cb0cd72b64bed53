"""What every file format offers: records, and a byte from which a new file reader can continue.

A file reader takes large blocks from its file and cuts them; it never asks the file for one record.
It opens its file at the first `read`, so a missing file is an error only when it is reached.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import BinaryIO, ClassVar, Generic, TypeVar

from penstock.element.chunk import Chunk
from penstock.engine.formats.files import (
    Path,
    as_path,
    block_size,
    close_on_error,
    open_bytes,
    size_of,
    translate_errors,
)
from penstock.engine.formats.inflate import name_packing, say_how_to_unpack
from penstock.errors import DataLossError, InvalidArgumentError

_LOG = logging.getLogger("penstock")

Record = TypeVar("Record")

Part = tuple[int, int | None]
"""A part of a file: the records that begin from one byte on and before another (None: the end)."""


BY_NAME = "BY_NAME"
"""The compression of files that are compressed if their names say so."""


class ParsedRecords(list[Record]):
    """Records, and the elements that they are."""

    def __init__(self, records: Iterable[Record], chunk: Chunk) -> None:
        super().__init__(records)
        self.chunk = chunk


class RecordReader(ABC, Generic[Record]):
    """The records of one file, in order.

    Subclasses implement `_cut`, which cuts records from the front of a buffer. `_buffer[_start:]`
    are the bytes that were read and not cut; `_more` says whether the file may have more bytes.
    """

    call: ClassVar[str]
    packings: ClassVar[Mapping[str, str]] = {}
    """How files are compressed whose names end so."""
    is_text: ClassVar[bool] = False
    """Whether files are text, so that compressed bytes are a mistake."""

    def __init__(
        self,
        path: Path,
        compression: str | None,
        buffer_size: int | None,
        position: int,
        part: Part | None = None,
    ) -> None:
        if position < 0:
            raise InvalidArgumentError(f"{self.call}: position must be at least 0, got {position}")
        self.path = as_path(path, self.call)
        self.position = position
        """The byte from which a new file reader continues: all records so far lie before it."""
        self._part = part
        self._stop: int | None = None
        """Where the part ends, once the file is open; None for the end of the file."""
        is_by_name = compression == BY_NAME
        self._compression = self.packing_of(self.path) if is_by_name else compression
        self._block = block_size(buffer_size, self.call)
        self._file: BinaryIO | None = None
        self._buffer, self._start = b"", 0
        self._more = True
        self.has_ended = False
        """Whether there is nothing more to read."""
        self._continues = False
        """Whether the reader has moved behind a damaged record, so that the next read continues."""

    @classmethod
    def packing_of(cls, path: str) -> str:
        """How a file is compressed, by the end of its name; empty if it is not."""
        return next((packing for end, packing in cls.packings.items() if path.endswith(end)), "")

    @property
    def next_place(self) -> str:
        """Where the next record begins, in words; empty if its number says that well enough."""
        return ""

    @abstractmethod
    def _cut(self, limit: int) -> list[Record]:
        """Up to `limit` records that lie complete in the buffer; moves `position` behind them.

        [] asks for more bytes or, when there are no more, means the end. At a damaged record: the
        records before it, and the error only when it is the first.
        """

    def read(self, limit: int) -> list[Record]:
        """1 to `limit` records, [] at the end.

        An error is raised after all records before it. It ends the reader, unless only one record
        is lost: then the next read continues behind that record.
        """
        if limit < 1:
            raise InvalidArgumentError(f"{self.call}: limit must be at least 1, got {limit}")
        if self.has_ended:
            return []
        records: list[Record] = []
        self._continues = False
        try:
            while not (records := self._cut(limit)) and self._more:
                self._fill()
        finally:
            if not records and not self._continues:
                self.close()
        return records

    def _fill(self) -> None:
        with translate_errors(self.path, self.call):
            is_first = self._file is None and not self.position
            if self._file is None:
                self._file = self._open_file()
            rest = self._buffer[self._start :]
            # As much again as the buffer holds: a record of any length takes time in proportion to
            # its length, and memory in proportion to the bytes that the file really has.
            block = self._file.read(max(self._block, len(rest)))
        if is_first and self.is_text and not self._compression:
            self._check_start(block[:16])
        self._more = bool(block)
        self._buffer, self._start = rest + block, 0

    def _check_start(self, start: bytes) -> None:
        """Logs a warning if a file that is read as text begins as compressed files do."""
        _check_text(self.call, self.path, start)

    def _open_file(self) -> BinaryIO:
        file = self._open_bytes()
        with close_on_error(file):
            self._go_to(file, self.position)
        return file

    def _open_bytes(self) -> BinaryIO:
        """The uncompressed bytes of the file, from its start."""
        return open_bytes(self.path, self._compression, self._block, self.call)

    def _go_to(self, file: BinaryIO, position: int) -> None:
        if not position:
            return
        size = size_of(file)
        if size is not None:
            file.seek(min(position, size))
            missing = max(position - size, 0)
        else:
            missing = _skip(file, position)
        if missing:
            raise DataLossError(
                f"{self.call}: {self.path!r} ends {missing} bytes before position {position}; "
                "it is not the file that the position was taken from"
            )

    def _size_for_parts(self, file: BinaryIO) -> int:
        """The length of a file that is read by parts. Moves the file."""
        size = size_of(file)
        if size is None:
            raise InvalidArgumentError(
                f"{self.call}: {self.path!r} cannot be read by parts, for its size is not known; "
                "read it as a whole"
            )
        return size

    def close(self) -> None:
        """Ends the reader; a second call does nothing."""
        self.has_ended, self._more = True, False
        self._buffer, self._start = b"", 0
        if self._file is not None:
            self._file.close()


@lru_cache(maxsize=1024)  # Once for each file, not in each epoch.
def _check_text(call: str, path: str, start: bytes) -> None:
    """Logs a warning if a file that is read as text begins as compressed files do."""
    if packing := name_packing(start):
        _LOG.warning(
            "%s: %r is compressed by %s, and its bytes are read as text; %s",
            call,
            path,
            packing,
            say_how_to_unpack(packing),
        )


def _skip(file: BinaryIO, count: int) -> int:
    """Reads and drops `count` bytes; returns how many of them the file did not have."""
    while count and (block := file.read(min(count, 1024 * 1024))):
        count -= len(block)
    return count
