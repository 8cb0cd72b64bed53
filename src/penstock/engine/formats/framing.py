"""The frame of a TFRecord: its checksums, and the search for a record from any byte of a file.

What `find_record` finds has two right checksums, but may still lie within another record (a
TFRecord file can be the payload of a record): the caller must compare it with where the part before
it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, BinaryIO

import numpy as np

HEADER, FOOTER = 12, 4
_MASK = 0xA282EAD8

_WINDOW, _BLOCK = 1 << 14, 1 << 18
_POLYNOMIAL = 0x82F63B78


@cache
def load_crc32c() -> Callable[[bytes], int]:
    """The function that computes a CRC32C."""
    import google_crc32c

    value: Callable[[bytes], int] = google_crc32c.value
    return value


@cache
def load_crc32c_extend() -> Callable[[int, Any], int]:
    """The function that computes the CRC32C of some bytes and more bytes, from that of the first.

    It takes bytes and contiguous arrays.
    """
    import google_crc32c

    extend: Callable[[int, Any], int] = google_crc32c.extend
    return extend


def crc32c(data: bytes) -> int:
    return load_crc32c()(data)


def masked_crc(data: bytes) -> bytes:
    """The checksum as it is in the file: masked, because data may contain checksums itself."""
    return _mask_crc(crc32c(data)).to_bytes(4, "little")


def _mask_crc(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def mask_crcs(crcs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Many checksums (uint32) as they are in files."""
    return ((crcs >> 15 | crcs << 17) + np.uint32(_MASK)).astype("<u4", copy=False)


def find_record(file: BinaryIO, start: int, stop: int, size: int) -> int:
    """The first byte from `start` on at which a record seems to begin; `stop` if none does.

    `size` is that of the file. Moves the file.
    """
    at, window = start, _WINDOW
    while at < stop:
        file.seek(at)
        block = b"".join(_blocks(file, min(window, stop - at) + HEADER - 1))
        for offset, length in _headers(block, size - at - HEADER - FOOTER):
            if _is_record(file, at + offset + HEADER, length):
                return at + offset
        at, window = at + window, min(2 * window, _BLOCK)
    return stop


def _blocks(file: BinaryIO, count: int) -> Iterator[bytes]:
    while count > 0 and (block := file.read(min(count, _BLOCK))):
        yield block
        count -= len(block)


def _headers(block: bytes, most: int) -> list[tuple[int, int]]:
    """The offsets of lengths of at most `most` with a right checksum, and those lengths."""
    data = np.frombuffer(block, np.uint8)
    count = len(data) - HEADER + 1
    if count <= 0 or most < 0:
        return []
    # The first bytes of most lengths are zeros, which few bytes of data are.
    fits = np.ones(count, bool)
    for byte in range((most.bit_length() + 7) // 8, 8):
        fits &= data[byte : byte + count] == 0
    offsets = np.flatnonzero(fits)
    headers = np.lib.stride_tricks.sliding_window_view(data, HEADER)[offsets]
    lengths = headers[:, :8].copy().view("<u8").ravel()
    stored = headers[:, 8:].copy().view("<u4").ravel()
    right = np.flatnonzero((_crcs_of_rows(headers[:, :8]) == stored) & (lengths <= most))
    return list(zip(offsets[right].tolist(), lengths[right].tolist(), strict=True))


def _crcs_of_rows(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, Any]:
    """The masked checksum of each row of bytes."""
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crcs = _table()[(crcs ^ column) & 0xFF] ^ (crcs >> 8)
    return mask_crcs(crcs ^ np.uint32(0xFFFFFFFF))


@cache
def _table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


def _is_record(file: BinaryIO, start: int, length: int) -> bool:
    """Whether `length` bytes from `start` on are followed by their checksum."""
    import google_crc32c

    file.seek(start)
    crc = 0
    for block in _blocks(file, length):
        crc = google_crc32c.extend(crc, block)
    footer = b"".join(_blocks(file, FOOTER))
    return footer == _mask_crc(crc).to_bytes(4, "little")
