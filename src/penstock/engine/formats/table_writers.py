"""Rows of dicts to Parquet and Arrow files, which datasets read back as the same elements.

A file appears when it is complete. The first rows decide the types of the columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, ClassVar

import numpy as np

from penstock.element.ragged import Ragged
from penstock.engine.formats.exact_values import find_changed
from penstock.engine.formats.extras import arrow, load_extra
from penstock.engine.formats.files import Path, translate_errors
from penstock.engine.formats.new_files import FileWriter
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError


class TableWriter(FileWriter):
    """Rows of dicts to one file, by groups of rows. Subclasses say how a group is written."""

    compressions: ClassVar[tuple[str, ...]]

    def __init__(self, path: Path, size: int, name: str, schema: Any, compression: str) -> None:
        load_extra("pyarrow", self.call)
        if size < 1:
            raise InvalidArgumentError(f"{self.call}: {name} must be at least 1, got {size}")
        if schema is not None and not isinstance(schema, arrow.Schema):
            raise InvalidTypeError(
                f"{self.call}: schema must be a pyarrow.Schema, got {schema!r:.80}"
            )
        if compression not in self.compressions:
            raise InvalidArgumentError(
                f"{self.call}: compression must be one of {self.compressions}, got {compression!r}"
            )
        self._size, self._schema, self._compression = size, schema, compression
        self._names = None if schema is None else tuple(schema.names)
        self._columns = set(self._names or ())
        self._rows: list[Mapping[str, Any]] = []
        self._written = 0
        self._writer: Any = None
        super().__init__(path)

    @abstractmethod
    def _make_writer(self, file: BinaryIO) -> Any:
        """Arrow's writer of the format."""

    def write(self, row: Any) -> None:
        """Adds one row: the value of each column by its name."""
        call = f"{self.call}.write"
        self._check_open()
        if not isinstance(row, Mapping) or not row:
            raise InvalidTypeError(f"{call}: a row must be a dict of columns, got {row!r:.80}")
        if self._names is None:
            self._names, self._columns = tuple(row), set(row)
        if row.keys() != self._columns:
            raise InvalidArgumentError(
                f"{call}: row {self._written + len(self._rows)} has the columns {sorted(row)}, but "
                f"the file has {sorted(self._names)}"
            )
        self._rows.append(row)
        if len(self._rows) >= self._size:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if self._schema is None:
            self._schema = self._find_schema(rows)
        columns = [
            self._convert(field, [row[field.name] for row in rows]) for field in self._schema
        ]
        table = arrow.Table.from_arrays(columns, schema=self._schema)
        self._written += len(rows)
        self._open_writer().write_table(table)

    def _open_writer(self) -> Any:
        if self._writer is None:
            self._writer = self._make_writer(self._file)
        return self._writer

    def _find_schema(self, rows: list[Mapping[str, Any]]) -> Any:
        fields = []
        for name in self._names or ():
            try:
                kind = _first_kind(row[name] for row in rows)
            except _UnknownTypeError as error:
                raise InvalidTypeError(
                    f"{self.call}.write: a column cannot have a {error}; convert it to numbers, "
                    "text, bytes, arrays, lists or dicts"
                ) from None
            if kind is None:
                raise InvalidArgumentError(
                    f"{self.call}.write: the first {len(rows)} rows do not show the type of column "
                    f"{name!r}; state it with schema=pyarrow.schema(...)"
                )
            fields.append((name, kind))
        return arrow.schema(fields)

    def _convert(self, field: Any, values: list[Any]) -> Any:
        array = _try_array(values, field.type)
        if isinstance(array, Exception):
            # Arrow does not convert arrays of several dimensions, nor some nested values.
            values = list(map(_plain, values))
            array = _try_array(values, field.type)
        if isinstance(array, Exception):
            raise self._refusal(field, values) or array
        if (number := find_changed(values, array)) is not None:
            raise InvalidArgumentError(
                f"{self.call}.write: column {field.name!r} of row {self._written + number} has "
                f"{values[number]!r:.60}, but its type is {field.type}, which would change it to "
                f"{array[number]!s:.60}; convert it, or state another type with "
                "schema=pyarrow.schema(...)"
            )
        return array

    def _refusal(self, field: Any, values: list[Any]) -> InvalidArgumentError | None:
        """The error of the first value that a column cannot have."""
        for number, value in enumerate(values, self._written):
            if isinstance(error := _try_array([value], field.type), Exception):
                return InvalidArgumentError(
                    f"{self.call}.write: column {field.name!r} of row {number} has {value!r:.60}, "
                    f"but its type is {field.type}: {error}"
                )
        return None

    def _finish(self) -> None:
        if self._rows:
            self._flush()
        if self._schema is None:
            raise FailedPreconditionError(
                f"{self.call}.close: {self._path!r} has no rows, so its columns are not known; "
                "write a row, or state them with schema=pyarrow.schema(...)"
            )
        with translate_errors(self._path, f"{self.call}.close"):
            self._open_writer().close()

    def _release(self) -> None:
        self._rows = []
        if self._writer is not None:
            self._writer.close()


class ParquetWriter(TableWriter):
    """Writes rows to a Parquet file, which appears complete when the writer is closed.

    A `with` block that ends with an exception leaves no file. Types are those of the first row
    group: numbers keep their dtype, an array of one dimension is a list of any length, an array of
    more dimensions has the shape of the first one in every row.

    Args:
      path: Where to write; a local path or an fsspec URL. A file that exists is replaced.
      row_group_size: How many rows are compressed together. Readers decode them together, so a
        shuffle is cheaper if there are few.
      schema: The types of the columns, as a `pyarrow.Schema`, if rows do not show them.
      compression: "zstd", "snappy", "gzip", "lz4", "brotli" or "none".

    >>> import os, tempfile
    >>> from penstock.data import Dataset
    >>> path = os.path.join(tempfile.mkdtemp(), "x.parquet")
    >>> with ParquetWriter(path) as writer:
    ...     for number in range(3):
    ...         writer.write({"label": number, "text": "a" * number})
    >>> [row["text"] for row in Dataset.from_parquet(path)]
    [b'', b'a', b'aa']
    """

    call = "ParquetWriter"
    compressions = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")

    def __init__(
        self,
        path: Path,
        row_group_size: int = 10_000,
        schema: Any = None,
        compression: str = "zstd",
    ) -> None:
        super().__init__(path, row_group_size, "row_group_size", schema, compression)

    def _make_writer(self, file: BinaryIO) -> Any:
        return arrow.parquet.ParquetWriter(file, self._schema, compression=self._compression)


class ArrowWriter(TableWriter):
    """Writes rows to an Arrow IPC file, which appears complete when the writer is closed.

    Without compression, `Dataset.from_arrow` maps the file into memory, and a row costs the same
    in any order. Types and interrupted writes are as with `ParquetWriter`.

    Args:
      path: Where to write; a local path or an fsspec URL. A file that exists is replaced.
      batch_size: How many rows are in a record batch.
      schema: The types of the columns, as a `pyarrow.Schema`, if rows do not show them.
      compression: "none", "zstd" or "lz4".

    >>> import os, tempfile
    >>> from penstock.data import Dataset
    >>> path = os.path.join(tempfile.mkdtemp(), "x.arrow")
    >>> with ArrowWriter(path) as writer:
    ...     for number in range(3):
    ...         writer.write({"label": number, "text": "a" * number})
    >>> Dataset.from_arrow(path)[2]
    {'label': np.int64(2), 'text': b'aa'}
    """

    call = "ArrowWriter"
    compressions = ("none", "zstd", "lz4")

    def __init__(
        self, path: Path, batch_size: int = 1000, schema: Any = None, compression: str = "none"
    ) -> None:
        super().__init__(path, batch_size, "batch_size", schema, compression)

    def _make_writer(self, file: BinaryIO) -> Any:
        packing = None if self._compression == "none" else self._compression
        options = arrow.ipc.IpcWriteOptions(compression=packing)
        return arrow.ipc.new_file(file, self._schema, options=options)


def _try_array(values: list[Any], kind: Any) -> Any:
    """An Arrow array of a type, or the exception of a value that it cannot hold."""
    try:
        return arrow.array(values, kind)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        return error


class _UnknownTypeError(Exception):
    """A value that no column can have; the text is the name of its class."""


def _first_kind(values: Iterable[Any]) -> Any:
    """The Arrow type of the first value that has one; None if none does."""
    return next((kind for value in values if (kind := _kind(value)) is not None), None)


def _kind(value: Any) -> Any:
    match value:
        case None:
            return None
        case bool() | np.bool_():
            return arrow.bool_()
        case str():
            return arrow.string()
        case bytes():
            return arrow.binary()
        case int():
            return arrow.int64()
        case float():
            return arrow.float64()
        case np.generic():
            return arrow.from_numpy_dtype(value.dtype)
        case np.ndarray():
            return _array_kind(value)
        case Ragged():
            kind = _array_kind(value.flat_values)
            for _ in range(value.ragged_rank):
                kind = arrow.list_(kind)
            return kind
        case Mapping():
            parts = {name: _kind(part) for name, part in value.items()}
            return None if None in parts.values() else arrow.struct(list(parts.items()))
        case list() | tuple():
            inner = _first_kind(value)
            return None if inner is None else arrow.list_(inner)
    raise _UnknownTypeError(type(value).__name__)


def _array_kind(array: Any) -> Any:
    """One dimension is a list of any length; of more dimensions, each has its length."""
    if array.dtype == object or array.dtype.kind in "SU":
        base = _first_kind(array.ravel().tolist())
    else:
        base = arrow.from_numpy_dtype(array.dtype)
    if base is None or array.ndim == 0:
        return base
    if array.ndim == 1:
        return arrow.list_(base)
    for size in reversed(array.shape):
        base = arrow.list_(base, size)
    return base


def _plain(value: Any) -> Any:
    """A value that Arrow converts."""
    match value:
        case np.ndarray() if value.ndim != 1 or value.dtype.kind in "OSU":
            return value.tolist()
        case Ragged():
            return value.to_list()
        case Mapping():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
    return value
