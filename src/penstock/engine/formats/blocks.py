"""Block files: JSON and raw bytes in blocks, each with its checksums.

    magic   32 bytes: "penstock chunks 2 GZIP", filled up with spaces and a line end
    block   head   kind, rows, bytes of the description, of the body and of what is stored of it,
                   CRC32C of what is stored, CRC32C of the head itself
            body   the description (JSON), then raw bytes; compressed as the magic says
    ...     and so on, to a block of the kind `DONE`

Without its `DONE` block a file is not complete, so a part of a file is never taken for the whole.
File readers check the checksum of a length before they use it, and allocate no memory for bytes
that the file does not have.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from penstock.element.buffers import ALIGN, MALFORMED
from penstock.engine.formats.files import create_bytes, open_bytes, translate_errors
from penstock.engine.formats.framing import crc32c
from penstock.engine.formats.inflate import WINDOW_BITS
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)

VERSION = 2
"""Of the files: file readers refuse every other version."""

_HEAD = struct.Struct("<4sIIQQII")
_MAGIC = 32
_MOST_AT_ONCE = 16 << 20
_MOST_INFLATED = 1040  # One byte of deflated data becomes at most a few bytes less than this.

DONE = b"DONE"


class Head(NamedTuple):
    """The fields before a body, without the head's own checksum."""

    kind: bytes
    rows: int
    description: int
    size: int
    stored: int
    crc: int


def check_packing(compression: str | None, call: str) -> str:
    """How blocks are compressed: "GZIP", "ZLIB" or "NONE"; "AUTO" is none as well."""
    name = compression or "NONE"
    if name not in ("NONE", "AUTO", *WINDOW_BITS):
        raise InvalidArgumentError(
            f'{call}: compression must be "GZIP", "ZLIB", "AUTO", "NONE" or None, '
            f"got {compression!r}"
        )
    return name if name in WINDOW_BITS else "NONE"


def _magic(packing: str) -> bytes:
    return f"penstock chunks {VERSION} {packing}".encode().ljust(_MAGIC - 1) + b"\n"


@contextlib.contextmanager
def translate_write_errors(path: str, call: str) -> Iterator[None]:
    """As `translate_errors`, with a remedy for a full disk."""
    with translate_errors(path, call):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ResourceExhaustedError(
                f"{call}: no space is left for {path!r}; free some, or name a place on another "
                "disk (unfinished files have been removed)"
            ) from error


class BlocksOut:
    """Writes blocks to a new file, which is complete once `finish` was called."""

    def __init__(self, path: str, compression: str | None, call: str) -> None:
        self.path = path
        self._call = call
        self._packing = check_packing(compression, call)
        self._file: BinaryIO | None = None
        with translate_write_errors(path, call):
            self._file = create_bytes(path, call)
            self._file.write(_magic(self._packing))
            self._file.flush()  # A forked child would write what is left in the buffer again.

    def add(self, kind: bytes, rows: int, description: Any, parts: Sequence[Any] = ()) -> None:
        text = json.dumps(description, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGN)
        body = b"".join((text, *parts))
        size = len(body)
        if self._packing != "NONE":
            deflater = zlib.compressobj(wbits=WINDOW_BITS[self._packing])
            body = deflater.compress(body) + deflater.flush()
        self._put(Head(kind, rows, len(text), size, len(body), crc32c(body)), body)

    def finish(self, count: int) -> None:
        self._put(Head(DONE, 0, 0, count, 0, 0), b"")
        self.pause()

    def _put(self, head: Head, body: bytes) -> None:
        data = _HEAD.pack(*head, 0)[:-4]
        with translate_write_errors(self.path, self._call):
            if self._file is None:
                self._file = open(self.path, "ab")  # noqa: SIM115 (stays open)
            self._file.write(data + crc32c(data).to_bytes(4, "little"))
            self._file.write(body)
            self._file.flush()

    def pause(self) -> None:
        """Closes the file for now; it is opened again when there is more to write."""
        file, self._file = self._file, None
        if file is not None:
            with translate_write_errors(self.path, self._call):
                file.close()


class BlocksIn:
    """Reads the blocks of a file in turn: `head`, then `body` or `skip`."""

    def __init__(self, path: str, compression: str | None, call: str) -> None:
        self._path, self._call = path, call
        self._packing = check_packing(compression, call)
        self._file = open_bytes(path, call=call)
        self._at = self._start = 0
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def damage(self, problem: str) -> DataLossError:
        """The error for the block that was read last."""
        return DataLossError(
            f"{self._call}: {self._path!r} is damaged at byte {self._start}: {problem}; "
            "delete it and write it anew"
        )

    def _begin(self) -> None:
        found = self._read(_MAGIC)
        if found == _magic(self._packing):
            return
        for other in ("NONE", *WINDOW_BITS):
            if found == _magic(other):
                raise DataLossError(
                    f"{self._call}: {self._path!r} was written with compression {other!r}, not "
                    f"{self._packing!r}; read it with the compression that it was written with"
                )
        if version := re.match(rb"penstock chunks (\d+) ", found):
            raise DataLossError(
                f"{self._call}: {self._path!r} was written by another version of penstock (format "
                f"{int(version[1])}, this one reads {VERSION}); delete it and write it anew"
            )
        raise self.damage("it does not begin as a file of this kind does")

    def head(self) -> Head:
        self._start = self._at
        data = self._read(_HEAD.size)
        if len(data) < _HEAD.size:
            raise self.damage("the file ends here and is not complete")
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise self.damage("the checksum of the head is wrong")
        return Head(*_HEAD.unpack(data)[:-1])

    def body(self, head: Head) -> tuple[Any, bytes]:
        """The description, and the body with the raw bytes from `head.description` on."""
        body = self._read(head.stored)
        if len(body) < head.stored:
            raise self.damage("the file ends within the block")
        if crc32c(body) != head.crc:
            raise self.damage("the checksum of the block is wrong")
        if self._packing != "NONE":
            body = self._inflate(body, head.size)
        if len(body) != head.size:
            raise self.damage(f"the block has {len(body)} bytes instead of {head.size}")
        with self.understood():
            return json.loads(body[: head.description]), body

    def _inflate(self, data: bytes, size: int) -> bytes:
        if size > len(data) * _MOST_INFLATED:
            raise self.damage(f"{len(data)} bytes cannot be inflated to {size}")
        try:
            return zlib.decompressobj(WINDOW_BITS[self._packing]).decompress(data, size + 1)
        except zlib.error as error:
            raise self.damage(str(error)) from None

    def skip(self, head: Head) -> None:
        """Skips a body without reading it."""
        with translate_errors(self._path, self._call):
            self._file.seek(head.stored, os.SEEK_CUR)
        self._at += head.stored

    def end(self) -> None:
        if self._read(1):
            raise self.damage("something follows the end")

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Turns exceptions in its block into errors that say that the file is damaged."""
        try:
            yield
        except FailedPreconditionError as error:
            text = f"{self._call}: {self._path!r} cannot be read: {error.message}"
            raise FailedPreconditionError(text) from None
        except MALFORMED as error:
            raise self.damage(f"it makes no sense ({error})") from error

    def _read(self, size: int) -> bytes:
        """`size` bytes, or all that are left."""
        buffers, missing = [], size
        with translate_errors(self._path, self._call):
            while missing and (data := self._file.read(min(missing, _MOST_AT_ONCE))):
                buffers.append(data)
                missing -= len(data)
        self._at += size - missing
        return buffers[0] if len(buffers) == 1 else b"".join(buffers)
