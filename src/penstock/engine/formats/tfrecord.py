"""TFRecord files: records of any bytes, each with its length and two checksums.

    length  uint64, little-endian
    crc     of the eight bytes of the length    uint32, CRC32C, masked
    data    `length` bytes
    crc     of the data                         uint32, CRC32C, masked

The bytes are TensorFlow's, both ways. No length is believed before its checksum is right, and no
memory is taken for bytes that the file does not have.
"""

from __future__ import annotations

import reprlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any

from penstock.engine.formats.files import Path, as_path, check_compression, create_bytes, reported
from penstock.engine.formats.inflate import WINDOW_BITS
from penstock.engine.formats.records import BlockReader
from penstock.errors import DataLossError, FailedPreconditionError, InvalidTypeError

_HEADER, _FOOTER = 12, 4
_MASK = 0xA282EAD8
_KNOWN_HEADERS = 4096


@cache
def _crc32c() -> Callable[[bytes], int]:
    import google_crc32c

    value: Callable[[bytes], int] = google_crc32c.value
    return value


def _masked_crc(data: bytes) -> bytes:
    """The checksum as it stands in the file: masked, for data may hold checksums itself."""
    crc = _crc32c()(data)
    return (((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF).to_bytes(4, "little")


class TFRecordReader(BlockReader[bytes]):
    """`position` is the byte after the last record given out."""

    call = "TFRecordDataset"

    def __init__(
        self,
        path: Path,
        compression: str | None = None,
        buffer_size: int | None = None,
        position: int = 0,
    ) -> None:
        super().__init__(path, compression, buffer_size, position)
        # Lengths repeat: a header seen before needs no checksum.
        self._lengths: dict[bytes, int] = {}

    def _cut(self, limit: int) -> list[bytes]:
        records: list[bytes] = []
        buffer, start, lengths, crc32c = self._buffer, self._start, self._lengths, _crc32c()
        while len(records) < limit:
            at = start + _HEADER
            header = buffer[start:at]
            length = lengths.get(header)
            if length is None and (length := self._length(header)) is None:
                break
            end = at + length
            if end + _FOOTER > len(buffer):
                break
            data = buffer[at:end]
            crc = crc32c(data)
            # _masked_crc, written out: this is the inner loop.
            masked = ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
            if masked.to_bytes(4, "little") != buffer[end : end + _FOOTER]:
                break
            records.append(data)
            start = end + _FOOTER
        self.position += start - self._start
        self._start = start
        if not records:
            self._check_first()
        return records

    def _length(self, header: bytes) -> int | None:
        """The length that a header tells, or None if it is incomplete or damaged."""
        if len(header) < _HEADER or _masked_crc(header[:8]) != header[8:]:
            return None
        if len(self._lengths) >= _KNOWN_HEADERS:
            self._lengths.clear()
        self._lengths[header] = int.from_bytes(header[:8], "little")
        return self._lengths[header]

    def _check_first(self) -> None:
        """No record could be cut: right at the end, and where more bytes will complete it."""
        header = self._buffer[self._start : self._start + _HEADER]
        if len(header) == _HEADER:
            length = self._length(header)
            if length is None:
                raise self._damage("the checksum of its length is wrong")
            if self._start + _HEADER + length + _FOOTER <= len(self._buffer):
                raise self._damage("the checksum of its data is wrong")
        if header and not self._more:
            raise self._damage("the file ends within it")

    def _damage(self, problem: str) -> DataLossError:
        hint = "" if self.position else "; is it a TFRecord file, and is compression_type right?"
        return DataLossError(
            f"{self.call}: {self.path!r} has a damaged record at byte {self.position}: "
            f"{problem}{hint}"
        )


@dataclass(frozen=True)
class TFRecordOptions:
    """How a TFRecord file is written.

    Args:
      compression_type: `"GZIP"`, `"ZLIB"`, or `""` or None for none.

    >>> TFRecordOptions("GZIP").compression_type
    'GZIP'
    """

    compression_type: str | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression_type, "TFRecordOptions")


class TFRecordWriter:
    """Writes records to a TFRecord file, which is replaced if it exists.

    Args:
      path: where to write; a local path or an fsspec URL.
      options: `"GZIP"`, `"ZLIB"`, a `TFRecordOptions`, or None for no compression.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.tfrecord")
    >>> with TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> os.path.getsize(path)  # 16 bytes more than each record: its length and two checksums
    38
    """

    def __init__(self, path: Path, options: Any = None) -> None:
        call = "TFRecordWriter"
        self._path = as_path(path, call)
        compression = check_compression(getattr(options, "compression_type", options), call)
        self._deflater = zlib.compressobj(wbits=WINDOW_BITS[compression]) if compression else None
        self._file = create_bytes(self._path, call)
        self._closed = False

    def write(self, record: bytes) -> None:
        """Adds one record."""
        self._check_open("write")
        if not isinstance(record, bytes | bytearray | memoryview):
            raise InvalidTypeError(
                f"TFRecordWriter.write: a record must be bytes, got {reprlib.repr(record)}; "
                "encode it first, for instance with str.encode or SerializeToString"
            )
        data = bytes(record)
        length = struct.pack("<Q", len(data))
        frame = b"".join((length, _masked_crc(length), data, _masked_crc(data)))
        self._put(self._deflater.compress(frame) if self._deflater else frame)

    def flush(self) -> None:
        """Hands everything written so far to the operating system."""
        self._check_open("flush")
        if self._deflater:
            self._put(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        with reported(self._path, "TFRecordWriter.flush"):
            self._file.flush()

    def close(self) -> None:
        """Completes the file; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        with reported(self._path, "TFRecordWriter.close"):
            try:
                if self._deflater:
                    self._file.write(self._deflater.flush())
            finally:
                self._file.close()

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError:  # Not around the whole: entering it costs more than writing.
            with reported(self._path, "TFRecordWriter.write"):
                raise

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise FailedPreconditionError(
                f"TFRecordWriter.{method}: {self._path!r} is closed; make a new writer"
            )

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
