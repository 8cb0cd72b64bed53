"""Tickets: texts that prove, until they expire, that their maker knew the token.

A ticket does not reveal the token, and is valid for one purpose only. Any process with the token
can make one, and a server that restarts still accepts those that it made before.
"""

from __future__ import annotations

import secrets

from penstock.service.host.authentication import is_proof, make_proof


def make_ticket(token: bytes, purpose: bytes, expires: float) -> str:
    """A new ticket that is valid until `expires`, in seconds since 1970."""
    name = f"{int(expires)}-{secrets.token_hex(16)}"
    return f"{name}-{make_proof(token, purpose, name.encode()).hex()}"


def read_expiry(ticket: str, token: bytes, purpose: bytes) -> int | None:
    """When a ticket expires; None if it was not made with this token, for this purpose."""
    name, _, claim = ticket.rpartition("-")
    try:
        proof, expires = bytes.fromhex(claim), int(name.partition("-")[0])
    except ValueError:
        return None
    return expires if is_proof(proof, token, purpose, name.encode()) else None
