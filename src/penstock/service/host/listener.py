"""Where a worker hands out data: listens on tcp and, for its own host, with shared memory.

Only clients that have proved the token get as far as the handler (see `admission`).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

from penstock.errors import DataLossError, UnavailableError
from penstock.service.host.admission import Admission
from penstock.service.host.compression import AUTO, NONE, Squeezer
from penstock.service.host.exchange import Connection
from penstock.service.host.handshake import DATA, HANDSHAKE_SECONDS, Terms
from penstock.service.host.ports import joined, listen
from penstock.service.host.security import Security, is_loopback
from penstock.service.host.segments import SlabPool
from penstock.service.host.sockets import can_share, listen_unix, tuned
from penstock.service.host.wires import Channel, SecretChannel


class DataListener:
    """Runs `handler` in a thread of its own for every connection; closes it afterwards."""

    def __init__(
        self,
        handler: Callable[[Connection], None],
        security: Security,
        host: str = "localhost",
        port: int = 0,
        *,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.transfers: dict[str, str] = {}
        self.admission = Admission(
            self._listen(host, port),
            security,
            DATA,
            lambda connected, admitted: _Reader(_connection(connected, admitted.terms), handler),
            handshake_seconds=handshake_seconds,
        )

    def _listen(self, host: str, port: int) -> list[socket.socket]:
        tcp = listen(host, port)
        self.transfers["tcp"] = joined(host, tcp.getsockname()[1])
        if not can_share():
            return [tcp]
        try:
            unix, self.transfers["shm"] = listen_unix()
        except BaseException:
            tcp.close()
            raise
        return [tcp, unix]

    def start(self) -> None:
        self.admission.start()

    def close(self) -> None:
        """Ends all connections, and waits a while for their threads."""
        self.admission.close()

    def __enter__(self) -> DataListener:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Reader:
    """A client that reads, as a guest."""

    def __init__(self, connection: Connection, handler: Callable[[Connection], None]) -> None:
        self._connection, self._handler = connection, handler

    def serve(self) -> None:
        with contextlib.suppress(UnavailableError, DataLossError):
            self._handler(self._connection)

    def abort(self) -> None:
        self._connection.abort()

    dismiss = abort

    def close(self) -> None:
        self._connection.close()


def _connection(connected: socket.socket, terms: Terms) -> Connection:
    tuned(connected)
    if connected.family == getattr(socket, "AF_UNIX", None):
        return Connection(Channel(connected), "a client (shm)", client=False, pool=SlabPool())
    (host, port, *_), own = connected.getpeername(), connected.getsockname()[0]
    near = is_loopback(host) or host == own
    squeezer = None
    if terms.compression != NONE and not (terms.compression == AUTO and near):
        squeezer = Squeezer(terms.compression)
    channel = (
        SecretChannel(connected) if isinstance(connected, ssl.SSLSocket) else Channel(connected)
    )
    # TLS notices damage by itself, and nothing damages what stays in the memory of this machine.
    checks = not isinstance(channel, SecretChannel) and not terms.is_direct(connected)
    return Connection(
        *(channel, f"client {host}:{port} (tcp)"), client=False, squeezer=squeezer, checks=checks
    )
