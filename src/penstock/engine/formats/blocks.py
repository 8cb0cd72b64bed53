"""Block files, which earlier releases wrote: JSON and raw bytes, each with checksums.

    magic   32 bytes: "penstock chunks 2 GZIP", filled up with spaces and a line end
    block   head   kind, rows, bytes of the description, of the body and of what is stored of it,
                   CRC32C of what is stored, CRC32C of the head itself
            body   the description (JSON), then raw bytes; compressed as the magic says
    ...     and so on, to a block of the kind `DONE`, which counts the elements

A `TREE` block describes the structure of the elements in the `ROWS` blocks behind it. The
description of a `ROWS` block is that of `element.buffers`. Nothing writes these files any more.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.element.buffers import measure, unpack
from penstock.element.chunk import Chunk
from penstock.element.descriptions import structure_from_json
from penstock.element.nest import Tree
from penstock.engine.formats.checked_files import CheckedFile
from penstock.engine.formats.extras import crc32c
from penstock.engine.formats.inflate import WINDOW_BITS

VERSION = 2
"""Of the files: file readers refuse every other version."""

_HEAD = struct.Struct("<4sIIQQII")
_MAGIC = 32
BEGINNING = b"penstock chunks "

_MOST_INFLATED = 1040  # One byte of deflated data becomes at most a few bytes less than this.

_TREE, _ROWS, _DONE = b"TREE", b"ROWS", b"DONE"

_MAX_ROWS = 1 << 20
"""The most elements of a block: elements without leaves take no bytes that could be counted."""


class Head(NamedTuple):
    """The fields before a body, without the head's own checksum."""

    kind: bytes
    rows: int
    description: int
    size: int
    stored: int
    crc: int


def _magic(packing: str) -> bytes:
    return f"penstock chunks {VERSION} {packing}".encode().ljust(_MAGIC - 1) + b"\n"


class BlocksIn:
    """Reads the blocks of a file in turn: `head`, then `body` or `skip`."""

    def __init__(self, file: CheckedFile, packing: str) -> None:
        self._file, self._packing = file, packing
        found = file.read(_MAGIC)
        for other in ("NONE", "GZIP"):
            if found == _magic(other):
                file.check_compression(other, packing)
                return
        if version := re.match(rb"penstock chunks (\d+) ", found):
            raise file.foreign_version(int(version[1]), VERSION)
        raise file.damage("it does not begin as a file of this kind does")

    def head(self) -> Head:
        self._file.part = self._file.at
        data = self._file.read(_HEAD.size)
        if len(data) < _HEAD.size:
            raise self._file.damage("the file ends here and is not complete")
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise self._file.damage("the checksum of the head is wrong")
        return Head(*_HEAD.unpack(data)[:-1])

    def body(self, head: Head) -> tuple[Any, bytes]:
        """The description, and the body with the raw bytes from `head.description` on."""
        body = self._file.read(head.stored)
        if len(body) < head.stored:
            raise self._file.damage("the file ends within the block")
        if crc32c(body) != head.crc:
            raise self._file.damage("the checksum of the block is wrong")
        if self._packing != "NONE":
            body = self._inflate(body, head.size)
        if len(body) != head.size:
            raise self._file.damage(f"the block has {len(body)} bytes instead of {head.size}")
        with self._file.understood():
            return json.loads(body[: head.description]), body

    def _inflate(self, data: bytes, size: int) -> bytes:
        if size > len(data) * _MOST_INFLATED:
            raise self._file.damage(f"{len(data)} bytes cannot be inflated to {size}")
        try:
            return zlib.decompressobj(WINDOW_BITS["GZIP"]).decompress(data, size + 1)
        except zlib.error as error:
            raise self._file.damage(str(error)) from None


def read_block_chunks(file: CheckedFile, packing: str, skip: int) -> Iterator[Chunk]:
    """The chunks of a file, without the first `skip` elements."""
    blocks = BlocksIn(file, packing)
    tree, count = None, 0
    while (head := blocks.head()).kind != _DONE:
        count += head.rows
        if head.kind == _ROWS and count <= skip:
            file.skip(head.stored)
        elif head.kind == _ROWS:
            chunk = _read_rows(file, blocks, head, tree)
            yield chunk.rows(max(0, skip - count + head.rows), head.rows)
        else:
            tree = _read_structure(file, blocks, head)
    if head.size != count:
        raise file.damage(f"it counts {head.size} elements, but there are {count}")
    if file.read(1):
        raise file.damage("something follows the end")


def _read_structure(file: CheckedFile, blocks: BlocksIn, head: Head) -> Tree:
    description, _ = blocks.body(head)
    with file.understood():
        if head.kind != _TREE:
            raise ValueError(f"a block of kind {head.kind!r}")
        return structure_from_json(description)


def _read_rows(file: CheckedFile, blocks: BlocksIn, head: Head, tree: Tree | None) -> Chunk:
    descriptions, body = blocks.body(head)
    with file.understood():
        if tree is None or len(descriptions) != tree.num_leaves:
            raise ValueError("the columns do not fit the structure")
        size = sum(map(measure, descriptions))
        if size != len(body) - head.description:
            raise ValueError(f"{len(body) - head.description} bytes, described as {size}")
        columns = unpack(descriptions, body, head.description)
        lengths = {len(column) for column in columns} | {head.rows}
        if len(lengths) > 1 or not 0 < head.rows <= _MAX_ROWS:
            raise ValueError(f"columns of {sorted(lengths)} rows")
    return Chunk(tree, columns, head.rows)
