"""Sockets, addresses, and channels, which move many parts of bytes through a socket, in slices.

`localhost` is 127.0.0.1 for servers and clients alike, so that both mean the same address even
where the name has an IPv6 address as well. A Unix socket has an abstract name, which is gone when
its process ends.

Channels are plain, encrypted or receive descriptors. One thread may send while another receives.
Errors of the socket are raised as they are (OSError).
"""

from __future__ import annotations

import array
import contextlib
import errno
import ipaddress
import os
import platform
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    InvalidArgumentError,
    UnfitServerError,
)
from penstock.service.protocol import timing

_BACKLOG = 1024
"""Connections that wait to be accepted, if the system allows as many."""

# On one machine, buffers that fit into the caches are faster. For a network, the kernel chooses.
_UNIX_BUFFER = 1 << 20

_NEAR_BUFFER = 512 << 10

_KEEP_ALIVE = {
    "TCP_KEEPIDLE": timing.KEEP_ALIVE_IDLE,
    "TCP_KEEPINTVL": timing.KEEP_ALIVE_INTERVAL,
    "TCP_KEEPCNT": timing.KEEP_ALIVE_PROBES,
}


def numeric_host(host: str) -> str:
    """The host as `socket.getaddrinfo` takes it: without brackets, and never the name localhost."""
    return "127.0.0.1" if host == "localhost" else host.strip("[]")


def reachable_host(host: str) -> str:
    """The name under which other machines reach a server that listens on `host`."""
    return platform.node() if host in ("", "0.0.0.0", "::") else host


def join_address(host: str, port: int | str) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Calls `undo` if the block raises."""
    try:
        yield
    except BaseException:
        undo()
        raise


def listen_tcp(host: str, port: Any) -> socket.socket:
    """A socket that listens at `host` and `port` (0: any free one); raises with the remedy."""
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise UnfitServerError(
            f"port must be 0 (any free one) or a number up to 65535, got {port!r}"
        )
    try:
        family, _, _, _, socket_address = socket.getaddrinfo(
            numeric_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        with on_error(made.close):
            # A restarted server may listen while connections of its predecessor are closing.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(socket_address)
            made.listen(_BACKLOG)
    except OSError as error:
        raise _listen_error(host, port, error) from None
    return made


def _listen_error(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return AlreadyExistsError(
            f"port {port} is in use; choose another (0 takes any free one) or stop what listens "
            f"at {join_address(host, port)}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnfitServerError(
            f"port {port} needs rights that this user does not have; choose one above 1023"
        )
    return UnfitServerError(
        f"host {host!r} is no address of this machine ({error.strerror}); use localhost, or "
        "0.0.0.0 for every address it has"
    )


def tune_for_data(connected: socket.socket) -> socket.socket:
    """Sets the buffers of a socket for data, and `keep_alive`; returns the socket."""
    if connected.family == socket.AF_UNIX:
        _set_buffers(connected, _UNIX_BUFFER)
        return connected
    if is_loopback(connected.getpeername()[0]):
        _set_buffers(connected, _NEAR_BUFFER)
    return keep_alive(connected)


def keep_alive(connected: socket.socket) -> socket.socket:
    """Makes a TCP socket send without delay and probe an idle peer; returns the socket."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set_tcp_options(connected, _KEEP_ALIVE)
    return connected


def shut(connected: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Ends sending and receiving, also in threads that are blocked there; may be called again."""
    with contextlib.suppress(OSError):
        # Not the method of `SSLSocket`, after which the socket would send plain text.
        socket.socket.shutdown(connected, how)


def limit_silence(connected: socket.socket, seconds: float) -> None:
    """Makes the kernel close a connection whose peer acknowledges nothing for `seconds`.

    Only for clients: a worker would lose its connections to clients that do not read.
    """
    if connected.family == socket.AF_UNIX:
        return
    pause = max(1, int(seconds / 8))
    options = {
        "TCP_USER_TIMEOUT": max(1, int(timing.WORKER_SILENCE * seconds * 1000)),
        "TCP_KEEPIDLE": 2 * pause,
        "TCP_KEEPINTVL": pause,
    }
    _set_tcp_options(connected, options)


def _set_tcp_options(connected: socket.socket, options: dict[str, int]) -> None:
    """Sets the options that this system has, by their names."""
    for name, value in options.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _set_buffers(connected: socket.socket, size: int) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, option, size)


def connect_tcp(address: str, seconds: float) -> socket.socket:
    """A connection to `host:port`; raises OSError if it is not made within `seconds`."""
    host, port = split_address(address)
    made = socket.create_connection((numeric_host(host), port), seconds)
    with on_error(made.close):
        return tune_for_data(made)


def connect_unix(name: str, seconds: float) -> socket.socket:
    """A connection to an abstract name, written with an @ before it."""
    made = tune_for_data(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    with on_error(made.close):
        made.settimeout(seconds)
        made.connect("\0" + name.removeprefix("@"))
    return made


def listen_unix() -> tuple[socket.socket, str]:
    """A Unix socket that listens under a new abstract name, and that name."""
    name = f"penstock-{secrets.token_hex(16)}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with on_error(made.close):
        made.bind("\0" + name)
        made.listen(128)
    return made, "@" + name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, with or without a scheme before it; IPv6 in brackets."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgumentError(
            f"address {address!r} must be host:port with a port of 1 to 65535, as in localhost:5050"
        )
    return host.strip("[]"), int(port)


def split_addresses(addresses: str) -> list[tuple[str, int]]:
    """Hosts and ports of one or more addresses, separated by commas."""
    return [split_address(address) for address in addresses.split(",")]


Part = bytes | memoryview

_MOST_PARTS = min(os.sysconf("SC_IOV_MAX"), 1024)
_MOST_DESCRIPTORS = 16
_ROOM = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
_CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_RELAY_BUFFER = 256 << 10


class Channel:
    """A connected stream socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        self._socket = connected
        self._ending = threading.Lock()
        """Held while the socket is shut or closed: a descriptor is not used after `close`."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, parts: Sequence[Part], descriptors: Sequence[int] = ()) -> None:
        """Sends all parts; the peer receives the descriptors with the first byte."""
        rights = []
        if descriptors:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if len(parts) <= _MOST_PARTS:
            self._send(parts, rights)
            return
        for start in range(0, len(parts), _MOST_PARTS):
            self._send(parts[start : start + _MOST_PARTS], rights)
            rights = []

    def _send(self, parts: Sequence[Part], rights: list[tuple[int, int, array.array[int]]]) -> None:
        left = sum(map(len, parts))
        while left:
            sent = self._socket.sendmsg(parts, rights)
            left, rights = left - sent, []
            if left:
                parts = _drop_sent(parts, sent)

    def set_receive_timeout(self, seconds: float) -> None:
        """Makes receiving raise BlockingIOError when nothing arrives for `seconds`.

        For a side that receives only after a message has begun to arrive.
        """
        whole = int(seconds)
        timeout = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def receive(self, view: memoryview) -> int:
        """Blocks until bytes arrive, and returns how many; 0 at the end."""
        return self._socket.recv_into(view)

    def receive_all(self, view: memoryview) -> int:
        """Fills `view` and returns its size; returns less only at the end."""
        done = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
        while done < len(view) and (count := self.receive(view[done:])):
            done += count
        return done

    def receive_now(self, view: memoryview) -> int:
        """Receives bytes without blocking, and returns how many; raises EOFError at the end."""
        try:
            count = self._receive_now(view)
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        if not count:
            raise EOFError
        return count

    def _receive_now(self, view: memoryview) -> int:
        return self._socket.recv_into(view, len(view), socket.MSG_DONTWAIT)

    def pending(self) -> bool:
        """Whether bytes were read ahead, which a select on the socket does not report."""
        return False

    def has_room(self) -> bool:
        """Whether a small message can be sent without blocking."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return any(events & select.POLLOUT for _, events in poll.poll(0))

    def descriptor(self) -> int:
        """The next descriptor that was received."""
        raise DataLossError("data connection: shared memory was announced, but none came")

    def shut(self) -> None:
        """Ends all sending and receiving, also in threads that are blocked there."""
        with self._ending:
            shut(self._socket)

    def close(self) -> None:
        with self._ending:
            self._socket.close()


class DescriptorChannel(Channel):
    """The side of a Unix socket that receives descriptors, always with the head of a frame."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._descriptors: deque[int] = deque()

    def receive(self, view: memoryview) -> int:
        return self._receive_both(view, _CLOSED_ON_EXEC)

    def _receive_now(self, view: memoryview) -> int:
        return self._receive_both(view, _CLOSED_ON_EXEC | socket.MSG_DONTWAIT)

    def _receive_both(self, view: memoryview, mode: int) -> int:
        count, ancillary, flags, _ = self._socket.recvmsg_into([view], _ROOM, mode)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._keep_descriptors(data)
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MOST_DESCRIPTORS:
            raise DataLossError("data connection: descriptors arrived that were not announced")
        return count

    def _keep_descriptors(self, data: bytes) -> None:
        received = array.array("i")
        received.frombytes(data[: len(data) - len(data) % received.itemsize])
        self._descriptors.extend(received)

    def descriptor(self) -> int:
        return self._descriptors.popleft() if self._descriptors else super().descriptor()

    def close(self) -> None:
        super().close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


class TlsChannel(Channel):
    """An encrypted socket, after its handshake.

    OpenSSL lets one thread at a time use a connection. So its socket never blocks: a thread that
    must wait for the network does so without `_using`, and another thread can send meanwhile.
    """

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        connected.setblocking(False)
        self._tls_socket = connected
        self._using = threading.Lock()
        """Held during each call into OpenSSL."""
        self._receive_timeout: float | None = None

    def set_receive_timeout(self, seconds: float) -> None:
        self._receive_timeout = seconds

    def send(self, parts: Sequence[Part], descriptors: Sequence[int] = ()) -> None:
        for part in _merge_small(parts):
            view, done = memoryview(part), 0
            while done < len(view):
                done += self._use(self._tls_socket.send, view[done:])

    def receive(self, view: memoryview) -> int:
        return self._use(self._tls_socket.recv_into, view)

    def receive_all(self, view: memoryview) -> int:
        done = 0
        while done < len(view) and (count := self.receive(view[done:])):
            done += count
        return done

    def _receive_now(self, view: memoryview) -> int:
        with self._using:
            return self._tls_socket.recv_into(view)

    def pending(self) -> bool:
        with self._using:
            return self._tls_socket.pending() > 0

    def _use(self, call: Callable[[memoryview], int], view: memoryview) -> int:
        while True:
            try:
                with self._using:
                    return call(view)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, self._receive_timeout)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)

    def _wait(self, events: int, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._tls_socket, events)
        if not poll.poll(None if seconds is None else 1000 * seconds):
            raise BlockingIOError


def _drop_sent(parts: Sequence[Part], sent: int) -> list[Part]:
    """The parts that are left after the first `sent` bytes of them."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []


def _merge_small(parts: Sequence[Part], small: int = 16 << 10) -> list[Part]:
    """The same bytes in fewer parts: small neighbours are concatenated."""
    joined: list[Part] = []
    waiting: list[Part] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= small:
            joined += waiting if len(part) >= small else [b"".join(waiting)]
            waiting = []
    return [*joined, b"".join(waiting)] if waiting else joined


def relay(encrypted: ssl.SSLSocket, plain: socket.socket) -> None:
    """Copies bytes between an encrypted and a plain socket until either ends; then shuts both.

    TLS state cannot be sent to another process. So the worker decrypts what a client sends to a
    plan process, and encrypts the answers, in two threads for each connection.
    """
    channel = TlsChannel(encrypted)
    end = partial(_shut_both, channel, plain)
    decrypt = partial(_copy_bytes, channel.receive, plain.sendall, end)
    other = threading.Thread(target=decrypt, name="penstock relay", daemon=True)
    other.start()
    _copy_bytes(plain.recv_into, lambda view: channel.send([view]), end)
    other.join()


def _copy_bytes(
    receive: Callable[[memoryview], int],
    send: Callable[[memoryview], None],
    end: Callable[[], None],
) -> None:
    buffer = memoryview(bytearray(_RELAY_BUFFER))
    try:
        while count := receive(buffer):
            send(buffer[:count])
    except OSError:
        pass  # One side has closed the connection.
    finally:
        end()


def _shut_both(channel: TlsChannel, plain: socket.socket) -> None:
    channel.shut()
    shut(plain)


# Slices of bodies with checksums: the network carries one slice while the next one is checked.
# Every slice costs a system call, which releases the GIL. If another thread runs Python, this
# thread then waits for the GIL up to `sys.getswitchinterval()`. So bodies are not cut while slices
# are slow.


SLICE = 512 << 10
"""Bytes that stay in a core's cache between the checksum and the copy of the system call."""

_LARGEST_UNCUT = SLICE + SLICE // 2
"""Bodies of more bytes are cut."""

_TIMED_SLICES = 3
"""Slices whose time is measured together: the system takes several at once from a full buffer."""

_UNCUT_BODIES = 64
"""Bodies that are not cut after slow slices."""


class BodySlices:
    """Decides into which slices the bodies of one direction of a connection are cut."""

    def __init__(self) -> None:
        self._uncut = 0
        """How many of the next bodies are not cut."""
        self._count, self._seconds = 0, 0.0
        """Slices since the last decision, and their time."""

    def sizes(self, size: int) -> Iterator[int]:
        """The sizes of consecutive slices of a body. The caller sends or receives a slice before
        it asks for the next size: that is how slow slices are noticed.
        """
        while size > _LARGEST_UNCUT and not self._uncut:
            began = time.perf_counter()
            yield SLICE
            size -= SLICE
            self._record(time.perf_counter() - began)
        self._uncut = max(0, self._uncut - 1)
        yield size

    def _record(self, seconds: float) -> None:
        self._count, self._seconds = self._count + 1, self._seconds + seconds
        if self._count == _TIMED_SLICES:
            if self._seconds > _TIMED_SLICES * timing.SLOW_SLICE:
                self._uncut = _UNCUT_BODIES
            self._count, self._seconds = 0, 0.0


def take_first(parts: deque[Part], size: int) -> list[Part]:
    """Removes the first `size` bytes from `parts`, and parts without bytes behind them."""
    taken: list[Part] = []
    while parts and len(parts[0]) <= size:
        size -= len(parts[0])
        taken.append(parts.popleft())
    if size:
        first = memoryview(parts[0])
        taken.append(first[:size])
        parts[0] = first[size:]
    return taken
