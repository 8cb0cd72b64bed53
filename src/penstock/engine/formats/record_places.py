"""Where a record lies in its file, in words, for errors that lead to the data.

Files are read again for this, so it is done only after something has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.engine.formats import open_reader
from penstock.engine.formats.csv import Row
from penstock.engine.formats.records import RecordReader

_AT_ONCE = 1024

MOST_BYTES = 256 << 20
"""How many bytes of files are read again to find one record."""

_Open = Callable[[int], RecordReader[Any]]
"""Opens a file reader at a position."""


class OpenedFile(NamedTuple):
    """A file as a file reader was opened on it: its format, path, options and first position."""

    format: str
    path: str
    options: dict[str, Any]
    position: int


class _Found(NamedTuple):
    """A record, the bytes between which it lies, and its number in the file, if it is known."""

    record: Any
    begin: int
    end: int
    number: int | None = None


def describe_record(file: OpenedFile, index: int) -> str:
    """Where the record is that a file reader gives out as number `index`; empty if it has none.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "names.txt")
    >>> with open(path, "wb") as out:
    ...     _ = out.write(b"a\\nbc\\nd\\n")
    >>> describe_record(OpenedFile("text", path, {}, 2), 1).replace(path, "names.txt")
    'line 3 (byte 5) of names.txt'
    """
    found = _find_by_index(_opener(file), file.position, index)
    if found is None:
        return ""
    if file.position or file.options.get("part"):
        found = _find_by_end(_opener(file, whole=True), found.end) or found
    else:
        found = found._replace(number=index)
    return f"{_describe(file, found)} of {file.path}"


def _opener(file: OpenedFile, whole: bool = False) -> _Open:
    options = file.options
    if whole:
        options = {name: value for name, value in options.items() if name not in ("part", "begin")}
    return lambda position: open_reader(file.format, file.path, options, position)


def _describe(file: OpenedFile, found: _Found) -> str:
    if isinstance(found.record, Row):
        return found.record.place
    if found.number is None:
        return f"the record at byte {found.begin}"
    if file.format == "text":
        return f"line {found.number + 1} (byte {found.begin})"
    return f"record {found.number} (byte {found.begin})"


def _find_by_index(open_file: _Open, position: int, index: int) -> _Found | None:
    reader = open_file(position)
    try:
        while index > 0:
            records = _read(reader, min(index, _AT_ONCE))
            if not records:
                return None
            index -= len(records)
        begin, records = reader.position, _read(reader, 1)
        return _Found(records[0], begin, reader.position) if records else None
    finally:
        reader.close()


def _find_by_end(open_file: _Open, end: int) -> _Found | None:
    """The record that ends at a byte; None if that is too far from the start of the file."""
    if end > MOST_BYTES:
        return None
    count, before = 0, 0
    reader = open_file(0)
    try:
        while records := _read(reader, _AT_ONCE):
            if reader.position >= end:
                return _find_near(open_file, before, end, count)
            count, before = count + len(records), reader.position
    finally:
        reader.close()
    return None


def _find_near(open_file: _Open, position: int, end: int, count: int) -> _Found | None:
    """The record that ends at a byte soon after a position, before which `count` records lie."""
    reader = open_file(position)
    try:
        begin = reader.position
        while records := _read(reader, 1):
            if reader.position == end:
                return _Found(records[0], begin, end, count)
            count, begin = count + 1, reader.position
    finally:
        reader.close()
    return None


def _read(reader: RecordReader[Any], limit: int) -> list[Any]:
    """The next records, without those that cannot be read; [] at the end."""
    while not reader.has_ended:
        try:
            return reader.read(limit)
        except Exception:  # A damaged record was no element.
            continue
    return []
