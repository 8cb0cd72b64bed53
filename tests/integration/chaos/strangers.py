"""Strangers: many connections to the ports of a service, from programs without the token."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

CROWD = 100
"""Strangers for each port: more than a server lets into the handshake at once."""

SAYINGS = (
    b"",
    b"p",
    b"penstock ctrl 3\n".ljust(88),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    bytes(1 << 20),
)


class Strangers:
    """Connects, sends bytes that prove nothing, and stays until the server closes."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._crowd: list[socket.socket] = []
        for port in ports:
            for number in range(CROWD):
                with contextlib.suppress(OSError):  # The server may be away just now.
                    self._say(port, SAYINGS[number % len(SAYINGS)] or os.urandom(number % 7))

    def _say(self, port: int, said: bytes) -> None:
        stranger = socket.create_connection(("localhost", port))
        self._crowd.append(stranger)
        stranger.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            stranger.sendall(said)

    def close(self) -> None:
        for stranger in self._crowd:
            stranger.close()
        self._crowd.clear()
