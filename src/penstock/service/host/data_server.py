"""The worker's side of data connections: listens, admits clients, and hands them to a server.

Only clients that have proved the token reach the handler (see `admission`), which is a
`fetch_server`. If plans run in processes of their own, these processes serve the clients instead.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.engine.processes.chunk_memory import SlabPool, can_share
from penstock.errors import DataLossError, UnavailableError
from penstock.service.host.admission import Admission, Guest
from penstock.service.host.data_connection import (
    COMPRESS_AUTO,
    COMPRESS_NEVER,
    Compressor,
    Connection,
)
from penstock.service.host.security import (
    DATA,
    ProcessLoss,
    Security,
    ServerHandshake,
    no_process_loss,
)
from penstock.service.host.sockets import (
    Channel,
    TlsChannel,
    is_loopback,
    join_address,
    listen_tcp,
    listen_unix,
    shut,
    tune_for_data,
)
from penstock.service.protocol import timing


class AcceptedClient(NamedTuple):
    """A client that has proved the token and sent no message yet. Any process may serve it."""

    socket: socket.socket
    protocol: str
    name: str
    compression: int
    """The mode of `compression`; COMPRESS_NEVER on one machine."""
    checks: bool
    """Whether the elements need checksums on their way."""
    plan: bytes

    def connection(self) -> Connection:
        """Makes a connection, which then owns the socket."""
        used = self.socket
        channel = TlsChannel(used) if isinstance(used, ssl.SSLSocket) else Channel(used)
        pool = SlabPool() if self.protocol == "shm" else None
        compressor = None if self.compression == COMPRESS_NEVER else Compressor(self.compression)
        return Connection(
            channel,
            self.name,
            client=False,
            pool=pool,
            compressor=compressor,
            checks=self.checks,
        )


class ClientHost(Protocol):
    """Serves clients in other processes."""

    def serve(self, client: AcceptedClient) -> None:
        """Has a process serve the client; returns when the connection has ended."""

    def last_loss(self, plan: bytes) -> ProcessLoss:
        """How the last process of a plan was lost."""


class DataListener:
    """Runs `handler` for every connection, in a thread of its own, and closes the connection.

    If there is a `client_host`, it serves all clients, and the handler none.
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
            client = _describe_client(connected, admitted)
            if client_host is not None:
                return _ForwardedGuest(client, client_host)
            return _LocalGuest(client.connection(), handler)

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


class _LocalGuest:
    """A guest that this process serves."""

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


class _ForwardedGuest:
    """A guest that another process serves."""

    def __init__(self, client: AcceptedClient, host: ClientHost) -> None:
        self._client, self._host = client, host

    def serve(self, leave: Callable[[], None]) -> None:
        try:
            self._host.serve(self._client)
        finally:
            leave()

    def abort(self) -> None:
        shut(self._client.socket)

    dismiss = abort

    def close(self) -> None:
        self._client.socket.close()


def _describe_client(connected: socket.socket, admitted: ServerHandshake) -> AcceptedClient:
    tune_for_data(connected)
    terms = admitted.terms
    compression, plan = terms.compression, terms.plan
    if connected.family == getattr(socket, "AF_UNIX", None):
        return AcceptedClient(
            connected, "shm", "a client (shm)", compression=COMPRESS_NEVER, checks=False, plan=plan
        )
    (host, port, *_), own = connected.getpeername(), connected.getsockname()[0]
    if compression == COMPRESS_AUTO and (is_loopback(host) or host == own):
        compression = COMPRESS_NEVER
    # TLS detects damage itself, and bytes that stay in the memory of this machine need no check.
    checks = not isinstance(connected, ssl.SSLSocket) and not terms.is_direct(connected)
    name = f"client {host}:{port} (tcp)"
    return AcceptedClient(connected, "tcp", name, compression=compression, checks=checks, plan=plan)
