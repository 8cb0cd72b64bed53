"""Admission: a server accepts connections, and serves peers that prove the token; data ports.

Until its peer has proved the token a connection is a stranger; then it is a guest. A stranger costs
a thread and a descriptor, for a bounded time. Their number is bounded, too: when there are too
many, the address with the most strangers loses its oldest one. So strangers compete with strangers
of their own address, never with guests.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import select
import selectors
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from penstock.engine.processes.chunk_memory import SlabPool, can_share
from penstock.errors import DataLossError, FailedPreconditionError, UnavailableError
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
    refuse_without_tls,
    server_handshake,
)
from penstock.service.host.sockets import (
    Channel,
    TlsChannel,
    is_loopback,
    join_address,
    keep_alive,
    listen_tcp,
    listen_unix,
    on_error,
    shut,
    tune_for_data,
)
from penstock.service.protocol import timing

STRANGERS = 64
"""How many connections may be in their handshake."""

_MOST_GUESTS = 4096
"""The most guests, each with its thread."""

_LOG = logging.getLogger("penstock.service")


class Guest(Protocol):
    """A connection that has proved the token."""

    def serve(self, leave: Callable[[], None]) -> None:
        """Serves the connection, here or in other threads, and calls `leave` when it has ended."""

    def dismiss(self) -> None:
        """Ends the connection after the current request; may be called from any thread."""

    def abort(self) -> None:
        """Ends the connection now; may be called from any thread."""

    def close(self) -> None:
        """Frees the resources of the connection; called by `leave`."""


class Stranger(NamedTuple):
    """A connection in its handshake, and the address that it comes from."""

    connected: socket.socket
    host: str


class Admission:
    """Accepts connections on `listening`; runs a thread for each stranger and guest.

    Args:
        listening: Listening sockets, which this object closes.
        security: The token, and the certificates for TCP connections.
        greeting: The purpose of the connections (see `security`).
        welcome: Makes a guest of a connection that has proved the token.
        grace: Seconds in which dismissed guests may finish their current request.
        last_loss: The last process that a worker lost for a plan, by digest.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        security: Security,
        greeting: bytes,
        welcome: Callable[[socket.socket, ServerHandshake], Guest],
        *,
        grace: float = 0.0,
        last_loss: Callable[[bytes], ProcessLoss] = no_process_loss,
    ) -> None:
        self._listening = list(listening)
        self._token, self._greeting, self._welcome = security.token, greeting, welcome
        self._name = f"{greeting.decode().strip()} at {self._listening[0].getsockname()}"
        try:
            self._context = security.server_context()
        except BaseException:
            for each in self._listening:
                each.close()
            raise
        self._grace, self._last_loss = grace, last_loss
        self.most_guests = _most_guests()
        self._lock = threading.Lock()
        """Guards the fields down to `rejections`."""
        self._closed = False
        self._strangers: dict[threading.Thread, Stranger] = {}
        self._dropped: set[threading.Thread] = set()
        """Threads of strangers whose connection was shut, until they have ended."""
        self._entering: set[threading.Thread] = set()
        """Threads of strangers that have proved the token, until they are guests."""
        self._guests: set[Guest] = set()
        self._serving: set[threading.Thread] = set()
        self._left = threading.Condition(self._lock)
        """Notified when a guest has left."""
        self._rejected, self._logged = 0, -timing.REFUSAL_LOG
        self.rejections = 0
        """How many connections ended before the token was proved."""
        self._accepting = threading.Thread(target=self._accept, name="penstock port", daemon=True)
        self._wake_writer, self._wake_reader = socket.socketpair()

    def start(self) -> None:
        self._accepting.start()

    def count_guests(self) -> int:
        with self._lock:
            return len(self._guests)

    def close(self) -> None:
        """Ends all connections, and waits a while for their threads; may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake_writer.send(b"x")
        if self._accepting.ident is not None:
            self._accepting.join()
        for listening in (*self._listening, self._wake_writer, self._wake_reader):
            listening.close()
        with self._lock:
            threads = [*self._strangers, *self._dropped, *self._serving]
            for stranger in self._strangers.values():
                shut(stranger.connected)
            for guest in self._guests:
                guest.dismiss()
            self._left.wait_for(lambda: not self._guests, self._grace)
            for guest in self._guests:
                guest.abort()
            if threading.current_thread() not in self._serving:
                self._left.wait_for(lambda: not self._guests, timing.SERVER_CLOSE)
        _join(threads, timing.SERVER_CLOSE)

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for listening in (*self._listening, self._wake_reader):
                listening.setblocking(False)
                selector.register(listening, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.fileobj is not self._wake_reader:
                        self._accept_one(key.fileobj)  # type: ignore[arg-type]

    def _accept_one(self, listening: socket.socket) -> None:
        """Accepts a connection. Never raises, because that would end the accepting thread."""
        try:
            connected, address = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except Exception:  # No descriptor is free: drop strangers to free theirs.
            with self._lock:
                for thread in list(self._strangers):
                    self._drop(thread)
            self._pause(timing.EXHAUSTED)
            return
        host = address[0] if isinstance(address, tuple) else "this machine"
        try:
            self._start(Stranger(connected, host))
        except Exception as error:  # Too many threads, or no memory.
            connected.close()
            self._log_rejection(host, error)
            self._pause(timing.EXHAUSTED)
        while len(self._dropped) >= STRANGERS and not self._closed:
            # Until the threads of dropped strangers end.
            self._pause(timing.EXHAUSTED / 100)

    def _start(self, stranger: Stranger) -> None:
        thread = threading.Thread(
            target=self._serve, args=(stranger,), name="penstock connection", daemon=True
        )
        with self._lock:
            if len(self._strangers) >= STRANGERS:
                self._drop(self._oldest_of_most())
            self._strangers[thread] = stranger
        try:
            thread.start()
        except BaseException:
            with self._lock:
                self._strangers.pop(thread, None)
            raise

    def _oldest_of_most(self) -> threading.Thread:
        """The thread of the oldest stranger from the address that has the most."""
        hosts = Counter(stranger.host for stranger in self._strangers.values())
        (crowded, _), *_ = hosts.most_common(1)
        return next(t for t, stranger in self._strangers.items() if stranger.host == crowded)

    def _drop(self, thread: threading.Thread) -> None:
        stranger = self._strangers.pop(thread)
        self._dropped.add(thread)
        shut(stranger.connected)

    def _pause(self, seconds: float) -> None:
        """Waits; returns at once when `close` is called."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.poll(1000 * seconds)

    def _serve(self, stranger: Stranger) -> None:
        thread = threading.current_thread()
        guest = self._admit(stranger)
        with self._lock:
            self._strangers.pop(thread, None)
            self._dropped.discard(thread)
            self._entering.discard(thread)
            if guest is None:
                return
            self._guests.add(guest)
            self._serving.add(thread)
            if self._closed:
                guest.abort()
        try:
            guest.serve(partial(self._leave, guest))
        finally:
            with self._lock:
                self._serving.discard(thread)

    def _leave(self, guest: Guest) -> None:
        guest.close()
        with self._lock:
            self._guests.discard(guest)
            self._left.notify_all()

    def _admit(self, stranger: Stranger) -> Guest | None:
        """Does the handshake and returns a guest; returns None if it has failed."""
        deadline = time.monotonic() + timing.HANDSHAKE
        connected = stranger.connected
        try:
            if connected.family != socket.AF_UNIX:
                keep_alive(connected)
                if self._context is not None and self._needs_tls(connected):
                    connected = self._start_tls(self._context, stranger, deadline)
            return self._meet(connected, deadline)
        except Exception as error:  # A stranger may cause any error.
            connected.close()
            self._log_rejection(stranger.host, error)
            return None

    def _needs_tls(self, connected: socket.socket) -> bool:
        """Whether a TCP connection to a server with certificates must be encrypted."""
        return True

    def _meet(self, connected: socket.socket, deadline: float) -> Guest | None:
        """Does the handshake; a subclass may answer the stranger instead, and return None."""
        admitted = server_handshake(
            connected,
            self._token,
            deadline,
            greeting=self._greeting,
            has_room=self._has_room,
            last_loss=self._last_loss,
        )
        return self._welcome(connected, admitted)

    def _has_room(self) -> bool:
        with self._lock:
            if len(self._guests) + len(self._entering) >= self.most_guests:
                return False
            self._entering.add(threading.current_thread())
            return True

    def _start_tls(
        self, context: ssl.SSLContext, stranger: Stranger, deadline: float
    ) -> ssl.SSLSocket:
        if refuse_without_tls(stranger.connected, deadline):
            raise UnavailableError("the client uses no certificates")
        stranger.connected.settimeout(max(0.001, deadline - time.monotonic()))
        encrypted = context.wrap_socket(
            stranger.connected, server_side=True, do_handshake_on_connect=False
        )
        with self._lock:
            if (thread := threading.current_thread()) in self._strangers:
                self._strangers[thread] = Stranger(encrypted, stranger.host)
        with on_error(encrypted.close):
            encrypted.do_handshake()
        return encrypted

    def _log_rejection(self, host: str, error: Exception) -> None:
        """Logs rejected strangers, at most one line in `timing.REFUSAL_LOG` seconds."""
        with self._lock:
            self._rejected += 1
            self.rejections += 1
            if self._closed or (now := time.monotonic()) - self._logged < timing.REFUSAL_LOG:
                return
            count, self._rejected, self._logged = self._rejected, 0, now
        many, last = "s" * (count != 1), f"the last from {host} ({error})"
        if isinstance(error, FailedPreconditionError):
            _LOG.warning("%s: refused %d connection%s, %s", self._name, count, many, last)
        else:
            _LOG.warning(
                "%s: %d connection%s ended before the token was proved, %s",
                self._name,
                count,
                many,
                last,
            )


def _most_guests() -> int:
    """Half of the descriptors of this process, which needs the rest for other purposes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_GUESTS if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, _MOST_GUESTS))


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


# The ports of a worker for data connections
#
# The guests are clients, which a `fetch_server` answers. If plans run in processes of their own,
# these processes serve the clients instead.


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


class DataListener(Admission):
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
        client_host: ClientHost | None = None,
    ) -> None:
        def welcome(connected: socket.socket, admitted: ServerHandshake) -> Guest:
            client = _describe_client(connected, admitted)
            if client_host is not None:
                serve, abort = partial(client_host.serve, client), partial(shut, connected)
                return _DataGuest(serve, abort, close=connected.close)
            connection = client.connection()
            return _DataGuest(partial(handler, connection), connection.abort, connection.close)

        listening = [tcp := listen_tcp(host, port)]
        self.transfers = {"tcp": join_address(host, tcp.getsockname()[1])}
        if can_share():
            with on_error(tcp.close):
                unix, self.transfers["shm"] = listen_unix()
            listening.append(unix)
        last_loss = no_process_loss if client_host is None else client_host.last_loss
        super().__init__(listening, security, DATA, welcome, last_loss=last_loss)

    def __enter__(self) -> DataListener:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _DataGuest:
    """A client that `serve` serves, in this process or in another one."""

    def __init__(
        self, serve: Callable[[], None], abort: Callable[[], None], close: Callable[[], None]
    ) -> None:
        self._serve, self.abort, self.close = serve, abort, close
        self.dismiss = abort

    def serve(self, leave: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(UnavailableError, DataLossError):
                self._serve()
        finally:
            leave()


def _describe_client(connected: socket.socket, admitted: ServerHandshake) -> AcceptedClient:
    tune_for_data(connected)
    terms = admitted.terms
    compression, plan = terms.compression, terms.plan
    if connected.family == socket.AF_UNIX:
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
