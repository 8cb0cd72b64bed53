"""The server's side of control connections: reads requests and sends replies, with few threads.

Requests of one connection are answered one after the other. At most a few large messages, such as
plans, are in memory at the same time.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from penstock.engine.endings import Ending
from penstock.errors import OpError, UnavailableError
from penstock.service.host.admission import Admission
from penstock.service.host.control_connection import (
    ControlConnection,
    decode_request,
    encode,
    error_to_reply,
)
from penstock.service.host.security import CONTROL, Security
from penstock.service.host.sockets import listen_tcp, shut
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    GetArray,
    GetPlan,
    Lease,
    Reply,
    Request,
    WorkerHeartbeat,
)

_LOG = logging.getLogger("penstock.service")

Handler = Callable[[Request], Reply]


_TURNS = 8
"""How many large messages a server has in memory at the same time."""

_BRIEF = 4 << 10
"""Bytes of a reply that fit the buffer of a socket: its client has read all earlier replies."""

_MOST_WAITING = 4
"""How many threads wait for requests at most; a thread too many ends after its answer."""

_QUICK = Lease | ClientHeartbeat | WorkerHeartbeat
"""The requests of thousands of clients; no decision about them takes long."""

_HAS_EPOLL = hasattr(select, "epoll")
"""Whether a thread can wait for all connections at once; else each connection has a thread."""

_ONE_REQUEST = select.EPOLLIN | select.EPOLLONESHOT if _HAS_EPOLL else 0


class CallerThreads:
    """What the connections of one server share: the handler, turns for large messages, threads.

    An idle connection costs no thread. The threads wait in one epoll for all connections; the
    kernel wakes the thread that began to wait last, whose memory is still in the caches. Before a
    thread blocks, for a slow client or for the disk, it starts another one if none is waiting. So
    a slow request delays no other, and requests that only need the processor share one thread.

    `handle` decides about a request. Its reply may be sent once `settle`, called afterwards, has
    returned. One thread calls it for all replies that are ready; the other threads do not wait.
    """

    def __init__(self, handle: Handler, settle: Callable[[], None]) -> None:
        self.handle = handle
        self.turns = threading.BoundedSemaphore(_TURNS)
        if _HAS_EPOLL:
            self._epoll = select.epoll()
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll.register(self._stop, select.EPOLLIN)
        self._settle = settle
        self._lock = threading.Lock()
        self._callers: dict[int, Caller] = {}  #: guarded by _lock; by descriptor
        self._decided: list[Caller] = []  #: guarded by _lock; their replies wait for `settle`
        self._is_settling = False  #: guarded by _lock; whether a thread sends these replies
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
        self.prepare_to_block()
        return True

    def prepare_to_block(self) -> None:
        """Starts a thread if none waits for requests; called by a thread that may block."""
        if _HAS_EPOLL and not self._waiting:
            self._start_thread()

    def settle(self) -> Exception | None:
        """Waits until the replies so far may be sent; returns the error to send instead."""
        self.prepare_to_block()
        try:
            self._settle()
        except Exception as error:
            return error
        return None

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
            if not caller.decide():
                self._remove(caller)
            elif caller.is_brief:
                self._send_with_others(caller)
            else:
                self._send(caller, self.settle(), wait=True)
        with self._lock:
            self._threads -= 1
            if self._closed and not self._threads:
                self._close_descriptors()

    def _send_with_others(self, caller: Caller) -> None:
        """Leaves a reply to the thread that sends those that wait, or becomes that thread."""
        with self._lock:
            self._decided.append(caller)
            if self._is_settling:
                return
            self._is_settling = True
        while decided := self._take_decided():
            failure = self.settle()
            for each in decided:
                self._send(each, failure, wait=False)

    def _take_decided(self) -> list[Caller]:
        with self._lock:
            decided, self._decided = self._decided, []
            self._is_settling = bool(decided)
            return decided

    def _send(self, caller: Caller, failure: Exception | None, wait: bool) -> None:
        if caller.send(failure, wait):
            self._epoll.modify(caller.fileno(), _ONE_REQUEST)
        else:
            self._remove(caller)

    def _remove(self, caller: Caller) -> None:
        with self._lock:
            del self._callers[caller.fileno()]
        caller.leave()

    def _next(self) -> Caller | None:
        """The next connection with a request; None to end this thread."""
        with self._lock:
            if self._closed or self._waiting >= _MOST_WAITING:
                return None
            self._waiting += 1
        ((number, _),) = self._epoll.poll(maxevents=1)
        with self._lock:
            self._waiting -= 1
            return self._callers.get(number)


class Caller:
    """A connection of a client or worker to the dispatcher; a guest of an `Admission`."""

    def __init__(self, connected: socket.socket, key: bytes, threads: CallerThreads) -> None:
        self._connected = connected
        self._connection = ControlConnection(connected, key, client=False)
        self._threads = threads
        self._has_turn = False
        self._reply = b""

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

    @property
    def is_brief(self) -> bool:
        """Whether the reply fits the socket's buffer, so that sending it does not block."""
        return len(self._reply) <= _BRIEF and not self._has_turn

    def answer(self) -> bool:
        """Answers the request that is arriving; returns False if the connection has ended."""
        return self.decide() and self.send(self._threads.settle(), wait=True)

    def decide(self) -> bool:
        """Reads the request that is arriving and makes the reply; returns False at the end."""
        return self._attempt(self._read_and_decide)

    def _read_and_decide(self) -> None:
        deadline, threads = time.monotonic() + timing.CONTROL_MESSAGE, self._threads
        data = self._connection.receive(deadline, self._take_turn, threads.prepare_to_block)
        self._reply = self._make_reply(data)

    def send(self, failure: Exception | None, wait: bool) -> bool:
        """Sends the reply, or an error instead; returns False if the connection has ended.

        Without `wait` it blocks for no client: the connection of one that does not read its
        replies is closed.
        """
        reply, self._reply = self._reply, b""
        if failure is not None:
            reply = encode(error_to_reply(failure))
        deadline = time.monotonic() + timing.CONTROL_MESSAGE if wait else None
        is_sent = self._attempt(lambda: self._connection.send(reply, deadline))
        self._give_turn_back()
        return is_sent

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Runs a step of answering a request; returns False if the connection has ended."""
        try:
            step()
            return True
        except OpError as error:
            _LOG.warning("dispatcher: closed a connection: %s", error)
        except (EOFError, OSError):
            pass
        except Exception:
            _LOG.exception("dispatcher: closed a connection after an unexpected error")
        self._give_turn_back()
        return False

    def _make_reply(self, data: bytes | bytearray) -> bytes:
        try:
            request = decode_request(data)
            if not isinstance(request, _QUICK):
                self._threads.prepare_to_block()
            if isinstance(request, GetPlan | GetArray):
                self._take_turn()
            return encode(self._threads.handle(request))
        except Exception as error:
            return encode(error_to_reply(error))

    def _take_turn(self) -> None:
        if not self._has_turn:
            self._threads.prepare_to_block()
            if not self._threads.turns.acquire(timeout=timing.CONTROL_TURN):
                raise UnavailableError("too many large messages at the same time")
            self._has_turn = True

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._threads.turns.release()

    def dismiss(self) -> None:
        # A request that has arrived is still read and answered.
        shut(self._connected, socket.SHUT_RD)

    def abort(self) -> None:
        shut(self._connected)

    def close(self) -> None:
        self._connected.close()


class ControlServer:
    """Answers requests with what `handle` returns or raises, once `settle` has returned.

    It listens from the beginning, and answers from `start` on. It stops when it is garbage
    collected.
    """

    def __init__(
        self,
        handle: Handler,
        host: str,
        port: int,
        security: Security,
        settle: Callable[[], None] = lambda: None,
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
        threads = CallerThreads(handle, settle)
        self._end = Ending(self, _stop_threads, self._admission, threads)

    def start(self) -> None:
        """Starts to answer."""
        self._admission.start()

    @property
    def rejections(self) -> int:
        """How many connections ended before the token was proved."""
        return self._admission.rejections

    def stop(self) -> None:
        """Answers the requests that have arrived and closes the port; may be called again."""
        self._end()


def _stop_threads(admission: Admission, threads: CallerThreads) -> None:
    admission.close()
    threads.close()
