"""The client's side of control connections: calls to the dispatcher, through its restarts.

A request is repeated until it is answered, so the dispatcher must expect to receive it twice. A
connection carries one call at a time, in the thread that calls. There are as many connections as
there were calls at the same time, and a few of them are kept for later calls.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
import weakref

from penstock.engine.endings import Ending
from penstock.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.authentication import CONTROL, Terms, client_handshake
from penstock.service.host.control_connection import (
    ControlConnection,
    decode_reply,
    encode,
    reply_to_error,
    set_deadline,
)
from penstock.service.host.security import Security
from penstock.service.host.sockets import (
    is_loopback,
    join_address,
    keep_alive,
    numeric_host,
    shut,
    split_address,
)
from penstock.service.protocol import timing
from penstock.service.protocol.messages import ErrorReply, Reply, Request

_KEPT = 4
"""Idle connections that are kept for later calls."""

_ALL: weakref.WeakSet[DispatcherConnections] = weakref.WeakSet()

_LOG = logging.getLogger("penstock.service")


def is_transient(reply: Reply) -> bool:
    """Whether a client repeats its request after this reply: the dispatcher's disk is full."""
    return isinstance(reply, ErrorReply) and reply.kind == UnavailableError.__name__


class ControlClient:
    """Calls the dispatcher at `address` (host:port), from any thread, through its restarts.

    Args:
        address: `host:port`.
        security: The token and the certificates.
        timeout: For how many seconds a call is repeated while the dispatcher does not answer.
    """

    def __init__(
        self, address: str, security: Security, timeout: float = timing.DISPATCHER_TIMEOUT
    ) -> None:
        self._host, self._port = split_address(address)
        self.address = join_address(self._host, self._port)
        self._security, self._timeout = security, timeout
        self._closed = threading.Event()
        self._connections = DispatcherConnections(self._host, self._port, security)
        Ending(self, self._connections.close)

    def move(self, address: str) -> None:
        """Makes calls, also those in progress, go to `address`, where the dispatcher is now."""
        host, port = split_address(address)
        if (host, port) != (self._host, self._port):
            self._host, self._port = host, port
            self.address = join_address(host, port)
            self._connections.move(host, port)

    def call(self, request: Request, timeout: float | None = None) -> Reply:
        """The reply of the dispatcher; raises the error that it replied with.

        Raises UnavailableError if it has not answered for `timeout` seconds. Without a `timeout`,
        the last attempt may take some seconds longer.
        """
        message = encode(request)
        if timeout is None:
            reply = self._repeat(message, self._timeout, timing.CONTROL_SHORTEST_ATTEMPT)
        else:
            reply = self._repeat(message, timeout, 0.001)
        if isinstance(reply, ErrorReply):
            raise reply_to_error(reply)
        return reply

    def _repeat(self, message: bytes, timeout: float, least: float) -> Reply:
        start, attempts, pause = time.monotonic(), 0, timing.CONTROL_FIRST_PAUSE
        left, silent = timeout, timeout > timing.CONTROL_WARNING_CALLS
        while True:
            attempts += 1
            reply, reason = self._attempt(message, max(min(left, timing.CONTROL_ATTEMPT), least))
            if reply is not None and not is_transient(reply):
                return reply
            left = timeout - (time.monotonic() - start)
            if left <= 0:
                if reply is not None:
                    return reply
                raise self._unavailable_error(max(timeout, int(timeout - left)), attempts, reason)
            if silent and timeout - left > timing.CONTROL_WARNING:
                silent = False
                _LOG.warning(
                    "dispatcher %s does not answer (%s); it is asked for %.0f s more",
                    self.address,
                    reason,
                    left,
                )
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, timing.CONTROL_LONGEST_PAUSE)

    def _attempt(self, message: bytes, seconds: float) -> tuple[Reply | None, str]:
        """The reply or None, and why to call again if the reply is None or transient."""
        try:
            answer = self._connections.call(message, time.monotonic() + seconds)
        except FailedPreconditionError as error:
            raise FailedPreconditionError(f"dispatcher {self.address} {error.message}") from None
        except (OSError, EOFError) as error:
            failed = error
        else:
            reply = decode_reply(answer)
            return reply, reply.message if isinstance(reply, ErrorReply) else ""
        # Outside of `except`, so that an error raised here has no context.
        return None, self._retry_reason(failed)

    def _retry_reason(self, error: OSError | EOFError) -> str:
        """Why a call failed; raises if another attempt would fail as well."""
        match error:
            case UnauthenticatedError():
                raise self._unauthenticated_error(error.message)
            case DataLossError():
                raise UnavailableError(
                    f"{self.address} is not a penstock dispatcher; look at the address, or start "
                    f"one on another port with: penstock dispatcher --port {self._port + 1}"
                )
        if (mismatch := _mismatch_in(error)) is not None:
            raise UnauthenticatedError(
                f"dispatcher {self.address}: {mismatch}; give both sides certificates of "
                "one set (penstock certs makes one), or none"
            )
        return _reason_of(error)

    def _unauthenticated_error(self, what: str) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"dispatcher {self.address} {what} (from {self._security.origin}); both sides look for "
            "it in the argument token, PENSTOCK_TOKEN, PENSTOCK_TOKEN_FILE, the folder of "
            "certificates and a private file of their user, in this order: give both the same"
        )

    def _unavailable_error(self, timeout: float, attempts: int, reason: str) -> UnavailableError:
        there = "" if is_loopback(self._host) else f" on {self._host}"
        return UnavailableError(
            f"dispatcher {self.address} has not answered for {timeout:g} s ({attempts} "
            f"attempt{'s' * (attempts != 1)}, last: {reason}); is it running? start one{there} "
            f"with: penstock dispatcher --port {self._port}"
        )

    def close(self) -> None:
        """Cancels every call in progress; may be called again."""
        self._connections.close()
        self._closed.set()


def _reason_of(error: OSError | EOFError) -> str:
    """Why a call failed, in few words."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case ConnectionRefusedError():
            return "connection refused"
        case socket.gaierror():
            return "the name of the host is not known"
        case EOFError() | ConnectionResetError() | BrokenPipeError() | ssl.SSLEOFError():
            return "the connection was closed"
    return getattr(error, "strerror", None) or str(error)


def _mismatch_in(error: OSError | EOFError) -> str | None:
    """Why the TLS handshake failed, if it was because of the certificates; else None."""
    if not isinstance(error, ssl.SSLError):
        return None
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:  # The name or the address.
            return f"the other side's certificate is for another host ({error.verify_message})"
        if "expired" in error.verify_message or "not yet" in error.verify_message:
            return f"the other side's {error.verify_message}"
        return "the other side's certificate is not from the same set"
    return next((words for sign, words in _MISMATCHES if sign in text), None)


_MISMATCHES = (
    ("the other side uses certificates", "the other side uses certificates and this one does not"),
    ("WRONG_VERSION_NUMBER", "this side uses certificates and the other does not"),
    ("RECORD_LAYER_FAILURE", "this side uses certificates and the other does not"),
    ("ALERT_UNKNOWN_CA", "the other side says that this certificate is not from the same set"),
    ("ALERT_CERTIFICATE_EXPIRED", "the other side says that this certificate has expired"),
    ("ALERT_DECRYPT_ERROR", "the other side says that this certificate is not from the same set"),
    ("ALERT_BAD_CERTIFICATE", "the other side says that this certificate is not usable"),
    ("ALERT_CERTIFICATE", "the other side says that this certificate is not usable"),
)


class DispatcherConnections:
    """Connections to the dispatcher at `host` and `port`, made when they are needed.

    Calls raise OSError, which includes penstock's own errors, or EOFError. After `close`, also at
    the end of the program, they raise CancelledError.
    """

    def __init__(self, host: str, port: int, security: Security) -> None:
        self._address, self._security = (host, port), security
        self._closed = False  #: written under _lock; never becomes False again
        self._open: set[socket.socket] = set()  #: guarded by _lock
        self._reset()
        _ALL.add(self)

    def _reset(self) -> None:
        """Drops all connections; in a forked child, where the parent keeps using its own copies."""
        self._lock = threading.Lock()  # New, because a thread of the parent may hold the old one.
        self._idle: list[ControlConnection] = []  #: guarded by _lock
        for connected in self._open:
            connected.close()
        self._open.clear()

    def call(self, message: bytes, deadline: float) -> bytes | bytearray:
        """Sends a request and returns its reply; raises TimeoutError after `deadline`."""
        connection = self._borrow(deadline)
        try:
            connection.send(message, deadline)
            answer = connection.receive(deadline)
        except BaseException as error:
            self._close(connection.connected)
            self._drop_idle()  # A dispatcher that closed one has probably restarted.
            self._check_open()
            if isinstance(error, OpError):  # A malformed reply: the caller repeats the request.
                raise UnavailableError(error.message) from None
            raise
        self._give_back(connection)
        return answer

    def move(self, host: str, port: int) -> None:
        """Makes new connections go to another address, and cuts those to the old one."""
        self._address = (host, port)
        with self._lock:
            for connected in self._open:
                shut(connected)
        self._drop_idle()

    def close(self) -> None:
        """Cancels every call in progress; may be called again."""
        with self._lock:
            self._closed = True
            for connected in self._open:
                shut(connected)
        self._drop_idle()

    def _borrow(self, deadline: float) -> ControlConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect(deadline)

    def _give_back(self, connection: ControlConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        self._close(connection.connected)

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection.connected)

    def _close(self, connected: socket.socket) -> None:
        with self._lock:
            self._open.discard(connected)
        connected.close()

    def _connect(self, deadline: float) -> ControlConnection:
        connected = self._open_socket(deadline)
        try:
            keep_alive(connected)
            if (context := self._security.client_context()) is not None:
                connected = self._start_tls(context, connected, deadline)
            key = client_handshake(connected, self._security.token, Terms(), deadline, CONTROL).key
        except BaseException:
            self._close(connected)
            self._check_open()
            raise
        return ControlConnection(connected, key, client=True)

    def _open_socket(self, deadline: float) -> socket.socket:
        """A TCP connection to the first address of the host that accepts one."""
        host, port = self._address
        failed = OSError("the host has no address")
        for family, kind, _, _, address in socket.getaddrinfo(
            numeric_host(host), port, type=socket.SOCK_STREAM
        ):
            connected = self._register(socket.socket(family, kind))
            try:
                set_deadline(connected, deadline)
                connected.connect(address)
                return connected
            except OSError as error:
                failed = error
                self._close(connected)
                self._check_open()
        raise failed

    def _start_tls(
        self, context: ssl.SSLContext, connected: socket.socket, deadline: float
    ) -> ssl.SSLSocket:
        # The certificate must name the host as the user wrote it.
        encrypted = context.wrap_socket(
            connected, server_hostname=self._address[0], do_handshake_on_connect=False
        )
        with self._lock:
            self._open.discard(connected)
        self._register(encrypted)
        try:
            set_deadline(encrypted, deadline)
            encrypted.do_handshake()
        except BaseException:
            self._close(encrypted)
            raise
        return encrypted

    def _register(self, connected: socket.socket) -> socket.socket:
        """Registers a socket that `close` then shuts down; raises if `close` was called."""
        with self._lock:
            if not self._closed:
                self._open.add(connected)
                return connected
        connected.close()
        raise self._cancelled_error()

    def _check_open(self) -> None:
        if self._closed:
            raise self._cancelled_error()

    def _cancelled_error(self) -> CancelledError:
        return CancelledError(
            f"dispatcher {join_address(*self._address)}: the connection was closed here"
        )


def _reset_all() -> None:
    for connections in list(_ALL):
        connections._reset()


os.register_at_fork(after_in_child=_reset_all)
