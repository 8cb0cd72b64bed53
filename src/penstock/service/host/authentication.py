"""Authentication: each side of a connection proves the token, and names its protocol.

    client   mark, nonce, terms with its version of the protocol
    server   mark, nonce
    client   proof
    server   verdict, its version of the protocol, process loss, proof

All parts of this handshake have fixed sizes (a server reads 120 bytes) and must arrive before a
deadline; nothing is decoded. Both sides then know a key that belongs to this connection alone, and
that they can talk to each other (`penstock.version`).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock import version
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    UnauthenticatedError,
    UnavailableError,
)

DATA, CONTROL = b"penstock data 6\n", b"penstock ctrl 3\n"
"""Marks: the purpose of a connection, and the form of its handshake. Both sides send theirs first.

The form of the handshake is the one thing that the version of the protocol does not cover.
"""

_PURPOSE = len(b"penstock data")
"""Bytes of a mark that name the purpose."""

_TLS_ONLY = b"penstock by TLS\n"
"""The mark of a server that requires TLS, sent to clients that begin without it."""

_NONCE = 32
_TERMS = struct.Struct("<BxHH32sH")
_VERSION = struct.Struct("<H")
_LOSS = struct.Struct("<I i f ? 95s")
_CLIENT, _SERVER, _SESSION = b"client", b"server", b"session"
_REJECTED, _ACCEPTED, _FULL, _TOO_OLD = b"\x00", b"\x01", b"\x02", b"\x03"
_DISCONNECTED = (ConnectionResetError, BrokenPipeError)

PROOF_SIZE = 32
"""Bytes of a proof."""


class Terms(NamedTuple):
    """What a client requests: the mode of compression, and the plan to read, by its digest.

    A client on the worker's machine also sends the ports of both ends. If the worker sees the same
    ports, no proxy is between the two, and the bytes never leave the machine's memory.
    """

    compression: int = 0
    own_port: int = 0
    other_port: int = 0
    plan: bytes = bytes(32)
    protocol: int = version.PROTOCOL

    def is_direct(self, connected: socket.socket) -> bool:
        """Whether the client sees the ports that the worker sees at its socket `connected`."""
        ports = (connected.getpeername()[1], connected.getsockname()[1])
        return (self.own_port, self.other_port) == ports


class ProcessLoss(NamedTuple):
    """How a worker lost the process that ran a plan; `number` is 0 if it lost none."""

    number: int = 0
    """Counts the processes that the worker has lost, which distinguishes two losses."""
    code: int = 0
    """The exit code of the process, negative for a signal."""
    pause: float = 0.0
    """Seconds that the worker waits before it starts the next process."""
    is_traced: bool = False
    """Whether the worker has found the call that crashed it, or may find it next time."""
    function: bytes = b""
    """The user's function that was running, if it is known: its first bytes in UTF-8."""

    @classmethod
    def unpack(cls, data: bytes) -> ProcessLoss:
        """Returns what `pack` has packed."""
        number, code, pause, is_traced, function = _LOSS.unpack(data)
        return cls(number, code, pause, is_traced, function.rstrip(b"\0"))

    def pack(self) -> bytes:
        """Returns a text of fixed size; a long name of a function is cut."""
        return _LOSS.pack(*self)


class ServerHandshake(NamedTuple):
    """What a server learns from a client that has proved the token."""

    terms: Terms
    key: bytes


class ClientHandshake(NamedTuple):
    """What a client learns from a server that has proved the token."""

    key: bytes
    process_loss: ProcessLoss = ProcessLoss()


def no_process_loss(plan: bytes) -> ProcessLoss:
    """The answer of a server that has lost no process."""
    return ProcessLoss()


def server_handshake(
    connected: socket.socket,
    token: bytes,
    deadline: float,
    mark: bytes = DATA,
    has_room: Callable[[], bool] = lambda: True,
    last_loss: Callable[[bytes], ProcessLoss] = no_process_loss,
) -> ServerHandshake:
    """The server's side; `deadline` is a time of `time.monotonic`.

    Raises UnauthenticatedError if the client does not know the token, UnavailableError if
    `has_room` returns False, FailedPreconditionError if the client is too old, DataLossError if it
    is not one of penstock's.
    """
    asked = _receive(connected, len(mark) + _NONCE + _TERMS.size, deadline)
    answered = mark + os.urandom(_NONCE)
    # Sent to clients with another mark, too: their error message says what listens here.
    _send(connected, answered, deadline)
    if not asked.startswith(mark):
        raise DataLossError("the other side does not speak this protocol")
    claim = _receive(connected, PROOF_SIZE, deadline)
    if not is_proof(claim, token, _CLIENT, asked, answered):
        _send(connected, _REJECTED + bytes(_VERSION.size + _LOSS.size + PROOF_SIZE), deadline)
        raise UnauthenticatedError("the client does not know the token")
    terms = Terms(*_TERMS.unpack(asked[-_TERMS.size :]))
    mismatch = version.describe_mismatch(terms.protocol, "upgrade penstock there")
    verdict = _TOO_OLD if mismatch else _ACCEPTED if has_room() else _FULL
    said = verdict + _VERSION.pack(version.PROTOCOL) + last_loss(terms.plan).pack()
    _send(connected, said + make_proof(token, _SERVER, said, asked, answered), deadline)
    if mismatch:
        raise FailedPreconditionError(f"the client {mismatch}")
    if verdict == _FULL:
        raise UnavailableError("there are too many connections")
    return ServerHandshake(terms, make_proof(token, _SESSION, asked, answered))


def client_handshake(
    connected: socket.socket, token: bytes, terms: Terms, deadline: float, mark: bytes = DATA
) -> ClientHandshake:
    """The client's side.

    Raises UnauthenticatedError if the tokens differ, ssl.SSLError if only the server uses TLS,
    FailedPreconditionError if one side is too old for the other, DataLossError if the server is not
    one of penstock's, or not of the kind that `mark` names.
    """
    asked = mark + os.urandom(_NONCE) + _TERMS.pack(*terms)
    _send(connected, asked, deadline)
    answered = _receive_answer(connected, mark, deadline)
    _send(connected, make_proof(token, _CLIENT, asked, answered), deadline)
    said = _receive(connected, 1 + _VERSION.size + _LOSS.size + PROOF_SIZE, deadline)
    told, claim = said[:-PROOF_SIZE], said[-PROOF_SIZE:]
    if told.startswith(_REJECTED):
        raise UnauthenticatedError("does not accept the token of this process")
    if not is_proof(claim, token, _SERVER, told, asked, answered):
        raise UnauthenticatedError("does not know the token")
    _check_verdict(told[:1], *_VERSION.unpack_from(told, 1))
    process_loss = ProcessLoss.unpack(told[1 + _VERSION.size :])
    return ClientHandshake(make_proof(token, _SESSION, asked, answered), process_loss)


def _check_verdict(verdict: bytes, protocol: int) -> None:
    """Raises if the server, of this version of the protocol, does not talk to this process."""
    if verdict == _TOO_OLD:
        raise FailedPreconditionError(version.describe_refusal(protocol))
    mismatch = version.describe_mismatch(protocol, "upgrade penstock there")
    if mismatch is not None:
        raise FailedPreconditionError(mismatch)
    if verdict == _FULL:
        raise UnavailableError("it has too many connections")


def refuse_without_tls(connected: socket.socket, deadline: float) -> bool:
    """Returns whether a client of a TLS server begins without TLS, and answers that it must.

    The client's first byte stays unread, because the TLS handshake needs it.
    """
    set_timeout(connected, deadline)
    if connected.recv(1, socket.MSG_PEEK) not in (DATA[:1], CONTROL[:1]):
        return False
    _send(connected, _TLS_ONLY + bytes(_NONCE), deadline)
    return True


def _receive_answer(connected: socket.socket, mark: bytes, deadline: float) -> bytes:
    answered = _receive(connected, len(mark), deadline)
    if answered == _TLS_ONLY or answered.startswith((b"\x15\x03", b"\x16\x03")):
        raise ssl.SSLError(1, "the other side uses certificates and this one does not")
    if answered != mark and answered.startswith(mark[:_PURPOSE]):
        raise FailedPreconditionError(
            f"begins connections as {answered.decode(errors='replace').strip()!r}, and this "
            f"process as {mark.decode().strip()!r}; install neighbouring versions of penstock"
        )
    if answered != mark:
        raise DataLossError(f"what answers speaks another protocol ({answered!r})")
    return answered + _receive(connected, _NONCE, deadline)


def _send(connected: socket.socket, data: bytes, deadline: float) -> None:
    set_timeout(connected, deadline)
    with contextlib.suppress(*_DISCONNECTED):  # The next receive raises.
        connected.sendall(data)


def _receive(connected: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        set_timeout(connected, deadline)
        piece = b""
        with contextlib.suppress(*_DISCONNECTED):
            piece = connected.recv(size - len(data))
        if not piece:
            raise UnavailableError("the other side closed the connection")
        data += piece
    return data


def set_timeout(connected: socket.socket, deadline: float) -> None:
    """Sets the timeout of the socket to the time until `deadline`; raises if it has passed."""
    if (left := deadline - time.monotonic()) <= 0:
        raise UnavailableError("it took too long to answer")
    connected.settimeout(left)


def make_proof(token: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    """The HMAC of these parts, each preceded by its length, under the key `token`."""
    mac = hmac.new(token, digestmod="sha256")
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def is_proof(claim: bytes, token: bytes, *parts: bytes | bytearray | memoryview) -> bool:
    """Whether `claim` is the proof of these parts; compares in constant time."""
    return hmac.compare_digest(claim, make_proof(token, *parts))
