"""Authentication: each side of a connection proves the token; servers admit connections that do.

    client   mark, nonce, terms
    server   mark, nonce
    client   proof
    server   verdict, process loss, proof

All parts of this handshake have fixed sizes (a server reads 120 bytes) and must arrive before a
deadline; nothing is decoded. Both sides then know a key that belongs to this connection alone.

Until its peer has proved the token a connection is a stranger; then it is a guest. A stranger costs
a thread and a descriptor, for a bounded time. Their number is bounded, too: when there are too
many, the address with the most strangers loses its oldest one. So strangers compete with strangers
of their own address, never with guests.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import resource
import select
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from penstock.errors import DataLossError, UnauthenticatedError, UnavailableError
from penstock.service.host.security import Security
from penstock.service.host.sockets import keep_alive, shut
from penstock.service.protocol import timing

DATA, CONTROL = b"penstock data 5\n", b"penstock ctrl 2\n"
"""Marks: the purpose of a connection. Both sides send theirs first."""

_TLS_ONLY = b"penstock by TLS\n"
"""The mark of a server that requires TLS, sent to clients that begin without it."""

_NONCE = 32
_TERMS = struct.Struct("<BxHH2x32s")
_LOSS = struct.Struct("<I i f ? 95s")
_CLIENT, _SERVER, _SESSION = b"client", b"server", b"session"
_REJECTED, _ACCEPTED, _FULL = b"\x00", b"\x01", b"\x02"
_DISCONNECTED = (ConnectionResetError, BrokenPipeError)

PROOF_SIZE = 32
"""Bytes of a proof."""


class Terms(NamedTuple):
    """What a client requests: the mode of compression, and the plan to read, by its digest.

    A client on the worker's machine also sends the ports of both ends. If the worker sees the same
    ports, no proxy is between the two, and the bytes never leave the machine's memory.
    """

    compression: int = 0
    own_port: int = 0
    other_port: int = 0
    plan: bytes = bytes(32)

    def is_direct(self, connected: socket.socket) -> bool:
        """Whether the client sees the ports that the worker sees at its socket `connected`."""
        ports = (connected.getpeername()[1], connected.getsockname()[1])
        return (self.own_port, self.other_port) == ports


class ProcessLoss(NamedTuple):
    """How a worker lost the process that ran a plan; `number` is 0 if it lost none."""

    number: int = 0
    """Counts the processes that the worker has lost, which distinguishes two losses."""
    code: int = 0
    """The exit code of the process, negative for a signal."""
    pause: float = 0.0
    """Seconds that the worker waits before it starts the next process."""
    is_traced: bool = False
    """Whether the worker has found the call that crashed it, or may find it next time."""
    function: bytes = b""
    """The user's function that was running, if it is known: its first bytes in UTF-8."""

    @classmethod
    def unpack(cls, data: bytes) -> ProcessLoss:
        """Returns what `pack` has packed."""
        number, code, pause, is_traced, function = _LOSS.unpack(data)
        return cls(number, code, pause, is_traced, function.rstrip(b"\0"))

    def pack(self) -> bytes:
        """Returns a text of fixed size; a long name of a function is cut."""
        return _LOSS.pack(*self)


class ServerHandshake(NamedTuple):
    """What a server learns from a client that has proved the token."""

    terms: Terms
    key: bytes


class ClientHandshake(NamedTuple):
    """What a client learns from a server that has proved the token."""

    key: bytes
    process_loss: ProcessLoss = ProcessLoss()


def no_process_loss(plan: bytes) -> ProcessLoss:
    """The answer of a server that has lost no process."""
    return ProcessLoss()


def server_handshake(
    connected: socket.socket,
    token: bytes,
    deadline: float,
    mark: bytes = DATA,
    has_room: Callable[[], bool] = lambda: True,
    last_loss: Callable[[bytes], ProcessLoss] = no_process_loss,
) -> ServerHandshake:
    """The server's side; `deadline` is a time of `time.monotonic`.

    Raises UnauthenticatedError if the client does not know the token, UnavailableError if
    `has_room` returns False, DataLossError if the client speaks another protocol.
    """
    asked = _receive(connected, len(mark) + _NONCE + _TERMS.size, deadline)
    answered = mark + os.urandom(_NONCE)
    # Sent to clients with another mark, too: their error message says what listens here.
    _send(connected, answered, deadline)
    if not asked.startswith(mark):
        raise DataLossError("the other side does not speak this protocol")
    claim = _receive(connected, PROOF_SIZE, deadline)
    if not is_proof(claim, token, _CLIENT, asked, answered):
        _send(connected, _REJECTED + bytes(_LOSS.size + PROOF_SIZE), deadline)
        raise UnauthenticatedError("the client does not know the token")
    terms = Terms(*_TERMS.unpack(asked[-_TERMS.size :]))
    verdict = (_ACCEPTED if has_room() else _FULL) + last_loss(terms.plan).pack()
    _send(connected, verdict + make_proof(token, _SERVER, verdict, asked, answered), deadline)
    if verdict.startswith(_FULL):
        raise UnavailableError("there are too many connections")
    return ServerHandshake(terms, make_proof(token, _SESSION, asked, answered))


def client_handshake(
    connected: socket.socket, token: bytes, terms: Terms, deadline: float, mark: bytes = DATA
) -> ClientHandshake:
    """The client's side.

    Raises UnauthenticatedError if the tokens differ, ssl.SSLError if only the server uses TLS,
    DataLossError if the server is not one of penstock's, or not of the kind that `mark` names.
    """
    asked = mark + os.urandom(_NONCE) + _TERMS.pack(*terms)
    _send(connected, asked, deadline)
    answered = _receive_answer(connected, mark, deadline)
    _send(connected, make_proof(token, _CLIENT, asked, answered), deadline)
    said = _receive(connected, 1 + _LOSS.size + PROOF_SIZE, deadline)
    verdict, claim = said[:-PROOF_SIZE], said[-PROOF_SIZE:]
    if not verdict.startswith((_ACCEPTED, _FULL)):
        raise UnauthenticatedError("does not accept the token of this process")
    if not is_proof(claim, token, _SERVER, verdict, asked, answered):
        raise UnauthenticatedError("does not know the token")
    if verdict.startswith(_FULL):
        raise UnavailableError("it has too many connections")
    process_loss = ProcessLoss.unpack(verdict[1:])
    return ClientHandshake(make_proof(token, _SESSION, asked, answered), process_loss)


def refuse_without_tls(connected: socket.socket, deadline: float) -> bool:
    """Returns whether a client of a TLS server begins without TLS, and answers that it must.

    The client's first byte stays unread, because the TLS handshake needs it.
    """
    set_timeout(connected, deadline)
    if connected.recv(1, socket.MSG_PEEK) not in (DATA[:1], CONTROL[:1]):
        return False
    _send(connected, _TLS_ONLY + bytes(_NONCE), deadline)
    return True


def _receive_answer(connected: socket.socket, mark: bytes, deadline: float) -> bytes:
    answered = _receive(connected, len(mark), deadline)
    if answered == _TLS_ONLY or answered.startswith((b"\x15\x03", b"\x16\x03")):
        raise ssl.SSLError(1, "the other side uses certificates and this one does not")
    if answered != mark:
        raise DataLossError(f"what answers speaks another protocol ({answered!r})")
    return answered + _receive(connected, _NONCE, deadline)


def _send(connected: socket.socket, data: bytes, deadline: float) -> None:
    set_timeout(connected, deadline)
    with contextlib.suppress(*_DISCONNECTED):  # The next receive raises.
        connected.sendall(data)


def _receive(connected: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        set_timeout(connected, deadline)
        piece = b""
        with contextlib.suppress(*_DISCONNECTED):
            piece = connected.recv(size - len(data))
        if not piece:
            raise UnavailableError("the other side closed the connection")
        data += piece
    return data


def set_timeout(connected: socket.socket, deadline: float) -> None:
    """Sets the timeout of the socket to the time until `deadline`; raises if it has passed."""
    if (left := deadline - time.monotonic()) <= 0:
        raise UnavailableError("it took too long to answer")
    connected.settimeout(left)


def make_proof(token: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    """The HMAC of these parts, each preceded by its length, under the key `token`."""
    mac = hmac.new(token, digestmod="sha256")
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def is_proof(claim: bytes, token: bytes, *parts: bytes | bytearray | memoryview) -> bool:
    """Whether `claim` is the proof of these parts; compares in constant time."""
    return hmac.compare_digest(claim, make_proof(token, *parts))


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
        mark: The purpose of the connections (see `authentication`).
        welcome: Makes a guest of a connection that has proved the token.
        grace: Seconds in which dismissed guests may finish their current request.
        handshake_seconds: Seconds in which a stranger must prove the token.
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
        deadline = time.monotonic() + self._seconds
        connected = stranger.connected
        try:
            if connected.family != getattr(socket, "AF_UNIX", None):
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
            mark=self._mark,
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
        try:
            encrypted.do_handshake()
        except BaseException:
            encrypted.close()
            raise
        return encrypted

    def _log_rejection(self, host: str, error: Exception) -> None:
        """Logs rejected strangers, at most one line in `timing.REFUSAL_LOG` seconds."""
        with self._lock:
            self._rejected += 1
            self.rejections += 1
            if self._closed or (now := time.monotonic()) - self._logged < timing.REFUSAL_LOG:
                return
            count, self._rejected, self._logged = self._rejected, 0, now
        _LOG.warning(
            "%s: %d connection%s ended before the token was proved, the last from %s (%s)",
            self._name,
            count,
            "s" * (count != 1),
            host,
            error,
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
