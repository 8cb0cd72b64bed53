"""Uncompressing GZIP and ZLIB files as they are read.

Everything before a damaged place is returned before the error is raised. A file that ends too soon
is an error as well, so a part of a file is never taken for the whole. The checksum of a stream
follows its last byte: only a caller that reads to the end learns that it is wrong.
"""

from __future__ import annotations

import io
import zlib
from typing import Any, BinaryIO

from penstock.errors import DataLossError

WINDOW_BITS = {"GZIP": zlib.MAX_WBITS + 16, "ZLIB": zlib.MAX_WBITS}

_STARTS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    **{b"BZh%d1AY&SY" % level: "bzip2" for level in range(1, 10)},
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
}


def name_packing(start: bytes) -> str:
    """The program that compressed a file, by the first bytes of the file; empty if it is none.

    >>> import gzip
    >>> name_packing(gzip.compress(b"text")), name_packing(b"text")
    ('gzip', '')
    """
    return next((name for known, name in _STARTS.items() if start.startswith(known)), "")


def say_how_to_unpack(packing: str) -> str:
    """What to do about a compressed file that was to be read as text, for error messages."""
    return 'pass compression_type="GZIP"' if packing == "gzip" else "unpack it before"


class InflatedFile(io.RawIOBase):
    """The bytes inside a compressed file; several streams in a row are one, as with `cat`.

    Zeros behind a GZIP stream are no part of it, as for `gunzip`. `begun` are the bytes that were
    read of the file already.
    """

    def __init__(
        self,
        file: BinaryIO,
        compression: str,
        path: str,
        block: int,
        call: str,
        begun: bytes = b"",
    ) -> None:
        self._file, self._block = file, block
        self._window_bits = WINDOW_BITS[compression]
        self._inflater = zlib.decompressobj(self._window_bits)
        self._between_streams = True
        self._filling = b"\0" if compression == "GZIP" else b""
        self._has_streams = False
        self._input = begun
        self._damaged = False
        self._complaint = f"{call}: {path!r} is not a complete {compression} file"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self.readall()
        if size == 0:
            return b""
        while not self._damaged:
            data = self._input or self._file.read(self._block)
            if not data and self._between_streams:
                return b""
            if self._between_streams and self._has_streams:
                data = self._input = data.lstrip(self._filling)
                if not data:
                    continue
            if output := self._inflate(data, size):
                return output
            if not data:
                break
        raise DataLossError(
            f"{self._complaint}; it is damaged, cut short, or compressed in another way"
        )

    def _inflate(self, data: bytes, size: int) -> bytes:
        before = self._inflater.copy()
        try:
            output = self._inflater.decompress(data, size)
        except zlib.error:
            self._damaged = True
            return _until_damage(before, data)
        self._between_streams = self._inflater.eof
        if self._inflater.eof:
            self._has_streams = True
            self._input = self._inflater.unused_data
            self._inflater = zlib.decompressobj(self._window_bits)
        else:
            self._input = self._inflater.unconsumed_tail
        return output

    def close(self) -> None:
        self._file.close()
        super().close()


def _until_damage(inflater: Any, data: bytes) -> bytes:
    """What a failed call would have given, had it stopped at the last good byte."""
    output = []
    for index in range(len(data)):
        try:
            output.append(inflater.decompress(data[index : index + 1]))
        except zlib.error:
            break
    return b"".join(output)
