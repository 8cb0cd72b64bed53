"""Chunk files: elements on disk, column by column, in the blocks of `blocks`.

A `TREE` block describes the structure of the elements in the `ROWS` blocks behind it. The
description of a `ROWS` block is that of `element.buffers`. The `DONE` block counts the elements.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from penstock.element.buffers import Packing, measure, unpack
from penstock.element.chunk import Chunk, leaf_kind
from penstock.element.columns import Column
from penstock.element.descriptions import structure_from_json, structure_to_json
from penstock.element.nest import Tree
from penstock.element.ragged import Ragged
from penstock.element.values import is_opaque
from penstock.engine.formats.blocks import DONE, BlocksIn, BlocksOut, Head
from penstock.errors import InvalidArgumentError, InvalidTypeError

BLOCK_ROWS, BLOCK_BYTES = 1 << 16, 4 << 20
_TREE, _ROWS = b"TREE", b"ROWS"

_MAX_ROWS = 1 << 20
"""The most elements of a block: elements without leaves take no bytes that could be counted."""

_USE = "written to a file"


class ChunkWriter:
    """Writes chunks to a new file, which is complete once it is closed; small ones are joined."""

    def __init__(
        self, path: str, compression: str | None = None, call: str = "ChunkWriter"
    ) -> None:
        self.count = 0
        self._call = call
        self._blocks = BlocksOut(path, compression, call)
        self._tree: Tree | None = None
        self._waiting: list[Chunk] = []
        self._kinds: list[Any] = []
        self._rows = self._nbytes = 0

    def write(self, chunk: Chunk) -> None:
        if not len(chunk):
            return
        with self._name_call():
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
        self._blocks.finish(self.count)

    def pause(self) -> None:
        """Closes the file handle until there is more to write."""
        self._flush()
        self._blocks.pause()

    def abandon(self) -> None:
        """Closes the file as it is, and removes it."""
        self._waiting = []
        with contextlib.suppress(Exception):
            self._blocks.pause()
        with contextlib.suppress(OSError):
            os.unlink(self._blocks.path)

    def _flush(self) -> None:
        if not self._waiting:
            return
        whole, self._waiting = Chunk.join(self._waiting), []
        step = max(1, min(BLOCK_ROWS, self._rows * BLOCK_BYTES // max(self._nbytes, 1)))
        self._rows = self._nbytes = 0
        for start in range(0, len(whole), step):
            self._block(whole.rows(start, start + step))

    def _block(self, chunk: Chunk) -> None:
        packing = Packing(_USE)
        with self._name_call():
            if chunk.tree != self._tree:
                self._blocks.add(_TREE, 0, structure_to_json(chunk.tree))
                self._tree = chunk.tree
            descriptions = [packing.column(column) for column in chunk.columns]
        self._blocks.add(_ROWS, len(chunk), descriptions, packing.parts)
        self.count += len(chunk)

    @contextlib.contextmanager
    def _name_call(self) -> Iterator[None]:
        """Adds the call to errors that are raised in its block."""
        try:
            yield
        except (InvalidArgumentError, InvalidTypeError) as error:
            raise type(error)(f"{self._call}: {error.message}") from None


def _kind(column: Column) -> Any:
    """Equal for columns that may be joined."""
    if isinstance(column, Ragged):
        return _ragged_kind(column)
    if not isinstance(column, list):
        return str(column.dtype)
    if is_opaque(column[0]):
        raise InvalidArgumentError(
            f"a {type(column[0]).__name__} inside an element cannot be {_USE}"
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
    with contextlib.closing(BlocksIn(path, compression, call)) as blocks:
        tree, count = None, 0
        while (head := blocks.head()).kind != DONE:
            count += head.rows
            if head.kind == _ROWS and count <= skip:
                blocks.skip(head)
            elif head.kind == _ROWS:
                chunk = _chunk(blocks, head, tree)
                yield chunk.rows(max(0, skip - count + head.rows), head.rows)
            else:
                tree = _structure(blocks, head)
        if head.size != count:
            raise blocks.damage(f"it counts {head.size} elements, but there are {count}")
        blocks.end()


def _structure(blocks: BlocksIn, head: Head) -> Tree:
    description, _ = blocks.body(head)
    with blocks.understood():
        if head.kind != _TREE:
            raise ValueError(f"a block of kind {head.kind!r}")
        return structure_from_json(description)


def _chunk(blocks: BlocksIn, head: Head, tree: Tree | None) -> Chunk:
    descriptions, body = blocks.body(head)
    with blocks.understood():
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
