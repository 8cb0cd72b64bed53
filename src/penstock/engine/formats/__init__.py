"""Files to records and elements, one module per format; nothing here uses plans.

Nothing starts a thread: remote files use that of fsspec's event loop (`remote_requests`).

A new format of records is a module with a file reader that keeps the contract of
`records.RecordReader`, and a line in `READERS`. A new format of tables, whose rows can be read in
any order, keeps the contract of `tables.TableReader` and gets a line in `TABLES`. Saved datasets
are in `saved`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.engine.formats.array_records import ArrayRecordTable
from penstock.engine.formats.arrow_files import ArrowReader
from penstock.engine.formats.csv import CsvReader
from penstock.engine.formats.files import Path
from penstock.engine.formats.fixed import FixedReader
from penstock.engine.formats.indexed import IndexedTar, IndexedTFRecords
from penstock.engine.formats.json_lines import JsonLinesReader
from penstock.engine.formats.lance_tables import LanceTable
from penstock.engine.formats.mds import MdsReader
from penstock.engine.formats.numpy_files import NumpyReader
from penstock.engine.formats.parquet import ParquetReader
from penstock.engine.formats.records import RecordReader
from penstock.engine.formats.tables import TableReader
from penstock.engine.formats.tar import TarReader
from penstock.engine.formats.text import TextReader
from penstock.engine.formats.tfrecord import TFRecordReader
from penstock.errors import InvalidArgumentError

READERS: dict[str, Callable[..., RecordReader[Any]]] = {
    "text": TextReader,
    "tfrecord": TFRecordReader,
    "fixed": FixedReader,
    "csv": CsvReader,
    "json_lines": JsonLinesReader,
    "tar": TarReader,
}

TABLES: dict[str, Callable[..., TableReader]] = {
    "array_record": ArrayRecordTable,
    "arrow": ArrowReader,
    "lance": LanceTable,
    "mds": MdsReader,
    "numpy": NumpyReader,
    "parquet": ParquetReader,
    "tar": IndexedTar,
    "tfrecord": IndexedTFRecords,
}
"""By format: what opens a file, given its path, the call of the user and the node's options."""


def open_reader(
    format: str, path: Path, options: Mapping[str, Any], position: int = 0
) -> RecordReader[Any]:
    """A file reader of `path` that starts at `position`; `options` are its other arguments."""
    if format not in READERS:
        raise InvalidArgumentError(
            f"open_reader: format must be one of {sorted(READERS)}, got {format!r}"
        )
    return READERS[format](path, position=position, **options)
