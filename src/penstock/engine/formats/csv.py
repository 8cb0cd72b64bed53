"""Rows of CSV files, and the rules that turn a row into an element.

The grammar is RFC 4180's, strictly: a quote inside a field must be doubled and the field quoted.
Fields are text; bytes that are not UTF-8 become the same bytes again when a field is encoded.
A row that breaks the grammar is an error and costs only the line that it begins with: after a stray
quote, the rest of the file is still read.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from penstock.engine.formats.files import Path
from penstock.engine.formats.records import RecordReader
from penstock.errors import InvalidArgumentError

ENCODING = ("utf-8", "surrogateescape")

_BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets begin UTF-8 files with it."""


class Row(list[str]):
    """The fields of a row, and where in the file it begins, as text."""

    def __init__(self, fields: list[str], place: str) -> None:
        super().__init__(fields)
        self.place = place


class CsvReader(RecordReader[Row]):
    """Rows as lists of text; `position` is the byte after the last row, 0 before the header.

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
        position: int = 0,
    ) -> None:
        check_delimiter(self.call, field_delim)
        super().__init__(path, compression, buffer_size, position)
        self._delimiter, self._quotes = field_delim, use_quote_delim
        self._field = _field_pattern(field_delim)
        self._lines: list[bytes] = []
        self._given = 0
        self._line = None if position else 1
        """The number of the line at `position`; None after a start in the middle of the file."""
        self._skip_header = header and not position

    def _cut(self, limit: int) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < limit:
            try:
                if self._skip_header and self._cut_header():
                    break
                row = self._next_row()
            except InvalidArgumentError:
                if not rows:
                    self._skip_line()
                    raise
                break
            if row is None:
                break
            rows.append(row)
        return rows

    def _cut_header(self) -> bool:
        """Leaves the header out; True if it is not complete in the buffer."""
        self._skip_header = self._next_row() is None
        if self._skip_header and not self._more:
            raise InvalidArgumentError(
                f"{self.call}: {self.path!r} is empty and has no header; pass header=False"
            )
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

    def _place(self) -> str:
        if self._line is None:
            return f"the row at byte {self.position}"
        return f"line {self._line} (byte {self.position})"

    def _next_row(self) -> Row | None:
        """Takes one row, or None if no complete one is in the buffer."""
        if self._given == len(self._lines):
            self._split()
        for end in range(self._given + 1, len(self._lines) + 1):
            # Within a quoted field, a line with an even number of quotes cannot be the last.
            if end > self._given + 1 and self._lines[end - 1].count(b'"') % 2 == 0:
                continue
            raw = b"".join(self._lines[self._given : end])
            text = raw.decode(*ENCODING).rstrip("\r\n")
            if not self.position:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            if (fields := self._fields(text)) is not None:
                row = Row(fields, self._place())
                self._move(end)
                return row
        self._rejoin()
        return None

    def _fields(self, row: str) -> list[str] | None:
        """The fields of a row, or None if the row continues in the next line."""
        if not self._quotes or '"' not in row:
            return row.split(self._delimiter)
        fields, at, row = [], 0, row + self._delimiter
        while at < len(row):
            match = self._field.match(row, at)
            if match is None:
                raise self._grammar_error(
                    "a quote inside a field that is not quoted, or not doubled"
                )
            if match.lastgroup == "open":
                return None
            fields.append(match["plain"] or (match["quoted"] or "").replace('""', '"'))
            at = match.end()
        return fields

    def _split(self) -> None:
        """Cuts all complete lines off the buffer; the last byte may be half a line end."""
        whole = len(self._buffer)
        if self._more:
            whole = self._buffer.rfind(b"\n") + 1 or self._buffer.rfind(b"\r", 0, -1) + 1
        block, self._buffer = self._buffer[:whole], self._buffer[whole:]
        self._lines, self._given = block.splitlines(keepends=True), 0

    def _rejoin(self) -> None:
        """Puts a row that is not complete back into the buffer, to wait for the rest of it."""
        rest = b"".join(self._lines[self._given :])
        if rest and not self._more:
            raise self._grammar_error("a quoted field that is never closed")
        self._buffer, self._lines, self._given = rest + self._buffer, [], 0

    def _grammar_error(self, problem: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self.call}: {self.path!r} has, in {self._place()}, {problem}; "
            'write quotes as "" in a quoted field, or pass use_quote_delim=False'
        )


def check_delimiter(call: str, delimiter: str) -> None:
    """Raises if rows cannot be divided by a text."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InvalidArgumentError(
            f"{call}: field_delim must be one character, not a quote and not the end of "
            f"a line, got {delimiter!r}"
        )


def _field_pattern(delimiter: str) -> re.Pattern[str]:
    """One field and the delimiter behind it; `open` is a quoted field without its end."""
    quoted = r'[^"]*+(?:""[^"]*+)*+'
    delimiter = re.escape(delimiter)
    return re.compile(
        rf'(?:"(?P<quoted>{quoted})"|(?P<plain>[^"{delimiter}]*+)){delimiter}|(?P<open>"{quoted}\Z)'
    )


@dataclass(frozen=True)
class Field:
    """What one column holds: a number of type `dtype`, or bytes if that is no number's type."""

    dtype: np.dtype[Any]
    default: object | None = None
    required: bool = False


def convert_row(
    row: Sequence[str],
    defaults: Sequence[Field],
    na_value: str,
    select_cols: Sequence[int] | None,
    where: str,
) -> tuple[Any, ...]:
    """The element of a row. A field that is empty or `na_value` takes its default.

    Every error message begins with `where`.
    """
    chosen = [row[i] for i in select_cols if i < len(row)] if select_cols else row
    if len(chosen) != len(defaults):
        fields = "selected fields" if select_cols else "fields"
        raise InvalidArgumentError(
            f"{where}: the row has {len(chosen)} {fields}, but record_defaults has "
            f"{len(defaults)}: {reprlib.repr(list(row))}"
        )
    values: list[Any] = []
    try:
        for text, field in zip(chosen, defaults, strict=True):
            values.append(_value(text, field, na_value))
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: field {len(values)} {error}") from None
    return tuple(values)


def _value(text: str, field: Field, na_value: str) -> Any:
    """Raises ValueError with the end of a sentence that begins with the field's number."""
    convert = _CONVERTERS.get(field.dtype.kind)
    if convert is None:
        raise ValueError(f"cannot be {field.dtype}; use an integer, a float or a string")
    if text and text != na_value:
        return convert(text, field.dtype)
    if field.required:
        raise ValueError("is required but missing; give it a default in record_defaults")
    if convert is _string:
        return field.default if isinstance(field.default, bytes) else _string(str(field.default))
    return field.dtype.type(field.default)


def _string(text: str, dtype: np.dtype[Any] | None = None) -> bytes:
    return text.encode(*ENCODING)


def _integer(text: str, dtype: np.dtype[Any]) -> Any:
    least, most = _bounds(dtype)
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"is not a valid {dtype}: {text!r}")
    return dtype.type(int(text))


def _float(text: str, dtype: np.dtype[Any]) -> Any:
    if not _FLOAT.fullmatch(text):
        raise ValueError(f"is not a valid {dtype}: {text!r}")
    value = float(text)
    if abs(value) <= _FITS_EVERY_FLOAT:
        return dtype.type(value)
    with np.errstate(over="ignore"):  # Too large becomes infinite, as in TensorFlow.
        return dtype.type(value)


@cache
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


# Narrower than int() and float(), which take underscores and the digits of every script.
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)\s*",
    re.ASCII | re.IGNORECASE,
)
_FITS_EVERY_FLOAT = 65504.0
_CONVERTERS: dict[str, Callable[[str, np.dtype[Any]], Any]] = {
    "i": _integer,
    "u": _integer,
    "f": _float,
    "S": _string,
    "U": _string,
    "O": _string,
}
