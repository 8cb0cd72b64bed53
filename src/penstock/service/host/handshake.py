"""The handshake of a data connection: each side proves that it has the token.

    client   mark, nonce, terms
    worker   mark, nonce
    client   proof
    worker   yes or no, proof

All of it has fixed sizes and must be over by a deadline; nothing is decoded before that.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import NamedTuple

from penstock.errors import DataLossError, UnauthenticatedError, UnavailableError
from penstock.service.host.security import PROOF_SIZE, proof, proven

HANDSHAKE_SECONDS = 10.0

_MARK = b"penstock data 1\n"
_NONCE = 32
_TERMS = struct.Struct("<B7x")
_CLIENT, _WORKER = b"data client", b"data worker"
_YES, _NO = b"\x01", b"\x00"
_GONE = (ConnectionResetError, BrokenPipeError)


class Terms(NamedTuple):
    """What a client wants: the mode of compression."""

    compression: int = 0


def admit(connected: socket.socket, token: bytes, deadline: float) -> Terms:
    """The worker's side; `deadline` is a time of `time.monotonic`."""
    asked = _receive(connected, len(_MARK) + _NONCE + _TERMS.size, deadline)
    if not asked.startswith(_MARK):
        raise DataLossError("data connection: the other side does not speak this protocol")
    answered = _MARK + os.urandom(_NONCE)
    _send(connected, answered, deadline)
    claim = _receive(connected, PROOF_SIZE, deadline)
    if not proven(claim, token, _CLIENT, asked, answered):
        _send(connected, _NO + bytes(PROOF_SIZE), deadline)
        raise UnauthenticatedError("data connection: the client does not know the token")
    _send(connected, _YES + proof(token, _WORKER, asked, answered), deadline)
    return Terms(*_TERMS.unpack(asked[-_TERMS.size :]))


def introduce(connected: socket.socket, token: bytes, terms: Terms, deadline: float) -> None:
    """The client's side."""
    asked = _MARK + os.urandom(_NONCE) + _TERMS.pack(*terms)
    _send(connected, asked, deadline)
    answered = _receive(connected, len(_MARK) + _NONCE, deadline)
    if not answered.startswith(_MARK):
        raise DataLossError("what answers is no worker of this version of penstock")
    _send(connected, proof(token, _CLIENT, asked, answered), deadline)
    verdict = _receive(connected, 1 + PROOF_SIZE, deadline)
    if not verdict.startswith(_YES):
        raise UnauthenticatedError("it does not accept this token")
    if not proven(verdict[1:], token, _WORKER, asked, answered):
        raise UnauthenticatedError("what answers does not know the token")


def _send(connected: socket.socket, data: bytes, deadline: float) -> None:
    _limit(connected, deadline)
    with contextlib.suppress(*_GONE):  # What is read next will tell.
        connected.sendall(data)


def _receive(connected: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        _limit(connected, deadline)
        piece = b""
        with contextlib.suppress(*_GONE):
            piece = connected.recv(size - len(data))
        if not piece:
            raise UnavailableError("it hung up; does only one side use certificates?")
        data += piece
    return data


def _limit(connected: socket.socket, deadline: float) -> None:
    """No single wait may last longer than what is left of the whole."""
    if (left := deadline - time.monotonic()) <= 0:
        raise UnavailableError("it took too long to answer")
    connected.settimeout(left)
