"""The client's side of control connections: calls to the dispatcher, through its restarts.

A request is repeated until it is answered, so the dispatcher must expect to receive it twice. A
connection carries one call at a time, in the thread that calls. There are as many connections as
there were calls at the same time, and a few of them are kept for later calls.
"""

from __future__ import annotations

import contextlib
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
    split_address,
)
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Refused, Reply, Request

_LOG = logging.getLogger("penstock.service")


def is_transient(reply: Reply) -> bool:
    """Whether the dispatcher cannot answer for now (its disk is full), and is asked again."""
    return isinstance(reply, Refused) and reply.kind == UnavailableError.__name__


class ControlClient:
    """Calls the dispatcher at `address` (host:port), from any thread, through its restarts.

    Args:
        address: `host:port`.
        security: The token and the certificates.
        timeout: For how many seconds a call is repeated while nobody answers.
    """

    def __init__(
        self, address: str, security: Security, timeout: float = timing.DISPATCHER_TIMEOUT
    ) -> None:
        self._host, self._port = split_address(address)
        self.address = join_address(self._host, self._port)
        self._security, self._timeout = security, timeout
        self._closed = threading.Event()
        self._calls = DispatcherConnections(self._host, self._port, security)
        Ending(self, self._calls.close)

    def call(self, request: Request, timeout: float | None = None) -> Reply:
        """The answer; raises the error that the dispatcher answered with.

        UnavailableError if it has not answered for `timeout` seconds. Without a `timeout`, it may
        take some seconds more to answer an attempt that has reached it.
        """
        message = encode(request)
        if timeout is None:
            reply = self._repeat(message, self._timeout, timing.CONTROL_SHORTEST_ATTEMPT)
        else:
            reply = self._repeat(message, timeout, 0.001)
        if isinstance(reply, Refused):
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
                raise self._unavailable(max(timeout, int(timeout - left)), attempts, reason)
            if silent and timeout - left > timing.CONTROL_WARNING:
                silent = False
                _LOG.warning(
                    "dispatcher %s does not answer (%s); it is asked for %.0f s more",
                    *(self.address, reason, left),
                )
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, timing.CONTROL_LONGEST_PAUSE)

    def _attempt(self, message: bytes, seconds: float) -> tuple[Reply | None, str]:
        """The answer if there is one, and else, or if it says so itself, why to ask again."""
        try:
            answer = self._calls.call(message, time.monotonic() + seconds)
        except (OSError, EOFError) as error:
            failed = error
        else:
            reply = decode_reply(answer)
            return reply, reply.message if isinstance(reply, Refused) else ""
        return None, self._retried(failed)  # Out here: what it raises says all there is to say.

    def _retried(self, error: OSError | EOFError) -> str:
        """Why a call failed that is worth another attempt; raises if this one is not."""
        match error:
            case UnauthenticatedError():
                raise self._unauthenticated(error.message)
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

    def _unauthenticated(self, what: str) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"dispatcher {self.address} {what} (from {self._security.origin}); both sides look for "
            "it in the argument token, PENSTOCK_TOKEN, PENSTOCK_TOKEN_FILE, the folder of "
            "certificates and a private file of their user, in this order: give both the same"
        )

    def _unavailable(self, timeout: float, attempts: int, reason: str) -> UnavailableError:
        there = "" if is_loopback(self._host) else f" on {self._host}"
        return UnavailableError(
            f"dispatcher {self.address} has not answered for {timeout:g} s ({attempts} "
            f"attempt{'s' * (attempts != 1)}, last: {reason}); is it running? start one{there} "
            f"with: penstock dispatcher --port {self._port}"
        )

    def close(self) -> None:
        """Ends every call that is under way; twice is fine."""
        self._calls.close()
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
    """How certificates do not fit, where that is why; no later attempt would be better."""
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


_KEPT = 4
"""Connections that are kept for the next calls."""

_ALL: weakref.WeakSet[DispatcherConnections] = weakref.WeakSet()


class DispatcherConnections:
    """Connections to the dispatcher at `host` and `port`, made when they are needed.

    What goes wrong comes as it is: OSError (ours are of that kind, too) or EOFError. After `close`,
    also at the end of the program, it is CancelledError.
    """

    def __init__(self, host: str, port: int, security: Security) -> None:
        self._place, self._security = (host, port), security
        self._closed = False
        self._open: set[socket.socket] = set()
        self._forget()
        _ALL.add(self)

    def _forget(self) -> None:
        """Begins anew; also in a forked child, whose parent goes on with what is closed here."""
        self._lock = threading.Lock()  # Guards all fields. Another thread may hold the parent's.
        self._idle: list[ControlConnection] = []
        for connected in self._open:
            connected.close()
        self._open.clear()

    def call(self, message: bytes, deadline: float) -> bytes | bytearray:
        """Sends a request and returns its answer, or fails by then."""
        envelopes = self._borrow(deadline)
        try:
            envelopes.send(message, deadline)
            answer = envelopes.receive(deadline)
        except BaseException as error:
            self._end(envelopes.connected)
            self._drop_idle()  # A dispatcher that ended one connection has ended all of them.
            self._check_open()
            if isinstance(error, OpError):  # A message that cannot be: as good as none.
                raise UnavailableError(error.message) from None
            raise
        self._give_back(envelopes)
        return answer

    def close(self) -> None:
        """Ends every call that is under way; twice is fine."""
        with self._lock:
            self._closed = True
            for connected in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)
        self._drop_idle()

    def _borrow(self, deadline: float) -> ControlConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect(deadline)

    def _give_back(self, envelopes: ControlConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(envelopes)
                return
        self._end(envelopes.connected)

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for envelopes in idle:
            self._end(envelopes.connected)

    def _end(self, connected: socket.socket) -> None:
        with self._lock:
            self._open.discard(connected)
        connected.close()

    def _connect(self, deadline: float) -> ControlConnection:
        connected = self._reach(deadline)
        try:
            keep_alive(connected)
            if (context := self._security.client_context()) is not None:
                connected = self._secret(context, connected, deadline)
            key = client_handshake(connected, self._security.token, Terms(), deadline, CONTROL).key
        except BaseException:
            self._end(connected)
            self._check_open()
            raise
        return ControlConnection(connected, key, client=True)

    def _reach(self, deadline: float) -> socket.socket:
        """A connection to the first address of the host that answers."""
        host, port = self._place
        failed = OSError("the host has no address")
        for family, kind, _, _, place in socket.getaddrinfo(
            numeric_host(host), port, type=socket.SOCK_STREAM
        ):
            connected = self._hold(socket.socket(family, kind))
            try:
                set_deadline(connected, deadline)
                connected.connect(place)
                return connected
            except OSError as error:
                failed = error
                self._end(connected)
                self._check_open()
        raise failed

    def _secret(
        self, context: ssl.SSLContext, connected: socket.socket, deadline: float
    ) -> ssl.SSLSocket:
        # The certificate is for the name that the user wrote.
        secret = context.wrap_socket(
            connected, server_hostname=self._place[0], do_handshake_on_connect=False
        )
        with self._lock:
            self._open.discard(connected)
        self._hold(secret)
        try:
            set_deadline(secret, deadline)
            secret.do_handshake()
        except BaseException:
            self._end(secret)
            raise
        return secret

    def _hold(self, connected: socket.socket) -> socket.socket:
        """Lets `close` end it, from now on."""
        with self._lock:
            if not self._closed:
                self._open.add(connected)
                return connected
        connected.close()
        raise self._cancelled()

    def _check_open(self) -> None:
        if self._closed:
            raise self._cancelled()

    def _cancelled(self) -> CancelledError:
        return CancelledError(
            f"dispatcher {join_address(*self._place)}: the connection was closed here"
        )


def _begin_anew() -> None:
    for calls in list(_ALL):
        calls._forget()


os.register_at_fork(after_in_child=_begin_anew)
