"""Compression of elements that travel through a network; never on one machine.

The client requests a mode, the worker decides for each frame, and the frame says what it did.
"""

from __future__ import annotations

from collections.abc import Sequence

from lz4 import block

from penstock.errors import DataLossError, InvalidArgumentError

NONE, AUTO, ALWAYS = range(3)
_MODES = {None: NONE, "AUTO": AUTO, "SNAPPY": ALWAYS}

LZ4 = "lz4"
"""The name by which a frame says that it is compressed."""

_WORTH = 4 << 10  # Smaller bodies are not compressed.
_MOST = 1 << 30  # Larger bodies are not compressed.
_SLOW = 300e6  # Bytes per second; compression would slow a faster network down.
_SAMPLE = 64 << 10  # Bytes that `learn` compresses to see whether compression pays.
_PROBE_EVERY = 64  # Of so many bodies one is sent uncompressed, to measure the network again.


def mode_of(compression: str | None) -> int:
    """The number of a mode, as sent in the handshake."""
    if compression not in _MODES:
        raise InvalidArgumentError(
            f'compression must be None, "AUTO" or "SNAPPY", got {compression!r}'
        )
    return _MODES[compression]


class Compressor:
    """Compresses what a worker sends to one client, in the mode that the client requested."""

    def __init__(self, mode: int) -> None:
        self._always = mode == ALWAYS
        self._pays = False
        self._number = 0

    def compress(
        self, parts: Sequence[memoryview], size: int
    ) -> tuple[str, Sequence[bytes | memoryview]]:
        """The name of the compression (empty: none), and the parts to send."""
        self._number += 1
        if not _WORTH <= size <= _MOST or not (self._always or self._is_worthwhile()):
            return "", parts
        compressed = _compress_parts(parts)
        return (LZ4, [compressed]) if len(compressed) < size else ("", parts)

    def _is_worthwhile(self) -> bool:
        return self._pays and self._number % _PROBE_EVERY != 0

    def learn(self, parts: Sequence[memoryview], size: int, seconds: float) -> None:
        """Decides, from the time that uncompressed parts took, whether to compress later ones."""
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
    """Decompresses `data` into `target`; raises DataLossError if it does not fill it."""
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
