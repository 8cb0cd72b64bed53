"""Relays: encrypted connections for processes that do not have their keys.

The state of TLS cannot be handed to another process. So the worker decrypts what a client says and
encrypts what the process answers, in two threads for each such connection.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial

from penstock.service.host.wires import SecretChannel

_PIECE = 256 << 10


def relay(secret: ssl.SSLSocket, plain: socket.socket) -> None:
    """Passes everything on between two sockets, until either ends; both are shut then."""
    channel = SecretChannel(secret)
    end = partial(_end, channel, plain)
    decrypt = partial(_pump, channel.receive, plain.sendall, end)
    other = threading.Thread(target=decrypt, name="penstock relay", daemon=True)
    other.start()
    _pump(plain.recv_into, lambda piece: channel.send([piece]), end)
    other.join()


def _pump(
    receive: Callable[[memoryview], int],
    send: Callable[[memoryview], None],
    end: Callable[[], None],
) -> None:
    piece = memoryview(bytearray(_PIECE))
    try:
        while count := receive(piece):
            send(piece[:count])
    except OSError:
        pass  # Either side is gone.
    finally:
        end()


def _end(channel: SecretChannel, plain: socket.socket) -> None:
    channel.shut()
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)
