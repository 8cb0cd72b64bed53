"""Where a worker hands out data: listens on tcp and, for its own host, with shared memory.

Whoever connects gets a thread, but only who has the token gets as far as the handler.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable

from penstock.errors import DataLossError, UnavailableError
from penstock.service.host.compression import AUTO, NONE, Squeezer
from penstock.service.host.exchange import Connection
from penstock.service.host.handshake import HANDSHAKE_SECONDS, Terms, admit
from penstock.service.host.ports import check_port, joined
from penstock.service.host.security import Security, is_loopback
from penstock.service.host.segments import SlabPool
from penstock.service.host.sockets import can_share, listen_tcp, listen_unix, tuned
from penstock.service.host.wires import Channel, SecretChannel

_STRANGERS = 64
"""So many may be in their handshake; one more, and the one that takes longest is dropped."""

_PATIENCE = 5.0
_PAUSE = 0.1


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
        self._handler, self._security = handler, security
        self._seconds = handshake_seconds
        self._context = security.server_context()
        self._lock = threading.Lock()
        self._closed = False
        self._strangers: dict[threading.Thread, socket.socket] = {}
        self._connections: dict[threading.Thread, Connection] = {}
        self._accepting = threading.Thread(target=self._accept, name="penstock data", daemon=True)
        self.transfers: dict[str, str] = {}
        self._listening = self._listen(host, port)
        self._waker, self._wakes = socket.socketpair()

    def _listen(self, host: str, port: int) -> list[socket.socket]:
        try:
            tcp = listen_tcp(host, port)
        except OSError as error:
            check_port(host, port)  # Says in words what is wrong.
            raise UnavailableError(
                f"cannot listen at {joined(host, port)} ({error}); try again"
            ) from None
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
        self._accepting.start()

    def close(self) -> None:
        """Ends all connections, and waits a while for their threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._waker.send(b"x")
        if self._accepting.ident is not None:
            self._accepting.join()
        for listening in (*self._listening, self._waker, self._wakes):
            listening.close()
        with self._lock:
            threads = [*self._strangers, *self._connections]
            for stranger in self._strangers.values():
                _shut(stranger)
            for connection in self._connections.values():
                connection.abort()
        _join(threads)

    def __enter__(self) -> DataListener:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for listening in (*self._listening, self._wakes):
                listening.setblocking(False)
                selector.register(listening, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.fileobj is not self._wakes:
                        self._greet(key.fileobj)  # type: ignore[arg-type]

    def _greet(self, listening: socket.socket) -> None:
        try:
            stranger, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # Too many open files: the others wait until some are closed.
            self._pause()
            return
        thread = threading.Thread(
            target=self._serve, args=(stranger,), name="penstock data", daemon=True
        )
        with self._lock:
            if len(self._strangers) >= _STRANGERS:
                _shut(self._strangers.pop(next(iter(self._strangers))))
            self._strangers[thread] = stranger
        try:
            thread.start()
        except RuntimeError:  # Too many threads.
            with self._lock:
                self._strangers.pop(thread).close()
            self._pause()

    def _pause(self) -> None:
        select.select([self._wakes], [], [], _PAUSE)

    def _serve(self, stranger: socket.socket) -> None:
        thread = threading.current_thread()
        connection = self._admitted(stranger)
        with self._lock:
            self._strangers.pop(thread, None)
            if connection is None:
                return
            self._connections[thread] = connection
            if self._closed:
                connection.abort()
        try:
            with connection, contextlib.suppress(UnavailableError, DataLossError):
                self._handler(connection)
        finally:
            with self._lock:
                del self._connections[thread]

    def _admitted(self, stranger: socket.socket) -> Connection | None:
        """The connection after the handshake; None, and nothing left, where that fails."""
        deadline = time.monotonic() + self._seconds
        try:
            plain = stranger.family == getattr(socket, "AF_UNIX", None)
            tuned(stranger)
            if self._context is not None and not plain:
                stranger = self._secret(self._context, stranger)
            terms = admit(stranger, self._security.token, deadline)
            return _shared(stranger) if plain else _networked(stranger, terms)
        except OSError:  # Ours are of that kind, too.
            stranger.close()
            return None

    def _secret(self, context: ssl.SSLContext, stranger: socket.socket) -> ssl.SSLSocket:
        stranger.settimeout(self._seconds)
        secret = context.wrap_socket(stranger, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._strangers[threading.current_thread()] = secret
        try:
            secret.do_handshake()
        except BaseException:
            secret.close()
            raise
        return secret


def _shared(stranger: socket.socket) -> Connection:
    return Connection(Channel(stranger), "a client (shm)", client=False, pool=SlabPool())


def _networked(stranger: socket.socket, terms: Terms) -> Connection:
    (host, port, *_), own = stranger.getpeername(), stranger.getsockname()[0]
    near = is_loopback(host) or host == own
    squeezer = None
    if terms.compression != NONE and not (terms.compression == AUTO and near):
        squeezer = Squeezer(terms.compression)
    channel = SecretChannel(stranger) if isinstance(stranger, ssl.SSLSocket) else Channel(stranger)
    return Connection(channel, f"client {host}:{port} (tcp)", client=False, squeezer=squeezer)


def _shut(stranger: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(stranger, socket.SHUT_RDWR)


def _join(threads: list[threading.Thread]) -> None:
    deadline = time.monotonic() + _PATIENCE
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
