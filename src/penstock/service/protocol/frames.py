"""Frames: how messages stand on a data connection.

    head     16 bytes: two that never change, the kind, the sizes of the two parts that follow
    message  msgpack; of the kind that the head says
    body     the bytes of columns (see `columns`), if the message is `Rows`

No size is believed before it is compared with a bound, and no type but the declared ones is made.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from penstock.errors import DataLossError, InvalidArgumentError
from penstock.service.protocol.columns import body_size, pack_columns, unpack_columns
from penstock.service.protocol.fetches import ToClient, ToWorker
from penstock.service.protocol.messages import Plain

__all__ = [
    "HEAD_SIZE",
    "MESSAGE",
    "SLAB",
    "Slab",
    "body_size",
    "decoder_of_client",
    "decoder_of_worker",
    "encode",
    "frame_head",
    "pack_columns",
    "read_head",
    "unpack_columns",
    "understand",
]

MESSAGE, SLAB = 0, 1
"""Kinds of frames: what the two sides say, and a piece of shared memory that they will use."""

MAX_MESSAGE = 256 << 20
MAX_BODY = 8 << 30

_HEAD = struct.Struct("<2sBxIQ")
_MARK = b"\xf0P"
HEAD_SIZE = _HEAD.size

_encoder = msgspec.msgpack.Encoder()
decoder_of_client: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToClient)
"""For what a client receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToWorker)
"""For what a worker receives."""


class Slab(Plain, frozen=True, array_like=True):
    """Shared memory, whose descriptor comes with the frame: `cells` pieces of `cell` bytes."""

    number: int
    cell: int
    cells: int
    dropped: tuple[int, ...] = ()
    """The numbers of slabs that will not be used again."""


slab_decoder = msgspec.msgpack.Decoder(Slab)


def encode(message: Any) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def understand(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    """The message that some bytes are; DataLossError where they are none."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataLossError(f"data connection: what came is not a message ({error})") from None


def frame_head(kind: int, message: int, body: int = 0) -> bytes:
    """The head of a frame with parts of these sizes."""
    if message > MAX_MESSAGE or body > MAX_BODY:
        raise InvalidArgumentError(
            f"data connection: {message} bytes of message and {body} bytes of elements cannot be "
            f"sent at once (at most {MAX_MESSAGE} and {MAX_BODY}); make the elements smaller"
        )
    return _HEAD.pack(_MARK, kind, message, body)


def read_head(data: bytes | memoryview) -> tuple[int, int, int]:
    """Kind and sizes of a frame; DataLossError where this is not the head of one."""
    mark, kind, message, body = _HEAD.unpack(data)
    if mark != _MARK or kind > SLAB:
        raise DataLossError(f"data connection: {bytes(data)!r} is not the head of a frame")
    if message > MAX_MESSAGE or body > MAX_BODY:
        raise DataLossError(
            f"data connection: a frame of {message} and {body} bytes is larger than any can be"
        )
    return kind, message, body
