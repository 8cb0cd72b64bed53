"""Control connections: messages with a proof under the key of their connection; the client's side.

    head     8 bytes: four that never change, the size of the message
    proof    of the direction, the number and the bytes of the message
    message  msgpack

The number counts the messages of one direction and is not sent. So a copy of a message is refused
on its own connection and, because every connection has a fresh key, on any other one. A message
that was changed, left out, reordered or reflected is refused as well. Nothing is decoded before
its proof is checked.

A client repeats a request until it is answered, through restarts of the dispatcher. So the
dispatcher must expect to receive a request twice.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock import errors
from penstock.engine.endings import Ending
from penstock.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownError,
)
from penstock.service.host.security import (
    CONTROL,
    PROOF_SIZE,
    Security,
    Terms,
    client_handshake,
    is_proof,
    make_proof,
)
from penstock.service.host.sockets import (
    is_loopback,
    join_address,
    keep_alive,
    numeric_host,
    on_error,
    shut,
    split_addresses,
)
from penstock.service.protocol import timing
from penstock.service.protocol.messages import ErrorReply, Reply, Request

LARGEST = 8 << 20
"""Bytes of the largest message; a part of a plan fits easily."""

SMALL = 64 << 10
"""Bytes of the largest message that is read without waiting for a turn (`before_large`)."""

_HEAD = struct.Struct("<4sI")
_MAGIC = b"\xf0Pc1"
_BUFFER_SIZE = 16 << 10
_CLOSED = "the other side closed the connection"
_REQUESTS, _REPLIES = b"requests", b"replies"

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

Decoded = TypeVar("Decoded")


class ControlConnection:
    """One end of a control connection: sends and receives messages as bytes.

    Not thread-safe. After an error it must be closed. Deadlines are times of `time.monotonic`;
    `send` and `receive` raise TimeoutError after theirs.
    """

    def __init__(self, connected: socket.socket, key: bytes, *, client: bool) -> None:
        self.connected = connected
        ours, theirs = (_REQUESTS, _REPLIES) if client else (_REPLIES, _REQUESTS)
        self._sent = _Direction(make_proof(key, ours))
        self._received = _Direction(make_proof(key, theirs))
        self._buffer = bytearray()

    def send(self, message: bytes, deadline: float | None) -> None:
        """Sends a message. Without a deadline it does not wait: it raises OSError if the message
        does not fit the buffer of the socket."""
        head = _HEAD.pack(_MAGIC, len(message)) + self._sent.prove(message)
        if deadline is None:
            self.connected.settimeout(0.0)
        else:
            set_deadline(self.connected, deadline)
        if len(message) <= SMALL:
            self.connected.sendall(head + message)
        else:
            self.connected.sendall(head)
            self.connected.sendall(message)

    def receive(
        self,
        deadline: float,
        before_large: Callable[[], None] = lambda: None,
        before_wait: Callable[[], None] | None = None,
    ) -> bytes | bytearray:
        """The next message; raises EOFError at the end of the connection.

        `before_large` is called before memory is allocated for a large message, `before_wait`
        before it waits for bytes that have not arrived.
        """
        if before_wait is not None:
            self._read_arrived(before_wait)
        magic, size = _HEAD.unpack(self._receive_small(_HEAD.size, deadline))
        if magic != _MAGIC or size > LARGEST:
            raise DataLossError(
                f"{magic!r} and a size of {size} bytes cannot begin a control message"
            )
        claim = bytes(self._receive_small(PROOF_SIZE, deadline))
        if size > SMALL:
            before_large()
            message = self._receive_large(size, deadline)
        else:
            message = self._receive_small(size, deadline)
        if not self._received.verifies(claim, message):
            raise UnauthenticatedError("a control message was changed or repeated on its way")
        return message

    def _read_arrived(self, before_wait: Callable[[], None]) -> None:
        """Reads what has arrived; calls `before_wait` if that is no complete message."""
        self.connected.settimeout(0.0)
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            self._read_ahead(_BUFFER_SIZE)
        if not self._has_message():
            before_wait()

    def _has_message(self) -> bool:
        if len(self._buffer) < _HEAD.size:
            return False
        size: int = _HEAD.unpack_from(self._buffer)[1]
        return len(self._buffer) >= _HEAD.size + PROOF_SIZE + size

    def _receive_small(self, size: int, deadline: float) -> bytearray:
        while len(self._buffer) < size:
            set_deadline(self.connected, deadline)
            self._read_ahead(max(_BUFFER_SIZE, size - len(self._buffer)))
        taken = self._buffer[:size]
        del self._buffer[:size]
        return taken

    def _receive_large(self, size: int, deadline: float) -> bytearray:
        """As `_receive_small`, for large messages: receives into the result, without a copy."""
        taken, done = bytearray(size), min(size, len(self._buffer))
        taken[:done] = self._buffer[:done]
        del self._buffer[:done]
        with memoryview(taken) as view:
            while done < size:
                set_deadline(self.connected, deadline)
                if not (count := self.connected.recv_into(view[done:])):
                    raise EOFError(_CLOSED)
                done += count
        return taken

    def _read_ahead(self, size: int) -> None:
        if not (piece := self.connected.recv(size)):
            raise EOFError(_CLOSED)
        self._buffer += piece


class _Direction:
    """One direction of a connection: its key, and the number of messages so far."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def prove(self, message: bytes) -> bytes:
        self._count += 1
        return make_proof(self._key, self._count.to_bytes(8, "big"), message)

    def verifies(self, claim: bytes, message: bytes | bytearray) -> bool:
        self._count += 1
        return is_proof(claim, self._key, self._count.to_bytes(8, "big"), message)


def set_deadline(connected: socket.socket, deadline: float) -> None:
    """Sets the timeout of the socket to the time until `deadline`; raises if it has passed."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    connected.settimeout(left)


def encode(message: Request | Reply) -> bytes:
    """A message as bytes; raises ResourceExhaustedError if they are too many."""
    data = _encoder.encode(message)
    if len(data) > LARGEST:
        raise ResourceExhaustedError(
            f"{type(message).__name__}: {len(data)} bytes are more than one message may have "
            f"({LARGEST})"
        )
    return data


def decode_request(data: bytes | bytearray) -> Request:
    return _decode(_requests, data, "request")


def decode_reply(data: bytes | bytearray) -> Reply:
    return _decode(_replies, data, "reply")


def _decode(
    decoder: msgspec.msgpack.Decoder[Decoded], data: bytes | bytearray, what: str
) -> Decoded:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the {what} cannot be decoded ({error})") from None


def error_to_reply(error: Exception) -> ErrorReply:
    """The reply by which a client learns of an error."""
    if isinstance(error, OpError):
        return ErrorReply(type(error).__name__, error.message)
    return ErrorReply(
        "InternalError", f"the dispatcher failed with {type(error).__name__}: {error}"
    )


def reply_to_error(reply: ErrorReply) -> OpError:
    """The error that a reply carries, for the client to raise."""
    kind = getattr(errors, reply.kind, None)
    if isinstance(kind, type) and issubclass(kind, OpError):
        return kind(reply.message)
    return UnknownError(f"{reply.kind}: {reply.message}")


# The client's side: calls to the dispatcher
#
# A connection carries one call at a time, in the thread that calls. There are as many connections
# as there were calls at the same time, and a few of them are kept for later calls.
#
# A dispatcher with a standby has several addresses: in the target, separated by commas, or of one
# name in the DNS. Only the dispatcher that acts answers. If one address fails, the next one is
# tried.

_KEPT = 4
"""Idle connections that are kept for later calls."""

_ALL: weakref.WeakSet[DispatcherConnections] = weakref.WeakSet()

_LOG = logging.getLogger("penstock.service")


def is_transient(reply: Reply) -> bool:
    """Whether a client repeats its request after this reply: the dispatcher's disk is full."""
    return isinstance(reply, ErrorReply) and reply.kind == UnavailableError.__name__


class ControlClient:
    """Calls the dispatcher at `address`, from any thread, through its restarts.

    Args:
        address: `host:port`, or several of them, separated by commas.
        security: The token and the certificates.
        timeout: For how many seconds a call is repeated while the dispatcher does not answer.
    """

    def __init__(
        self, address: str, security: Security, timeout: float = timing.DISPATCHER_TIMEOUT
    ) -> None:
        addresses = split_addresses(address)
        self._host, self._port = addresses[0]
        self.address = _join_addresses(addresses)
        self._security, self._timeout = security, timeout
        self._closed = threading.Event()
        self._connections = DispatcherConnections(addresses, security)
        Ending(self, self._connections.close)

    def move(self, address: str) -> None:
        """Makes calls, also those in progress, go to `address`, where the dispatcher is now."""
        addresses = split_addresses(address)
        if (joined := _join_addresses(addresses)) != self.address:
            self._host, self._port = addresses[0]
            self.address = joined
            self._connections.move(addresses)

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
            longest = self._connections.longest_attempt(attempts)
            reply, reason = self._attempt(message, min(max(left, least), longest))
            if reply is not None and not is_transient(reply):
                return reply
            self._connections.try_another()
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
            raise UnauthenticatedError(f"dispatcher {self.address}: {mismatch}")
        return _reason_of(error)

    def _unauthenticated_error(self, what: str) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"dispatcher {self.address} {what} (from {self._security.origin}); both sides look for "
            "it in --token-file (the argument token in Python), PENSTOCK_TOKEN, "
            "PENSTOCK_TOKEN_FILE, the folder of certificates and a private file of their user, in "
            "this order: give both the same"
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


def _join_addresses(addresses: list[tuple[str, int]]) -> str:
    return ",".join(join_address(*each) for each in addresses)


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


_ONE_SET = "give both sides certificates of one set (penstock certs makes one), or none"


def _mismatch_in(error: OSError | EOFError) -> str | None:
    """Why the TLS handshake failed and what to do, if it was because of certificates; else None."""
    if not isinstance(error, ssl.SSLError):
        return None
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:  # The name or the address.
            return (
                f"the other side's certificate is for another host ({error.verify_message}); name "
                "all hosts when you make certificates: penstock certs FOLDER --host NAME ..."
            )
        if "expired" in error.verify_message or "not yet" in error.verify_message:
            return f"the other side's {error.verify_message}; {_ONE_SET}"
        return f"the other side's certificate is not from the same set; {_ONE_SET}"
    return next((f"{words}; {_ONE_SET}" for sign, words in _MISMATCHES if sign in text), None)


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


class Candidate(NamedTuple):
    """One address at which the dispatcher may listen."""

    host: str
    family: socket.AddressFamily
    address: Any


class DispatcherConnections:
    """Connections to the dispatcher at one of some addresses, made when they are needed.

    Calls raise OSError, which includes penstock's own errors, or EOFError. After `close`, also at
    the end of the program, they raise CancelledError.
    """

    def __init__(self, addresses: list[tuple[str, int]], security: Security) -> None:
        self._addresses, self._security = addresses, security
        self._count = len(addresses)
        """How many candidates there were when they were last looked up."""
        self._turn = 0
        """Which of them is tried first. Threads may overwrite each other's change, without harm."""
        self._closed = False  #: written under _lock; never becomes False again
        self._open: dict[socket.socket, Candidate] = {}  #: guarded by _lock
        self._skipped: dict[Any, float] = {}  #: guarded by _lock
        """Addresses that did not answer in time, and until when other addresses are tried first."""
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
            self._note_silence(connection.connected, deadline)
            self._close(connection.connected)
            self._drop_idle()  # A dispatcher that closed one has probably restarted.
            self._check_open()
            if isinstance(error, OpError):  # A malformed reply: the caller repeats the request.
                raise UnavailableError(error.message) from None
            raise
        self._give_back(connection)
        return answer

    def move(self, addresses: list[tuple[str, int]]) -> None:
        """Makes new connections go to other addresses, and cuts those to the old ones."""
        self._addresses, self._count = addresses, len(addresses)
        with self._lock:
            for connected in self._open:
                shut(connected)
        self._drop_idle()

    def longest_attempt(self, attempt: int) -> float:
        """How many seconds the n-th attempt of a call may take, from 1 on."""
        if self._count == 1:
            return timing.CONTROL_ATTEMPT
        return min(timing.CONTROL_ATTEMPT, timing.CONTROL_FAILOVER * 2.0 ** (attempt - 1))

    def try_another(self) -> None:
        """Has the next call try the next address first, if there are several."""
        if self._count > 1:
            self._turn += 1
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
            self._open.pop(connected, None)
        connected.close()

    def _connect(self, deadline: float) -> ControlConnection:
        connected = self._open_socket(deadline)
        try:
            keep_alive(connected)
            if (context := self._security.client_context()) is not None:
                connected = self._start_tls(context, connected, deadline)
            key = client_handshake(connected, self._security.token, Terms(), deadline, CONTROL).key
        except BaseException:
            self._note_silence(connected, deadline)
            self._close(connected)
            self._check_open()
            raise
        return ControlConnection(connected, key, client=True)

    def _open_socket(self, deadline: float) -> socket.socket:
        """A TCP connection to the first candidate that accepts one."""
        candidates = self._find_candidates()
        failed = OSError("the host has no address")
        for candidate in self._order(candidates):
            connected = socket.socket(candidate.family, socket.SOCK_STREAM)
            self._register(connected, candidate)
            try:
                set_deadline(connected, deadline)
                connected.connect(candidate.address)
                self._turn = candidates.index(candidate)
                return connected
            except OSError as error:
                failed = error
                self._note_silence(connected, deadline)
                self._close(connected)
                self._check_open()
        raise failed

    def _order(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates to try, except addresses that did not answer just now."""
        first, now = self._turn % len(candidates), time.monotonic()
        ordered = candidates[first:] + candidates[:first]
        with self._lock:
            some = [each for each in ordered if self._skipped.get(each.address, 0.0) <= now]
        return some or ordered

    def _note_silence(self, connected: socket.socket, deadline: float) -> None:
        """Has the next calls try other addresses, if this one did not answer in time."""
        now = time.monotonic()
        with self._lock:
            if now >= deadline and connected in self._open:
                self._skipped[self._open[connected].address] = now + timing.CONTROL_FAILOVER

    def _find_candidates(self) -> list[Candidate]:
        """All addresses, in the order of the target; raises if no host is known."""
        found: list[Candidate] = []
        unknown: list[socket.gaierror] = []
        for host, port in self._addresses:
            try:
                for family, _, _, _, address in socket.getaddrinfo(
                    numeric_host(host), port, type=socket.SOCK_STREAM
                ):
                    found.append(Candidate(host, family, address))
            except socket.gaierror as error:
                unknown.append(error)
        if not found:
            raise unknown[0]
        self._count = len(found)
        return found

    def _start_tls(
        self, context: ssl.SSLContext, connected: socket.socket, deadline: float
    ) -> ssl.SSLSocket:
        with self._lock:
            candidate = self._open[connected]
        # The certificate must name the host as the user wrote it.
        encrypted = context.wrap_socket(
            connected, server_hostname=candidate.host, do_handshake_on_connect=False
        )
        with self._lock:
            self._open.pop(connected, None)
        self._register(encrypted, candidate)
        with on_error(partial(self._close, encrypted)):
            set_deadline(encrypted, deadline)
            encrypted.do_handshake()
        return encrypted

    def _register(self, connected: socket.socket, candidate: Candidate) -> None:
        """Registers a socket that `close` then shuts down; raises if `close` was called."""
        with self._lock:
            if not self._closed:
                self._open[connected] = candidate
                return
        connected.close()
        raise self._cancelled_error()

    def _check_open(self) -> None:
        if self._closed:
            raise self._cancelled_error()

    def _cancelled_error(self) -> CancelledError:
        return CancelledError(
            f"dispatcher {_join_addresses(self._addresses)}: the connection was closed here"
        )


def _reset_all() -> None:
    for connections in list(_ALL):
        connections._reset()


os.register_at_fork(after_in_child=_reset_all)
