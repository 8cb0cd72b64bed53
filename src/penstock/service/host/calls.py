"""Calls: a client's connections to a dispatcher.

A connection carries one call at a time, in the thread that calls. There are as many connections as
there were calls at the same time, and few of them are kept.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import weakref

from penstock.errors import CancelledError, OpError, UnavailableError
from penstock.service.host.envelopes import Envelopes, limit
from penstock.service.host.handshake import CONTROL, Terms, introduce
from penstock.service.host.ports import joined, numeric
from penstock.service.host.security import Security
from penstock.service.host.sockets import kept_alive

_KEPT = 4
"""Connections that are kept for the next calls."""

_ALL: weakref.WeakSet[CallConnections] = weakref.WeakSet()


class CallConnections:
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
        self._idle: list[Envelopes] = []
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

    def _borrow(self, deadline: float) -> Envelopes:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect(deadline)

    def _give_back(self, envelopes: Envelopes) -> None:
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

    def _connect(self, deadline: float) -> Envelopes:
        connected = self._reach(deadline)
        try:
            kept_alive(connected)
            if (context := self._security.client_context()) is not None:
                connected = self._secret(context, connected, deadline)
            key = introduce(connected, self._security.token, Terms(), deadline, CONTROL).key
        except BaseException:
            self._end(connected)
            self._check_open()
            raise
        return Envelopes(connected, key, client=True)

    def _reach(self, deadline: float) -> socket.socket:
        """A connection to the first address of the host that answers."""
        host, port = self._place
        failed = OSError("the host has no address")
        for family, kind, _, _, place in socket.getaddrinfo(
            numeric(host), port, type=socket.SOCK_STREAM
        ):
            connected = self._hold(socket.socket(family, kind))
            try:
                limit(connected, deadline)
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
            limit(secret, deadline)
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
        return CancelledError(f"dispatcher {joined(*self._place)}: the connection was closed here")


def _begin_anew() -> None:
    for calls in list(_ALL):
        calls._forget()


os.register_at_fork(after_in_child=_begin_anew)
