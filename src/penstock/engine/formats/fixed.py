"""Records of one fixed length, between a header and a footer that are left out.

A file of the wrong length is an error before its first record. The length of a compressed file is
known only at its end, so there the error comes after its records. If a file is read by parts, the
file reader of its first part raises the error.
"""

from __future__ import annotations

from typing import BinaryIO

from penstock.engine.formats.files import Path, size_of
from penstock.engine.formats.records import Part, RecordReader
from penstock.errors import DataLossError, InvalidArgumentError


class FixedReader(RecordReader[bytes]):
    """`position` is the byte after the last record, 0 before the header."""

    call = "FixedLengthRecordDataset"

    def __init__(
        self,
        path: Path,
        record_bytes: int,
        header_bytes: int = 0,
        footer_bytes: int = 0,
        compression: str | None = None,
        buffer_size: int | None = None,
        position: int = 0,
        part: Part | None = None,
    ) -> None:
        _check_at_least(1, "record_bytes", record_bytes)
        _check_at_least(0, "header_bytes", header_bytes)
        _check_at_least(0, "footer_bytes", footer_bytes)
        super().__init__(path, compression, buffer_size, position, part)
        self._record_bytes = record_bytes
        self._header_bytes, self._footer_bytes = header_bytes, footer_bytes

    def _cut(self, limit: int) -> list[bytes]:
        if self._stop is not None:
            limit = min(limit, (self._stop - self.position) // self._record_bytes)
            self._more = self._more and limit > 0
            if limit <= 0:
                return []
        size, rest = self._record_bytes, len(self._buffer) - self._start
        # Bytes that may be the footer stay in the buffer.
        count = min(limit, max(rest - self._footer_bytes, 0) // size)
        if not count and not self._more and rest != self._footer_bytes:
            raise DataLossError(self._misfit(self.position + rest))
        end = self._start + count * size
        records = [self._buffer[at : at + size] for at in range(self._start, end, size)]
        self._start = end
        self.position += count * size
        return records

    def _go_to(self, file: BinaryIO, position: int) -> None:
        size = size_of(file)
        if size is not None:
            body = size - self._header_bytes - self._footer_bytes
            if body < 0 or body % self._record_bytes:
                if self._part is None or not self._part[0]:
                    raise InvalidArgumentError(self._misfit(size))
                self._part = (size, size)
            file.seek(0)
        begin = self._header_bytes if self._part is None else self._begin(file, self._part)
        self.position = position or begin
        super()._go_to(file, self.position)

    def _begin(self, file: BinaryIO, part: Part) -> int:
        """Where the first record of a part begins; sets `_stop` to where the last one ends."""
        end = self._size_for_parts(file) - self._footer_bytes
        file.seek(0)
        start, stop = part
        self._stop = end if stop is None else min(end, self._record_from(stop))
        return min(end, self._record_from(start))

    def _record_from(self, byte: int) -> int:
        """Where the first record begins that does not begin before `byte`."""
        count = -((self._header_bytes - byte) // self._record_bytes)
        return self._header_bytes + max(0, count) * self._record_bytes

    def _misfit(self, size: int) -> str:
        return (
            f"{self.call}: {self.path!r} has {size} bytes, which is not a header of "
            f"{self._header_bytes}, records of {self._record_bytes} and a footer of "
            f"{self._footer_bytes}; check record_bytes, header_bytes and footer_bytes"
        )


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise InvalidArgumentError(
            f"{FixedReader.call}: {name} must be at least {least}, got {value}"
        )
