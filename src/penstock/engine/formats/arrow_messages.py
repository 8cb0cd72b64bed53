"""Arrow IPC files of saved elements: record batches with checksums, written and read with NumPy.

    magic      "ARROW1" and two zeros
    message    ff ff ff ff, the length of the head, the head (a flatbuffer), the body
    ...        the first has the schema, each of the others a record batch
    end        ff ff ff ff 00 00 00 00
    footer     a flatbuffer: the schema again, and where the record batches are
    length     of the footer, and "ARROW1"

Every Arrow library reads these files. A file without its footer is not complete, and no library
takes it for the whole. What only penstock reads is in custom metadata: the structure of elements
and the layouts of columns are in the schema, the number of elements is in the footer, and each
message has a CRC32C of its body and one of its head. Heads and bodies begin at multiples of 64.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.arrow_buffers import Part
from penstock.engine.formats.arrow_layouts import field_of, key_values
from penstock.engine.formats.checked_files import CheckedFile
from penstock.engine.formats.files import create_bytes, translate_write_errors
from penstock.engine.formats.flat_tables import DAMAGED, FlatTable, Scalar, Structs, encode_table
from penstock.engine.formats.framing import crc32c, load_crc32c_extend
from penstock.engine.formats.inflate import WINDOW_BITS

FORMAT = 1
"""Of what is in the custom metadata: file readers refuse every other format."""

BEGINNING = b"ARROW1"
_MAGIC = BEGINNING + bytes(2)
_MARK = b"\xff\xff\xff\xff"
_END = _MARK + bytes(4)
_ALIGN = 64
_ZEROS = bytes(_ALIGN)
_V5 = Scalar("<h", 4)
_SCHEMA, _RECORD_BATCH = 1, 3
_MOST_HEAD = 64 << 20
"""The longest head that is read: its length is used before its checksum can be compared."""

SCHEMA_KEY, _ROWS, _MORE, _CRC = "penstock", "penstock.rows", "penstock.more", "penstock.crc32c"
_NO_CRC = "0" * 8


class Schema(NamedTuple):
    """The structure of the elements, as JSON, and the name, leaf and layout of each column."""

    structure: Any
    columns: list[tuple[str, int, Any]]

    def table(self) -> dict[int, Any]:
        """The table `Schema`."""
        columns = [[leaf, layout] for _, leaf, layout in self.columns]
        found = {"format": FORMAT, "structure": self.structure, "columns": columns}
        metadata = {SCHEMA_KEY: json.dumps(found, separators=(",", ":"))}
        fields = [field_of(name, layout) for name, _, layout in self.columns]
        return {0: Scalar("<h", 0), 1: fields, 2: key_values(metadata)}


def _head_of(kind: int, table: dict[int, Any], at: int, size: int = 0, body_crc: int = 0) -> bytes:
    """The head of a message at byte `at`, with a body of `size` bytes."""
    crcs = key_values({_CRC: f"{body_crc:08x} {_NO_CRC}"})
    message = encode_table(
        {0: _V5, 1: Scalar("<B", kind), 2: table, 3: Scalar("<q", size), 4: crcs}
    )
    message += bytes(-(at + 8 + len(message)) % _ALIGN)
    return _sign(_MARK + len(message).to_bytes(4, "little") + message, 8, 4)


def _sign(data: bytes, start: int, field: int) -> bytes:
    """The flatbuffer from `start` on, with the checksum of `data` in its custom metadata."""
    place = _place_of_crc(FlatTable.root(data[start:]), field) + start
    return data[:place] + b"%08x" % crc32c(data) + data[place + 8 :]


def _place_of_crc(table: FlatTable, field: int) -> int:
    """Where the checksum of the head is: the last 8 bytes of the last custom metadata."""
    pair = table.tables(field)[-1]
    if pair.text(0) != _CRC:
        raise ValueError("no checksum")
    return pair.text_range(1).stop - 8


def _is_signed(data: bytes, start: int, field: int) -> bool:
    """Whether `data` has the checksum that is in its flatbuffer from `start` on."""
    try:
        place = _place_of_crc(FlatTable.root(data[start:]), field) + start
    except DAMAGED:
        return False
    blank = data[:place] + _NO_CRC.encode() + data[place + 8 :]
    return place >= start and data[place : place + 8] == b"%08x" % crc32c(blank)


class ArrowOut:
    """Writes record batches to a new file, which is complete once `finish` was called."""

    def __init__(self, path: str, packing: str, call: str) -> None:
        self.path = path
        self._call = call
        self._deflater = None
        if packing == "GZIP":
            self._deflater = zlib.compressobj(wbits=WINDOW_BITS["GZIP"])
        self._file: BinaryIO | None = None
        self._at = self._rows = 0
        self._schema: Schema | None = None
        self._batches: list[tuple[int, int, int]] = []
        with translate_write_errors(path, call):
            self._file = create_bytes(path, call)
        self._put([_MAGIC])

    def begin(self, schema: Schema) -> None:
        """Writes the schema, before the first record batch."""
        self._schema = schema
        self._put([_head_of(_SCHEMA, schema.table(), self._at)])

    def add(self, rows: int, lengths: Sequence[int], buffers: Sequence[Sequence[Part]]) -> None:
        """Writes a record batch."""
        parts: list[Part] = []
        places, size, crc = [], 0, 0
        extend = load_crc32c_extend()
        for buffer in buffers:
            length = sum(map(_size_of, buffer))
            places.append((size, length))
            padding = _ZEROS[: -length % _ALIGN]
            for part in (*buffer, padding):
                crc = extend(crc, part)
                parts.append(part)
            size += length + len(padding)
        nodes = np.zeros((len(lengths), 2), np.int64)
        nodes[:, 0] = lengths
        where = np.array(places, np.int64).reshape(-1, 2)
        table = {0: Scalar("<q", rows), 1: Structs(nodes), 2: Structs(where)}
        head = _head_of(_RECORD_BATCH, table, self._at, size, crc)
        self._batches.append((self._at, len(head), size))
        self._rows += rows
        self._put([head, *parts])

    def finish(self, has_more: bool) -> None:
        """Completes the file; `has_more` says that another one continues it."""
        schema = self._schema or Schema(None, [])
        if self._schema is None:
            self.begin(schema)
        metadata = {_ROWS: str(self._rows), _MORE: str(int(has_more)), _CRC: _NO_CRC}
        batches = Structs(np.array(self._batches, np.int64).reshape(-1, 3))
        footer = encode_table(
            {
                0: _V5,
                1: schema.table(),
                2: Structs(np.empty((0, 3), np.int64)),
                3: batches,
                4: key_values(metadata),
            }
        )
        signed = _sign(bytes(footer), 0, 4)
        self._put([_END, signed, len(signed).to_bytes(4, "little"), BEGINNING], last=True)
        self.pause()

    def settle(self) -> None:
        """Makes all that was written readable, also if this process or the machine fails later."""
        if self._deflater is not None:
            self._put_bytes([self._deflater.flush(zlib.Z_SYNC_FLUSH)])
        with translate_write_errors(self.path, self._call):
            if self._file is None:
                self._file = open(self.path, "ab")  # noqa: SIM115 (stays open)
            os.fsync(self._file.fileno())

    def _put(self, parts: Sequence[Part], last: bool = False) -> None:
        self._at += sum(map(_size_of, parts))
        deflater = self._deflater
        if deflater is not None:
            parts = [deflater.compress(part) for part in parts]
            parts += [deflater.flush()] if last else []
        self._put_bytes(parts)

    def _put_bytes(self, parts: Sequence[Part]) -> None:
        with translate_write_errors(self.path, self._call):
            if self._file is None:
                self._file = open(self.path, "ab")  # noqa: SIM115 (stays open)
            for part in parts:
                self._file.write(part)
            self._file.flush()  # A forked child would write what is left in the buffer again.

    def pause(self) -> None:
        """Closes the file for now; it is opened again when there is more to write."""
        file, self._file = self._file, None
        if file is not None:
            with translate_write_errors(self.path, self._call):
                file.close()


def _size_of(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else int(part.nbytes)


class BatchHead(NamedTuple):
    """The head of a record batch."""

    rows: int
    size: int
    crc: str
    buffers: Array


class ArrowIn:
    """Reads a file in turn: `schema`, then `batch` and `body` or `skip`, then `footer`."""

    def __init__(self, file: CheckedFile) -> None:
        self._file = file
        self._footer_size = 1 << 12
        """The most bytes that the footer may have."""
        if file.read(len(_MAGIC)) != _MAGIC:
            raise file.damage("it does not begin as a file of this kind does")

    def schema(self) -> tuple[Any, list[Any]]:
        """The structure, as JSON, and the leaf and layout of each column."""
        message = self._head(_SCHEMA)
        with self._file.understood():
            if message is None:
                raise ValueError("no schema")
            pairs = {pair.text(0): pair for pair in message.table(2).tables(2)}
            found = json.loads(pairs[SCHEMA_KEY].text(1))
            if (version := int(found["format"])) == FORMAT:
                return found["structure"], found["columns"]
        raise self._file.foreign_version(version, FORMAT)

    def batch(self) -> BatchHead | None:
        """The next record batch; None at the end."""
        message = self._head(_RECORD_BATCH)
        if message is None:
            return None
        with self._file.understood():
            crc = message.tables(4)[-1].text(1)[:8]
            table = message.table(2)
            rows, size = table.number(0, "<q"), message.number(3, "<q")
            if rows < 1 or size < 0:
                raise ValueError(f"a record batch of {rows} rows and {size} bytes")
            return BatchHead(rows, size, crc, table.structs(2, 2))

    def _head(self, kind: int) -> FlatTable | None:
        file = self._file
        file.part = file.at
        prefix = file.read(8)
        if prefix == _END:
            return None
        size = int.from_bytes(prefix[4:], "little")
        if len(prefix) < 8:
            raise file.damage("the file ends here and is not complete")
        if prefix[:4] != _MARK or size > _MOST_HEAD:
            raise file.damage("no message begins here")
        data = prefix + file.read(size)
        if len(data) < 8 + size:
            raise file.damage("the file ends within the head of a message")
        if _CRC.encode() not in data:
            raise file.damage("penstock did not write this Arrow file; see Dataset.from_arrow")
        if not _is_signed(data, 8, 4):
            raise file.damage("the checksum of the head is wrong")
        self._footer_size += size if kind == _SCHEMA else 24
        message = FlatTable.root(data[8:])
        with file.understood():
            if message.number(1, "<B") != kind:
                raise ValueError("a message of another kind")
        return message

    def body(self, batch: BatchHead) -> bytes:
        body = self._file.read(batch.size)
        if len(body) < batch.size:
            raise self._file.damage("the file ends within the record batch")
        if f"{crc32c(body):08x}" != batch.crc:
            raise self._file.damage("the checksum of the record batch is wrong")
        return body

    def skip(self, batch: BatchHead) -> None:
        self._file.skip(batch.size)

    def footer(self) -> tuple[int, bool]:
        """The number of elements, and whether another file continues this one."""
        file = self._file
        file.part = file.at
        data = file.read(self._footer_size)
        footer, length, magic = data[:-10], data[-10:-6], data[-6:]
        if magic != BEGINNING or length != len(footer).to_bytes(4, "little"):
            raise file.damage("the file does not end with a footer, so it is not complete")
        if not _is_signed(footer, 0, 4):
            raise file.damage("the checksum of the footer is wrong")
        with file.understood():
            pairs = {pair.text(0): pair.text(1) for pair in FlatTable.root(footer).tables(4)}
            return int(pairs[_ROWS]), pairs[_MORE] == "1"
