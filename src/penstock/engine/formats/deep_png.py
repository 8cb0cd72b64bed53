"""PNG images with 16 bits for each value, which Pillow reads with eight.

A decoder undoes the filter of every row: each byte was stored as its difference from a prediction,
which the bytes to the left, above and left above decide.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
_KINDS = {channels: kind for kind, channels in _CHANNELS.items()}
_WHOLE = ((0, 0, 1, 1),)
_INTERLACED = (
    *((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)),
    *((2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)),
)
"""The first row and column of each pass of an interlaced image, and the steps to the next ones."""

_RED, _GREEN, _BLUE = 9797, 19234, 3737
"""The weights of brightness that TensorFlow uses, in fractions of 32768."""


class _Header(NamedTuple):
    width: int
    height: int
    depth: int
    kind: int
    compression: int
    filters: int
    interlaced: int


def is_deep(contents: bytes) -> bool:
    """Whether the bytes begin as a PNG image with 16 bits for each value."""
    return contents.startswith(SIGNATURE) and contents[24:25] == b"\x10"


def is_grey_with_opacity(contents: bytes) -> bool:
    return is_deep(contents) and contents[25:26] == b"\4"


def decode_deep(contents: bytes, channels: int) -> Array:
    """The pixels of such an image, (height, width, channels) of `uint16`.

    Raises ValueError, struct.error or zlib.error if the bytes are damaged.
    """
    header, packed, transparent = None, [], b""
    for name, body in _chunks(contents):
        if name == b"IHDR":
            header = _Header(*struct.unpack(">IIBBBBB", body))
        elif name == b"IDAT":
            packed.append(body)
        elif name == b"tRNS":
            transparent = body
    if header is None or header.kind not in _CHANNELS:
        raise ValueError("its header is damaged")
    pixels = _unpack(header, zlib.decompress(b"".join(packed)))
    return _change_channels(_add_opacity(pixels, transparent), channels)


def encode_deep(pixels: Array, level: int) -> bytes:
    """The bytes of a PNG file of `uint16` pixels, (height, width, channels)."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, _KINDS[channels], 0, 0, 0)
    rows = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    body = zlib.compress(filtered.tobytes(), level)
    parts = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, part) for name, part in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _chunks(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(contents):
        size, name = struct.unpack_from(">I4s", contents, at)
        body = contents[at + 8 : at + 8 + size]
        (checksum,) = struct.unpack_from(">I", contents, at + 8 + size)
        if zlib.crc32(name + body) != checksum:
            raise ValueError(f"the checksum of its part {name.decode('latin-1')} is wrong")
        yield name, body
        at += 12 + size


def _unpack(header: _Header, data: bytes) -> Array:
    size = 2 * _CHANNELS[header.kind]
    pixels = np.zeros((header.height, header.width, size), np.uint8)
    at = 0
    for row, column, rows, columns in _INTERLACED if header.interlaced else _WHOLE:
        height, width = pixels[row::rows, column::columns].shape[:2]
        if not height or not width:
            continue
        length = height * (1 + width * size)
        stored = np.frombuffer(data, np.uint8, length, at).reshape(height, -1)
        found = _undo_filters(stored[:, 0], stored[:, 1:].reshape(height, width, size))
        pixels[row::rows, column::columns] = found
        at += length
    return pixels.view(">u2").astype(np.uint16)


def _undo_filters(filters: Array, stored: Array) -> Array:
    """The bytes of rows whose differences are stored.

    One diagonal is computed at a time: what its bytes depend on is on the diagonals before.
    """
    if filters.max() > 4:
        raise ValueError(f"it has the unknown filter {filters.max()}")
    if not filters.any():
        return stored
    height, width, size = stored.shape
    known = np.zeros((height + 1, width + 1, size), np.int16)  # With a margin above and left.
    for diagonal in range(height + width - 1):
        rows = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        columns = diagonal - rows
        left, above = known[rows + 1, columns], known[rows, columns + 1]
        predicted = _predict(filters[rows][:, None], left, above, known[rows, columns])
        known[rows + 1, columns + 1] = (stored[rows, columns] + predicted) & 255
    return known[1:, 1:].astype(np.uint8)


def _predict(filters: Array, left: Array, above: Array, corner: Array) -> Array:
    slope = left + above - corner
    to_left, to_above, to_corner = abs(slope - left), abs(slope - above), abs(slope - corner)
    nearest = np.where(
        (to_left <= to_above) & (to_left <= to_corner),
        left,
        np.where(to_above <= to_corner, above, corner),
    )
    choices = [filters == 1, filters == 2, filters == 3, filters == 4]
    return np.select(choices, [left, above, (left + above) // 2, nearest], 0)


def _add_opacity(pixels: Array, transparent: bytes) -> Array:
    """With a channel more if one colour of the image is transparent."""
    if not transparent or pixels.shape[2] not in (1, 3):
        return pixels
    colour = np.frombuffer(transparent, ">u2")
    opaque = np.where((pixels == colour).all(axis=2, keepdims=True), 0, 65535)
    return np.concatenate([pixels, opaque.astype(np.uint16)], axis=2)


def _change_channels(pixels: Array, channels: int) -> Array:
    found = pixels.shape[2]
    if channels in (0, found):
        return pixels
    colours = pixels[:, :, : found - (found in (2, 4))]
    if channels == 1:
        if colours.shape[2] == 1:
            return colours
        bright = colours.astype(np.uint64) @ np.array([_RED, _GREEN, _BLUE], np.uint64)
        return ((bright + 16384) >> 15).astype(np.uint16)[:, :, None]
    colours = np.broadcast_to(colours, (*colours.shape[:2], 3))
    if channels == 3:
        return np.ascontiguousarray(colours)
    opaque = np.full((*colours.shape[:2], 1), 65535, np.uint16)
    return np.concatenate([colours, pixels[:, :, -1:] if found in (2, 4) else opaque], axis=2)
