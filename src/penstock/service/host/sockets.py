"""Sockets for data: made, tuned, and named; `here` says who can share memory with whom.

A Unix socket has an abstract name, so that nothing is left behind when its process dies.
"""

from __future__ import annotations

import array
import contextlib
import functools
import os
import secrets
import socket
from collections.abc import Sequence

from penstock.service.host.ports import numeric
from penstock.service.host.security import is_loopback, split_address
from penstock.service.host.segments import AVAILABLE

# Through a network the system finds the best sizes; on one machine what fits the caches is faster.
_UNIX_BUFFER = 1 << 20
_NEAR_BUFFER = 512 << 10
_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}
"""A machine that vanished without a word is noticed after 13 seconds."""

_SOONER = 0.75
"""The part of a time after which the system gives a connection up: it looks only now and then."""


@functools.cache
def here() -> str:
    """Equal in processes that can share memory: one machine, since it started, and one network."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{secrets.token_hex(8)}"  # Nobody else's: no sharing.


def can_share() -> bool:
    """Whether this system offers shared memory to processes that are connected."""
    return AVAILABLE and os.path.exists("/proc/self/ns/net")


def tuned(connected: socket.socket) -> socket.socket:
    """The same socket with good buffers for data, and `kept_alive`."""
    if connected.family == getattr(socket, "AF_UNIX", None):
        _set_buffers(connected, _UNIX_BUFFER)
        return connected
    if is_loopback(connected.getpeername()[0]):
        _set_buffers(connected, _NEAR_BUFFER)
    return kept_alive(connected)


def kept_alive(connected: socket.socket) -> socket.socket:
    """The same TCP socket without delays, and with a watch on the other side."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connected


def watch(connected: socket.socket, seconds: float) -> None:
    """Has the system end a connection whose other side confirms nothing for so long.

    For clients: a worker's connection to a client that does not read would end, too.
    """
    if connected.family == getattr(socket, "AF_UNIX", None):
        return
    pause = max(1, int(seconds / 8))
    watched = {
        "TCP_USER_TIMEOUT": max(1, int(_SOONER * seconds * 1000)),
        "TCP_KEEPIDLE": 2 * pause,
        "TCP_KEEPINTVL": pause,
    }
    for name, value in watched.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _set_buffers(connected: socket.socket, size: int) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, option, size)


def connect_tcp(address: str, seconds: float) -> socket.socket:
    """A connection to `host:port`; OSError where there is none in that time."""
    host, port = split_address(address)
    made = socket.create_connection((numeric(host), port), seconds)
    try:
        return tuned(made)
    except BaseException:
        made.close()
        raise


def connect_unix(name: str, seconds: float) -> socket.socket:
    """A connection to an abstract name, written with an @ before it."""
    made = tuned(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        made.settimeout(seconds)
        made.connect("\0" + name.removeprefix("@"))
    except BaseException:
        made.close()
        raise
    return made


def listen_unix() -> tuple[socket.socket, str]:
    """A socket that listens under a name of its own, and that name."""
    name = f"penstock-{secrets.token_hex(16)}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind("\0" + name)
        made.listen(128)
    except BaseException:
        made.close()
        raise
    return made, "@" + name


def send_descriptors(
    unix: socket.socket, data: bytes, descriptors: Sequence[int], flags: int = 0
) -> None:
    """Sends a message with descriptors. `socket.send_fds` forgets the flags."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    unix.sendmsg([data], [rights] if descriptors else [], flags)


def receive_descriptor(unix: socket.socket, size: int) -> tuple[bytes, int]:
    """The next message and its descriptor, -1 if it has none; b"" at the end.

    Programs that are started meanwhile do not inherit it. `socket.recv_fds` forgets the flags.
    """
    item = array.array("i").itemsize
    data, ancillary, _, _ = unix.recvmsg(size, socket.CMSG_LEN(item), socket.MSG_CMSG_CLOEXEC)
    for level, kind, came in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return data, array.array("i", came)[0]
    return data, -1
