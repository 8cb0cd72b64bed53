"""Descriptors of files and sockets, sent through Unix sockets."""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def send_descriptors(
    unix: socket.socket, data: bytes, descriptors: Sequence[int], flags: int = 0
) -> None:
    """Sends a message with descriptors. `socket.send_fds` ignores its flags."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    unix.sendmsg([data], [rights] if descriptors else [], flags)


def receive_descriptor(unix: socket.socket, size: int) -> tuple[bytes, int]:
    """The next message and its descriptor, -1 if it has none; b"" at the end.

    Child processes do not inherit the descriptor. `socket.recv_fds` ignores that flag.
    """
    item = array.array("i").itemsize
    data, ancillary, _, _ = unix.recvmsg(size, socket.CMSG_LEN(item), _CLOEXEC)
    for level, kind, came in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return data, array.array("i", came)[0]
    return data, -1
