"""ArrayRecord files, read by the package `array_record`: records that can be read in any order.

The package reports a file that it cannot open only when asked (`ok`). Its reader is not known to
be safe for several threads, so a lock guards it.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from penstock.element import nest, strings
from penstock.element.chunk import Chunk
from penstock.element.dtypes import string
from penstock.element.index import Index, array_of
from penstock.element.spec import TensorSpec
from penstock.engine.formats.extras import crc32c, load_extra
from penstock.engine.formats.files import open_bytes
from penstock.engine.formats.tables import RowsOnDemand, Selection, TableReader
from penstock.errors import DataLossError, UnimplementedError

_BLOCK_ROWS = 1 << 14
"""A block has about so many records. They are read singly, so a block costs nothing."""


class ArrayRecordTable(TableReader):
    """The records of one file. `_lock` guards the package's reader."""

    specs = TensorSpec((), string)

    def __init__(self, path: str, call: str) -> None:
        self._call, self._path = call, path
        if "://" in path:
            raise UnimplementedError(
                f"{call}: the package array_record reads local files only, got {path!r}; copy the "
                "file to a local disk"
            )
        self._module = load_extra("array_record.python.array_record_module", call, "array_record")
        open_bytes(path, call=call).close()  # It says why a file cannot be opened.
        self._lock = threading.Lock()
        self._reader: Any = None
        with self._lock:
            reader = self._open_reader()
            count, options = reader.num_records(), reader.writer_options_string()
        self.blocks = tuple(
            min(_BLOCK_ROWS, count - first) for first in range(0, count, _BLOCK_ROWS)
        )
        self.footer = crc32c(f"{count} {options}".encode())

    def _open_reader(self) -> Any:
        if self._reader is None:
            # Options of the package for random access: nothing is read ahead.
            found = self._module.ArrayRecordReader(
                self._path, "readahead_buffer_size:0", file_reader_buffer_size=1 << 15
            )
            if not found.ok():
                raise self._damage("its footer cannot be read")
            self._reader = found
        return self._reader

    def _read_rows(self, first: int, index: Index) -> Chunk:
        """Some rows of the block that begins at row `first`; opens the file if it was closed."""
        numbers = (array_of(index) + first).tolist()
        with self._lock:
            try:
                found = self._open_reader().read(numbers)
            except (RuntimeError, ValueError, IndexError) as error:
                self._reader = None
                problem = (
                    f"records {min(numbers)} to {max(numbers)} cannot be read ({error!s:.200})"
                )
                raise self._damage(problem) from None
        return Chunk(nest.LEAF, [strings.make_column(found)], len(numbers))

    def _damage(self, problem: str) -> DataLossError:
        return DataLossError(
            f"{self._call}: {self._path!r} is damaged: {problem}; it is cut short, or of another "
            "format"
        )

    def read(self, number: int, first: int, selection: Selection) -> RowsOnDemand:
        return RowsOnDemand(partial(self._read_rows, first))

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = None
