"""Chunk files: elements on disk, column by column, as Arrow IPC files.

A file has one schema. Where the structure or the layout of elements changes, a second file
continues the first, with `.1` behind its name, then a third with `.2`: the footer of a file says
whether there is another. Files of blocks, which earlier releases wrote, are read as well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any

from penstock.element.chunk import Chunk, leaf_kind
from penstock.element.columns import Column
from penstock.element.descriptions import name_leaves, structure_from_json, structure_to_json
from penstock.element.nest import Tree, flatten
from penstock.element.ragged import Ragged
from penstock.element.values import is_opaque
from penstock.engine.formats import arrow_messages, blocks
from penstock.engine.formats.arrow_buffers import BatchBuffers, BatchColumns
from penstock.engine.formats.arrow_layouts import (
    Layout,
    check_layout,
    covers,
    layout_of,
    layout_of_spec,
    widen,
)
from penstock.engine.formats.arrow_messages import ArrowIn, ArrowOut, BatchHead, Schema
from penstock.engine.formats.checked_files import CheckedFile, check_packing
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
        """Gives the complete file, and those that continue it, the name that readers look for.

        The first is renamed last, and `abandon` removes none of them any more.
        """
        for number in reversed(range(self._files)):
            os.replace(_name_file(self._path, number), _name_file(path, number))
        self._files = 0

    def abandon(self) -> None:
        """Closes the file as it is, and removes it, and those that continue it."""
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
        with self._name_call():
            layouts: list[Any] = [layout_of(column) for column in chunk.columns]
        if None in layouts:
            half = len(chunk) // 2
            self._add(chunk.rows(0, half))
            self._add(chunk.rows(half, len(chunk)))
            return
        if chunk.tree != self._tree or not all(map(covers, self._layouts, layouts)):
            self._begin(chunk.tree, layouts)
        batch = BatchBuffers()
        with self._name_call():
            for _, leaf in self._names:
                batch.add(chunk.columns[leaf], self._layouts[leaf])
        self._file.add(len(chunk), batch.lengths, batch.buffers)
        self.count += len(chunk)

    def _begin(self, tree: Tree, layouts: list[Any]) -> None:
        """Begins the file, or the next one, with a schema."""
        with self._name_call():
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
    def _name_call(self) -> Iterator[None]:
        """Adds the call to errors that are raised in its block."""
        try:
            yield
        except (InvalidArgumentError, InvalidTypeError) as error:
            raise type(error)(f"{self._call}: {error.message}") from None


def _name_file(path: str, number: int) -> str:
    """The name of a file, or of one that continues it."""
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
    if start.startswith(arrow_messages.BEGINNING):
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
    tree, columns = _read_schema(file, reader)
    count = 0
    while (batch := reader.batch()) is not None:
        count += batch.rows
        if count <= skip:
            reader.skip(batch)
            continue
        chunk = _read_batch(file, reader, batch, tree, columns)
        yield chunk.rows(max(0, skip - count + batch.rows), batch.rows)
    rows, has_more = reader.footer()
    if rows != count:
        raise file.damage(f"it counts {rows} elements, but there are {count}")
    return count, has_more


def _read_schema(file: CheckedFile, reader: ArrowIn) -> tuple[Tree | None, list[Any]]:
    structure, columns = reader.schema()
    with file.understood():
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
