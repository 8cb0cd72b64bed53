"""JSON lines: one object per line, parsed by Arrow a block of lines at a time.

The types of the columns are fixed when the dataset is made. A line that does not fit them is an
error that names the file and the line, and costs only that line. Empty lines are no records.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, BinaryIO, ClassVar

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.formats.arrow_columns import (
    MISSING,
    MissingValueError,
    convert,
    fits,
    missing_value_words,
)
from penstock.engine.formats.extras import arrow, load_extra
from penstock.engine.formats.files import Path, as_path, open_bytes, translate_errors
from penstock.engine.formats.inflate import name_packing
from penstock.engine.formats.records import ParsedRecords, Part, RecordReader
from penstock.engine.formats.text import TextReader
from penstock.errors import DataLossError, InvalidArgumentError, InvalidTypeError

CALL = "Dataset.from_json_lines"

BLOCK = 1 << 20
"""How many bytes are read and parsed at once."""

_ALL = 1 << 30
_LEAST_AHEAD = 16
"""So many lines, or more, are parsed at once."""


def open_lines(path: str, packing: str, block: int = BLOCK) -> BinaryIO:
    """The uncompressed bytes of a file."""
    if packing != "ZSTD":
        return open_bytes(path, packing, block, CALL)
    return io.BufferedReader(_Zstd(path), block)


class _Zstd(io.RawIOBase):
    """The bytes inside a Zstandard file."""

    def __init__(self, path: str) -> None:
        load_extra("pyarrow", CALL)
        self._path = path
        self._file = open_bytes(path, call=CALL)
        source = arrow.PythonFile(self._file, mode="r")
        self._stream = arrow.CompressedInputStream(source, "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, arrow.ArrowException) as error:
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
    packings: ClassVar = {".gz": "GZIP", ".zst": "ZSTD"}

    def __init__(
        self,
        path: Path,
        schema: bytes,
        columns: tuple[str, ...],
        fill: tuple[tuple[str, Any], ...] = (),
        is_strict: bool = True,
        compression: str | None = None,
        buffer_size: int | None = None,
        position: int = 0,
        part: Part | None = None,
    ) -> None:
        super().__init__(path, compression, buffer_size or BLOCK, position, part)
        load_extra("pyarrow", CALL)
        self._schema = arrow.ipc.read_schema(arrow.py_buffer(schema))
        self._options = arrow.json.ParseOptions(
            explicit_schema=self._schema,
            unexpected_field_behavior="error" if is_strict else "ignore",
        )
        self._columns, self._filled = columns, dict(fill)
        self._ends: list[int] = []
        """The byte after each line of `_lines`."""
        self._parsed: Any = None
        """The record batch of the lines from `_parsed_from` to `_parsed_to`."""
        self._parsed_from = self._parsed_to = 0
        self._ahead = _ALL
        """How many lines are parsed at once: few where lines are bad, for they are parsed again."""
        self._counted = (0, 1)
        """A byte behind which lines were counted, and the number of the line that has it."""

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
        self._given += len(chunk)
        self.position = self._ends[self._given - 1]
        return ParsedRecords(self._lines[first : self._given], chunk)

    def _parse(self) -> None:
        """Parses the lines that are left, up to the first that cannot be parsed."""
        lines = self._lines[self._given : self._given + self._ahead]
        table, count = _parse_lines(lines, self._options), len(lines)
        self._ahead = min(4 * self._ahead, _ALL)
        if isinstance(table, Exception):
            count = _count_good(lines, self._options)
            self._ahead = 2 * count + _LEAST_AHEAD
            if not count:
                raise self._reject(self._find_problem(lines[0]))
            table = _parse_lines(lines[:count], self._options)
        self._parsed = table.combine_chunks().to_batches()[0]
        self._parsed_from, self._parsed_to = self._given, self._given + count

    def _convert(self, first: int, stop: int) -> Chunk:
        """The elements of some lines; only those before the first one with a missing value."""
        columns = {}
        for name in self._columns:
            array = self._parsed.column(name)
            part = array.slice(first - self._parsed_from, stop - first)
            try:
                columns[name] = convert(part, self._filled.get(name, MISSING))
            except MissingValueError as error:
                if error.row:
                    return self._convert(first, first + error.row)
                raise self._reject(missing_value_words(name, array.type)) from None
        leaves, tree = nest.flatten(columns)
        return Chunk(tree, leaves, stop - first)

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
        """The number of the line that has a byte.

        The file is read again: from its start, or from the byte of the last call on.
        """
        at, count = self._counted if self._counted[0] <= position else (0, 1)
        with translate_errors(self.path, CALL), self._open_bytes() as file:
            RecordReader._go_to(self, file, at)
            while at < position and (block := file.read(min(position - at, self._block))):
                count += block.count(b"\n")
                at += len(block)
        self._counted = (at, count)
        return count

    def _find_problem(self, line: bytes) -> str:
        """Why a line cannot be parsed, and what to do."""
        reason = _reason(_parse_lines([line], self._options))
        shown = line[:60].decode(errors="replace") + ("..." if len(line) > 60 else "")
        return (
            f"it is not a row of the columns {', '.join(self._schema.names)} ({reason}): {shown}; "
            'state the types, as in columns={"x": "float64"}, or leave out such lines with '
            "ignore_errors"
        )


def _parse_lines(lines: list[bytes], options: Any = None) -> Any:
    """The table of lines, or the exception of a bad line. Without `options` Arrow finds types."""
    data = b"\n".join(lines) + b"\n"
    size = arrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = arrow.json.read_json(arrow.BufferReader(data), size, options)
        table.schema.names  # noqa: B018 (a name that is not UTF-8 raises)
    except (arrow.ArrowException, ValueError) as error:
        return error
    if table.num_rows != len(lines):
        return ValueError("a line has more than one value")
    return table


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON parse error: ").partition("\n")[0]


def _count_good(lines: list[bytes], options: Any = None) -> int:
    """How many lines come before the first bad one, which is among them.

    It looks near the start first: where many lines are bad, the next one is not far.
    """

    def is_bad(count: int) -> bool:
        return isinstance(_parse_lines(lines[:count], options), Exception)

    most = 1
    while most < len(lines) and not is_bad(most):
        most *= 2
    least = most // 2
    return least + bisect_left(range(least + 1, min(most, len(lines))), True, key=is_bad)


# Columns: as the user states them, or as the first lines of a file show them
#
# One odd line among the first changes nothing for the rest: a column that only it has is none,
# and a value that contradicts the lines before decides no type.


_MOST_ODD = 8
"""So many lines that do not fit are passed over to find the types; finding each takes time."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some programs begin UTF-8 files with it."""


def infer_schema(
    path: str, skips: bool, columns: Iterable[str] | None = None, fill: Any = None
) -> Any | None:
    """The names and types of the columns in the first lines of a file; None if it has no lines.

    The columns are those of the first line, the ones in most of the first lines, those with a value
    in `fill`, and `columns`. A line that does not fit the lines before it does not count: reading
    it is an error that names the line. If `skips`, bad lines before the first good one are passed
    over.
    """
    load_extra("pyarrow", CALL)
    packing = JsonLinesReader.packing_of(path)
    with translate_errors(path, CALL), open_lines(as_path(path, CALL), packing) as file:
        data = _first_lines(file)
    lines = [line for line in data.removeprefix(_BYTE_ORDER_MARK).split(b"\n") if line.strip()]
    if not lines:
        return None
    while isinstance(first := _parse_lines(lines[:1]), Exception):
        bad = lines.pop(0)
        if not skips or not lines:
            raise _not_json_lines(path, data, bad, first)
    return _choose_columns(_parse_fitting(lines), first, columns, fill)


def _parse_fitting(lines: list[bytes]) -> Any:
    """The table of lines, of which the first is good; lines that do not fit it are left out.

    A line must also fit the good lines between. Behind `_MOST_ODD` bad lines all are left out.
    """
    odd = 0
    while isinstance(found := _parse_lines(lines), Exception):
        count = _count_good(lines)
        odd += 1
        lines = lines[:count] + (lines[count + 1 :] if odd < _MOST_ODD else [])
    return found


def _not_json_lines(path: str, data: bytes, line: bytes, error: Exception) -> DataLossError:
    """The error of a file whose first line is no object."""
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
        f"{CALL}: {path!r}, line 1: it cannot be read as JSON lines ({_reason(error)}); {remedy}"
    )


def _first_lines(file: BinaryIO) -> bytes:
    """About a block of complete lines, and at least one.

    A file may return less than is asked for: the reader of a GZIP file stops at each member. If the
    file is damaged behind some lines, reading them raises the error in its place.
    """
    blocks: list[bytes] = []
    missing, has_line = BLOCK, False
    try:
        while missing > 0 or not has_line:
            block = file.read(missing if missing > 0 else BLOCK)
            if not block:
                return b"".join(blocks)
            blocks.append(block)
            missing -= len(block)
            has_line = has_line or b"\n" in block
    except DataLossError:
        if not has_line:
            raise
    data = b"".join(blocks)
    return data[: data.rfind(b"\n") + 1]


def _choose_columns(table: Any, first: Any, columns: Iterable[str] | None, fill: Any) -> Any:
    """The schema of the first lines, without the columns that few of them have.

    `first` is the table of the first line.
    """
    named = {*(columns or ()), *(fill if isinstance(fill, Mapping) else ())}
    fields = []
    for field, column in zip(table.schema, table.columns, strict=True):
        value = fill.get(field.name) if isinstance(fill, Mapping) else fill
        known = first.schema.field(field.name).type if field.name in first.schema.names else None
        kind = _as_text(field.type)
        if value is None or fits(value, kind) is not None:
            kind = _as_text(_usual_type(column, known))
            if known is None and field.name not in named and not _is_usual(column, len(table)):
                continue
        fields.append(field.with_type(kind))
    return arrow.schema(fields or [field.with_type(_as_text(field.type)) for field in table.schema])


def _usual_type(column: Any, first: Any) -> Any:
    """The type of a column, without the fields of structs that few rows have.

    `first` is the type of the first row, whose fields all stay.
    """
    if not arrow.types.is_struct(column.type):
        return column.type
    is_known = first is not None and arrow.types.is_struct(first)
    known = {field.name: field.type for field in first} if is_known else {}
    count = len(column) - column.null_count
    fields = [
        field.with_type(_usual_type(part, known.get(field.name)))
        for field, part in zip(column.type, column.flatten(), strict=True)
        if field.name in known or _is_usual(part, count)
    ]
    return arrow.struct(fields) if fields else column.type


def _is_usual(column: Any, count: int) -> bool:
    """Whether most of `count` rows have a value in a column."""
    return bool(2 * (len(column) - column.null_count) > count)


def _as_text(kind: Any) -> Any:
    if arrow.types.is_temporal(kind):
        return arrow.string()
    if arrow.types.is_list(kind):
        return arrow.list_(_as_text(kind.value_type))
    if arrow.types.is_struct(kind):
        return arrow.struct([field.with_type(_as_text(field.type)) for field in kind])
    return kind


def select_fields(schema: Any, names: Iterable[str]) -> Any:
    """The columns of a schema that have some names."""
    return arrow.schema([schema.field(name) for name in names])


def schema_of(columns: Any, convert_dtype: Any) -> Any:
    """The schema that the user states: a dtype by column; `[dtype]` is a list of any length."""
    load_extra("pyarrow", CALL)

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
