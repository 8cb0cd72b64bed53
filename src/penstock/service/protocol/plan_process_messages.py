"""Messages between a worker and the processes that run its plans.

The socket of a client goes to a process as a descriptor beside `TakeClient`. These messages never
leave the machine, and their sockets have no names, so they need no authentication.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.service.protocol.messages import Message, WorkStatus

# From the worker


class Begin(Message, frozen=True):
    """The first message. `address` is the worker's, for error messages."""

    address: str


class TakeClient(Message, frozen=True):
    """Serve the client whose socket comes with this message."""

    number: int
    protocol: str
    name: str
    compression: int
    checks: bool = False


class TidyUp(Message, frozen=True):
    """Close streams without readers; `jobs` are still read, None if the worker does not know."""

    jobs: tuple[str, ...] | None = None


class Drain(Message, frozen=True):
    """Accept no more fetches, and send `DrainReply` when all accepted fetches are answered."""


# From the process


class ClientLeft(Message, frozen=True):
    """The connection of client `number` was closed."""

    number: int


class TidyUpReply(Message, frozen=True):
    """The reply to `TidyUp`: the work since the last one, in as many messages as needed."""

    jobs: tuple[WorkStatus, ...] = ()
    first: bool = True
    """Whether this is the first of these messages."""


class DrainReply(Message, frozen=True):
    """The reply to `Drain`: every accepted fetch is answered."""


ToProcess = Begin | TakeClient | TidyUp | Drain
FromProcess = ClientLeft | TidyUpReply | DrainReply

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decoder_of_process: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToProcess)
"""Decodes what a process receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromProcess)
"""Decodes what the worker receives."""
