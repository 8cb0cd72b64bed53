"""One example, read in plain Python by the rules of TensorFlow's parser.

These rules are not those of protocol buffers. Only an `Example` itself may have unknown fields. A
feature with two lists has the first of them. A list is either packed or not. A length that exceeds
the message around it is always an error here; TensorFlow accepts some of those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.examples.varints import AFTER, BEFORE, decode_varints
from penstock.engine.formats.examples.wire import FIRST, SECOND


class Kind(IntEnum):
    """Which list a feature holds, by the tag of its field."""

    BYTES = 0x0A
    FLOAT = 0x12
    INT64 = 0x1A


class Values(NamedTuple):
    """The list of a feature."""

    kind: Kind
    values: Array


class MalformedError(Exception):
    """A message that TensorFlow's parser refuses; the text says why."""


class MessageCursor:
    """A position in a message, which moves to the message's end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def has_ended(self) -> bool:
        return self.at >= len(self.data)

    def peek(self) -> int:
        return self.data[self.at] if self.at < len(self.data) else -1

    def expect(self, tag: int, what: str) -> None:
        if self.peek() != tag:
            raise MalformedError(f"{what} is missing or has the wrong type")
        self.at += 1

    def varint(self, bits: int = 64) -> int:
        data, at = self.data, self.at
        if at < len(data) and data[at] < 0x80:  # Most lengths have one byte.
            self.at = at + 1
            return data[at]
        value = 0
        for place in range(10):
            if self.has_ended:
                raise MalformedError("the bytes end within a number")
            octet = self.data[self.at]
            self.at += 1
            value |= (octet & 0x7F) << (7 * place)
            if octet < 0x80:
                return value & ((1 << bits) - 1)
        raise MalformedError("a number has more than ten bytes")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise MalformedError(f"{size} bytes follow by their length, but the bytes end before")
        start, self.at = self.at, self.at + size
        return self.data[start : self.at]

    def message(self) -> bytes:
        """The bytes behind their length."""
        return self.take(self.varint(32))

    def skip_field(self) -> None:
        tag = self.varint(32)
        sizes: dict[int, Callable[[], Any]] = {
            0: self.varint,
            1: lambda: self.take(8),
            2: self.message,
            5: lambda: self.take(4),
        }
        if tag >> 3 == 0 or tag & 7 not in sizes:
            raise MalformedError(f"tag {tag} is not that of a field")
        sizes[tag & 7]()


def read_example(data: bytes, wanted: Collection[bytes]) -> dict[bytes, Values]:
    """The features of an `Example` that are wanted and not empty."""
    entries: list[tuple[bytes, bytes]] = []
    cursor = MessageCursor(data)
    while not cursor.has_ended:
        if cursor.peek() == FIRST:
            cursor.at += 1
            entries += read_entries(cursor.message())
        else:
            cursor.skip_field()
    return read_features(entries, wanted)


def read_sequence_example(
    data: bytes, context: Collection[bytes], lists: Collection[bytes]
) -> tuple[dict[bytes, Values], dict[bytes, list[Values | None]]]:
    """The wanted context features of a `SequenceExample`, and its wanted feature lists."""
    entries: list[tuple[bytes, bytes]] = []
    list_entries: list[tuple[bytes, bytes]] = []
    cursor = MessageCursor(data)
    while not cursor.has_ended:
        if cursor.peek() in (FIRST, SECOND):
            cursor.at += 1
            into = entries if data[cursor.at - 1] == FIRST else list_entries
            into += read_entries(cursor.message())
        else:
            cursor.skip_field()
    found = {key: read_list(value) for key, value in list_entries if key in lists}
    return read_features(entries, context), found


def count_fields(data: bytes) -> int:
    """About how many features an `Example` has, or how many features and steps a sequence has."""
    cursor, count = MessageCursor(data), 0
    try:
        while not cursor.has_ended:
            has_steps = cursor.peek() == SECOND
            stop = _enter(cursor)
            while cursor.at < stop:
                end = _enter(cursor)
                count += _count_steps(cursor) if has_steps else 1
                cursor.at = end
    except MalformedError:
        pass
    return max(count, 1)


def _count_steps(entry: MessageCursor) -> int:
    """About how many steps the list of an entry has, by the length of the first one."""
    entry.at = _enter(entry)
    length = _enter(entry) - entry.at
    begin = entry.at
    return length // max(_enter(entry) - begin, 1)


def _enter(cursor: MessageCursor) -> int:
    """Moves to the beginning of a field's value; returns where it ends."""
    cursor.at += 1
    length = cursor.varint(32)
    return cursor.at + length


def read_entries(data: bytes) -> list[tuple[bytes, bytes]]:
    """The entries of a map in field 1, whose values are messages."""
    cursor, entries = MessageCursor(data), []
    while not cursor.has_ended:
        cursor.expect(FIRST, "an entry of the map of features")
        entries.append(_read_entry(MessageCursor(cursor.message())))
    return entries


def _read_entry(entry: MessageCursor) -> tuple[bytes, bytes]:
    """A name and its value, in any order."""
    order = (FIRST, SECOND) if entry.peek() == FIRST else (SECOND, FIRST)
    found: dict[int, bytes] = {}
    for tag in order:
        entry.expect(tag, "the name of a feature" if tag == FIRST else "the value of a feature")
        found[tag] = entry.message()
    if not entry.has_ended:
        raise MalformedError(f"something follows the value of feature {found[FIRST]!r}")
    return found[FIRST], found[SECOND]


def read_features(
    entries: list[tuple[bytes, bytes]], wanted: Collection[bytes]
) -> dict[bytes, Values]:
    """The last feature of each wanted name, unless it is empty."""
    last = {key: value for key, value in entries if key in wanted}
    for key, value in entries:
        if key in wanted and value:
            _check_kind(value, f"feature {key!r}")  # Also if a later entry replaces it.
    return {key: read_feature(value, f"feature {key!r}") for key, value in last.items() if value}


def read_list(data: bytes) -> list[Values | None]:
    """The features of a `FeatureList`; None for an empty one."""
    cursor, features = MessageCursor(data), []
    while not cursor.has_ended:
        cursor.expect(FIRST, "a feature of a list")
        value = cursor.message()
        features.append(read_feature(value, "a feature of a list") if value else None)
    return features


def _check_kind(data: bytes, what: str) -> None:
    if data[0] not in _READ:
        raise MalformedError(f"{what} has an unknown type of list")


def read_feature(data: bytes, what: str) -> Values:
    _check_kind(data, what)
    kind, cursor = Kind(data[0]), MessageCursor(data)
    cursor.at = 1
    body = MessageCursor(cursor.message())
    try:
        return Values(kind, _READ[kind](body))
    except MalformedError as error:
        raise MalformedError(f"{what}: {error}") from None


def _read_bytes(body: MessageCursor) -> Array:
    values = []
    while not body.has_ended:
        body.expect(FIRST, "a value of a list of bytes")
        values.append(body.message())
    result = np.empty(len(values), object)
    result[:] = values
    return result


def _read_floats(body: MessageCursor) -> Array:
    if body.peek() == FIRST:
        body.at += 1
        packed = body.message()
        return np.frombuffer(packed[: len(packed) // 4 * 4], "<f4")
    octets = b""
    while not body.has_ended:
        body.expect(0x0D, "a value of a list of floats")
        octets += body.take(4)
    return np.frombuffer(octets, "<f4")


def _read_integers(body: MessageCursor) -> Array:
    if body.peek() == FIRST:
        body.at += 1
        packed = body.message()
        if packed.isascii():  # All numbers have one byte.
            return np.frombuffer(packed, np.uint8).astype(np.int64)
        octets = np.frombuffer(BEFORE + packed + AFTER, np.uint8)
        values, _, wrong = decode_varints(octets, np.array([len(packed)]))
        if wrong.any():
            raise MalformedError("a number of the list of integers is not complete")
        return values
    integers = []
    while not body.has_ended:
        body.expect(0x08, "a value of a list of integers")
        integers.append(body.varint())
    return np.array(integers, np.uint64).astype(np.int64)


_READ: dict[Kind, Callable[[MessageCursor], Array]] = {
    Kind.BYTES: _read_bytes,
    Kind.FLOAT: _read_floats,
    Kind.INT64: _read_integers,
}
