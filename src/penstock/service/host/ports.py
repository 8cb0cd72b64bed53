"""Ports: where a server listens, and in words why it cannot.

`localhost` is 127.0.0.1 for servers and clients alike, so that both mean the same place even where
the name has an IPv6 address as well.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from penstock.errors import AlreadyExistsError, UnfitServerError

_BACKLOG = 1024
"""Connections that wait to be accepted, if the system allows as many."""


def numeric(host: str) -> str:
    """The host as the network libraries get it."""
    return "127.0.0.1" if host == "localhost" else host.strip("[]")


def joined(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: Any) -> socket.socket:
    """A socket that listens there, on a free port if it is 0; raises, in words, if none can."""
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise UnfitServerError(
            f"port must be 0 (any free one) or a number up to 65535, got {port!r}"
        )
    try:
        family, _, _, _, place = socket.getaddrinfo(
            numeric(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Connections of a predecessor that are still closing do not matter.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise _explained(host, port, error) from None
    return made


def _explained(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return AlreadyExistsError(
            f"port {port} is in use; choose another (0 takes any free one) or stop what listens "
            f"at {joined(host, port)}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnfitServerError(
            f"port {port} needs rights that this user does not have; choose one above 1023"
        )
    return UnfitServerError(
        f"host {host!r} is no address of this machine ({error.strerror}); use localhost, or "
        "0.0.0.0 for every address it has"
    )
