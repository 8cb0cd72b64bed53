"""Flatbuffers, as far as Arrow's messages need them: tables written to bytes and read from them.

A table is written from a dict: the number of a field and its value, which is a `Scalar`, a text, a
table, a list of texts or tables, or `Structs`. Arrow's `Schema.fbs`, `Message.fbs` and `File.fbs`
number the fields. What is read may be damaged: then `FlatTable` raises one of `DAMAGED`.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array

DAMAGED = (struct.error, ValueError, LookupError, OverflowError)
"""What reading a table raises, if its bytes are not those of a table."""


class Scalar(NamedTuple):
    """A number, with its format for `struct`."""

    format: str
    value: int


class Structs(NamedTuple):
    """A vector of structs: one row of 64-bit numbers for each."""

    rows: Array


def encode_table(table: dict[int, Any]) -> bytearray:
    """The flatbuffer whose root is `table`."""
    out = bytearray(4)
    struct.pack_into("<I", out, 0, _put_table(out, table))
    return out


def _put_table(out: bytearray, table: dict[int, Any]) -> int:
    """Appends a table, and behind it what it refers to; returns where the table is."""
    offsets, size = [0] * (max(table, default=-1) + 1), 4
    for field, value in table.items():
        width = struct.calcsize(value.format) if isinstance(value, Scalar) else 4
        size += -size % width
        offsets[field] = size
        size += width
    index = struct.pack(f"<{len(offsets) + 2}H", 4 + 2 * len(offsets), size, *offsets)
    _align(out, len(index))
    out += index
    at = len(out)
    out += struct.pack("<i", len(index)) + bytes(size - 4)
    for field, value in table.items():
        place = at + offsets[field]
        if isinstance(value, Scalar):
            struct.pack_into(value.format, out, place, value.value)
        else:
            struct.pack_into("<I", out, place, _put_object(out, value) - place)
    return at


def _put_object(out: bytearray, value: Any) -> int:
    if isinstance(value, dict):
        return _put_table(out, value)
    _align(out, 4)  # Behind the count or the length, structs begin at a multiple of 8.
    at = len(out)
    if isinstance(value, str):
        data = value.encode()
        out += struct.pack("<I", len(data)) + data + b"\0"
    elif isinstance(value, Structs):
        out += struct.pack("<I", len(value.rows)) + value.rows.astype("<i8").tobytes()
    else:
        out += struct.pack("<I", len(value)) + bytes(4 * len(value))
        for place, part in enumerate(value):
            place = at + 4 + 4 * place
            struct.pack_into("<I", out, place, _put_object(out, part) - place)
    return at


def _align(out: bytearray, ahead: int) -> None:
    """Appends zeros until `ahead` more bytes would end at a multiple of 8."""
    out += bytes(-(len(out) + ahead) % 8)


class FlatTable:
    """A table of a flatbuffer. A field that is not there has the value 0, or no values."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    @classmethod
    def root(cls, data: bytes) -> FlatTable:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _place(self, field: int) -> int:
        """Where a field is; 0 if it has its default value."""
        fields = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        (size,) = struct.unpack_from("<H", self._data, fields)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, fields + 4 + 2 * field)
        return self._at + offset if offset else 0

    def _target(self, place: int) -> int:
        """Where the object is to which a place refers."""
        return int(place + struct.unpack_from("<I", self._data, place)[0])

    def number(self, field: int, format: str) -> int:
        place = self._place(field)
        return int(struct.unpack_from(format, self._data, place)[0]) if place else 0

    def table(self, field: int) -> FlatTable:
        return FlatTable(self._data, self._target(self._place(field)))

    def tables(self, field: int) -> list[FlatTable]:
        place = self._place(field)
        if not place:
            return []
        place = self._target(place)
        (count,) = struct.unpack_from("<I", self._data, place)
        if count > len(self._data):
            raise ValueError("a vector longer than its message")
        places = range(place + 4, place + 4 + 4 * count, 4)
        return [FlatTable(self._data, self._target(each)) for each in places]

    def text_range(self, field: int) -> range:
        """Which bytes the text of a field are."""
        place = self._target(self._place(field))
        (length,) = struct.unpack_from("<I", self._data, place)
        if place + 4 + length > len(self._data):
            raise ValueError("a text longer than its message")
        return range(place + 4, place + 4 + length)

    def text(self, field: int) -> str:
        span = self.text_range(field)
        return self._data[span.start : span.stop].decode()

    def structs(self, field: int, width: int) -> Array:
        """The rows of a vector of structs of `width` 64-bit numbers."""
        place = self._place(field)
        if not place:
            return np.empty((0, width), np.int64)
        place = self._target(place)
        (count,) = struct.unpack_from("<I", self._data, place)
        return np.frombuffer(self._data, "<i8", count * width, place + 4).reshape(count, width)
