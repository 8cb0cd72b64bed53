"""Answering: the dispatcher's side of control connections.

Requests of one connection are answered one after the other. Plans, and whatever else is large,
take turns, so that many clients that send plans at once do not fill the memory.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from penstock import errors
from penstock.errors import OpError, UnavailableError, UnknownError
from penstock.service.host.envelopes import Envelopes, decode_request, encode
from penstock.service.protocol.messages import GetPlan, Refused, Reply, Request

Handle = Callable[[Request], Reply]

_MESSAGE_SECONDS = 10.0
"""Seconds in which a message that has begun must be received, or sent."""

_TURNS, _TURN_SECONDS = 8, 5.0
"""Large messages that a server has in memory at the same time; seconds that others wait."""

_LOG = logging.getLogger("penstock.service")


class Answering:
    """What the connections of one server share: who answers, and whose turn it is."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.turns = threading.BoundedSemaphore(_TURNS)


class Caller:
    """A process that calls the dispatcher, as a guest (see `admission`)."""

    def __init__(self, connected: socket.socket, key: bytes, answering: Answering) -> None:
        self._connected = connected
        self._envelopes = Envelopes(connected, key, client=False)
        self._answering = answering
        self._has_turn = False

    def serve(self) -> None:
        """Answers until the client hangs up, or sends what cannot be a message."""
        try:
            while True:
                self._answer()
        except OpError as error:
            _LOG.warning("dispatcher: a connection was cut: %s", error)
        except (EOFError, OSError):
            return

    def _answer(self) -> None:
        try:
            data = self._envelopes.receive(seconds=_MESSAGE_SECONDS, before_large=self._take_turn)
            reply = self._reply(data)
            del data
            self._envelopes.send(reply, time.monotonic() + _MESSAGE_SECONDS)
        finally:
            if self._has_turn:
                self._has_turn = False
                self._answering.turns.release()

    def _reply(self, data: bytes | bytearray) -> bytes:
        try:
            request = decode_request(data)
            if isinstance(request, GetPlan):
                self._take_turn()
            return encode(self._answering.handle(request))
        except Exception as error:
            return encode(refusal(error))

    def _take_turn(self) -> None:
        if not self._has_turn:
            if not self._answering.turns.acquire(timeout=_TURN_SECONDS):
                raise UnavailableError("too many large messages at the same time")
            self._has_turn = True

    def dismiss(self) -> None:
        # What has arrived can still be read, and the answer to it can still be sent.
        self._shut(socket.SHUT_RD)

    def abort(self) -> None:
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connected, how)

    def close(self) -> None:
        self._connected.close()


def refusal(error: Exception) -> Refused:
    """An error as an answer."""
    if isinstance(error, OpError):
        return Refused(type(error).__name__, error.message)
    return Refused("InternalError", f"the dispatcher failed with {type(error).__name__}: {error}")


def refused_as(reply: Refused) -> OpError:
    """An answer as the error that it was."""
    kind = getattr(errors, reply.kind, None)
    if isinstance(kind, type) and issubclass(kind, OpError):
        return kind(reply.message)
    return UnknownError(f"{reply.kind}: {reply.message}")
