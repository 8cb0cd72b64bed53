"""Where a worker hands out data: listens on tcp and, for its own host, with shared memory.

Only clients that have proved the token get as far as the handler (see `admission`). Where plans
have processes of their own, clients are handed to those instead.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.errors import DataLossError, UnavailableError
from penstock.service.host.admission import Admission, Guest
from penstock.service.host.authentication import DATA, ProcessLoss, ServerHandshake, no_process_loss
from penstock.service.host.channels import Channel, TlsChannel
from penstock.service.host.chunk_memory import SlabPool, can_share
from penstock.service.host.compression import AUTO, NONE, Compressor
from penstock.service.host.data_connection import Connection
from penstock.service.host.security import Security
from penstock.service.host.sockets import (
    is_loopback,
    join_address,
    listen_tcp,
    listen_unix,
    tune_for_data,
)
from penstock.service.protocol import timing


class AcceptedClient(NamedTuple):
    """A client that has proved the token, before its first message. Any process may serve it."""

    socket: socket.socket
    protocol: str
    name: str
    compression: int
    """NONE where the bytes are not to be compressed."""
    checks: bool
    """Whether frames have checksums."""
    plan: bytes

    def connection(self) -> Connection:
        """The connection, which owns the socket."""
        used = self.socket
        channel = TlsChannel(used) if isinstance(used, ssl.SSLSocket) else Channel(used)
        pool = SlabPool() if self.protocol == "shm" else None
        compressor = None if self.compression == NONE else Compressor(self.compression)
        return Connection(
            *(channel, self.name),
            client=False,
            pool=pool,
            compressor=compressor,
            checks=self.checks,
        )


class ClientHost(Protocol):
    """Serves clients in other processes."""

    def serve(self, client: AcceptedClient) -> None:
        """Returns when the connection has ended."""

    def last_loss(self, plan: bytes) -> ProcessLoss:
        """How the last process of a plan was lost."""


class DataListener:
    """Runs `handler` in a thread of its own for every connection; closes it afterwards.

    Where there is a `client_host`, that serves all clients, and the handler none.
    """

    def __init__(
        self,
        handler: Callable[[Connection], None],
        security: Security,
        host: str = "localhost",
        port: int = 0,
        *,
        handshake_seconds: float = timing.HANDSHAKE,
        client_host: ClientHost | None = None,
    ) -> None:
        self.transfers: dict[str, str] = {}

        def welcome(connected: socket.socket, admitted: ServerHandshake) -> Guest:
            client = _accepted(connected, admitted)
            if client_host is not None:
                return _HandedOver(client, client_host)
            return _Reader(client.connection(), handler)

        self.admission = Admission(
            self._listen(host, port),
            security,
            DATA,
            welcome,
            handshake_seconds=handshake_seconds,
            last_loss=no_process_loss if client_host is None else client_host.last_loss,
        )

    def _listen(self, host: str, port: int) -> list[socket.socket]:
        tcp = listen_tcp(host, port)
        self.transfers["tcp"] = join_address(host, tcp.getsockname()[1])
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

    def serve(self, leave: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(UnavailableError, DataLossError):
                self._handler(self._connection)
        finally:
            leave()

    def abort(self) -> None:
        self._connection.abort()

    dismiss = abort

    def close(self) -> None:
        self._connection.close()


class _HandedOver:
    """A client that another process serves, as a guest."""

    def __init__(self, client: AcceptedClient, host: ClientHost) -> None:
        self._client, self._host = client, host

    def serve(self, leave: Callable[[], None]) -> None:
        try:
            self._host.serve(self._client)
        finally:
            leave()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            # Not the method of an SSL socket, which would go on in plain text.
            socket.socket.shutdown(self._client.socket, socket.SHUT_RDWR)

    dismiss = abort

    def close(self) -> None:
        self._client.socket.close()


def _accepted(connected: socket.socket, admitted: ServerHandshake) -> AcceptedClient:
    tune_for_data(connected)
    terms = admitted.terms
    compression, plan = terms.compression, terms.plan
    if connected.family == getattr(socket, "AF_UNIX", None):
        return AcceptedClient(connected, "shm", "a client (shm)", NONE, False, plan)
    (host, port, *_), own = connected.getpeername(), connected.getsockname()[0]
    if compression == AUTO and (is_loopback(host) or host == own):
        compression = NONE
    # TLS notices damage by itself, and nothing damages what stays in the memory of this machine.
    checks = not isinstance(connected, ssl.SSLSocket) and not terms.is_direct(connected)
    name = f"client {host}:{port} (tcp)"
    return AcceptedClient(connected, "tcp", name, compression, checks, plan)
