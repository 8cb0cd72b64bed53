"""Parquet files: a block is a row group, decoded as a whole."""

from __future__ import annotations

from typing import Any

from penstock.engine.formats.arrow_columns import ArrowBlock, specs_of
from penstock.engine.formats.arrow_files import report_damage
from penstock.engine.formats.extras import arrow, crc32c
from penstock.engine.formats.files import close_on_error, open_bytes, read_exactly, size_of
from penstock.engine.formats.remote_files import Range, prefetch_blocks
from penstock.engine.formats.tables import Selection, TableReader
from penstock.errors import DataLossError

_MAGIC = b"PAR1"
_END = 8
"""A file ends with the length of its footer and the magic, in so many bytes."""

_TAIL = 1 << 13
"""How many bytes at the end of a file are read at once; most footers are shorter."""

_GAP = 1 << 13
"""Columns with fewer bytes between them are fetched together, as Arrow reads them."""


class ParquetReader(TableReader):
    """Opening it reads the footer; a row group reads the bytes of the selected columns."""

    def __init__(self, path: str, call: str) -> None:
        self._call, self._path = call, path
        self._source = open_bytes(path, call=call)
        self._file: Any = None
        """The file, for Arrow. Most files of a large dataset are opened for their footers only."""
        what = "its footer cannot be read"
        with close_on_error(self._source), report_damage(path, call, what):
            footer = _read_footer(self._source, path, call)
            self.footer = crc32c(footer[:-_END])
            described = _open_parquet(arrow.BufferReader(footer))
            self._metadata = described.metadata
            self.blocks = _count_rows(self._metadata)
            self.schema = described.schema_arrow
            self.specs = specs_of(self.schema)

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        names = set(selection.columns)
        return prefetch_blocks(
            self._source, number, ahead, lambda block: self._ranges(block, names)
        )

    def _ranges(self, number: int, names: set[str]) -> list[Range]:
        """The bytes of the selected columns of a row group, side by side where they are."""
        group = self._metadata.row_group(number)
        chunks = (group.column(index) for index in range(group.num_columns))
        found: list[Range] = []
        for chunk in chunks:
            if chunk.path_in_schema.partition(".")[0] in names:
                pages = (chunk.data_page_offset, chunk.dictionary_page_offset)
                start = min(page for page in pages if page)
                stop = start + chunk.total_compressed_size
                if found and start - found[-1][1] <= _GAP:
                    start = found.pop()[0]
                found.append((start, stop))
        return found

    def read(self, number: int, first: int, selection: Selection) -> ArrowBlock:
        with report_damage(self._path, self._call, f"row group {number} cannot be read"):
            if self._file is None:
                # Arrow reads a local file without Python's lock.
                source = self._source if "://" in self._path else arrow.OSFile(self._path)
                self._file = _open_parquet(source, metadata=self._metadata, pre_buffer=True)
            table = self._file.read_row_group(number, columns=list(selection.columns))
            if table.num_rows != self.blocks[number]:
                raise EOFError(f"it has {table.num_rows} rows instead of {self.blocks[number]}")
            return ArrowBlock(_one_batch(table), first, selection)

    def close(self) -> None:
        self._source.close()
        self._file = None


def _count_rows(metadata: Any) -> tuple[int, ...]:
    """The rows of each row group; EOFError if the footer states another sum of them.

    It does not ask for columns: Arrow 26 ends the process if their statistics are damaged.
    """
    groups = range(metadata.num_row_groups)
    rows = tuple(metadata.row_group(number).num_rows for number in groups)
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        raise EOFError(f"{metadata.num_rows} rows, but its row groups have {sum(rows)}")
    return rows


def _open_parquet(source: Any, **options: Any) -> Any:
    """Pages whose header has a checksum are compared with it."""
    return arrow.parquet.ParquetFile(source, page_checksum_verification=True, **options)


def _one_batch(table: Any) -> Any:
    """The rows of a table as one record batch; copies only columns that are in several parts."""
    if not table.num_rows:
        return arrow.RecordBatch.from_pylist([], table.schema)
    return table.combine_chunks().to_batches()[0]


def _read_footer(file: Any, path: str, call: str) -> bytes:
    """The footer with its length and magic, which Arrow reads as if it were the whole file."""
    size = size_of(file) or 0
    start = max(size - _TAIL, 0)
    tail = read_exactly(file, start, size - start)
    length = int.from_bytes(tail[-_END:-4], "little") + _END
    if size < 12 or tail[-4:] != _MAGIC or length > size - 4:
        raise DataLossError(
            f"{call}: {path!r} is not a complete Parquet file: its {size} bytes do not end with a "
            "footer; it is cut short, or another kind of file"
        )
    if length > len(tail):
        return read_exactly(file, size - length, length)
    return tail[-length:]
