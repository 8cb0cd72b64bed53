"""Handovers: what a worker says to the processes that run its plans, and what they answer.

A connection goes to the process as a descriptor beside its `TakeClient`. These messages never leave
the machine, and their sockets have no names, so nothing here needs a proof.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.service.protocol.messages import Message, WorkStatus

# From the worker


class Begin(Message, frozen=True):
    """The first message: `address` is the worker's, for messages to users."""

    address: str


class TakeClient(Message, frozen=True):
    """Serve the client whose socket comes with this message."""

    number: int
    protocol: str
    name: str
    compression: int
    checks: bool = False


class TidyUp(Message, frozen=True):
    """Close what no client reads; `jobs` are those that go on, None if that is not known."""

    jobs: tuple[str, ...] | None = None


class Drain(Message, frozen=True):
    """Take no more fetches on, and say `Drained` when all that were taken on are answered."""


# From the process


class ClientLeft(Message, frozen=True):
    """A connection was closed."""

    number: int


class Report(Message, frozen=True):
    """The answer to `TidyUp`: what was done since the last one, in as many parts as it takes."""

    jobs: tuple[WorkStatus, ...] = ()
    first: bool = True


class Drained(Message, frozen=True):
    """No fetch is left to be answered."""


ToProcess = Begin | TakeClient | TidyUp | Drain
FromProcess = ClientLeft | Report | Drained

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decoder_of_process: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToProcess)
"""For what a process receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromProcess)
"""For what the worker receives."""
