"""Rows of CSV files, and the rules that turn a row into an element.

The grammar is RFC 4180's, strictly: a quote inside a field must be doubled and the field quoted.
Fields are text; bytes that are not UTF-8 become the same bytes again when a field is encoded.
A row that breaks the grammar is an error and costs only the line that it begins with: after a stray
quote, the rest of the file is still read.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from penstock.element import nest, strings
from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column
from penstock.engine.formats.files import Path
from penstock.engine.formats.inflate import name_packing, say_how_to_unpack
from penstock.engine.formats.records import ParsedRecords, RecordReader
from penstock.errors import InvalidArgumentError

ENCODING = ("utf-8", "surrogateescape")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Spreadsheets begin UTF-8 files with it."""

_ALL, _LEAST_AHEAD = 1 << 30, 16

_HEADER = "; if the first line has the names of the columns, pass header=True"


class CsvReader(RecordReader[Any]):
    """Rows as elements, or as lists of text if no `columns` are given.

    `position` is the byte after the last row, 0 before the header.

    Python's csv module is not used: it reads stray quotes as text, limits the length of a field for
    the whole process, and does not say where a row ends.
    """

    call = "CsvDataset"
    is_text = True

    def __init__(
        self,
        path: Path,
        compression: str | None = None,
        buffer_size: int | None = None,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        header: bool = False,
        columns: tuple[Any, ...] | None = None,
        position: int = 0,
    ) -> None:
        check_delimiter(self.call, field_delim)
        super().__init__(path, compression, buffer_size, position)
        self._delimiter, self._quotes = field_delim.encode(), use_quote_delim
        self._field, self._open_field = _field_patterns(self._delimiter)
        self._columns = None if columns is None else RowConverter(*columns)
        self._ahead = _ALL
        """How many rows are converted at once: few behind a bad row, where others may be bad."""
        self._lines: list[bytes] = []
        self._given = 0
        self._has_quotes = False
        """Whether a field in `_lines` may be quoted."""
        self._line = None if position else 1
        """The number of the line at `position`; None after a start in the middle of the file."""
        self._skip_header = header and not position

    def _check_start(self, start: bytes) -> None:
        if packing := name_packing(start):
            remedy = say_how_to_unpack(packing)
            raise InvalidArgumentError(
                f"{self.call}: {self.path!r} is compressed by {packing}; {remedy}"
            )

    def _cut(self, limit: int) -> list[Any]:
        try:
            if self._skip_header and self._cut_header():
                return []
            rows, ends = self._find_rows(min(limit, self._ahead))
        except InvalidArgumentError:
            self._skip_line()
            raise
        if not rows:
            return []
        if self._columns is None:
            self._move(ends[-1])
            return [[field.decode(*ENCODING) for field in row] for row in rows]
        try:
            chunk = self._columns.convert(rows, f"{self.call}: {self.path!r}, {self.next_place}")
        except InvalidArgumentError as error:
            hint = "" if self.position else _HEADER
            self._move(ends[0])
            self._continues, self._ahead = True, _LEAST_AHEAD
            raise InvalidArgumentError(f"{error.message}{hint}") from None
        count = len(chunk)
        self._ahead = min(4 * self._ahead, _ALL) if count == len(rows) else count + _LEAST_AHEAD
        self._move(ends[count - 1])
        return ParsedRecords(rows[:count], chunk)

    def _cut_header(self) -> bool:
        """Leaves the header out; True if it is not complete in the buffer."""
        rows, ends = self._find_rows(1)
        if rows:
            self._move(ends[0])
        elif not self._more:
            raise InvalidArgumentError(
                f"{self.call}: {self.path!r} is empty and has no header; pass header=False"
            )
        self._skip_header = not rows
        return self._skip_header

    def _skip_line(self) -> None:
        """Moves behind the first line of the row that could not be read."""
        if self._given < len(self._lines):
            self._move(self._given + 1)
            self._skip_header, self._continues = False, True

    def _move(self, end: int) -> None:
        """Moves behind the lines up to number `end` of those in the buffer."""
        if self._line is not None:
            self._line += end - self._given
        self.position += sum(map(len, self._lines[self._given : end]))
        self._given = end

    @property
    def next_place(self) -> str:
        if self._line is None:
            return f"the row at byte {self.position}"
        return f"line {self._line} (byte {self.position})"

    def _find_rows(self, limit: int) -> tuple[list[list[bytes]], Sequence[int]]:
        """The fields of the next complete rows in the buffer, and the line behind each row.

        A row that breaks the grammar is an error if it is the first.
        """
        if self._given == len(self._lines):
            self._split()
        if not self._has_quotes:
            return self._find_plain_rows(limit)
        rows: list[list[bytes]] = []
        ends = [self._given]
        while ends[-1] < len(self._lines) and len(rows) < limit:
            try:
                row, end = self._find_row(ends[-1])
            except InvalidArgumentError:
                if not rows:
                    raise
                break
            if row is None:
                break
            rows.append(row)
            ends.append(end)
        if not rows:
            self._rejoin()
        return rows, ends[1:]

    def _find_plain_rows(self, limit: int) -> tuple[list[list[bytes]], Sequence[int]]:
        """The same, if no field is quoted: every line is a row."""
        lines = self._lines[self._given : self._given + limit]
        if lines and not self.position:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        rows = [line.rstrip(b"\r\n").split(self._delimiter) for line in lines]
        return rows, range(self._given + 1, self._given + len(lines) + 1)

    def _find_row(self, start: int) -> tuple[list[bytes] | None, int]:
        """The fields of the row that begins with a line, and the line behind it.

        None if the row is not complete in the buffer.
        """
        for end in range(start + 1, len(self._lines) + 1):
            # Within a quoted field, a line with an even number of quotes cannot be the last.
            if end > start + 1 and self._lines[end - 1].count(b'"') % 2 == 0:
                continue
            text = b"".join(self._lines[start:end]).rstrip(b"\r\n")
            if not self.position and start == self._given:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            if (row := self._cut_fields(text)) is not None:
                return row, end
        return None, start

    def _cut_fields(self, row: bytes) -> list[bytes] | None:
        """The fields of a row, or None if the row continues in the next line."""
        if b'"' not in row:
            return row.split(self._delimiter)
        row += self._delimiter
        fields = self._field.findall(row)
        if self._delimiter.join([*fields, b""]) == row:
            return [
                field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field
                for field in fields
            ]
        at = 0
        while (match := self._field.match(row, at)) is not None:
            at = match.end()
        if self._open_field.match(row, at):
            return None
        raise self._grammar_error("a quote inside a field that is not quoted, or not doubled")

    def _split(self) -> None:
        """Cuts all complete lines off the buffer; the last byte may be half a line end."""
        whole = len(self._buffer)
        if self._more:
            whole = self._buffer.rfind(b"\n") + 1 or self._buffer.rfind(b"\r", 0, -1) + 1
        block, self._buffer = self._buffer[:whole], self._buffer[whole:]
        self._lines, self._given = block.splitlines(keepends=True), 0
        self._has_quotes = self._quotes and b'"' in block

    def _rejoin(self) -> None:
        """Puts a row that is not complete back into the buffer, to wait for the rest of it."""
        rest = b"".join(self._lines[self._given :])
        if rest and not self._more:
            raise self._grammar_error("a quoted field that is never closed")
        self._buffer, self._lines, self._given = rest + self._buffer, [], 0

    def _grammar_error(self, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self.call}: {self.path!r} has, in {self.next_place}, {problem}; "
            'write quotes as "" in a quoted field, or pass use_quote_delim=False'
        )


def check_delimiter(call: str, delimiter: str) -> None:
    """Raises if rows cannot be divided by a text."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InvalidArgumentError(
            f"{call}: field_delim must be one character, not a quote and not the end of "
            f"a line, got {delimiter!r}"
        )


def _field_patterns(delimiter: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """A field before a delimiter, as its only group; and a quoted field without its end."""
    quoted = rb'[^"]*+(?:""[^"]*+)*+'
    end = re.escape(delimiter)
    plain = rb'[^"%b]*+' % end if len(delimiter) == 1 else rb'(?:(?!%b)[^"])*+' % end
    field = rb'("%b"|%b)%b' % (quoted, plain, end)
    return re.compile(field, re.DOTALL), re.compile(rb'"%b\Z' % quoted)


@dataclass(frozen=True)
class Field:
    """What one column holds: a number of type `dtype`, or bytes if that is no number's type."""

    dtype: np.dtype[Any]
    default: object | None = None
    required: bool = False


class RowConverter:
    """Converts rows to elements, column by column.

    `fields` has a dtype, a default and whether the field is required for each column; the others
    are the arguments of `CsvDataset`.
    """

    def __init__(
        self,
        fields: Sequence[tuple[Any, ...]],
        na_value: str = "",
        select: Sequence[int] | None = None,
        exclude: Sequence[int] | None = None,
    ) -> None:
        self._fields = [
            Field(dtype.dtype, default, required) for dtype, default, required in fields
        ]
        self._missing = {b"", na_value.encode(*ENCODING)}
        self._select, self._exclude = select or (), exclude or ()
        self._tree = nest.tuple_of(len(fields))

    def convert(self, rows: list[list[bytes]], where: str) -> Chunk:
        """The elements of rows from the front; not of all rows if one of them is no element.

        Raises InvalidArgumentError if that is the first row; `where` names it.
        """
        try:
            pairs = zip(self._choose(rows), self._fields, strict=True)
            made: list[Column] = [self._convert_column(*pair) for pair in pairs]
        except (ValueError, OverflowError, IndexError):
            if len(rows) > 1:
                return self.convert(rows[: len(rows) // 2], where)
            raise InvalidArgumentError(f"{where}: {self._explain(rows[0])}") from None
        return Chunk(self._tree, made, len(rows))

    def _choose(self, rows: list[list[bytes]]) -> list[Sequence[bytes]]:
        """The columns that are read."""
        if self._select:
            return [[row[number] for row in rows] for number in self._select]
        columns = enumerate(zip(*rows, strict=True))
        return [column for number, column in columns if number not in self._exclude]

    def _convert_column(self, texts: Sequence[bytes], field: Field) -> Array:
        """Raises ValueError or OverflowError if a field has no value of the column's type."""
        missing = None
        if not self._missing.isdisjoint(texts):
            if field.required:
                raise ValueError("a required field is missing")
            missing = [text in self._missing for text in texts]
        if field.dtype.kind not in "iuf":
            return _make_strings(texts, field, missing)
        if missing is not None:
            texts = [b"0" if gone else text for text, gone in zip(texts, missing, strict=True)]
        made = _make_numbers(texts, field.dtype)
        if missing is not None:
            made[missing] = field.dtype.type(field.default)
        return made

    def _explain(self, row: list[bytes]) -> str:
        """Why a row is no element."""
        numbers = self._select or [n for n in range(len(row)) if n not in self._exclude]
        texts = [row[number] for number in numbers if number < len(row)]
        if len(texts) != len(self._fields):
            fields = "selected fields" if self._select or self._exclude else "fields"
            shown = reprlib.repr([field.decode(*ENCODING) for field in row])
            return (
                f"the row has {len(texts)} {fields}, but record_defaults has "
                f"{len(self._fields)}: {shown}"
            )
        for number, (text, field) in enumerate(zip(texts, self._fields, strict=True)):
            try:
                self._convert_column([text], field)
            except (ValueError, OverflowError):
                problem = f"is not a valid {field.dtype}: {text.decode(*ENCODING)!r}"
                if text in self._missing:
                    problem = "is required but missing; give it a default in record_defaults"
                return f"field {number} {problem}"
        raise AssertionError("every field was converted")


def _make_strings(texts: Sequence[bytes], field: Field, missing: list[bool] | None) -> Array:
    made = strings.make_column(list(texts))
    if missing is not None:
        default = field.default
        made[missing] = default if isinstance(default, bytes) else str(default).encode(*ENCODING)
    return made


def _make_numbers(texts: Sequence[bytes], dtype: np.dtype[Any]) -> Array:
    """The numbers that fields hold; ValueError or OverflowError if one is wrong."""
    if _NO_NUMBER.search(b"".join(texts)):
        raise ValueError("a field has a character that numbers have not")
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # Too large becomes infinite, as in TensorFlow.
            return np.array(list(map(float, texts))).astype(dtype)
    wide = np.array(list(map(int, texts)), np.int64)
    least, most = _bounds(dtype)
    if wide.min() < least or wide.max() > most:
        raise OverflowError("an integer does not fit")
    return wide.astype(dtype)


@cache
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


_NO_NUMBER = re.compile(rb"[^0-9.+\-\seEinfatyINFATY]")
"""Python's int() and float() also take underscores, which are not part of a number here."""
