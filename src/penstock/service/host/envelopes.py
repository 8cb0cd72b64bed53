"""Envelopes: control messages as bytes, each with a proof that its sender knows the token.

Nothing of an envelope is decoded before its proof has been checked. An answer proves that it
belongs to its request: it cannot be taken from another one.
"""

from __future__ import annotations

import secrets

import msgspec

from penstock.errors import InvalidArgumentError, ResourceExhaustedError, UnauthenticatedError
from penstock.service.host.security import PROOF_SIZE, proof, proven
from penstock.service.protocol.messages import Reply, Request

LARGEST = 8 << 20
"""Bytes of the largest envelope."""

_NONCE_SIZE = 16
_ASKED, _ANSWERED = b"penstock request", b"penstock reply"

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def seal_request(token: bytes, request: Request) -> bytes:
    """A number that is used once, the proof, the message."""
    nonce, payload = secrets.token_bytes(_NONCE_SIZE), _encoded(request)
    return nonce + proof(token, _ASKED, nonce, payload) + payload


def open_request(token: bytes, envelope: bytes) -> tuple[Request, bytes]:
    """The request, and its nonce for the answer."""
    nonce, payload = envelope[:_NONCE_SIZE], envelope[_NONCE_SIZE + PROOF_SIZE :]
    claim = envelope[_NONCE_SIZE : _NONCE_SIZE + PROOF_SIZE]
    if not proven(claim, token, _ASKED, nonce, payload):
        raise UnauthenticatedError("the request does not prove that its sender knows the token")
    try:
        return _requests.decode(payload), nonce
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"the request is not understood ({error})") from None


def nonce_of(envelope: bytes) -> bytes:
    """The nonce of a request, whatever else is wrong with it."""
    return envelope[:_NONCE_SIZE]


def seal_reply(token: bytes, nonce: bytes, reply: Reply) -> bytes:
    """The proof, the message."""
    payload = _encoded(reply)
    return proof(token, _ANSWERED, nonce, payload) + payload


def open_reply(token: bytes, envelope: bytes, request: bytes) -> Reply:
    """The answer to the request in the envelope `request`."""
    claim, payload = envelope[:PROOF_SIZE], envelope[PROOF_SIZE:]
    if not proven(claim, token, _ANSWERED, nonce_of(request), payload):
        raise UnauthenticatedError("the answer does not prove that its sender knows the token")
    try:
        return _replies.decode(payload)
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"the answer is not understood ({error})") from None


def _encoded(message: Request | Reply) -> bytes:
    payload = _encoder.encode(message)
    if len(payload) + _NONCE_SIZE + PROOF_SIZE > LARGEST:
        raise ResourceExhaustedError(
            f"{type(message).__name__}: {len(payload)} bytes are more than one message may have "
            f"({LARGEST})"
        )
    return payload
