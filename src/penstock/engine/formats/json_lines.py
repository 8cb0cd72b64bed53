"""JSON lines: one object per line, parsed by Arrow a block of lines at a time.

The types of the columns are fixed when the dataset is made. A line that does not fit them is an
error that names the file and the line, and costs only that line. Empty lines are no records.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.formats.arrow_columns import (
    MissingValueError,
    convert,
    missing_value_words,
)
from penstock.engine.formats.extras import load_extra
from penstock.engine.formats.files import Path, as_path, open_bytes, translate_errors
from penstock.engine.formats.inflate import name_packing
from penstock.engine.formats.records import ParsedRecords, Part
from penstock.engine.formats.text import TextReader
from penstock.errors import DataLossError, InvalidArgumentError, InvalidTypeError

CALL = "Dataset.from_json_lines"

_BLOCK = 1 << 20
"""How many bytes are read and parsed at once."""

BY_NAME = "BY_NAME"
"""The compression of files that are compressed if their names say so."""

_MARK = b"\xef\xbb\xbf"
"""Some programs begin UTF-8 files with it."""

_PACKINGS = {".gz": "GZIP", ".zst": "ZSTD"}


def packing_of(path: str) -> str:
    """How a file is compressed, by the end of its name; empty if it is not."""
    return next((packing for end, packing in _PACKINGS.items() if path.endswith(end)), "")


def open_lines(path: str, packing: str, block: int = _BLOCK) -> BinaryIO:
    """The uncompressed bytes of a file."""
    if packing != "ZSTD":
        return open_bytes(path, packing, block, CALL)
    return io.BufferedReader(_Zstd(path), block)


class _Zstd(io.RawIOBase):
    """The bytes inside a Zstandard file."""

    def __init__(self, path: str) -> None:
        arrow = load_extra("pyarrow", CALL)
        self._path, self._error = path, arrow.ArrowException
        self._file = open_bytes(path, call=CALL)
        source = arrow.PythonFile(self._file, mode="r")
        self._stream = arrow.CompressedInputStream(source, "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, self._error) as error:
            raise DataLossError(
                f"{CALL}: {self._path!r} is not a complete ZSTD file ({error}); "
                "it is damaged, cut short, or compressed in another way"
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class JsonLinesReader(TextReader):
    """`position` is the byte after the last line given out."""

    call = CALL

    def __init__(
        self,
        path: Path,
        schema: bytes,
        columns: tuple[str, ...],
        fill: tuple[tuple[str, Any], ...] = (),
        is_strict: bool = True,
        compression: str | None = None,
        buffer_size: int | None = None,
        spec: Any = None,
        position: int = 0,
        part: Part | None = None,
    ) -> None:
        super().__init__(path, compression, buffer_size or _BLOCK, position, part)
        if compression == BY_NAME:
            self._compression = packing_of(self.path)
        ipc, arrow = load_extra("pyarrow.ipc", CALL), load_extra("pyarrow", CALL)
        self._parser = LineParser(ipc.read_schema(arrow.py_buffer(schema)), is_strict)
        self._columns, self._filled = columns, dict(fill)
        self._ends: list[int] = []
        """The byte after each line of `_lines`."""
        self._parsed: Any = None
        """The record batch of the lines from `_parsed_from` to `_parsed_to`."""
        self._parsed_from = self._parsed_to = 0

    def _open_bytes(self) -> BinaryIO:
        return open_lines(self.path, self._compression or "", self._block)

    def _split(self) -> None:
        start = self._end
        super()._split()
        ends = [start + end for end in accumulate(len(line) + 1 for line in self._lines)]
        lines = [line.strip() for line in self._lines]
        self._lines = [line for line in lines if line]
        self._ends = [min(end, self._end) for line, end in zip(lines, ends, strict=True) if line]
        self._parsed_from = self._parsed_to = 0

    def _cut(self, limit: int) -> list[bytes]:
        if self._given == len(self._lines):
            self._split()
        if self._given == len(self._lines):
            return []
        if self._given >= self._parsed_to:
            self._parse()
        first = self._given
        stop = min(first + limit, self._parsed_to)
        chunk = self._convert(first, stop)
        return self._give(ParsedRecords(self._lines[first : first + len(chunk)], chunk))

    def _give(self, records: ParsedRecords[bytes]) -> ParsedRecords[bytes]:
        self._given += len(records)
        self.position = self._ends[self._given - 1]
        return records

    def _parse(self) -> None:
        """Parses the lines that are left, up to the first one that cannot be parsed."""
        lines = self._lines[self._given :]
        batch = self._parser.parse_good(lines)
        if batch is None:
            raise self._reject(self._parser.problem(lines[0]))
        self._parsed = batch
        self._parsed_from, self._parsed_to = self._given, self._given + batch.num_rows

    def _convert(self, first: int, stop: int) -> Chunk:
        """The elements of some lines; only those before the first one with a missing value."""
        columns = {}
        for name in self._columns:
            array = self._parsed.column(name)
            part = array.slice(first - self._parsed_from, stop - first)
            try:
                columns[name] = convert(part, **self._fill_of(name))
            except MissingValueError as error:
                if error.row:
                    return self._convert(first, first + error.row)
                raise self._reject(missing_value_words(name, array.type)) from None
        leaves, tree = nest.flatten(columns)
        return Chunk(tree, leaves, stop - first)

    def _fill_of(self, name: str) -> dict[str, Any]:
        return {"fill": self._filled[name]} if name in self._filled else {}

    def _reject(self, problem: str) -> InvalidArgumentError:
        """The error of the next line, which is left out."""
        line, end = self._lines[self._given], self._ends[self._given]
        self._given += 1
        self._continues = True
        begin = self.position
        self.position = end
        number = self._line_number(end - len(line))
        where = f"{self.path!r}, line {number} (after byte {begin})"
        return InvalidArgumentError(f"{CALL}: {where}: {problem}")

    def _line_number(self, position: int) -> int:
        """The number of the line that has a byte; the file is read up to there again."""
        count = 1
        with translate_errors(self.path, CALL), self._open_bytes() as file:
            while position > 0 and (block := file.read(min(position, self._block))):
                count += block.count(b"\n")
                position -= len(block)
        return count


class LineParser:
    """Parses lines into record batches of one schema."""

    def __init__(self, schema: Any, is_strict: bool) -> None:
        self._arrow = load_extra("pyarrow", CALL)
        self._json = load_extra("pyarrow.json", CALL)
        self._schema = schema
        self._error = ""
        self._options = self._json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="error" if is_strict else "ignore"
        )

    def parse_good(self, lines: list[bytes]) -> Any | None:
        """The lines before the first one that cannot be parsed; None if that is the first."""
        found = self._parse(lines)
        if found is None:
            counts = range(1, len(lines))
            count = bisect_left(counts, True, key=lambda n: self._parse(lines[:n]) is None)
            found = self._parse(lines[:count]) if count else None
        return found

    def _parse(self, lines: list[bytes]) -> Any | None:
        """The record batch of some lines; None, and `_error`, if one of them cannot be parsed."""
        data = b"\n".join(lines) + b"\n"
        size = self._json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = self._json.read_json(self._arrow.BufferReader(data), size, self._options)
        except (self._arrow.ArrowException, ValueError) as error:
            self._error = str(error)
            return None
        if table.num_rows != len(lines):
            self._error = "a line has more than one value"
            return None
        return table.combine_chunks().to_batches()[0]

    def problem(self, line: bytes) -> str:
        """Why a line cannot be parsed, and what to do."""
        self._parse([line])
        reason = self._error.removeprefix("JSON parse error: ").partition("\n")[0]
        shown = line[:60].decode(errors="replace") + ("..." if len(line) > 60 else "")
        return (
            f"it is not a row of the columns {', '.join(self._schema.names)} ({reason}): {shown}; "
            'state the types, as in columns={"x": "float64"}, or leave out such lines with '
            "ignore_errors"
        )


def infer_schema(path: str, skips: bool) -> Any | None:
    """The names and types of the columns in the first lines of a file; None if it has no lines.

    Lines from the first one that does not fit those before it on are not asked: reading them is
    an error that names the line. If `skips`, bad lines before the first good one are passed over.
    """
    with translate_errors(path, CALL), open_lines(as_path(path, CALL), packing_of(path)) as file:
        data = _first_lines(file)
    lines = [line for line in data.removeprefix(_MARK).split(b"\n") if line.strip()]
    if not lines:
        return None
    first = 0
    while isinstance(found := _schema_of(lines[first:]), Exception):
        counts = range(1, len(lines) - first)
        count = bisect_left(
            counts, True, key=lambda n: isinstance(_schema_of(lines[first : first + n]), Exception)
        )
        if count:
            return _schema_of(lines[first : first + count])
        if not skips or first + 1 == len(lines):
            raise _not_json_lines(path, data, lines[first], _schema_of([lines[first]]))
        first += 1
    return found


def _schema_of(lines: list[bytes]) -> Any:
    """The schema of lines, or the exception that says why they have none.

    Text that looks like a date is text: a later line may have other text.
    """
    arrow, json = load_extra("pyarrow", CALL), load_extra("pyarrow.json", CALL)
    data = b"\n".join(lines) + b"\n"
    try:
        options = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = json.read_json(arrow.BufferReader(data), options)
        schema = arrow.schema([field.with_type(_as_text(field.type)) for field in table.schema])
        schema.names  # noqa: B018 (a name that is not UTF-8 raises)
    except (arrow.ArrowException, ValueError) as error:
        return error
    if table.num_rows != len(lines):
        return ValueError(f"{len(lines)} lines have {table.num_rows} values")
    return schema


def _not_json_lines(path: str, data: bytes, line: bytes, error: Exception) -> DataLossError:
    """The error of a file whose first line is no object."""
    reason = str(error).removeprefix("JSON parse error: ").partition("\n")[0]
    remedy = "each line must be a complete object"
    if name := name_packing(data):
        remedy = f"it is compressed by {name}; its name must end in .gz or .zst to be unpacked"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        remedy = "it is UTF-16; write it as UTF-8"
    elif line.lstrip().startswith(b"["):
        remedy = "it is an array; write each object in a line of its own, as jq -c '.[]' does"
    elif line.strip() == b"{":
        remedy = "an object has several lines; write each in one line, as jq -c . does"
    return DataLossError(
        f"{CALL}: {path!r}, line 1: it cannot be read as JSON lines ({reason}); {remedy}"
    )


def _first_lines(file: BinaryIO) -> bytes:
    """About a block of complete lines, and at least one."""
    parts: list[bytes] = []
    while block := file.read(_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            return b"".join([*parts, block[:end]])
        parts.append(block)
    return b"".join(parts)


def _as_text(kind: Any) -> Any:
    arrow = load_extra("pyarrow", CALL)
    if arrow.types.is_temporal(kind):
        return arrow.string()
    if arrow.types.is_list(kind):
        return arrow.list_(_as_text(kind.value_type))
    if arrow.types.is_struct(kind):
        return arrow.struct([field.with_type(_as_text(field.type)) for field in kind])
    return kind


def select_fields(schema: Any, names: Iterable[str]) -> Any:
    """The columns of a schema that have some names."""
    return load_extra("pyarrow", CALL).schema([schema.field(name) for name in names])


def schema_of(columns: Any, convert_dtype: Any) -> Any:
    """The schema that the user states: a dtype by column; `[dtype]` is a list of any length."""
    arrow = load_extra("pyarrow", CALL)

    def kind(value: Any) -> Any:
        if isinstance(value, list) and len(value) == 1:
            return arrow.list_(kind(value[0]))
        if isinstance(value, dict):
            return arrow.struct([(name, kind(part)) for name, part in value.items()])
        dtype = convert_dtype(value)
        if dtype.dtype == np.dtype(object):
            return arrow.string()
        try:
            return arrow.from_numpy_dtype(dtype.dtype)
        except arrow.ArrowException:
            raise InvalidTypeError(
                f"{CALL}: columns: JSON has no {dtype.name}; read float32, and convert it in a map"
            ) from None

    for name in columns:
        if not isinstance(name, str):
            raise InvalidTypeError(f"{CALL}: columns must have names as keys, got {name!r}")
    return arrow.schema([(name, kind(value)) for name, value in columns.items()])
