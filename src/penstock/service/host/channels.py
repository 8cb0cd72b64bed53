"""Channels: bytes through a socket, many parts at once, with descriptors or encrypted.

One thread may send while another receives. Errors of the socket are raised as they are (OSError).
"""

from __future__ import annotations

import array
import collections
import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial

from penstock.errors import DataLossError

Part = bytes | memoryview

_MOST_PARTS = min(os.sysconf("SC_IOV_MAX"), 1024) if hasattr(os, "sysconf") else 16
_MOST_DESCRIPTORS = 16
_ROOM = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
_CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """A connected stream socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        self._socket = connected
        self._ending = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, parts: Sequence[Part], descriptors: Sequence[int] = ()) -> None:
        """Sends all parts; descriptors arrive with the first byte."""
        rights = _rights(descriptors) if descriptors else []
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
                parts = _behind(parts, sent)

    def limit(self, seconds: float) -> None:
        """Has receiving fail when nothing comes for so long.

        For a side that receives only what it knows to have begun: the rest must follow.
        """
        whole = int(seconds)
        patience = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)

    def receive(self, view: memoryview) -> int:
        """Waits for some bytes; how many there are, 0 at the end."""
        return self._socket.recv_into(view)

    def receive_all(self, view: memoryview) -> int:
        """Fills `view`, unless the end comes before."""
        done = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
        while done < len(view) and (count := self.receive(view[done:])):
            done += count
        return done

    def receive_now(self, view: memoryview) -> int:
        """Some bytes if there are any, without waiting; EOFError at the end."""
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
        """Whether there are bytes that a select on the socket does not see."""
        return False

    def has_room(self) -> bool:
        """Whether a small message can be sent at once."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return any(events & select.POLLOUT for _, events in poll.poll(0))

    def descriptor(self) -> int:
        """The next descriptor that came."""
        raise DataLossError("data connection: shared memory was announced, but none came")

    def shut(self) -> None:
        """Ends all sending and receiving, also that which other threads are waiting in."""
        with self._ending, contextlib.suppress(OSError):
            # Not the method of an SSL socket, which would go on in plain text.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        with self._ending:
            self._socket.close()


class DescriptorChannel(Channel):
    """The side of a Unix socket that is given descriptors, with the heads of frames only."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._descriptors: collections.deque[int] = collections.deque()

    def receive(self, view: memoryview) -> int:
        return self._receive_both(view, _CLOSED_ON_EXEC)

    def _receive_now(self, view: memoryview) -> int:
        return self._receive_both(view, _CLOSED_ON_EXEC | socket.MSG_DONTWAIT)

    def _receive_both(self, view: memoryview, mode: int) -> int:
        count, ancillary, flags, _ = self._socket.recvmsg_into([view], _ROOM, mode)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._keep(data)
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MOST_DESCRIPTORS:
            raise DataLossError("data connection: descriptors came that nobody announced")
        return count

    def _keep(self, data: bytes) -> None:
        came = array.array("i")
        came.frombytes(data[: len(data) - len(data) % came.itemsize])
        self._descriptors.extend(came)

    def descriptor(self) -> int:
        return self._descriptors.popleft() if self._descriptors else super().descriptor()

    def close(self) -> None:
        super().close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


class TlsChannel(Channel):
    """An encrypted socket, after its handshake.

    OpenSSL lets one thread at a time use a connection, so nobody waits inside of it.
    """

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        connected.setblocking(False)
        self._secret = connected
        self._using = threading.Lock()
        self._patience: float | None = None

    def limit(self, seconds: float) -> None:
        self._patience = seconds

    def send(self, parts: Sequence[Part], descriptors: Sequence[int] = ()) -> None:
        for part in _joined(parts):
            view, done = memoryview(part), 0
            while done < len(view):
                done += self._use(self._secret.send, view[done:])

    def receive(self, view: memoryview) -> int:
        return self._use(self._secret.recv_into, view)

    def receive_all(self, view: memoryview) -> int:
        done = 0
        while done < len(view) and (count := self.receive(view[done:])):
            done += count
        return done

    def _receive_now(self, view: memoryview) -> int:
        with self._using:
            return self._secret.recv_into(view)

    def pending(self) -> bool:
        with self._using:
            return self._secret.pending() > 0

    def _use(self, call: Callable[[memoryview], int], view: memoryview) -> int:
        while True:
            try:
                with self._using:
                    return call(view)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, self._patience)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)

    def _wait(self, events: int, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._secret, events)
        if not poll.poll(None if seconds is None else 1000 * seconds):
            raise BlockingIOError


def _rights(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def _behind(parts: Sequence[Part], sent: int) -> list[Part]:
    """What is left of parts when so many bytes of them were sent."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []


def _joined(parts: Sequence[Part], small: int = 16 << 10) -> list[Part]:
    """The same bytes in fewer parts: small neighbours are joined."""
    joined: list[Part] = []
    waiting: list[Part] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= small:
            joined += waiting if len(part) >= small else [b"".join(waiting)]
            waiting = []
    return [*joined, b"".join(waiting)] if waiting else joined


_PIECE = 256 << 10


def relay(secret: ssl.SSLSocket, plain: socket.socket) -> None:
    """Passes everything on between two sockets, until either ends; both are shut then."""
    channel = TlsChannel(secret)
    end = partial(_end, channel, plain)
    decrypt = partial(_pump, channel.receive, plain.sendall, end)
    other = threading.Thread(target=decrypt, name="penstock relay", daemon=True)
    other.start()
    _pump(plain.recv_into, lambda piece: channel.send([piece]), end)
    other.join()


def _pump(
    receive: Callable[[memoryview], int],
    send: Callable[[memoryview], None],
    end: Callable[[], None],
) -> None:
    piece = memoryview(bytearray(_PIECE))
    try:
        while count := receive(piece):
            send(piece[:count])
    except OSError:
        pass  # Either side is gone.
    finally:
        end()


def _end(channel: TlsChannel, plain: socket.socket) -> None:
    channel.shut()
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)
