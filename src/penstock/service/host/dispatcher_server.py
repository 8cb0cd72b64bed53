"""The dispatcher as a server: answers requests on control connections as the logic decides.

With a `work_dir` it can be killed at any time and restarted, or a standby takes over; clients and
workers then continue.
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
from functools import partial
from typing import Any

from penstock.engine.endings import Ending
from penstock.engine.formats.files import translate_errors
from penstock.errors import FailedPreconditionError, OpError, UnavailableError
from penstock.service.host.admission import Admission
from penstock.service.host.control_connection import (
    ControlConnection,
    decode_request,
    encode,
    error_to_reply,
)
from penstock.service.host.holds import Hold, acquire, find_journal, remove_other_journals
from penstock.service.host.http_pages import (
    DISPATCHER_METRICS,
    Dashboard,
    MetricsServer,
    RequestCounts,
    Values,
    dispatcher_values,
)
from penstock.service.host.journal import Ledger
from penstock.service.host.plan_store import ArrayStore, PlanStore
from penstock.service.host.security import CONTROL, Security, check_folder
from penstock.service.host.server_setup import (
    DispatcherConfig,
    Lifecycle,
    check_dispatcher,
    seconds,
)
from penstock.service.host.sockets import (
    join_address,
    listen_tcp,
    on_error,
    reachable_host,
    shut,
)
from penstock.service.logic.state import Settings
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    GetArray,
    GetArrayReply,
    GetPlan,
    GetPlanReply,
    Hello,
    HelloReply,
    Lease,
    PutArray,
    PutArrayReply,
    PutPlan,
    PutPlanReply,
    RegisterDataset,
    Reply,
    Request,
    WorkerHeartbeat,
)

_LOG = logging.getLogger("penstock.service")

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
            _settings(config), config.work_dir, config.functions, standby=config.standby
        )
        super().__init__(handler.closed)
        self._metrics: MetricsServer | None = None
        self._dashboard: Dashboard | None = None
        self._http_servers: list[MetricsServer | Dashboard] = []
        with on_error(handler.close):
            self._server = ControlServer(
                handler.decide, config.host, config.port, self.security, handler.settle
            )
        stop = partial(_stop, self._server, handler, self._http_servers)
        with on_error(stop):
            self._make_http_servers(config)
        self.port, self._host = self._server.port, config.host
        # Neither the server nor the thread refers to this object, so that it can be collected.
        interval = min(seconds(config.job_gc_check_interval_ms, timing.TICK), timing.TICK)
        self._ticking = threading.Thread(
            target=handler.run, args=(interval,), name="penstock-dispatcher", daemon=True
        )
        self._ending = Ending(self, stop)
        handler.on_loss(stop)

    def _make_http_servers(self, config: DispatcherConfig) -> None:
        handler, server = self._handler, self._server
        if config.metrics_port is not None:
            self._metrics = MetricsServer(
                config.host,
                config.metrics_port,
                self.security,
                metrics=DISPATCHER_METRICS,
                read=lambda: handler.measure(server.rejections),
                find_problem=handler.find_problem,
            )
            self._http_servers.append(self._metrics)
        if config.dashboard_port is not None:
            self._dashboard = Dashboard(
                config.dashboard_host, config.dashboard_port, self.security, handler.ledger.status
            )
            self._http_servers.append(self._dashboard)

    def measure(self) -> Values:
        """The values of its metrics."""
        return self._handler.measure(self._server.rejections)

    @property
    def failed(self) -> bool:
        """Whether it stopped because another dispatcher has its `work_dir`."""
        return bool(self._handler.loss)

    @property
    def metrics_url(self) -> str | None:
        """Where /metrics is; None without a metrics port."""
        return None if self._metrics is None else self._metrics.url()

    def make_dashboard_link(self) -> str | None:
        """A new link to the dashboard, which is valid once; None without a dashboard port."""
        return None if self._dashboard is None else self._dashboard.link()

    @property
    def address(self) -> str:
        """`host:port`, for clients and workers."""
        return join_address(reachable_host(self._host), self.port)

    def _begin(self) -> None:
        self._ticking.start()
        self._server.start()
        for each in self._http_servers:
            each.start()
        _LOG.info("dispatcher: started at %s", self.address, extra={"event": "started"})

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
        worker_addresses=tuple(config.worker_addresses or ()),
        worker_timeout=seconds(config.worker_timeout_ms, Settings.worker_timeout),
        job_gc_timeout=max(seconds(config.job_gc_timeout_ms, 0), 0) or None,
        forget_after=seconds(config.forget_after_ms, Settings.forget_after),
    )


def _stop(
    server: ControlServer, handler: _RequestHandler, http_servers: list[MetricsServer | Dashboard]
) -> None:
    server.stop()
    handler.close()
    for each in http_servers:
        each.close()


class _RequestHandler:
    """Handles requests with the ledger and the plan store, which are in one folder."""

    def __init__(
        self, settings: Settings, work_dir: str | None, functions: str, *, standby: bool
    ) -> None:
        self.closed = threading.Event()
        self._functions = functions
        self._counts = RequestCounts()
        folder = os.path.abspath(os.path.expanduser(work_dir)) if work_dir else None
        self._hold: Hold | None = None
        if folder is not None:
            with translate_errors(folder, "dispatcher: work_dir"):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            check_folder(folder, "dispatcher: work_dir")
            # The hold first: it protects the whole folder.
            with translate_errors(folder, "dispatcher: work_dir"):
                self._hold = acquire(folder, standby)
        with on_error(self._release):
            self.ledger = self._open_ledger(settings, folder)
        with on_error(self._release), on_error(self.ledger.close):
            self._plans = PlanStore(folder and os.path.join(folder, "plans"))
            arrays = folder and os.path.join(folder, "arrays")
            self._arrays = ArrayStore(self._plans.has_array, folder=arrays)
            self._unregistered = self._plans.find_unknown(self.ledger.has_plan)
            """Plans that clients had sent but not registered when the dispatcher stopped."""
            self._started = time.monotonic()

    def _open_ledger(self, settings: Settings, folder: str | None) -> Ledger:
        if folder is None or self._hold is None:
            return Ledger(settings, None)
        path = find_journal(folder, self._hold)
        ledger = Ledger(settings, path)
        remove_other_journals(path)
        return ledger

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def _check_hold(self) -> None:
        if self._hold is not None:
            self._hold.check()

    @property
    def loss(self) -> str:
        """Why another dispatcher has the folder; empty if this one has it."""
        return "" if self._hold is None else self._hold.loss

    def on_loss(self, stop: Callable[[], None]) -> None:
        """Sets what is called when another dispatcher has taken the folder."""
        if self._hold is not None:
            self._hold.on_loss = stop
            if self.loss:
                stop()

    def find_problem(self) -> str | None:
        """Why no request can be answered now; None if requests are answered."""
        return self.loss or self.ledger.find_problem()

    def handle(self, request: Request) -> Reply:
        """Answers a request; returns once the facts that the reply rests on are on disk."""
        reply = self.decide(request)
        self.settle()
        return reply

    def settle(self) -> None:
        """Waits until the facts of all requests that were decided are on disk.

        Raises UnavailableError if another dispatcher may have read the journal before: then it
        does not know them, and their replies must not be sent.
        """
        self.ledger.sync()
        self._check_hold()

    def decide(self, request: Request) -> Reply:
        """The reply to a request, for which `settle` must be called before it is sent."""
        self._counts.count(request)
        try:
            self._check_hold()
            return self._decide(request)
        except Exception:
            self._counts.count(request, has_failed=True)
            raise

    def measure(self, rejections: int) -> Values:
        """The values of the dispatcher's metrics."""
        return {
            **dispatcher_values(*self.ledger.measure()),
            **self._counts.values(),
            "penstock_rejected_connections_total": rejections,
        }

    def _decide(self, request: Request) -> Reply:
        match request:
            case Hello(python):
                _check_python(python)
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
                answer = self.ledger.decide(request)
                # Again: before the dataset was registered, `_forget_plans` may have removed it.
                self._check_plan(digest)
                return answer
        return self.ledger.decide(request)

    def _check_plan(self, digest: str) -> None:
        if digest not in self._plans:
            raise FailedPreconditionError(
                f"RegisterDataset: plan {digest[:12]!r} has not arrived; send it first"
            )

    def _forget_plans(self) -> None:
        unused = self.ledger.take_orphans()
        if self._unregistered and time.monotonic() - self._started > timing.UNREAD_DATASET:
            unused, self._unregistered = unused + self._unregistered, []
        self._check_hold()
        for digest in unused:
            if not self.ledger.has_plan(digest):
                self._plans.forget(digest)
        self._arrays.tidy()

    def run(self, interval: float) -> None:
        """Applies what has expired, every `interval` seconds, until `close` is called."""
        while not self.closed.wait(interval):
            try:
                self.ledger.tick()
                self.ledger.log_incidents()
                self._forget_plans()
            except UnavailableError:
                pass  # The disk, or another dispatcher: requests are answered with the reason.
            except Exception:
                _LOG.exception("dispatcher: could not apply what has expired; tries again")

    def close(self) -> None:
        was_closed = self.closed.is_set()
        self.closed.set()
        self.ledger.close()
        if not was_closed:
            self.ledger.log_incidents()
            _LOG.info("dispatcher: stopped", extra={"event": "stopped"})
        self._plans.close()
        self._arrays.close()
        self._release()


def _check_python(python: str) -> None:
    if python != _PYTHON:
        raise FailedPreconditionError(
            f"the dispatcher runs Python {_PYTHON}, and this process {python}; functions travel as "
            "bytecode: use the same version for the dispatcher, its workers and its clients"
        )


# The server's side of control connections: reads requests and sends replies, with few threads
#
# Requests of one connection are answered one after the other. At most a few large messages, such as
# plans, are in memory at the same time.

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
        """Starts a thread if none waits for requests; called by a thread that may block.

        It reads `_waiting` without the lock: a stale number costs a thread too many, or a request
        waits until another thread is free or about to block.
        """
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
        """Leaves a reply to the thread that sends replies, or becomes that thread."""
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

        Without `wait` it never blocks: it closes the connection of a client that does not read
        its replies.
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
