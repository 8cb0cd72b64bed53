"""TFRecord files: records of any bytes, each with its length and two checksums.

    length  uint64, little-endian
    crc     of the eight bytes of the length    uint32, CRC32C, masked
    data    `length` bytes
    crc     of the data                         uint32, CRC32C, masked

TensorFlow reads and writes the same bytes. A file reader checks the checksum of a length before it
uses it, and allocates no memory for bytes that the file does not have.

A damaged record ends a file reader, as in TensorFlow, also if an operator ignores the error. With
`skips_damaged` the file reader continues behind a record whose length is right.

A part of a file begins at the first record that begins in it. Only a file reader that comes from
the start of the file finds that byte for certain: bytes that look like a record may lie within one.
So a file reader gets the byte (`begin`) or guesses it (`find_record`) and reports it as `began`.
The file reader of the part before reports where it ended. If the two differ, the part is read
again.
"""

from __future__ import annotations

import reprlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO

import numpy as np

from penstock.engine.formats.extras import crc32c, load_crc32c
from penstock.engine.formats.files import (
    Path,
    as_path,
    check_compression,
    create_bytes,
    translate_errors,
)
from penstock.engine.formats.inflate import WINDOW_BITS
from penstock.engine.formats.records import Part, RecordReader
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)

HEADER, FOOTER = 12, 4
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78

_WINDOW, _BLOCK = 1 << 14, 1 << 18
"""How many bytes are searched for a record at once: at first, and at most."""

_KNOWN_HEADERS = 4096

_MANY = 16
"""From so many records on, NumPy compares checksums in less time than Python."""


class TFRecordReader(RecordReader[bytes]):
    """`position` is the byte after the last record given out."""

    call = "TFRecordDataset"

    def __init__(
        self,
        path: Path,
        compression: str | None = None,
        buffer_size: int | None = None,
        position: int = 0,
        part: Part | None = None,
        begin: int | None = None,
        skips_damaged: bool = False,
    ) -> None:
        super().__init__(path, compression, buffer_size, position, part)
        self._skips_damaged = skips_damaged
        # Lengths repeat: a header seen before needs no checksum.
        self._lengths: dict[bytes, int] = {}
        self._begin = begin
        self.began: int | None = None
        """Where the first record of the part begins, or where the part stops if it has none."""

    def _cut(self, limit: int) -> list[bytes]:
        start = self._start
        edge = len(self._buffer) + 1 if self._stop is None else start + self._stop - self.position
        if start >= edge:
            self._more = False
            return []
        records, footers, end = self._split(start, edge, limit)
        good = count_undamaged(records, footers)
        if good < len(records):
            del records[good:]
            end = start + sum(map(len, records)) + good * (HEADER + FOOTER)
        if not records:
            self._check_first()
        self.position += end - start
        self._start = end
        return records

    def _split(self, start: int, edge: int, limit: int) -> tuple[list[bytes], list[bytes], int]:
        """The data and the checksums of the next records, and where the last record ends."""
        records: list[bytes] = []
        footers: list[bytes] = []
        # This is the inner loop: every name is local.
        buffer, find, add, add_footer = (
            self._buffer,
            self._lengths.get,
            records.append,
            footers.append,
        )
        last = len(buffer) - FOOTER
        for _ in range(limit):
            if start >= edge:
                break
            at = start + HEADER
            header = buffer[start:at]
            length = find(header)
            if length is None and (length := self._length(header)) is None:
                break
            end = at + length
            if end > last:
                break
            start = end + FOOTER
            add(buffer[at:end])
            add_footer(buffer[end:start])
        return records, footers, start

    def _length(self, header: bytes) -> int | None:
        """The length in a header, or None if the header is incomplete or damaged."""
        if len(header) < HEADER or masked_crc(header[:8]) != header[8:]:
            return None
        if len(self._lengths) >= _KNOWN_HEADERS:
            self._lengths.clear()
        self._lengths[header] = int.from_bytes(header[:8], "little")
        return self._lengths[header]

    def _check_first(self) -> None:
        """Raises if the first record is damaged; it may also be incomplete, or there is none."""
        header = self._buffer[self._start : self._start + HEADER]
        if len(header) == HEADER:
            length = self._length(header)
            if length is None:
                raise self._damage("the checksum of its length is wrong")
            if self._start + HEADER + length + FOOTER <= len(self._buffer):
                error = self._damage("the checksum of its data is wrong")
                if self._skips_damaged:  # The next read continues behind the record.
                    size = HEADER + length + FOOTER
                    self._start += size
                    self.position += size
                    self._continues = True
                raise error
        if header and not self._more:
            raise self._damage("the file ends within it")

    def _go_to(self, file: BinaryIO, position: int) -> None:
        if self._part is not None:
            start, self._stop = self._part
            size = self._size_for_parts(file)
            if not position:
                stop = size if self._stop is None else min(self._stop, size)
                self.began = self.position = self._find_begin(file, start, stop, size)
                position = min(self.position, size)
                if self.position >= size:
                    self._stop = self.position
            file.seek(0)
        super()._go_to(file, position)

    def _find_begin(self, file: BinaryIO, start: int, stop: int, size: int) -> int:
        """Where a part begins: at the start of the file, at `begin`, or at a guess."""
        if not start:
            return 0
        return find_record(file, start, stop, size) if self._begin is None else self._begin

    def _damage(self, problem: str) -> DataLossError:
        return damaged_record(self.call, self.path, self.position, problem)


def damaged_record(call: str, path: str, place: int, problem: str) -> DataLossError:
    hint = "" if place else "; is it a TFRecord file, and is compression_type right?"
    return DataLossError(f"{call}: {path!r} has a damaged record at byte {place}: {problem}{hint}")


def count_undamaged(records: list[bytes], footers: list[bytes]) -> int:
    """How many records come before the first one whose data do not have their checksum."""
    if len(records) < _MANY:
        for index, data in enumerate(records):
            if masked_crc(data) != footers[index]:
                return index
        return len(records)
    found = mask_crcs(np.fromiter(map(load_crc32c(), records), np.uint32, len(records)))
    wrong = found != np.frombuffer(b"".join(footers), "<u4")
    return int(wrong.argmax()) if wrong.any() else len(records)


def masked_crc(data: bytes) -> bytes:
    """The checksum as it is in the file: masked, because data may contain checksums itself."""
    return _mask_crc(crc32c(data)).to_bytes(4, "little")


def _mask_crc(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def mask_crcs(crcs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Many checksums (uint32) as they are in files."""
    return ((crcs >> 15 | crcs << 17) + np.uint32(_MASK)).astype("<u4", copy=False)


def find_record(file: BinaryIO, start: int, stop: int, size: int) -> int:
    """The first byte from `start` on at which a record seems to begin; `stop` if none does.

    It has two right checksums, but may still lie within another record, whose payload may be a
    TFRecord file: the caller must compare it with where the part before it ended. `size` is that of
    the file. Moves the file.
    """
    at, window = start, _WINDOW
    while at < stop:
        file.seek(at)
        block = b"".join(_blocks(file, min(window, stop - at) + HEADER - 1))
        for offset, length in _headers(block, size - at - HEADER - FOOTER):
            if _is_record(file, at + offset + HEADER, length):
                return at + offset
        at, window = at + window, min(2 * window, _BLOCK)
    return stop


def _blocks(file: BinaryIO, count: int) -> Iterator[bytes]:
    while count > 0 and (block := file.read(min(count, _BLOCK))):
        yield block
        count -= len(block)


def _headers(block: bytes, most: int) -> list[tuple[int, int]]:
    """The offsets of lengths of at most `most` with a right checksum, and those lengths."""
    data = np.frombuffer(block, np.uint8)
    count = len(data) - HEADER + 1
    if count <= 0 or most < 0:
        return []
    # The first bytes of most lengths are zeros, which few bytes of data are.
    fits = np.ones(count, bool)
    for byte in range((most.bit_length() + 7) // 8, 8):
        fits &= data[byte : byte + count] == 0
    offsets = np.flatnonzero(fits)
    headers = np.lib.stride_tricks.sliding_window_view(data, HEADER)[offsets]
    lengths = headers[:, :8].copy().view("<u8").ravel()
    stored = headers[:, 8:].copy().view("<u4").ravel()
    right = np.flatnonzero((_crcs_of_rows(headers[:, :8]) == stored) & (lengths <= most))
    return list(zip(offsets[right].tolist(), lengths[right].tolist(), strict=True))


def _crcs_of_rows(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, Any]:
    """The masked checksum of each row of bytes."""
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crcs = _crc_table()[(crcs ^ column) & 0xFF] ^ (crcs >> 8)
    return mask_crcs(crcs ^ np.uint32(0xFFFFFFFF))


@cache
def _crc_table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


def _is_record(file: BinaryIO, start: int, length: int) -> bool:
    """Whether `length` bytes from `start` on are followed by their checksum."""
    extend = load_crc32c("extend")
    file.seek(start)
    crc = 0
    for block in _blocks(file, length):
        crc = extend(crc, block)
    footer = b"".join(_blocks(file, FOOTER))
    return footer == _mask_crc(crc).to_bytes(4, "little")


@dataclass(frozen=True)
class TFRecordOptions:
    """How a TFRecord file is written.

    Args:
      compression_type: `"GZIP"`, `"ZLIB"`, or `""` or None for none.
      flush_mode: Accepted and ignored, as the sizes of the buffers are.
      input_buffer_size: Accepted and ignored.
      output_buffer_size: Accepted and ignored.
      window_bits: The logarithm of the window of zlib, 9 to 15.
      compression_level: 0 for none, 1 for the fastest, 9 for the smallest files.
      compression_method: 8, zlib has no other.
      mem_level: How much memory zlib uses, 1 to 9.
      compression_strategy: zlib's strategy.

    >>> TFRecordOptions("GZIP", compression_level=9).compression_type
    'GZIP'
    """

    compression_type: str | None = None
    flush_mode: int | None = None
    input_buffer_size: int | None = None
    output_buffer_size: int | None = None
    window_bits: int | None = None
    compression_level: int | None = None
    compression_method: int | None = None
    mem_level: int | None = None
    compression_strategy: int | None = None

    def __post_init__(self) -> None:
        if check_compression(self.compression_type, "TFRecordOptions"):
            _make_deflater(self)


def _make_deflater(options: TFRecordOptions) -> Any:
    """The compressor of zlib with these options."""
    bits = WINDOW_BITS[options.compression_type or ""]
    if options.window_bits is not None:
        bits += options.window_bits - zlib.MAX_WBITS
    given = {
        "level": options.compression_level,
        "method": options.compression_method,
        "memLevel": options.mem_level,
        "strategy": options.compression_strategy,
    }
    chosen: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
    try:
        return zlib.compressobj(wbits=bits, **chosen)
    except (TypeError, ValueError, zlib.error) as error:
        raise InvalidArgumentError(
            f"TFRecordOptions: zlib does not take {chosen | {'wbits': bits}} ({error})"
        ) from None


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
    >>> writer = TFRecordWriter(path)
    >>> writer.write(b"three")
    >>> writer.flush()
    >>> writer.close()
    """

    def __init__(self, path: Path, options: Any = None) -> None:
        call = "TFRecordWriter"
        self._path = as_path(path, call)
        if not isinstance(options, TFRecordOptions):
            compression = getattr(options, "compression_type", options)
            options = TFRecordOptions(check_compression(compression, call))
        self._deflater = _make_deflater(options) if options.compression_type else None
        self._file = create_bytes(self._path, call)
        self._closed = False

    def write(self, record: bytes | str) -> None:
        """Adds one record; text is written in UTF-8."""
        self._check_open("write")
        if not isinstance(record, bytes | bytearray | memoryview | str):
            raise InvalidTypeError(
                f"TFRecordWriter.write: a record must be bytes, got {reprlib.repr(record)}; "
                "encode it first, for instance with SerializeToString"
            )
        data = record.encode() if isinstance(record, str) else bytes(record)
        length = struct.pack("<Q", len(data))
        frame = b"".join((length, masked_crc(length), data, masked_crc(data)))
        self._put(self._deflater.compress(frame) if self._deflater else frame)

    def flush(self) -> None:
        """Hands everything written so far to the operating system."""
        self._check_open("flush")
        if self._deflater:
            self._put(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        with translate_errors(self._path, "TFRecordWriter.flush"):
            self._file.flush()

    def close(self) -> None:
        """Completes the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with translate_errors(self._path, "TFRecordWriter.close"):
            try:
                if self._deflater:
                    self._file.write(self._deflater.flush())
            finally:
                self._file.close()

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError:  # Not around the whole: entering it costs more than writing.
            with translate_errors(self._path, "TFRecordWriter.write"):
                raise

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise FailedPreconditionError(
                f"TFRecordWriter.{method}: {self._path!r} is closed; make a new writer"
            )

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
