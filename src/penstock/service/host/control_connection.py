"""Control connections: messages with a proof under the key of their connection.

    head     8 bytes: four that never change, the size of the message
    proof    of the direction, the number and the bytes of the message
    message  msgpack

The number counts the messages of one direction and is not sent. So a copy of a message is refused
on its own connection and, because every connection has a fresh key, on any other one. A message
that was changed, left out, reordered or reflected is refused as well. Nothing is decoded before
its proof is checked.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from penstock import errors
from penstock.errors import (
    DataLossError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnknownError,
)
from penstock.service.host.security import PROOF_SIZE, is_proof, make_proof
from penstock.service.protocol.messages import ErrorReply, Reply, Request

LARGEST = 8 << 20
"""Bytes of the largest message; a part of a plan fits easily."""

SMALL = 64 << 10
"""Bytes of the largest message that is read without waiting for a turn (`before_large`)."""

_HEAD = struct.Struct("<4sI")
_MARK = b"\xf0Pc1"
_BUFFER_SIZE = 16 << 10
_CLOSED = "the other side closed the connection"
_REQUESTS, _REPLIES = b"requests", b"replies"

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class ControlConnection:
    """One end of a control connection: sends and receives messages as bytes.

    Not thread-safe. After an error it must be closed. Deadlines are times of `time.monotonic`;
    `send` and `receive` raise TimeoutError after theirs.
    """

    def __init__(self, connected: socket.socket, key: bytes, *, client: bool) -> None:
        self.connected = connected
        ours, theirs = (_REQUESTS, _REPLIES) if client else (_REPLIES, _REQUESTS)
        self._sent = _Direction(make_proof(key, ours))
        self._received = _Direction(make_proof(key, theirs))
        self._buffer = bytearray()

    def send(self, message: bytes, deadline: float | None) -> None:
        """Sends a message. Without a deadline it does not wait: it raises OSError if the message
        does not fit the buffer of the socket."""
        head = _HEAD.pack(_MARK, len(message)) + self._sent.prove(message)
        if deadline is None:
            self.connected.settimeout(0.0)
        else:
            set_deadline(self.connected, deadline)
        if len(message) <= SMALL:
            self.connected.sendall(head + message)
        else:
            self.connected.sendall(head)
            self.connected.sendall(message)

    def receive(
        self,
        deadline: float,
        before_large: Callable[[], None] = lambda: None,
        before_wait: Callable[[], None] | None = None,
    ) -> bytes | bytearray:
        """The next message; raises EOFError at the end of the connection.

        `before_large` is called before memory is allocated for a large message, `before_wait`
        before it waits for bytes that have not arrived.
        """
        if before_wait is not None:
            self._read_arrived(before_wait)
        mark, size = _HEAD.unpack(self._receive_small(_HEAD.size, deadline))
        if mark != _MARK or size > LARGEST:
            raise DataLossError(
                f"{mark!r} and a size of {size} bytes cannot begin a control message"
            )
        claim = bytes(self._receive_small(PROOF_SIZE, deadline))
        if size > SMALL:
            before_large()
            message = self._receive_large(size, deadline)
        else:
            message = self._receive_small(size, deadline)
        if not self._received.verifies(claim, message):
            raise UnauthenticatedError("a control message was changed or repeated on its way")
        return message

    def _read_arrived(self, before_wait: Callable[[], None]) -> None:
        """Reads what has arrived; calls `before_wait` if that is no complete message."""
        self.connected.settimeout(0.0)
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            self._read_ahead(_BUFFER_SIZE)
        if not self._has_message():
            before_wait()

    def _has_message(self) -> bool:
        if len(self._buffer) < _HEAD.size:
            return False
        size: int = _HEAD.unpack_from(self._buffer)[1]
        return len(self._buffer) >= _HEAD.size + PROOF_SIZE + size

    def _receive_small(self, size: int, deadline: float) -> bytearray:
        while len(self._buffer) < size:
            set_deadline(self.connected, deadline)
            self._read_ahead(max(_BUFFER_SIZE, size - len(self._buffer)))
        taken = self._buffer[:size]
        del self._buffer[:size]
        return taken

    def _receive_large(self, size: int, deadline: float) -> bytearray:
        """As `_receive_small`, for large messages: receives into the result, without a copy."""
        taken, done = bytearray(size), min(size, len(self._buffer))
        taken[:done] = self._buffer[:done]
        del self._buffer[:done]
        with memoryview(taken) as view:
            while done < size:
                set_deadline(self.connected, deadline)
                if not (count := self.connected.recv_into(view[done:])):
                    raise EOFError(_CLOSED)
                done += count
        return taken

    def _read_ahead(self, size: int) -> None:
        if not (piece := self.connected.recv(size)):
            raise EOFError(_CLOSED)
        self._buffer += piece


class _Direction:
    """One direction of a connection: its key, and the number of messages so far."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def prove(self, message: bytes) -> bytes:
        self._count += 1
        return make_proof(self._key, self._count.to_bytes(8, "big"), message)

    def verifies(self, claim: bytes, message: bytes | bytearray) -> bool:
        self._count += 1
        return is_proof(claim, self._key, self._count.to_bytes(8, "big"), message)


def set_deadline(connected: socket.socket, deadline: float) -> None:
    """Sets the timeout of the socket to the time until `deadline`; raises if it has passed."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    connected.settimeout(left)


def encode(message: Request | Reply) -> bytes:
    """A message as bytes; raises ResourceExhaustedError if they are too many."""
    data = _encoder.encode(message)
    if len(data) > LARGEST:
        raise ResourceExhaustedError(
            f"{type(message).__name__}: {len(data)} bytes are more than one message may have "
            f"({LARGEST})"
        )
    return data


def decode_request(data: bytes | bytearray) -> Request:
    """Decodes a request; raises InvalidArgumentError if it is none."""
    try:
        return _requests.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the request cannot be decoded ({error})") from None


def decode_reply(data: bytes | bytearray) -> Reply:
    """Decodes a reply; raises InvalidArgumentError if it is none."""
    try:
        return _replies.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the reply cannot be decoded ({error})") from None


def error_to_reply(error: Exception) -> ErrorReply:
    """The reply by which a client learns of an error."""
    if isinstance(error, OpError):
        return ErrorReply(type(error).__name__, error.message)
    return ErrorReply(
        "InternalError", f"the dispatcher failed with {type(error).__name__}: {error}"
    )


def reply_to_error(reply: ErrorReply) -> OpError:
    """The error that a reply carries, for the client to raise."""
    kind = getattr(errors, reply.kind, None)
    if isinstance(kind, type) and issubclass(kind, OpError):
        return kind(reply.message)
    return UnknownError(f"{reply.kind}: {reply.message}")
