"""Chunk files: elements on disk, column by column, as Arrow IPC files.

A file has one schema. Where the structure or the layout of elements changes, a second file
continues the first, with `.1` behind its name, then a third with `.2`: the footer of a file says
whether there is another. Files of blocks, which earlier releases wrote, are read as well.

    magic      "ARROW1" and two zeros
    message    ff ff ff ff, the length of the head, the head (a flatbuffer), the body
    ...        the first has the schema, each later one a record batch
    end        ff ff ff ff 00 00 00 00
    footer     a flatbuffer: the schema again, and where the record batches are
    length     of the footer, and "ARROW1"

Every Arrow library reads these files. A file without its footer is not complete, and no library
takes it for the whole. What only penstock reads is in custom metadata: the structure of elements
and the layouts of columns are in the schema, the number of elements is in the footer, and each
message has a CRC32C of its body and one of its head. Heads and bodies begin at multiples of 64.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from penstock.element.chunk import Chunk, leaf_kind
from penstock.element.columns import Array, Column
from penstock.element.descriptions import name_leaves, structure_from_json, structure_to_json
from penstock.element.nest import Tree, flatten
from penstock.element.ragged import Ragged
from penstock.element.values import is_opaque
from penstock.engine.formats import blocks
from penstock.engine.formats.arrow_layouts import (
    BatchBuffers,
    BatchColumns,
    Layout,
    Part,
    check_layout,
    covers,
    field_of,
    key_values,
    layout_of,
    layout_of_spec,
    widen,
)
from penstock.engine.formats.checked_files import CheckedFile, check_packing
from penstock.engine.formats.extras import crc32c, load_crc32c
from penstock.engine.formats.files import create_bytes, translate_write_errors
from penstock.engine.formats.flat_tables import DAMAGED, FlatTable, Scalar, Structs, encode_table
from penstock.engine.formats.inflate import WINDOW_BITS
from penstock.errors import InvalidArgumentError, InvalidTypeError

BLOCK_ROWS, BLOCK_BYTES = 1 << 16, 4 << 20

_MAX_ROWS = 1 << 20
"""The most elements of a batch: elements without leaves take no bytes that could be counted."""


class ChunkWriter:
    """Writes chunks to a new file, which is complete once it is closed; small ones are joined.

    A leaf whose shape is open in `spec`, which may be None, gets a layout for all shapes.
    """

    def __init__(
        self,
        path: str,
        compression: str | None = None,
        call: str = "ChunkWriter",
        spec: Any = None,
    ) -> None:
        self.count = 0
        self._path, self._call = path, call
        self._packing = check_packing(compression, call)
        self._specs: list[Any] = []
        self._spec_tree: Tree | None = None
        if spec is not None:
            self._specs, self._spec_tree = flatten(spec)
        self._file = ArrowOut(path, self._packing, call)
        self._files = 1
        self._tree: Tree | None = None
        self._names: list[tuple[str, int]] = []
        self._layouts: list[Layout] = []
        self._waiting: list[Chunk] = []
        self._kinds: list[Any] = []
        self._rows = self._nbytes = 0

    def write(self, chunk: Chunk) -> None:
        if not len(chunk):
            return
        with name_call(self._call):
            kinds = [_kind(column) for column in chunk.columns]
        if self._waiting and (kinds != self._kinds or chunk.tree != self._waiting[0].tree):
            self._flush()
        self._kinds = kinds
        self._waiting.append(chunk)
        self._rows += len(chunk)
        self._nbytes += chunk.nbytes
        if self._rows >= BLOCK_ROWS or self._nbytes >= BLOCK_BYTES:
            self._flush()

    def close(self) -> None:
        """Completes the file."""
        self._flush()
        if self._tree is None and self._spec_tree is not None:
            layouts = list(map(layout_of_spec, self._specs))
            if None not in layouts:
                self._begin(self._spec_tree, layouts)
        self._file.finish(has_more=False)

    def pause(self) -> None:
        """Closes the file handle until there is more to write."""
        self._flush()
        self._file.pause()

    def settle(self) -> None:
        """Makes the elements so far readable, although the file is not complete."""
        self._flush()
        self._file.settle()

    def rename(self, path: str) -> None:
        """Gives the complete file and its continuations the name that readers look for.

        The file itself is renamed last, and `abandon` removes none of them any more.
        """
        for number in reversed(range(self._files)):
            os.replace(_name_file(self._path, number), _name_file(path, number))
        self._files = 0

    def abandon(self) -> None:
        """Closes the file as it is, and removes it and its continuations."""
        self._waiting = []
        with contextlib.suppress(Exception):
            self._file.pause()
        for number in range(self._files):
            with contextlib.suppress(OSError):
                os.unlink(_name_file(self._path, number))

    def _flush(self) -> None:
        if not self._waiting:
            return
        whole, self._waiting = Chunk.join(self._waiting), []
        step = max(1, min(BLOCK_ROWS, self._rows * BLOCK_BYTES // max(self._nbytes, 1)))
        self._rows = self._nbytes = 0
        for start in range(0, len(whole), step):
            self._add(whole.rows(start, start + step))

    def _add(self, chunk: Chunk) -> None:
        """Writes elements as one record batch, or as several if their kinds differ."""
        with name_call(self._call):
            layouts: list[Any] = [layout_of(column) for column in chunk.columns]
        if None in layouts:
            half = len(chunk) // 2
            self._add(chunk.rows(0, half))
            self._add(chunk.rows(half, len(chunk)))
            return
        if chunk.tree != self._tree or not all(map(covers, self._layouts, layouts)):
            self._begin(chunk.tree, layouts)
        batch = BatchBuffers()
        with name_call(self._call):
            for _, leaf in self._names:
                batch.add(chunk.columns[leaf], self._layouts[leaf])
        self._file.add(len(chunk), batch.lengths, batch.buffers)
        self.count += len(chunk)

    def _begin(self, tree: Tree, layouts: list[Any]) -> None:
        """Begins the file, or the next one, with a schema."""
        with name_call(self._call):
            structure = structure_to_json(tree)
        if self._tree is not None:
            self._file.finish(has_more=True)
            self._file = ArrowOut(_name_file(self._path, self._files), self._packing, self._call)
            self._files += 1
        if self._spec_tree == tree:
            layouts = list(map(widen, layouts, self._specs))
        self._tree, self._layouts, self._names = tree, layouts, name_leaves(tree)
        columns = [(name, leaf, layouts[leaf]) for name, leaf in self._names]
        self._file.begin(Schema(structure, columns))


@contextlib.contextmanager
def name_call(call: str) -> Iterator[None]:
    """Adds the call to errors that are raised in its block."""
    try:
        yield
    except (InvalidArgumentError, InvalidTypeError) as error:
        raise type(error)(f"{call}: {error.message}") from None


def _name_file(path: str, number: int) -> str:
    """The name of a file; of its continuation, if `number` is not 0."""
    return f"{path}.{number}" if number else path


def _kind(column: Column) -> Any:
    """Equal for columns that may be joined."""
    if isinstance(column, Ragged):
        return _ragged_kind(column)
    if not isinstance(column, list):
        return str(column.dtype)
    if is_opaque(column[0]):
        raise InvalidArgumentError(
            f"a {type(column[0]).__name__} inside an element cannot be written to a file"
        )
    return str(leaf_kind(column[0]))


def _ragged_kind(column: Ragged) -> Any:
    splits, values = [], column.values
    while isinstance(values, Ragged):
        splits.append(values.row_splits.dtype)
        values = values.values
    # Joining makes all row splits int64, and those of the values are part of the elements.
    joinable = all(dtype == "int64" for dtype in splits)
    return f"{len(splits)} {column.dtype}" if joinable else object()


def read_chunks(
    path: str, compression: str | None = None, call: str = "read_chunks", skip: int = 0
) -> Iterator[Chunk]:
    """The chunks of a file, with read-only arrays, without the first `skip` elements.

    Raises DataLossError where the file is damaged, after all chunks before that place.
    """
    packing = check_packing(compression, call)
    number, has_more = 0, True
    while has_more:
        with contextlib.closing(CheckedFile(_name_file(path, number), call)) as file:
            if file.start.startswith(blocks.BEGINNING):
                yield from blocks.read_block_chunks(file, packing, skip)
                return
            _find_packing(file, packing)
            count, has_more = yield from _read_arrow_chunks(file, skip)
        skip, number = max(0, skip - count), number + 1


def _find_packing(file: CheckedFile, packing: str) -> None:
    """Finds out whether the file is compressed."""
    start = file.start
    if start.startswith(BEGINNING):
        found = "NONE"
    elif start.startswith(b"\x1f\x8b"):
        found = "GZIP"
    else:
        raise file.damage("it does not begin as a file of this kind does")
    file.check_compression(found, packing)
    if found != "NONE":
        file.inflate()


def _read_arrow_chunks(file: CheckedFile, skip: int) -> Generator[Chunk, None, tuple[int, bool]]:
    """Yields the chunks of one file; returns their number, and whether another continues it."""
    reader = ArrowIn(file)
    tree, columns = reader.schema()
    count = 0
    while (batch := reader.batch()) is not None:
        count += batch.rows
        if count <= skip:
            file.skip(batch.size)
            continue
        chunk = _read_batch(file, reader, batch, tree, columns)
        yield chunk.rows(max(0, skip - count + batch.rows), batch.rows)
    rows, has_more = reader.footer()
    if rows != count:
        raise file.damage(f"it counts {rows} elements, but there are {count}")
    return count, has_more


def _decode_schema(structure: Any, columns: list[Any]) -> tuple[Tree | None, list[Any]]:
    tree = None if structure is None else structure_from_json(structure)
    leaves = range(0 if tree is None else tree.num_leaves)
    if sorted(leaf for leaf, _ in columns) != list(leaves):
        raise ValueError("the columns do not fit the structure")
    for _, layout in columns:
        check_layout(layout)
    return tree, columns


def _read_batch(
    file: CheckedFile, reader: ArrowIn, batch: BatchHead, tree: Tree | None, columns: list[Any]
) -> Chunk:
    body = reader.body(batch)
    with file.understood():
        if tree is None or batch.rows > _MAX_ROWS:
            raise ValueError(f"a record batch of {batch.rows} rows")
        buffers = BatchColumns(body, batch.buffers)
        found: list[Any] = [None] * len(columns)
        for leaf, layout in columns:
            found[leaf] = buffers.column(layout, batch.rows)
        buffers.check_end()
    return Chunk(tree, found, batch.rows)


# Arrow IPC files: record batches with checksums, written and read with NumPy

FORMAT = 1
"""Of what is in the custom metadata: file readers refuse every other format."""

BEGINNING = b"ARROW1"
_MAGIC = BEGINNING + bytes(2)
_CONTINUATION = b"\xff\xff\xff\xff"
_END = _CONTINUATION + bytes(4)
_ALIGN = 64
_ZEROS = bytes(_ALIGN)
_V5 = Scalar("<h", 4)
_SCHEMA, _RECORD_BATCH = 1, 3
_METADATA = 4
"""The number of the field for custom metadata, in a message and in a footer."""

_MOST_HEAD = 64 << 20
"""The longest head that is read: its length is used before its checksum can be compared."""

SCHEMA_KEY, _ROWS, _MORE, _CRC = "penstock", "penstock.rows", "penstock.more", "penstock.crc32c"
_NO_CRC = "0" * 8


class Schema(NamedTuple):
    """The structure of the elements, as JSON, and the name, leaf and layout of each column."""

    structure: Any
    columns: list[tuple[str, int, Any]]

    def table(self) -> dict[int, Any]:
        columns = [[leaf, layout] for _, leaf, layout in self.columns]
        found = {"format": FORMAT, "structure": self.structure, "columns": columns}
        metadata = {SCHEMA_KEY: json.dumps(found, separators=(",", ":"))}
        fields = [field_of(name, layout) for name, _, layout in self.columns]
        return {0: Scalar("<h", 0), 1: fields, 2: key_values(metadata)}


def _head_of(kind: int, table: dict[int, Any], at: int, size: int = 0, body_crc: int = 0) -> bytes:
    """The head of a message at byte `at`, with a body of `size` bytes."""
    crcs = key_values({_CRC: f"{body_crc:08x} {_NO_CRC}"})
    message = encode_table(
        {0: _V5, 1: Scalar("<B", kind), 2: table, 3: Scalar("<q", size), _METADATA: crcs}
    )
    message += bytes(-(at + 8 + len(message)) % _ALIGN)
    return _add_checksum(_CONTINUATION + len(message).to_bytes(4, "little") + message, 8)


def _add_checksum(data: bytes, start: int) -> bytes:
    """The flatbuffer from `start` on, with the checksum of `data` in its custom metadata."""
    place = _place_of_crc(FlatTable.root(data[start:])) + start
    return data[:place] + b"%08x" % crc32c(data) + data[place + 8 :]


def _place_of_crc(table: FlatTable) -> int:
    """Where the checksum of the head is: the last 8 bytes of the last custom metadata."""
    pair = table.tables(_METADATA)[-1]
    if pair.text(0) != _CRC:
        raise ValueError("no checksum")
    return pair.text_range(1).stop - 8


def _is_signed(data: bytes, start: int) -> bool:
    """Whether `data` has the checksum that is in its flatbuffer from `start` on."""
    try:
        place = _place_of_crc(FlatTable.root(data[start:])) + start
    except DAMAGED:
        return False
    blank = data[:place] + _NO_CRC.encode() + data[place + 8 :]
    return place >= start and data[place : place + 8] == b"%08x" % crc32c(blank)


class ArrowOut:
    """Writes record batches to a new file, which is complete once `finish` was called."""

    def __init__(self, path: str, packing: str, call: str) -> None:
        self.path = path
        self._call = call
        self._deflater = zlib.compressobj(wbits=WINDOW_BITS["GZIP"]) if packing == "GZIP" else None
        self._at = self._rows = 0
        self._schema: Schema | None = None
        self._batches: list[tuple[int, int, int]] = []
        self._file: BinaryIO | None = create_bytes(path, call)
        self._put([_MAGIC])

    def begin(self, schema: Schema) -> None:
        """Writes the schema, before the first record batch."""
        self._schema = schema
        self._put([_head_of(_SCHEMA, schema.table(), self._at)])

    def add(self, rows: int, lengths: Sequence[int], buffers: Sequence[Sequence[Part]]) -> None:
        parts: list[Part] = []
        places, size, crc = [], 0, 0
        extend = load_crc32c("extend")
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
                _METADATA: key_values(metadata),
            }
        )
        signed = _add_checksum(bytes(footer), 0)
        self._put([_END, signed, len(signed).to_bytes(4, "little"), BEGINNING], last=True)
        self.pause()

    def settle(self) -> None:
        """Makes all that was written readable, also if this process or the machine fails later."""
        if self._deflater is not None:
            self._put_bytes([self._deflater.flush(zlib.Z_SYNC_FLUSH)])
        with translate_write_errors(self.path, self._call):
            os.fsync(self._open_file().fileno())

    def _put(self, parts: Sequence[Part], last: bool = False) -> None:
        self._at += sum(map(_size_of, parts))
        deflater = self._deflater
        if deflater is not None:
            parts = [deflater.compress(part) for part in parts]
            parts += [deflater.flush()] if last else []
        self._put_bytes(parts)

    def _put_bytes(self, parts: Sequence[Part]) -> None:
        with translate_write_errors(self.path, self._call):
            file = self._open_file()
            for part in parts:
                file.write(part)
            file.flush()  # A forked child would write what is left in the buffer again.

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            self._file = open(self.path, "ab")  # noqa: SIM115 (stays open)
        return self._file

    def pause(self) -> None:
        """Closes the file for now; it is opened again when there is more to write."""
        file, self._file = self._file, None
        if file is not None:
            with translate_write_errors(self.path, self._call):
                file.close()


def _size_of(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else int(part.nbytes)


class BatchHead(NamedTuple):
    rows: int
    size: int
    crc: str
    buffers: Array


class ArrowIn:
    """Reads a file in turn: `schema`, `batch`, its `body` unless that is skipped, `footer`."""

    def __init__(self, file: CheckedFile) -> None:
        self._file = file
        self._footer_size = 1 << 12
        """The most bytes that the footer may have."""
        if file.read(len(_MAGIC)) != _MAGIC:
            raise file.damage("it does not begin as a file of this kind does")

    def schema(self) -> tuple[Tree | None, list[Any]]:
        """The structure of the elements, and the leaf and layout of each column."""
        message = self._head(_SCHEMA)
        with self._file.understood():
            if message is None:
                raise ValueError("no schema")
            pairs = {pair.text(0): pair for pair in message.table(2).tables(2)}
            found = json.loads(pairs[SCHEMA_KEY].text(1))
            if (version := int(found["format"])) == FORMAT:
                return _decode_schema(found["structure"], found["columns"])
        raise self._file.foreign_version(version, FORMAT)

    def batch(self) -> BatchHead | None:
        """The next record batch; None at the end."""
        message = self._head(_RECORD_BATCH)
        if message is None:
            return None
        with self._file.understood():
            crc = message.tables(_METADATA)[-1].text(1)[:8]
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
        if prefix[:4] != _CONTINUATION or size > _MOST_HEAD:
            raise file.damage("no message begins here")
        data = prefix + file.read(size)
        if len(data) < 8 + size:
            raise file.damage("the file ends within the head of a message")
        if _CRC.encode() not in data:
            raise file.damage("penstock did not write this Arrow file; see Dataset.from_arrow")
        if not _is_signed(data, 8):
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

    def footer(self) -> tuple[int, bool]:
        """The number of elements, and whether another file continues this one."""
        file = self._file
        file.part = file.at
        data = file.read(self._footer_size)
        footer, length, magic = data[:-10], data[-10:-6], data[-6:]
        if magic != BEGINNING or length != len(footer).to_bytes(4, "little"):
            raise file.damage("the file does not end with a footer, so it is not complete")
        if not _is_signed(footer, 0):
            raise file.damage("the checksum of the footer is wrong")
        with file.understood():
            metadata = FlatTable.root(footer).tables(_METADATA)
            pairs = {pair.text(0): pair.text(1) for pair in metadata}
            return int(pairs[_ROWS]), pairs[_MORE] == "1"
