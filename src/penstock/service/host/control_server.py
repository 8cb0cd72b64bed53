"""The dispatcher's side of control connections.

Requests of one connection are answered one after the other. At most a few large messages, such as
plans, are in memory at the same time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from penstock.engine.endings import Ending
from penstock.errors import (
    OpError,
    UnavailableError,
)
from penstock.service.host.admission import Admission
from penstock.service.host.authentication import CONTROL
from penstock.service.host.control_connection import (
    ControlConnection,
    decode_request,
    encode,
    error_to_reply,
)
from penstock.service.host.security import Security
from penstock.service.host.sockets import listen_tcp
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetPlan, Reply, Request

_LOG = logging.getLogger("penstock.service")


Handler = Callable[[Request], Reply]


_TURNS = 8
"""How many large messages a server has in memory at the same time."""

_MOST_WAITING = 8
"""How many threads wait for requests at most; a thread too many ends after its answer."""

_HAS_EPOLL = hasattr(select, "epoll")
"""Whether a thread can wait for all connections at once; else each connection has a thread."""

_ONE_REQUEST = select.EPOLLIN | select.EPOLLONESHOT if _HAS_EPOLL else 0


class CallerThreads:
    """What the connections of one server share: the handler, turns for large messages, threads.

    An idle connection costs no thread. The threads wait in one epoll for all connections; the
    kernel wakes the thread that began to wait last, whose memory is still in the caches. A thread
    that takes a request starts another one if none is waiting, so a slow request delays no other.
    """

    def __init__(self, handle: Handler) -> None:
        self.handle = handle
        self.turns = threading.BoundedSemaphore(_TURNS)
        if _HAS_EPOLL:
            self._epoll = select.epoll()
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll.register(self._stop, select.EPOLLIN)
        self._lock = threading.Lock()
        self._callers: dict[int, Caller] = {}  #: guarded by _lock; by descriptor
        self._waiting = 0  #: guarded by _lock; threads that wait for a request
        self._threads = 0  #: guarded by _lock
        self._closed = False  #: guarded by _lock

    def add(self, caller: Caller) -> bool:
        """Answers the requests of a connection from now on; returns False after `close`."""
        with self._lock:
            if self._closed:
                return False
            self._callers[caller.fileno()] = caller
            self._epoll.register(caller.fileno(), _ONE_REQUEST)
        if not self._waiting:
            self._start_thread()
        return True

    def close(self) -> None:
        """Ends the threads after the requests that they are answering."""
        if not _HAS_EPOLL:
            return
        with self._lock:
            self._closed = True
            if not self._threads:
                self._close_descriptors()
                return
        os.eventfd_write(self._stop, 1)

    def _close_descriptors(self) -> None:
        self._epoll.close()
        os.close(self._stop)

    def _start_thread(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run, name="penstock-control", daemon=True).start()
        except RuntimeError:  # Too many threads: a running one takes the request later.
            with self._lock:
                self._threads -= 1

    def _run(self) -> None:
        while (caller := self._next()) is not None:
            if caller.answer():
                self._epoll.modify(caller.fileno(), _ONE_REQUEST)
            else:
                with self._lock:
                    del self._callers[caller.fileno()]
                caller.leave()
        with self._lock:
            self._threads -= 1
            if self._closed and not self._threads:
                self._close_descriptors()

    def _next(self) -> Caller | None:
        """The next connection with a request; None to end this thread."""
        with self._lock:
            if self._closed or self._waiting >= _MOST_WAITING:
                return None
            self._waiting += 1
        ((number, _),) = self._epoll.poll(maxevents=1)
        with self._lock:
            self._waiting -= 1
            alone, caller = not self._waiting, self._callers.get(number)
        if alone and caller is not None:
            self._start_thread()
        return caller


class Caller:
    """A connection of a client or worker to the dispatcher; a guest of `admission`."""

    def __init__(self, connected: socket.socket, key: bytes, threads: CallerThreads) -> None:
        self._connected = connected
        self._connection = ControlConnection(connected, key, client=False)
        self._threads = threads
        self._has_turn = False

    def fileno(self) -> int:
        return self._connected.fileno()

    def serve(self, leave: Callable[[], None]) -> None:
        self.leave = leave
        if _HAS_EPOLL and self._threads.add(self):
            return
        poll = select.poll()
        poll.register(self._connected, select.POLLIN)
        while poll.poll() and self.answer():
            pass
        leave()

    def answer(self) -> bool:
        """Answers the request that is arriving; returns False if the connection has ended."""
        try:
            deadline = time.monotonic() + timing.CONTROL_MESSAGE
            data = self._connection.receive(deadline, self._take_turn)
            reply = self._make_reply(data)
            del data
            self._connection.send(reply, time.monotonic() + timing.CONTROL_MESSAGE)
            return True
        except OpError as error:
            _LOG.warning("dispatcher: closed a connection: %s", error)
        except (EOFError, OSError):
            pass
        except Exception:
            _LOG.exception("dispatcher: closed a connection after an unexpected error")
        finally:
            if self._has_turn:
                self._has_turn = False
                self._threads.turns.release()
        return False

    def _make_reply(self, data: bytes | bytearray) -> bytes:
        try:
            request = decode_request(data)
            if isinstance(request, GetPlan):
                self._take_turn()
            return encode(self._threads.handle(request))
        except Exception as error:
            return encode(error_to_reply(error))

    def _take_turn(self) -> None:
        if not self._has_turn:
            if not self._threads.turns.acquire(timeout=timing.CONTROL_TURN):
                raise UnavailableError("too many large messages at the same time")
            self._has_turn = True

    def dismiss(self) -> None:
        # A request that has arrived is still read and answered.
        self._shutdown(socket.SHUT_RD)

    def abort(self) -> None:
        self._shutdown(socket.SHUT_RDWR)

    def _shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connected, how)

    def close(self) -> None:
        self._connected.close()


class ControlServer:
    """Answers requests with what `handle` returns or raises.

    It listens from the beginning, and answers from `start` on. It stops when it is garbage
    collected.
    """

    def __init__(
        self, handle: Callable[[Request], Reply], host: str, port: int, security: Security
    ) -> None:
        security.check_exposure(host, port)
        listening = listen_tcp(host, port)
        self.port: int = listening.getsockname()[1]
        # Nothing here refers to `self`: a thread that did would keep a dropped server alive.
        self._admission = Admission(
            [listening],
            security,
            CONTROL,
            lambda connected, admitted: Caller(connected, admitted.key, threads),
            grace=timing.CONTROL_GRACE,
        )
        threads = CallerThreads(handle)
        self._end = Ending(self, _stop, self._admission, threads)

    def start(self) -> None:
        """Starts to answer."""
        self._admission.start()

    def stop(self) -> None:
        """Answers the requests that have arrived and closes the port; may be called again."""
        self._end()


def _stop(admission: Admission, threads: CallerThreads) -> None:
    admission.close()
    threads.close()
