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


Handle = Callable[[Request], Reply]


_TURNS = 8
"""Large messages that a server has in memory at the same time."""

_SPARE = 8
"""Threads that wait for requests at most; more end when they have answered."""

_WATCHES = hasattr(select, "epoll")
"""Whether threads can wait for all connections together; else each connection has a thread."""

_NEXT = select.EPOLLIN | select.EPOLLONESHOT if _WATCHES else 0


class CallerThreads:
    """What the connections of one server share: who answers, whose turn it is, and threads.

    A connection that says nothing costs no thread. Threads wait for all connections together; the
    one that waited shortest, which is the fastest, gets the next request. Whoever takes one sees to
    it that another thread waits, so a request that takes long keeps nobody from being answered.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.turns = threading.BoundedSemaphore(_TURNS)
        if _WATCHES:
            self._watch = select.epoll()
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            self._watch.register(self._stop, select.EPOLLIN)
        self._lock = threading.Lock()  # Guards what follows.
        self._callers: dict[int, Caller] = {}
        self._waiting = self._threads = 0
        self._closed = False

    def add(self, caller: Caller) -> bool:
        """Answers the requests of a connection from now on; False once it is closed."""
        with self._lock:
            if self._closed:
                return False
            self._callers[caller.fileno()] = caller
            self._watch.register(caller.fileno(), _NEXT)
        if not self._waiting:
            self._start_thread()
        return True

    def close(self) -> None:
        """Lets the threads end, when they have done what they do."""
        if not _WATCHES:
            return
        with self._lock:
            self._closed = True
            if not self._threads:
                self._give_back()
                return
        os.eventfd_write(self._stop, 1)

    def _give_back(self) -> None:
        self._watch.close()
        os.close(self._stop)

    def _start_thread(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._run, name="penstock-control", daemon=True).start()
        except RuntimeError:  # Too many threads: one of those there are comes back some time.
            with self._lock:
                self._threads -= 1

    def _run(self) -> None:
        while (caller := self._next()) is not None:
            if caller.answer():
                self._watch.modify(caller.fileno(), _NEXT)
            else:
                with self._lock:
                    del self._callers[caller.fileno()]
                caller.leave()
        with self._lock:
            self._threads -= 1
            if self._closed and not self._threads:
                self._give_back()

    def _next(self) -> Caller | None:
        """A connection on which there is something to read; None to end this thread."""
        with self._lock:
            if self._closed or self._waiting >= _SPARE:
                return None
            self._waiting += 1
        ((number, _),) = self._watch.poll(maxevents=1)
        with self._lock:
            self._waiting -= 1
            alone, caller = not self._waiting, self._callers.get(number)
        if alone and caller is not None:
            self._start_thread()
        return caller


class Caller:
    """A process that calls the dispatcher, as a guest (see `admission`)."""

    def __init__(self, connected: socket.socket, key: bytes, answering: CallerThreads) -> None:
        self._connected = connected
        self._envelopes = ControlConnection(connected, key, client=False)
        self._answering = answering
        self._has_turn = False

    def fileno(self) -> int:
        return self._connected.fileno()

    def serve(self, leave: Callable[[], None]) -> None:
        self.leave = leave
        if _WATCHES and self._answering.add(self):
            return
        poll = select.poll()
        poll.register(self._connected, select.POLLIN)
        while poll.poll() and self.answer():
            pass
        leave()

    def answer(self) -> bool:
        """Answers a request that has begun to arrive; False if there will be no other."""
        try:
            deadline = time.monotonic() + timing.CONTROL_MESSAGE
            data = self._envelopes.receive(deadline, self._take_turn)
            reply = self._reply(data)
            del data
            self._envelopes.send(reply, time.monotonic() + timing.CONTROL_MESSAGE)
            return True
        except OpError as error:
            _LOG.warning("dispatcher: a connection was cut: %s", error)
        except (EOFError, OSError):
            pass
        except Exception:
            _LOG.exception("dispatcher: a connection was cut")
        finally:
            if self._has_turn:
                self._has_turn = False
                self._answering.turns.release()
        return False

    def _reply(self, data: bytes | bytearray) -> bytes:
        try:
            request = decode_request(data)
            if isinstance(request, GetPlan):
                self._take_turn()
            return encode(self._answering.handle(request))
        except Exception as error:
            return encode(error_to_reply(error))

    def _take_turn(self) -> None:
        if not self._has_turn:
            if not self._answering.turns.acquire(timeout=timing.CONTROL_TURN):
                raise UnavailableError("too many large messages at the same time")
            self._has_turn = True

    def dismiss(self) -> None:
        # What has arrived can still be read, and the answer to it can still be sent.
        self._shut(socket.SHUT_RD)

    def abort(self) -> None:
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connected, how)

    def close(self) -> None:
        self._connected.close()


class ControlServer:
    """Answers requests with what `handle` returns or raises. It stops when nobody holds it.

    It has its port from the beginning, and answers from `start` on.
    """

    def __init__(
        self, handle: Callable[[Request], Reply], host: str, port: int, security: Security
    ) -> None:
        security.check_exposure(host, port)
        listening = listen_tcp(host, port)
        self.port: int = listening.getsockname()[1]
        # Nothing here knows `self`: the server's threads would keep it for ever.
        self._admission = Admission(
            [listening],
            security,
            CONTROL,
            lambda connected, admitted: Caller(connected, admitted.key, answering),
            grace=timing.CONTROL_GRACE,
        )
        answering = CallerThreads(handle)
        self._end = Ending(self, _stop, self._admission, answering)

    def start(self) -> None:
        """Begins to answer."""
        self._admission.start()

    def stop(self) -> None:
        """Finishes what it has in hand and gives the port back; twice is fine."""
        self._end()


def _stop(admission: Admission, answering: CallerThreads) -> None:
    admission.close()
    answering.close()
