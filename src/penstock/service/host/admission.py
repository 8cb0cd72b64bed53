"""Admission: whoever connects to a port is a stranger, until it proves the token and is a guest.

A stranger costs a thread and a descriptor, for a bounded time, and there are boundedly many of
them: when one more comes, the address with the most strangers loses its oldest one. So strangers
compete with strangers of their own address, never with guests.
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

from penstock.errors import UnavailableError
from penstock.service.host.authentication import (
    ProcessLoss,
    ServerHandshake,
    no_process_loss,
    refuse_without_tls,
    server_handshake,
)
from penstock.service.host.security import Security
from penstock.service.host.sockets import keep_alive
from penstock.service.protocol import timing

STRANGERS = 64
"""So many connections may be in their handshake."""

_GUESTS = 4096
"""So many guests may be there at most, each with its thread."""


_LOG = logging.getLogger("penstock.service")


class Guest(Protocol):
    """A connection that has proved the token."""

    def serve(self, leave: Callable[[], None]) -> None:
        """Sees to it that the connection is served; `leave` is to be called when it has ended."""

    def dismiss(self) -> None:
        """Ends it, from any thread, once what it has in hand is finished."""

    def abort(self) -> None:
        """Ends it at once, from any thread."""

    def close(self) -> None:
        """Gives everything back, after `leave`."""


class Stranger(NamedTuple):
    """A connection in its handshake, and the address that it comes from."""

    connected: socket.socket
    host: str


class Admission:
    """Accepts connections on `listening`; runs a thread for each stranger and guest.

    Args:
        listening: Listening sockets, which this object closes.
        security: The token, and the certificates for those that come by TCP.
        mark: What the connections are for (see `handshake`).
        welcome: Makes a guest of a connection.
        grace: Seconds in which dismissed guests may finish what they have in hand.
        handshake_seconds: Seconds in which a stranger must have proved the token.
        last_loss: The last process that a worker lost for a plan, by digest.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        security: Security,
        mark: bytes,
        welcome: Callable[[socket.socket, ServerHandshake], Guest],
        *,
        grace: float = 0.0,
        handshake_seconds: float = timing.HANDSHAKE,
        last_loss: Callable[[bytes], ProcessLoss] = no_process_loss,
    ) -> None:
        self._listening = list(listening)
        self._token, self._mark, self._welcome = security.token, mark, welcome
        self._name = f"{mark.decode().strip()} at {self._listening[0].getsockname()}"
        try:
            self._context = security.server_context()
        except BaseException:
            for each in self._listening:
                each.close()
            raise
        self._grace, self._seconds, self._last_loss = grace, handshake_seconds, last_loss
        self.most_guests = _most_guests()
        self._lock = threading.Lock()  # Guards the fields down to `_told`.
        self._closed = False
        self._strangers: dict[threading.Thread, Stranger] = {}
        self._dropped: set[threading.Thread] = set()
        """Threads of strangers whose connection was ended here, until they notice."""
        self._entering: set[threading.Thread] = set()
        """Threads of strangers that have proved the token, until they are guests."""
        self._guests: set[Guest] = set()
        self._serving: set[threading.Thread] = set()
        self._left = threading.Condition(self._lock)
        self._turned_away, self._told = 0, -timing.REFUSAL_LOG
        self._accepting = threading.Thread(target=self._accept, name="penstock port", daemon=True)
        self._waker, self._wakes = socket.socketpair()

    def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        """Ends all connections, and waits a while for their threads; twice is fine."""
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
            threads = [*self._strangers, *self._dropped, *self._serving]
            for stranger in self._strangers.values():
                _shut(stranger.connected)
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
            for listening in (*self._listening, self._wakes):
                listening.setblocking(False)
                selector.register(listening, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.fileobj is not self._wakes:
                        self._greet(key.fileobj)  # type: ignore[arg-type]

    def _greet(self, listening: socket.socket) -> None:
        """Never raises: without the thread that runs this, nobody could connect any more."""
        try:
            connected, address = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except Exception:  # No descriptor is free: strangers give theirs back, the others wait.
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
            self._tell(host, error)
            self._pause(timing.EXHAUSTED)
        while len(self._dropped) >= STRANGERS and not self._closed:
            # They end at once, but not before a thread comes to it.
            self._pause(timing.EXHAUSTED / 100)

    def _start(self, stranger: Stranger) -> None:
        thread = threading.Thread(
            target=self._serve, args=(stranger,), name="penstock connection", daemon=True
        )
        with self._lock:
            if len(self._strangers) >= STRANGERS:
                self._drop(self._crowd())
            self._strangers[thread] = stranger
        try:
            thread.start()
        except BaseException:
            with self._lock:
                self._strangers.pop(thread, None)
            raise

    def _crowd(self) -> threading.Thread:
        """The oldest stranger of the address that has most of them."""
        hosts = Counter(stranger.host for stranger in self._strangers.values())
        (crowded, _), *_ = hosts.most_common(1)
        return next(t for t, stranger in self._strangers.items() if stranger.host == crowded)

    def _drop(self, thread: threading.Thread) -> None:
        stranger = self._strangers.pop(thread)
        self._dropped.add(thread)
        _shut(stranger.connected)

    def _pause(self, seconds: float) -> None:
        """Waits, but not when this object is closed."""
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        poll.poll(1000 * seconds)

    def _serve(self, stranger: Stranger) -> None:
        thread = threading.current_thread()
        guest = self._admitted(stranger)
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

    def _admitted(self, stranger: Stranger) -> Guest | None:
        """The guest that a stranger becomes; None, and nothing left, where the handshake fails."""
        deadline = time.monotonic() + self._seconds
        connected = stranger.connected
        try:
            if connected.family != getattr(socket, "AF_UNIX", None):
                keep_alive(connected)
                if self._context is not None:
                    connected = self._secret(self._context, stranger, deadline)
            admitted = server_handshake(
                connected, self._token, deadline, self._mark, self._has_room, self._last_loss
            )
            return self._welcome(connected, admitted)
        except Exception as error:  # Whatever a stranger can cause.
            connected.close()
            self._tell(stranger.host, error)
            return None

    def _has_room(self) -> bool:
        with self._lock:
            if len(self._guests) + len(self._entering) >= self.most_guests:
                return False
            self._entering.add(threading.current_thread())
            return True

    def _secret(
        self, context: ssl.SSLContext, stranger: Stranger, deadline: float
    ) -> ssl.SSLSocket:
        if refuse_without_tls(stranger.connected, deadline):
            raise UnavailableError("the client uses no certificates")
        stranger.connected.settimeout(max(0.001, deadline - time.monotonic()))
        secret = context.wrap_socket(
            stranger.connected, server_side=True, do_handshake_on_connect=False
        )
        with self._lock:
            if (thread := threading.current_thread()) in self._strangers:
                self._strangers[thread] = Stranger(secret, stranger.host)
        try:
            secret.do_handshake()
        except BaseException:
            secret.close()
            raise
        return secret

    def _tell(self, host: str, error: Exception) -> None:
        """Strangers are logged, at most one line in a while."""
        with self._lock:
            self._turned_away += 1
            if self._closed or (now := time.monotonic()) - self._told < timing.REFUSAL_LOG:
                return
            count, self._turned_away, self._told = self._turned_away, 0, now
        _LOG.warning(
            "%s: %d connection%s ended before the token was proved, the last from %s (%s)",
            *(self._name, count, "s" * (count != 1), host, error),
        )


def _most_guests() -> int:
    """Half of the descriptors, because a process needs the rest for other things."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _GUESTS if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, _GUESTS))


def _shut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not the method of an SSL socket, which would go on in plain text.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
