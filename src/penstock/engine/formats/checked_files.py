"""`CheckedFile`: bytes of a file in turn, for file readers that check all that they read.

Lengths in a file may be wrong: `read` allocates no memory for bytes that the file does not have.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Any, cast

from penstock.element.buffers import MALFORMED
from penstock.engine.formats.files import (
    DEFAULT_BLOCK,
    close_on_error,
    open_bytes,
    translate_errors,
)
from penstock.engine.formats.inflate import InflatedFile
from penstock.errors import DataLossError, FailedPreconditionError, InvalidArgumentError

_MOST_AT_ONCE = 16 << 20
_START = 32


def check_packing(compression: str | None, call: str) -> str:
    """How files are compressed: "GZIP" or "NONE"; "AUTO" is none as well."""
    name = compression or "NONE"
    if name not in ("NONE", "AUTO", "GZIP"):
        raise InvalidArgumentError(
            f'{call}: compression must be "GZIP", "AUTO", "NONE" or None, got {compression!r}'
        )
    return "GZIP" if name == "GZIP" else "NONE"


class CheckedFile:
    """A file to read, from its start. `start` is where it begins; these bytes are read again."""

    def __init__(self, path: str, call: str) -> None:
        self.path, self._call = path, call
        self._file: Any = open_bytes(path, call=call)
        self._ahead = b""
        self.at = self.part = 0
        """The offset of the next byte, and of the part that is being read; errors name the part."""
        with close_on_error(self._file):
            self.start = self._ahead = self.read(_START)
        self.at = 0

    def close(self) -> None:
        self._file.close()

    def inflate(self) -> None:
        """Reads, from here on, the bytes that are compressed in the file."""
        inflated = InflatedFile(
            self._file, "GZIP", self.path, DEFAULT_BLOCK, self._call, begun=self._ahead
        )
        self._file, self._ahead = cast(Any, inflated), b""

    def check_compression(self, found: str, expected: str) -> None:
        if found != expected:
            raise DataLossError(
                f"{self._call}: {self.path!r} was written with compression {found!r}, not "
                f"{expected!r}; read it with the compression that it was written with"
            )

    def damage(self, problem: str) -> DataLossError:
        """The error for the part that was read last."""
        return DataLossError(
            f"{self._call}: {self.path!r} is damaged at byte {self.part}: {problem}; "
            "delete it and write it anew"
        )

    def foreign_version(self, found: int, expected: int) -> DataLossError:
        """The error for a file of a format that this release does not read."""
        return DataLossError(
            f"{self._call}: {self.path!r} was written by another version of penstock (format "
            f"{found}, this one reads {expected}); delete it and write it anew"
        )

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Turns exceptions in its block into errors that say that the file is damaged."""
        try:
            yield
        except FailedPreconditionError as error:
            text = f"{self._call}: {self.path!r} cannot be read: {error.message}"
            raise FailedPreconditionError(text) from None
        except (*MALFORMED, struct.error) as error:
            raise self.damage(f"it makes no sense ({error})") from error

    def read(self, size: int) -> bytes:
        """`size` bytes, or all that are left."""
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        buffers, missing = [data] if data else [], size - len(data)
        with translate_errors(self.path, self._call):
            while missing and (data := self._file.read(min(missing, _MOST_AT_ONCE))):
                buffers.append(data)
                missing -= len(data)
        self.at += size - missing
        return buffers[0] if len(buffers) == 1 else b"".join(buffers)

    def skip(self, size: int) -> None:
        """Skips bytes, without reading them if the file is not compressed."""
        if isinstance(self._file, InflatedFile):
            for start in range(0, size, _MOST_AT_ONCE):
                self.read(min(size - start, _MOST_AT_ONCE))
            return
        ahead = self._ahead[:size]
        self._ahead = self._ahead[size:]
        with translate_errors(self.path, self._call):
            self._file.seek(size - len(ahead), os.SEEK_CUR)
        self.at += size
