"""Arrow IPC files, Feather files and IPC streams: a block is a record batch.

A footer, or in a stream the messages themselves, say where record batches are. How many rows each
has is in the head of its message, so opening a file reads these heads and no rows. Both are
flatbuffers (`Schema.fbs`, `File.fbs` and `Message.fbs` of Arrow). A file may be damaged: every
length in it is compared with the size of the file before anything of that length is read.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from penstock.engine.formats.arrow_columns import ArrowBlock, specs_of
from penstock.engine.formats.extras import arrow, crc32c, load_extra
from penstock.engine.formats.files import (
    close_on_error,
    open_bytes,
    read_exactly,
    size_of,
    translate_errors,
)
from penstock.engine.formats.flat_tables import DAMAGED, FlatTable
from penstock.engine.formats.remote_files import prefetch_blocks, prefetch_ranges
from penstock.engine.formats.remote_requests import ChangedFileError
from penstock.engine.formats.tables import Selection, TableReader
from penstock.errors import DataLossError, InvalidArgumentError, OpError, ResourceExhaustedError

_NO_DAMAGE = (ConnectionError, TimeoutError, ChangedFileError)
"""Failures of a connection, which say nothing about the file."""

_HEAD = 1 << 12
"""As many bytes as the head of a message usually has at most."""

_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_OLD_MAGIC = b"FEA1"
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
"""Kinds of messages."""


@contextlib.contextmanager
def report_damage(path: str, call: str, what: str) -> Iterator[None]:
    """Raises DataLossError, with the file and what of it is damaged, if Arrow cannot read it."""
    load_extra("pyarrow", call)
    with translate_errors(path, call):
        try:
            yield
        except (FileNotFoundError, PermissionError, *_NO_DAMAGE):
            raise
        except MemoryError as error:
            raise ResourceExhaustedError(
                f"{call}: {path!r}: {what}, because there is not enough memory; if the machine "
                "has enough, the file is damaged and states a wrong size: write it again"
            ) from error
        except (arrow.ArrowException, *DAMAGED, OSError, EOFError) as error:
            if isinstance(error, OpError):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise DataLossError(
                f"{call}: {path!r} is damaged: {what} ({reason}); write it again, or leave it out"
            ) from error


class _Message(NamedTuple):
    """A message of an Arrow file: its kind, its number of rows, and where it begins and ends."""

    kind: int
    rows: int
    start: int
    end: int


class ArrowReader(TableReader):
    """Opening it reads the footer and the heads of the record batches."""

    def __init__(self, path: str, call: str) -> None:
        self._call, self._path = call, path
        load_extra("pyarrow", call)
        self._file = open_bytes(path, call=call)
        what = "its record batches cannot be found"
        with close_on_error(self._file), report_damage(path, call, what):
            messages, footer = self._find_messages()
            self._is_file = footer is not None
            self.schema = self._read_schema(footer)
            self.specs = specs_of(self.schema)
        self._opened: tuple[Any, Any] | None = None
        self._batches = [message for message in messages if message.kind == _RECORD_BATCH]
        self._has_dictionaries = any(message.kind == _DICTIONARY for message in messages)
        self.footer = crc32c(repr(messages).encode())
        self.blocks = tuple(batch.rows for batch in self._batches)
        self._whole: list[Any] | None = None

    def _find_messages(self) -> tuple[list[_Message], bytes | None]:
        """The messages, and the footer of a file; a stream has none."""
        size = size_of(self._file) or 0
        magic = read_exactly(self._file, 0, min(size, 8))
        if magic.startswith(_OLD_MAGIC):
            raise InvalidArgumentError(
                f"{self._call}: {self._path!r} is a Feather file of version 1; write it again with "
                "pyarrow.feather.write_feather"
            )
        if magic.startswith(_MAGIC):
            footer = _read_footer(self._file, size)
            return _messages_of_file(self._file, size - 10 - len(footer), footer), footer
        if magic.startswith(_CONTINUATION) or _begins_with_schema(self._file, size):
            return _messages_of_stream(self._file, size), None
        raise DataLossError(
            f"{self._call}: {self._path!r} is not an Arrow file: it "
            f"{f'begins with {magic!r}' if magic else 'is empty'}; is it of another format, or "
            "was it cut short?"
        )

    def _read_schema(self, footer: bytes | None) -> Any:
        """The schema of the first message; that of the footer if the first message is no schema.

        Both are the same, but Polars writes no message before the first record batch of a file.
        """
        try:
            end = size_of(self._file) or 0
            start = 0 if footer is None else 8
            message = _message_at(self._file, start, end)
            if message.kind != _SCHEMA:
                raise EOFError("the file does not begin with a schema")
            return _parse_schema(read_exactly(self._file, start, message.end - start))
        except (arrow.ArrowException, *DAMAGED, EOFError):
            if footer is None:
                raise
            return _parse_footer(footer)

    def _open_reader(self) -> tuple[Any, Any]:
        """What Arrow reads from, and its reader; both are made when a batch is read first."""
        if self._opened is None:
            is_remote = "://" in self._path
            source = self._file if is_remote else arrow.memory_map(self._path)
            self._file.seek(0)
            open_source = arrow.ipc.open_file if self._is_file else arrow.ipc.open_stream
            reader = open_source(source)
            if not reader.schema.equals(self.schema):
                raise EOFError("its footer has another schema than its first message")
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
        if "://" in self._path:
            data: Any = read_exactly(self._file, start, end - start)
        else:
            source.seek(start)
            data = source.read_buffer(end - start)
        return arrow.ipc.read_record_batch(arrow.py_buffer(data), self.schema)

    def close(self) -> None:
        self._file.close()


@lru_cache(maxsize=8)
def _parse_schema(message: bytes) -> Any:
    """The schema in a message; that of most files is the same."""
    return arrow.ipc.read_schema(arrow.py_buffer(message))


def _parse_footer(footer: bytes) -> Any:
    """The schema in a footer, which Arrow reads as if it were the whole file."""
    whole = _MAGIC + bytes(2) + footer + struct.pack("<i", len(footer)) + _MAGIC
    return arrow.ipc.open_file(whole).schema


def _read_footer(file: BinaryIO, size: int) -> bytes:
    end = read_exactly(file, max(size - 10, 0), min(size, 10))
    (length,) = struct.unpack_from("<i", end)
    if end[4:] != _MAGIC or not 0 < length <= size - 10:
        raise EOFError("the file does not end with a footer")
    return read_exactly(file, size - 10 - length, length)


def _messages_of_file(file: BinaryIO, size: int, footer: bytes) -> list[_Message]:
    """The messages that a footer lists; they are in the first `size` bytes."""
    table = FlatTable.root(footer)
    lists = {_DICTIONARY: table.structs(2, 3), _RECORD_BATCH: table.structs(3, 3)}
    places = [(kind, start) for kind, rows in lists.items() for start in rows[:, 0].tolist()]
    prefetch_ranges(file, [(start, min(start + _HEAD, size)) for _, start in places])
    if not places:  # Arrow verifies the footer: its lists may have got lost.
        _parse_footer(footer)
    messages = [_message_at(file, start, size) for _, start in places]
    if [message.kind for message in messages] != [kind for kind, _ in places]:
        raise EOFError("its footer lists messages of another kind")
    return messages


def _messages_of_stream(file: BinaryIO, size: int) -> list[_Message]:
    messages, at = [], 0
    while at < size:
        if at + 4 > size:
            raise EOFError("the file ends within a message")
        if read_exactly(file, at, min(8, size - at)).removeprefix(_CONTINUATION)[:4] == bytes(4):
            break
        messages.append(_message_at(file, at, size))
        at = messages[-1].end
    if any(message.kind not in (_DICTIONARY, _RECORD_BATCH) for message in messages[1:]):
        raise EOFError("a message is no record batch and no dictionary")
    return messages


def _begins_with_schema(file: BinaryIO, size: int) -> bool:
    """Whether a file begins as streams did before Arrow 0.15, without `_CONTINUATION`."""
    try:
        return _message_at(file, 0, size).kind == _SCHEMA
    except (*DAMAGED, EOFError):
        return False


def _message_at(file: BinaryIO, start: int, size: int) -> _Message:
    """The message from `start` on, in a file of `size` bytes.

    Messages begin with ff ff ff ff and the length of the head; those of Arrow before 0.15, with
    the length only. The body follows the head.
    """
    prefix = read_exactly(file, start, 8)
    head_start = start + (8 if prefix.startswith(_CONTINUATION) else 4)
    (length,) = struct.unpack_from("<i", prefix, head_start - start - 4)
    if not 0 <= length <= size - head_start:
        raise EOFError(f"the head of a message at byte {start} has {length} bytes")
    head = FlatTable.root(read_exactly(file, head_start, length))
    kind, body = head.number(1, "<B"), head.number(3, "<q")
    if not 0 <= body <= size - head_start - length:
        raise EOFError(f"the body of a message at byte {start} has {body} bytes")
    rows = _count_rows(head.table(2)) if kind == _RECORD_BATCH else 0
    return _Message(kind, rows, start, head_start + length + body)


def _count_rows(batch: FlatTable) -> int:
    """The rows of a record batch. Its first column states them, too, so a damaged number shows."""
    rows, columns = batch.number(0, "<q"), batch.structs(1, 2)
    if rows < 0 or not (rows or len(columns)) or (len(columns) and rows != columns[0, 0]):
        raise EOFError(f"a record batch has {rows} rows, but its first column has another number")
    return rows
