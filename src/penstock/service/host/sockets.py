"""Sockets and addresses: how they are made, tuned, written and read.

`localhost` is 127.0.0.1 for servers and clients alike, so that both mean the same address even
where the name has an IPv6 address as well. A Unix socket has an abstract name, which is gone when
its process ends.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket
from typing import Any

from penstock.errors import AlreadyExistsError, InvalidArgumentError, UnfitServerError
from penstock.service.protocol import timing

_BACKLOG = 1024
"""Connections that wait to be accepted, if the system allows as many."""

# On one machine, buffers that fit into the caches are faster. For a network, the kernel chooses.
_UNIX_BUFFER = 1 << 20

_NEAR_BUFFER = 512 << 10

_KEEP_ALIVE = {
    "TCP_KEEPIDLE": timing.KEEP_ALIVE_IDLE,
    "TCP_KEEPINTVL": timing.KEEP_ALIVE_INTERVAL,
    "TCP_KEEPCNT": timing.KEEP_ALIVE_PROBES,
}


def numeric_host(host: str) -> str:
    """The host as `socket.getaddrinfo` takes it."""
    return "127.0.0.1" if host == "localhost" else host.strip("[]")


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_tcp(host: str, port: Any) -> socket.socket:
    """A socket that listens at `host` and `port` (0: any free one); raises with the remedy."""
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise UnfitServerError(
            f"port must be 0 (any free one) or a number up to 65535, got {port!r}"
        )
    try:
        family, _, _, _, place = socket.getaddrinfo(
            numeric_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A restarted server may listen while connections of its predecessor are closing.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise _listen_error(host, port, error) from None
    return made


def _listen_error(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return AlreadyExistsError(
            f"port {port} is in use; choose another (0 takes any free one) or stop what listens "
            f"at {join_address(host, port)}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnfitServerError(
            f"port {port} needs rights that this user does not have; choose one above 1023"
        )
    return UnfitServerError(
        f"host {host!r} is no address of this machine ({error.strerror}); use localhost, or "
        "0.0.0.0 for every address it has"
    )


def tune_for_data(connected: socket.socket) -> socket.socket:
    """Sets the buffers of a socket for data, and `keep_alive`; returns the socket."""
    if connected.family == getattr(socket, "AF_UNIX", None):
        _set_buffers(connected, _UNIX_BUFFER)
        return connected
    if is_loopback(connected.getpeername()[0]):
        _set_buffers(connected, _NEAR_BUFFER)
    return keep_alive(connected)


def keep_alive(connected: socket.socket) -> socket.socket:
    """Has a TCP socket send at once, and probe an idle peer; returns the socket."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connected


def limit_silence(connected: socket.socket, seconds: float) -> None:
    """Has the kernel close a connection whose peer acknowledges nothing for `seconds`.

    Only for clients: a worker would lose its connections to clients that do not read.
    """
    if connected.family == getattr(socket, "AF_UNIX", None):
        return
    pause = max(1, int(seconds / 8))
    options = {
        "TCP_USER_TIMEOUT": max(1, int(timing.WORKER_SILENCE * seconds * 1000)),
        "TCP_KEEPIDLE": 2 * pause,
        "TCP_KEEPINTVL": pause,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _set_buffers(connected: socket.socket, size: int) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, option, size)


def connect_tcp(address: str, seconds: float) -> socket.socket:
    """A connection to `host:port`; raises OSError if it is not made within `seconds`."""
    host, port = split_address(address)
    made = socket.create_connection((numeric_host(host), port), seconds)
    try:
        return tune_for_data(made)
    except BaseException:
        made.close()
        raise


def connect_unix(name: str, seconds: float) -> socket.socket:
    """A connection to an abstract name, written with an @ before it."""
    made = tune_for_data(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        made.settimeout(seconds)
        made.connect("\0" + name.removeprefix("@"))
    except BaseException:
        made.close()
        raise
    return made


def listen_unix() -> tuple[socket.socket, str]:
    """A Unix socket that listens under a new abstract name, and that name."""
    name = f"penstock-{secrets.token_hex(16)}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind("\0" + name)
        made.listen(128)
    except BaseException:
        made.close()
        raise
    return made, "@" + name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, with or without a scheme before it; IPv6 in brackets."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgumentError(
            f"address {address!r} must be host:port with a port of 1 to 65535, as in localhost:5050"
        )
    return host.strip("[]"), int(port)
