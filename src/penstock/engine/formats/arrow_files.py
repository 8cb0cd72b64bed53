"""Arrow IPC files, Feather files and IPC streams: a block is a record batch.

A footer, or in a stream the messages themselves, say where record batches are. How many rows each
has is in the head of its message, so opening a file reads these heads and no rows. Both are
flatbuffers (`Schema.fbs`, `File.fbs` and `Message.fbs` of Arrow).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from penstock.engine.formats.arrow_columns import ArrowBlock, specs_of
from penstock.engine.formats.extras import load_extra
from penstock.engine.formats.files import open_bytes, size_of, translate_errors
from penstock.engine.formats.flat_tables import FlatTable
from penstock.engine.formats.framing import crc32c
from penstock.engine.formats.remote_files import prefetch_blocks, prefetch_ranges
from penstock.engine.formats.remote_requests import ChangedFileError
from penstock.engine.formats.tables import Selection
from penstock.errors import DataLossError, InvalidArgumentError, OpError

_NO_DAMAGE = (ConnectionError, TimeoutError, ChangedFileError)
"""Failures of a connection, which say nothing about the file."""

_HEAD = 1 << 12
"""As many bytes as the head of a message usually has at most."""

_MAGIC = b"ARROW1"
_OLD_MAGIC = b"FEA1"
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
"""Kinds of messages."""


@contextlib.contextmanager
def report_damage(path: str, call: str, what: str) -> Iterator[None]:
    """Raises DataLossError, with the file and what of it is damaged, if Arrow cannot read it."""
    arrow = load_extra("pyarrow", call)
    with translate_errors(path, call):
        try:
            yield
        except (FileNotFoundError, PermissionError, *_NO_DAMAGE):
            raise
        except (arrow.ArrowException, struct.error, OSError, EOFError, ValueError) as error:
            if isinstance(error, OpError):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise DataLossError(
                f"{call}: {path!r} is damaged: {what} ({reason}); write it again, or leave it out"
            ) from error


def read_exactly(file: BinaryIO, start: int, count: int) -> bytes:
    """The `count` bytes from `start` on; EOFError if the file ends before."""
    file.seek(start)
    parts, missing = [], count
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise EOFError(f"the file ends {missing} bytes too early")
    return b"".join(parts)


class _Message(NamedTuple):
    """A message of an Arrow file: its kind, its number of rows, and where it begins and ends."""

    kind: int
    rows: int
    start: int
    end: int


class ArrowReader:
    """Opening it reads the footer and the heads of the record batches."""

    def __init__(self, path: str, call: str) -> None:
        self._call, self._path = call, path
        self._arrow = load_extra("pyarrow", call)
        self._file = open_bytes(path, call=call)
        try:
            with report_damage(path, call, "its record batches cannot be found"):
                messages, is_file = self._find_messages()
                self._is_file = is_file
                head = read_exactly(self._file, *_place_of_schema(self._file, is_file))
                self.schema = _parse_schema(head)
                self.specs = specs_of(self.schema)
        except BaseException:
            self._file.close()
            raise
        self._opened: tuple[Any, Any] | None = None
        self._batches = [message for message in messages if message.kind == _RECORD_BATCH]
        self._has_dictionaries = any(message.kind == _DICTIONARY for message in messages)
        self.footer = crc32c(repr(messages).encode())
        self.blocks = tuple(batch.rows for batch in self._batches)
        self._whole: list[Any] | None = None

    def _find_messages(self) -> tuple[list[_Message], bool]:
        size = size_of(self._file) or 0
        magic = read_exactly(self._file, 0, min(size, 8))
        if magic.startswith(_OLD_MAGIC):
            raise InvalidArgumentError(
                f"{self._call}: {self._path!r} is a Feather file of version 1; write it again with "
                "pyarrow.feather.write_feather"
            )
        if magic.startswith(_MAGIC):
            return _messages_of_file(self._file, size), True
        if magic[:4] == b"\xff\xff\xff\xff":
            return _messages_of_stream(self._file, size), False
        raise DataLossError(
            f"{self._call}: {self._path!r} is not an Arrow file: it "
            f"{f'begins with {magic!r}' if magic else 'is empty'}; is it of another format, or "
            "was it cut short?"
        )

    def _open_reader(self) -> tuple[Any, Any]:
        """What Arrow reads from, and its reader; both are made when a batch is read first."""
        if self._opened is None:
            ipc = load_extra("pyarrow.ipc", self._call)
            is_remote = "://" in self._path
            source = self._file if is_remote else self._arrow.memory_map(self._path)
            self._file.seek(0)
            reader = ipc.open_file(source) if self._is_file else ipc.open_stream(source)
            self._opened = source, reader
        return self._opened

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        return prefetch_blocks(self._file, number, ahead, lambda block: [self._batches[block][-2:]])

    def read(self, number: int, first: int, selection: Selection) -> ArrowBlock:
        with report_damage(self._path, self._call, f"record batch {number} cannot be read"):
            batch = self._read_batch(number).select(list(selection.columns))
            batch.validate(full=True)  # Arrow would follow damaged offsets anywhere.
            return ArrowBlock(batch, first, selection, mapped="://" not in self._path)

    def _read_batch(self, number: int) -> Any:
        source, reader = self._open_reader()
        if self._is_file:
            return reader.get_batch(number)
        if self._has_dictionaries:  # A dictionary may come in several parts, before any batch.
            self._whole = self._whole or list(reader)
            return self._whole[number]
        _, _, start, end = self._batches[number]
        ipc = load_extra("pyarrow.ipc", self._call)
        if "://" in self._path:
            data: Any = read_exactly(self._file, start, end - start)
        else:
            source.seek(start)
            data = source.read_buffer(end - start)
        return ipc.read_record_batch(self._arrow.py_buffer(data), self.schema)

    def close(self) -> None:
        self._file.close()


def _place_of_schema(file: BinaryIO, is_file: bool) -> tuple[int, int]:
    """Where the message with the schema begins, which is the first, and its length."""
    start = 8 if is_file else 0
    message = _message_at(file, start)
    if message.kind != _SCHEMA:
        raise EOFError("the file does not begin with a schema")
    return start, message.end - start


@lru_cache(maxsize=8)
def _parse_schema(message: bytes) -> Any:
    """The schema in a message; that of most files is the same."""
    ipc, arrow = load_extra("pyarrow.ipc", "Dataset"), load_extra("pyarrow", "Dataset")
    return ipc.read_schema(arrow.py_buffer(message))


def _messages_of_file(file: BinaryIO, size: int) -> list[_Message]:
    end = read_exactly(file, max(size - 10, 0), min(size, 10))
    (length,) = struct.unpack_from("<i", end)
    if end[4:] != _MAGIC or not 0 < length <= size - 10:
        raise EOFError("the file does not end with a footer")
    footer = FlatTable.root(read_exactly(file, size - 10 - length, length))
    blocks = np.concatenate([footer.structs(2, 3), footer.structs(3, 3)])
    starts = blocks[:, 0].tolist()
    prefetch_ranges(file, [(start, min(start + _HEAD, size)) for start in starts])
    return [_message_at(file, start) for start in starts]


def _messages_of_stream(file: BinaryIO, size: int) -> list[_Message]:
    messages, at = [], 0
    while at + 8 <= size and read_exactly(file, at + 4, 4) != bytes(4):
        message = _message_at(file, at)
        if message.end > size:
            raise EOFError(f"the file ends {message.end - size} bytes too early")
        messages.append(message)
        at = message.end
    if at + 8 > size and at != size:
        raise EOFError("the file ends within a message")
    return messages


def _message_at(file: BinaryIO, start: int) -> _Message:
    """Messages begin with ff ff ff ff and the length of the head; the body follows the head."""
    (length,) = struct.unpack_from("<i", read_exactly(file, start + 4, 4))
    if length < 0:
        raise EOFError("a message has a negative length")
    head = FlatTable.root(read_exactly(file, start + 8, length))
    kind, body = head.number(1, "<B"), head.number(3, "<q")
    rows = head.table(2).number(0, "<q") if kind == _RECORD_BATCH else 0
    if body < 0 or rows < 0:
        raise EOFError("a message has a negative size")
    return _Message(kind, rows, start, start + 8 + length + body)
