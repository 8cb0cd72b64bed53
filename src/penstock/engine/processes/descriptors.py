"""Descriptors: files in memory, and descriptors that are sent through Unix sockets."""

from __future__ import annotations

import array
import fcntl
import os
import socket
from collections.abc import Sequence

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def make_sealed_file(name: str, size: int) -> int:
    """The descriptor of a new file in memory, whose size cannot change.

    Other processes map the file; reading past the end of a shorter one would kill them.
    """
    made = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(made, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(made)
        raise
    return made


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
