"""Bodies: the columns of a chunk behind a message of a data connection, as `buffers` packs them.

The tree of the elements is not sent, because the client knows it. What is unpacked are read-only
views of the body. A description comes from a peer: no memory is allocated for one that its body
does not fill to the byte.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.element.buffers import MALFORMED, Description, Packing, measure, unpack
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.errors import DataLossError

_CACHED = 2048  # Bytes of the longest description that is kept decoded.

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Description, ...])


def pack_columns(chunk: Chunk) -> tuple[bytes, list[memoryview]]:
    """The description of a chunk's columns, and their bytes: views, copied only where scattered."""
    packing = Packing("sent to another process")
    described = [packing.column(column) for column in chunk.columns]
    return _encoder.encode(described), packing.parts


def unpack_columns(description: bytes, body: memoryview) -> list[Column]:
    """The columns that `body` holds; DataLossError where it does not hold what is described."""
    described, size = _decode(description)
    if size != len(body):
        raise DataLossError(f"data connection: {len(body)} bytes of elements, described as {size}")
    try:
        return unpack(described, body.toreadonly())
    except MALFORMED as error:
        raise DataLossError(f"data connection: damaged columns ({error})") from None


def body_size(description: bytes) -> int:
    """How many bytes the described columns take; DataLossError where it is no description."""
    return _decode(description)[1]


def _decode(description: bytes) -> tuple[tuple[Description, ...], int]:
    """The described columns, and the number of bytes that they take."""
    try:
        short = len(description) <= _CACHED
        return _decode_cached(description) if short else _decode_anew(description)
    except (msgspec.MsgspecError, *MALFORMED) as error:
        raise DataLossError(f"data connection: not a description ({error})") from None


def _decode_anew(description: bytes) -> tuple[tuple[Description, ...], int]:
    described = _decoder.decode(description)
    return described, sum(map(measure, described))


_decode_cached = lru_cache(maxsize=256)(_decode_anew)  # Most chunks of a stream have the same one.
