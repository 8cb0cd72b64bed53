"""The dispatcher as a server: answers requests on control connections as the logic decides.

Requests of one connection are answered one after the other. At most a few large messages, such as
plans, are in memory at the same time. With a `work_dir` the dispatcher can be killed at any time
and restarted; clients and workers then continue.
"""

from __future__ import annotations

import logging
import os
import platform
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from penstock.engine.endings import Ending
from penstock.engine.formats.files import translate_errors
from penstock.errors import (
    FailedPreconditionError,
    OpError,
    UnavailableError,
)
from penstock.service.host.array_store import ArrayStore
from penstock.service.host.authentication import CONTROL, Admission
from penstock.service.host.control_connection import (
    ControlConnection,
    decode_request,
    encode,
    error_to_reply,
)
from penstock.service.host.journal import Ledger
from penstock.service.host.plan_store import PlanStore
from penstock.service.host.security import Security, check_folder
from penstock.service.host.server_setup import (
    DispatcherConfig,
    Lifecycle,
    check_dispatcher,
    seconds,
)
from penstock.service.host.sockets import join_address, listen_tcp, shut
from penstock.service.logic.state import Settings
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    PROTOCOL,
    GetArray,
    GetArrayReply,
    GetPlan,
    GetPlanReply,
    Hello,
    HelloReply,
    PutArray,
    PutArrayReply,
    PutPlan,
    PutPlanReply,
    RegisterDataset,
    Reply,
    Request,
)
from penstock.version import VERSION

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
            if isinstance(request, GetPlan | GetArray):
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
        shut(self._connected, socket.SHUT_RD)

    def abort(self) -> None:
        shut(self._connected)

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
        self._end = Ending(self, _stop_threads, self._admission, threads)

    def start(self) -> None:
        """Starts to answer."""
        self._admission.start()

    def stop(self) -> None:
        """Answers the requests that have arrived and closes the port; may be called again."""
        self._end()


def _stop_threads(admission: Admission, threads: CallerThreads) -> None:
    admission.close()
    threads.close()


_PYTHON = ".".join(platform.python_version_tuple()[:2])


class Dispatcher(Lifecycle):
    """A dispatcher; it stops when it is garbage-collected."""

    public_name = "DispatchServer"

    def __init__(self, config: DispatcherConfig) -> None:
        check_dispatcher(config)
        self.security = Security.of_server(
            config.host, config.port, token=config.token, certificates=config.certificates
        )
        self._handler = handler = _RequestHandler(
            _settings(config), config.work_dir, config.functions
        )
        super().__init__(handler.closed)
        try:
            self._server = ControlServer(handler.handle, config.host, config.port, self.security)
        except BaseException:
            handler.close()
            raise
        self.port, self._host = self._server.port, config.host
        # Neither the server nor the thread refers to this object, so that it can be collected.
        interval = min(seconds(config.job_gc_check_interval_ms, timing.TICK), timing.TICK)
        self._ticking = threading.Thread(
            target=handler.run, args=(interval,), name="penstock-dispatcher", daemon=True
        )
        self._ending = Ending(self, _stop, self._server, handler)

    @property
    def address(self) -> str:
        """`host:port`, for clients and workers."""
        anywhere = self._host in ("", "0.0.0.0", "::")
        return join_address(platform.node() if anywhere else self._host, self.port)

    def _begin(self) -> None:
        self._ticking.start()
        self._server.start()

    def _end(self) -> None:
        self._ending()
        if self._ticking.is_alive():
            self._ticking.join(timing.DISPATCHER_CLOSE)

    def handle(self, request: Request) -> Reply:
        """Answers a request of this process, or raises an error."""
        return self._handler.handle(request)

    def status(self) -> dict[str, Any]:
        """Datasets, jobs, workers and clients, as plain data."""
        return self._handler.ledger.status()


def _settings(config: DispatcherConfig) -> Settings:
    return Settings(
        dispatcher=uuid.uuid4().hex,
        python=_PYTHON,
        version=VERSION,
        worker_addresses=tuple(config.worker_addresses or ()),
        worker_timeout=seconds(config.worker_timeout_ms, Settings.worker_timeout),
        job_gc_timeout=seconds(config.job_gc_timeout_ms, 0) or None,
        forget_after=seconds(config.forget_after_ms, Settings.forget_after),
    )


def _stop(server: ControlServer, handler: _RequestHandler) -> None:
    server.stop()
    handler.close()


class _RequestHandler:
    """Handles requests with the ledger and the plan store, which are in one folder."""

    def __init__(self, settings: Settings, work_dir: str | None, functions: str) -> None:
        self.closed = threading.Event()
        self._functions = functions
        folder = os.path.abspath(os.path.expanduser(work_dir)) if work_dir else None
        if folder is not None:
            with translate_errors(folder, "dispatcher: work_dir"):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            check_folder(folder, "dispatcher: work_dir")
        # The journal first: its lock protects the whole folder.
        self.ledger = Ledger(settings, folder and os.path.join(folder, "journal.sqlite"))
        try:
            self._plans = PlanStore(folder and os.path.join(folder, "plans"))
            arrays = folder and os.path.join(folder, "arrays")
            self._arrays = ArrayStore(self._plans.has_array, folder=arrays)
            self._unregistered = self._plans.find_unknown(self.ledger.has_plan)
            """Plans that clients had sent but not registered when the dispatcher stopped."""
            self._started = time.monotonic()
        except BaseException:
            self.ledger.close()
            raise

    def handle(self, request: Request) -> Reply:
        match request:
            case Hello(protocol, python, version):
                _check_peer(protocol, python, version)
                return HelloReply(self.ledger.name, self._functions)
            case PutPlan(digest, offset, total, data):
                return PutPlanReply(self._plans.put(digest, offset, total, data))
            case GetPlan(digest, offset):
                return GetPlanReply(*self._plans.get(digest, offset))
            case PutArray(array, total, offset, data, everything):
                return PutArrayReply(self._arrays.put(array, total, offset, data, everything))
            case GetArray(array, offset):
                return GetArrayReply(self._arrays.get(array, offset))
            case RegisterDataset(digest):
                self._check_plan(digest)
                answer = self.ledger.answer(request)
                # Again: before the dataset was registered, `_forget_plans` may have removed it.
                self._check_plan(digest)
                return answer
        return self.ledger.answer(request)

    def _check_plan(self, digest: str) -> None:
        if digest not in self._plans:
            raise FailedPreconditionError(
                f"RegisterDataset: plan {digest[:12]!r} has not arrived; send it first"
            )

    def _forget_plans(self) -> None:
        unused = self.ledger.take_orphans()
        if self._unregistered and time.monotonic() - self._started > timing.UNREAD_DATASET:
            unused, self._unregistered = unused + self._unregistered, []
        for digest in unused:
            if not self.ledger.has_plan(digest):
                self._plans.forget(digest)
        self._arrays.tidy()

    def run(self, interval: float) -> None:
        """Applies what has expired, every `interval` seconds, until `close` is called."""
        while not self.closed.wait(interval):
            try:
                self.ledger.tick()
                self._forget_plans()
            except Exception:
                _LOG.exception("dispatcher: could not apply what has expired; tries again")

    def close(self) -> None:
        self.closed.set()
        self.ledger.close()
        self._plans.close()
        self._arrays.close()


def _check_peer(protocol: int, python: str, version: str) -> None:
    for what, theirs, ours in (
        ("penstock", version, VERSION),
        ("the protocol of penstock", str(protocol), str(PROTOCOL)),
        ("Python", python, _PYTHON),
    ):
        if theirs != ours:
            raise FailedPreconditionError(
                f"the dispatcher runs {what} {ours}, and this process {theirs}; use the same "
                "version for the dispatcher, its workers and its clients"
            )
