"""Compression of elements on their way through a network; never of those that stay on a machine.

The client asks for it, the worker decides for each frame, and the frame says what was done.
"""

from __future__ import annotations

from collections.abc import Sequence

from lz4 import block

from penstock.errors import DataLossError, InvalidArgumentError

NONE, AUTO, ALWAYS = range(3)
_MODES = {None: NONE, "AUTO": AUTO, "SNAPPY": ALWAYS}

LZ4 = "lz4"
"""How a frame tells that it is compressed."""

_WORTH = 4 << 10
_MOST = 1 << 30  # More is not compressed in one piece.
_SLOW = 300e6  # Bytes per second: a network that is faster is not worth waiting for a compressor.
_SAMPLE = 64 << 10
_EVERY = 64


def mode_of(compression: str | None) -> int:
    """The number of a mode, as the handshake carries it."""
    if compression not in _MODES:
        raise InvalidArgumentError(
            f'compression must be None, "AUTO" or "SNAPPY", got {compression!r}'
        )
    return _MODES[compression]


class Compressor:
    """Compresses what a worker sends to one client, as that client asked."""

    def __init__(self, mode: int) -> None:
        self._always = mode == ALWAYS
        self._pays = False
        self._number = 0

    def compress(
        self, parts: Sequence[memoryview], size: int
    ) -> tuple[str, Sequence[bytes | memoryview]]:
        """How the parts are compressed (empty: not at all), and what to send instead of them."""
        self._number += 1
        if not _WORTH <= size <= _MOST or not (self._always or self._tries()):
            return "", parts
        compressed = _compress_parts(parts)
        return (LZ4, [compressed]) if len(compressed) < size else ("", parts)

    def _tries(self) -> bool:
        return self._pays and self._number % _EVERY != 0

    def learn(self, parts: Sequence[memoryview], size: int, seconds: float) -> None:
        """Learns from parts that were sent as they are whether others should be."""
        if self._always or size < _SAMPLE:
            return
        self._pays = False
        if size / max(seconds, 1e-9) < _SLOW:
            sample = max(parts, key=len)[:_SAMPLE]
            self._pays = len(_compress_parts([sample])) < 0.7 * len(sample)


def _compress_parts(parts: Sequence[memoryview]) -> bytes:
    whole: bytes = block.compress(b"".join(parts), store_size=False)
    return whole


def decompress(name: str, data: memoryview, target: memoryview) -> None:
    """Fills `target` with what `data` is the compressed form of."""
    size = len(target)
    try:
        if name != LZ4:
            raise ValueError(f"unknown compression {name!r:.20}")
        plain = block.decompress(data, uncompressed_size=size)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
    except (ValueError, block.LZ4BlockError) as error:
        raise DataLossError(f"data connection: cannot uncompress elements ({error})") from None
    target[:] = plain
