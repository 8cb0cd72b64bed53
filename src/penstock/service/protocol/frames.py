"""Frames of a data connection: a head, a message and, behind `Rows`, the columns of a chunk.

    head     24 bytes: two that never change, the kind, the sizes of the two parts that follow,
             the checksum of the message, and that of the head up to here
    message  msgpack; of the kind that the head says
    body     the bytes of columns, as `element.buffers` packs them; the message has its checksum

A receiver checks the head before it uses a size, and the message before it decodes it. After a
damaged head or message it cannot find the next frame, so the connection is closed. After a damaged
body it can: only that frame is lost. Every size is compared with a bound before memory is
allocated, and only the declared types are decoded. The tree of the elements is not sent, because
the client knows it. Unpacked columns are read-only views of the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import google_crc32c
import msgspec
import numpy as np

from penstock.element.buffers import MALFORMED, Description, Packing, measure, unpack
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.engine.processes.chunk_memory import Slab
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.service.protocol.data_messages import ToClient, ToWorker

MESSAGE, SLAB = 0, 1
"""Kinds of frames: a message, and a slab of shared memory that later messages use."""

MAX_MESSAGE = 256 << 20
MAX_BODY = 8 << 30

_HEAD = struct.Struct("<2sBxIQI")
_MARK = b"\xf0P"
_CHECKED = _HEAD.size
HEAD_SIZE = _CHECKED + 4

_COPIED = 4 << 10  # Up to this size, a copy is faster than a NumPy view.

_encoder = msgspec.msgpack.Encoder()
decoder_of_client: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToClient)
"""Decodes what a client receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToWorker)
"""Decodes what a worker receives."""

_CACHED = 2048  # Bytes of the longest description that is cached.

_decoder = msgspec.msgpack.Decoder(tuple[Description, ...])


slab_decoder = msgspec.msgpack.Decoder(Slab)


def encode(message: Any) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode_message(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    """Decodes a message; raises DataLossError if `data` is none."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataLossError(f"data connection: what arrived is not a message ({error})") from None


def checksum(parts: Iterable[bytes | memoryview]) -> int:
    """The CRC32C of consecutive parts."""
    crc = 0
    for part in parts:
        small = len(part) <= _COPIED
        crc = google_crc32c.extend(crc, bytes(part) if small else np.frombuffer(part, np.uint8))
    return crc


def frame(message: Any, body: int = 0, kind: int = MESSAGE) -> list[bytes]:
    """Head and message of a frame whose body has `body` bytes."""
    data = encode(message)
    return [frame_head(kind, len(data), body, google_crc32c.value(data)), data]


def frame_head(kind: int, message: int, body: int = 0, check: int = 0) -> bytes:
    """The head of a frame with parts of these sizes; `check` is the checksum of the message."""
    if message > MAX_MESSAGE or body > MAX_BODY:
        raise InvalidArgumentError(
            f"data connection: {message} bytes of message and {body} bytes of elements cannot be "
            f"sent at once (at most {MAX_MESSAGE} and {MAX_BODY}); make the elements smaller"
        )
    head = _HEAD.pack(_MARK, kind, message, body, check)
    check_head: int = google_crc32c.value(head)
    return head + check_head.to_bytes(4, "little")


def read_head(data: bytes | memoryview) -> tuple[int, int, int, int]:
    """Kind, sizes of message and body, and checksum; raises DataLossError if it is no head."""
    head = bytes(data)
    mark, kind, message, body, check = _HEAD.unpack_from(head)
    if mark != _MARK or kind > SLAB:
        raise DataLossError(f"data connection: {head!r} is not the head of a frame")
    if google_crc32c.value(head[:_CHECKED]) != int.from_bytes(head[_CHECKED:], "little"):
        raise DataLossError(f"data connection: the head of a frame arrived damaged ({head!r})")
    if message > MAX_MESSAGE or body > MAX_BODY:
        raise DataLossError(
            f"data connection: a frame of {message} and {body} bytes is larger than any can be"
        )
    return kind, message, body, check


def pack_columns(chunk: Chunk) -> tuple[bytes, list[memoryview]]:
    """The description of a chunk's columns, and their bytes: views where they are contiguous."""
    packing = Packing("sent to another process")
    described = [packing.column(column) for column in chunk.columns]
    return _encoder.encode(described), packing.parts


def unpack_columns(description: bytes, body: memoryview) -> list[Column]:
    """The columns in `body`; raises DataLossError if it does not match the description."""
    described, size = _decode(description)
    if size != len(body):
        raise DataLossError(f"data connection: {len(body)} bytes of elements, described as {size}")
    try:
        return unpack(described, body.toreadonly())
    except MALFORMED as error:
        raise DataLossError(f"data connection: damaged columns ({error})") from None


def body_size(description: bytes) -> int:
    """How many bytes the columns take; raises DataLossError if it is no description."""
    return _decode(description)[1]


def _decode(description: bytes) -> tuple[tuple[Description, ...], int]:
    """The described columns, and the number of bytes that they take."""
    try:
        short = len(description) <= _CACHED
        return _decode_cached(description) if short else _decode_uncached(description)
    except (msgspec.MsgspecError, *MALFORMED) as error:
        raise DataLossError(f"data connection: not a description ({error})") from None


def _decode_uncached(description: bytes) -> tuple[tuple[Description, ...], int]:
    described = _decoder.decode(description)
    return described, sum(map(measure, described))


_decode_cached = lru_cache(maxsize=256)(
    _decode_uncached
)  # Most chunks of a stream have equal descriptions.
