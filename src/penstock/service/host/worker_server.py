"""`Worker`: registers at a dispatcher, sends heartbeats, and answers clients, from start to stop.

A worker computes what clients fetch from its data port, the only port it has. Its threads refer to
a `RunningWorker` and never to the `Worker`, so a `Worker` that the program dropped is
garbage-collected and stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from penstock.engine.context import Environment
from penstock.engine.endings import Ending
from penstock.engine.processes import fork_server
from penstock.engine.processes.chunk_memory import host_id
from penstock.engine.processes.fork_server import ForkServer
from penstock.errors import CancelledError, FailedPreconditionError, OpError
from penstock.service.host import telemetry as traces
from penstock.service.host.admission import DataListener
from penstock.service.host.connect import connect
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_server import FetchGate, serve
from penstock.service.host.http_pages import WORKER_METRICS, MetricsServer, Values
from penstock.service.host.plan_processes import PlanProcesses, run_process
from penstock.service.host.plan_store import Decode, PlanCache, make_decoder
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.security import Security
from penstock.service.host.server_setup import Lifecycle, WorkerConfig, check_worker, seconds
from penstock.service.host.services import Session, greeting, python_version
from penstock.service.host.sockets import join_address, on_error, reachable_host, split_address
from penstock.service.host.tasks import Tasks
from penstock.service.host.worker_streams import WorkerStopsError
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    HelloReply,
    LeaveWorker,
    RegisterWorker,
    Reply,
    Request,
    Work,
    WorkerHeartbeat,
    WorkerHeartbeatReply,
    WorkerInfo,
)
from penstock.version import VERSION

_LOG = logging.getLogger("penstock.service")


class Worker(Lifecycle):
    """A worker server; `environment` returns the environment that plans run in."""

    public_name = "WorkerServer"

    def __init__(self, config: WorkerConfig, environment: Callable[[], Environment]) -> None:
        check_worker(config)
        super().__init__(threading.Event())
        self._config = config
        address = config.dispatcher_address
        self._security = Security.of_client(address, config.token, config.certificates)
        self._security.check_exposure(config.host, config.port)
        self._security.warn_of_exposure(
            f"worker at {join_address(config.host, config.port)}", config.host
        )
        self._dispatcher = address.rpartition("://")[2]
        self._environment = environment
        self._decode = make_decoder(config.functions, tuple(config.modules))
        self._running: RunningWorker | None = None
        self._fork_server: ForkServer | None = None

    def isolate(self) -> None:
        """Runs every plan in a process of its own, so that a crash ends that process only.

        This forks, so call it before `start`, in the main thread of a process that has no other
        threads yet. Where the system cannot do this, plans run in this process.
        """
        traces.prepare()  # Before it forks: plan processes then find it loaded.
        if fork_server.AVAILABLE:
            make_tasks = partial(_make_tasks, self._control(), *self._decoding())
            self._fork_server = ForkServer.fork(partial(run_process, make_tasks))
        else:
            traces.set_up()

    def _begin(self) -> None:
        """Registers and serves; raises UnavailableError if the dispatcher does not answer."""
        running = RunningWorker(
            self._stopped, seconds(self._config.heartbeat_interval_ms, 0.0) or None
        )
        with on_error(partial(running.stop, leave=False)):
            self._open(running)
            self._open_metrics(running)
            self._check_functions(running)
            running.register()
        running.start_heartbeats()
        self._running = running
        # At the exit of the program the threads end with the process.
        self._ending = Ending(self, running.stop, atexit=False)

    def _check_functions(self, running: RunningWorker) -> None:
        """Raises if the dispatcher accepts no pickles and this worker would run them."""
        welcome = running.control.call(greeting())
        assert isinstance(welcome, HelloReply)
        if welcome.functions == "by_reference" and self._config.functions != "by_reference":
            raise FailedPreconditionError(
                f"worker: dispatcher {self._dispatcher} sends functions by reference only; start "
                'the worker with functions="by_reference" and the modules that it may run'
            )

    def _open(self, running: RunningWorker) -> None:
        control = running.control = self._control()
        processes = None
        if self._fork_server is not None:
            processes = running.tasks = PlanProcesses(
                self._fork_server, running.hurry, running.fail
            )
        listener = running.listener = DataListener(
            running.serve,
            self._security,
            self._config.host,
            self._config.port,
            client_host=processes,
        )
        running.info = self._info(listener.transfers)
        if processes is None:
            running.tasks = _make_tasks(control, *self._decoding(), running.info.address)
        else:
            processes.begin(running.info.address)
        listener.start()

    def _open_metrics(self, running: RunningWorker) -> None:
        """Before the worker registers: it is not ready while it waits for its dispatcher."""
        if self._config.metrics_port is not None:
            running.metrics = MetricsServer(
                self._config.host,
                self._config.metrics_port,
                self._security,
                metrics=WORKER_METRICS,
                read=running.measure,
                find_problem=running.find_problem,
            )
            running.metrics.start()

    @property
    def metrics_url(self) -> str | None:
        """Where /metrics is; None without a metrics port."""
        metrics = self._require_running("metrics_url").metrics
        return None if metrics is None else metrics.url()

    def _control(self) -> ControlClient:
        timeout = seconds(self._config.dispatcher_timeout_ms, timing.DISPATCHER_TIMEOUT)
        return ControlClient(self._dispatcher, self._security, timeout)

    def _decoding(self) -> tuple[Security, Decode, Callable[[], Environment]]:
        """Returns the arguments of `_make_tasks` that say how plans are decoded and run."""
        return self._security, self._decode, self._environment

    def _info(self, transfers: dict[str, str]) -> WorkerInfo:
        config, port = self._config, str(split_address(transfers["tcp"])[1])
        address = join_address(reachable_host(config.host), port)
        if config.worker_address:
            address = config.worker_address.replace("%port%", port)
        data = (config.data_transfer_address or "").replace("%port%", port)
        offered = {**transfers, "tcp": data.replace("%dts_port%", port) or address}
        if config.data_transfer_protocol in ("tcp", "shm"):  # "grpc" leaves the choice to clients.
            only = config.data_transfer_protocol
            offered = {name: at for name, at in offered.items() if name == only}
        if not offered:
            raise FailedPreconditionError(
                "WorkerServer: memory cannot be shared on this machine; "
                'use data_transfer_protocol="tcp"'
            )
        name = f"{address}/{uuid.uuid4().hex[:12]}"
        tags = tuple(config.worker_tags or ())
        return WorkerInfo(
            worker=name,
            address=address,
            host=host_id(),
            transfers=offered,
            tags=tags,
            version=VERSION,
        )

    @property
    def address(self) -> str:
        """The address under which clients reach the worker."""
        return self._require_running("address").info.address

    @property
    def port(self) -> int:
        """The data port."""
        return split_address(self._require_running("port").listener.transfers["tcp"])[1]

    @property
    def failed(self) -> bool:
        """Whether it stopped because it lost the process that forks plan processes."""
        return self._running is not None and self._running.failed

    def tasks(self) -> int:
        """Counts the streams that have readers, or the clients if plans run in processes."""
        return len(self._require_running("tasks").tasks)

    def _end(self) -> None:
        if self._running is None:
            self._stopped.set()
        else:
            self._ending()

    def drain(self, timeout: float | None = None) -> None:
        """Finishes the elements that it makes, for at most `timeout` seconds, and stops."""
        if self._running is not None:
            self._running.drain(timeout)
        self.stop()

    def _require_running(self, call: str) -> RunningWorker:
        if self._running is None:
            raise FailedPreconditionError(
                f"WorkerServer.{call}: it does not run; call start() first"
            )
        return self._running


def _call_dispatcher(
    control: ControlClient, request: Request, timeout: float | None = None
) -> Reply:
    """The reply of the dispatcher.

    A worker that stops closes its connections to the dispatcher while streams still run. No element
    has failed then: clients request their elements from other workers.
    """
    try:
        return control.call(request, timeout)
    except CancelledError:
        raise WorkerStopsError from None


def _make_tasks(
    control: ControlClient,
    security: Security,
    decode: Decode,
    environment: Callable[[], Environment],
    address: str,
) -> Tasks:
    """Returns what runs plans for the worker at `address`, in this process or a plan process."""
    call = partial(_call_dispatcher, control)
    home = Session(control.address, security, call)
    plans = PlanCache(call, decode, address)
    own_environment = partial(_environment_of_plans, environment, home)
    return Tasks(plans.get, own_environment, address, connect=partial(_connect_to, security))


def _connect_to(security: Security, info: WorkerInfo, work: Work) -> Connection:
    """A connection to the process of another worker that computes some work."""
    plan = bytes.fromhex(work.digest)
    return connect_data(info, security, None, own_host=host_id(), compression=None, plan=plan)


def _environment_of_plans(environment: Callable[[], Environment], home: Session) -> Environment:
    """The environment of a plan on a worker: it reads other datasets from the same service."""
    return replace(environment(), connect=partial(connect, home=home))


class RunningWorker:
    """What the threads of a worker share. `Worker` sets the four fields before it starts them."""

    control: ControlClient
    listener: DataListener
    tasks: Tasks | PlanProcesses
    info: WorkerInfo

    def __init__(
        self, stopped: threading.Event, interval: float | None = None, runtime: Runtime = MACHINE
    ) -> None:
        """`interval` is the time between two heartbeats; None: the dispatcher chooses it."""
        self._runtime = runtime
        self._stopped = stopped
        """Set at the end; wakes threads that wait for the worker to stop."""
        self._ending = runtime.event()
        self._fixed_interval = interval
        self._interval = interval or timing.WORKER_HEARTBEAT
        self._gate = FetchGate(runtime)
        self._hurry = runtime.event()
        """Set when the next heartbeat is due at once."""
        self.failed = False
        """Whether `fail` stopped the worker."""
        self.metrics: MetricsServer | None = None
        # Written by the thread that sends heartbeats, and read without a lock: a metric may be old.
        self._is_registered = False
        self._elements, self._seconds, self._kept = 0, 0.0, 0
        self._heartbeat_failures = 0

    def serve(self, connection: Connection) -> None:
        """Answers a client; returns when the connection has ended."""
        assert isinstance(self.tasks, Tasks)
        serve(connection, self.tasks, self._gate)

    def register(self, timeout: float | None = None) -> None:
        """Registers at the dispatcher; raises UnavailableError after `timeout` seconds."""
        request = RegisterWorker(self.info, python_version(), os.getpid())
        self.control.call(request, timeout)
        self._is_registered = True
        self._log("joined", "joined its dispatcher")

    def _log(self, event: str, what: str) -> None:
        address = self.info.address
        _LOG.info("worker %s: %s", address, what, extra={"event": event, "worker": address})

    def find_problem(self) -> str | None:
        """Why the worker cannot serve now; None if it can."""
        if self._ending.is_set() or self._gate.draining:
            return "the worker is about to stop"
        if not self._is_registered:
            return "the worker is not registered: its dispatcher does not answer"
        return None

    def measure(self) -> Values:
        """The values of the worker's metrics. Work is reported with each heartbeat."""
        sent = self.tasks.sent
        return {
            "penstock_worker_registered": int(self._is_registered),
            "penstock_worker_draining": int(self._gate.draining),
            "penstock_worker_connections": self.listener.count_guests(),
            "penstock_worker_plan_processes": self.tasks.count_processes(),
            "penstock_worker_plan_process_crashes_total": self.tasks.restarts,
            "penstock_worker_elements_made_total": self._elements,
            "penstock_worker_making_seconds_total": self._seconds,
            "penstock_worker_elements_sent_total": sent.elements,
            "penstock_worker_sent_bytes_total": sent.nbytes,
            "penstock_worker_element_failures_total": sent.failures,
            "penstock_worker_kept_bytes": self._kept,
            "penstock_worker_heartbeat_failures_total": self._heartbeat_failures,
            "penstock_worker_rejected_connections_total": self.listener.rejections,
        }

    def hurry(self) -> None:
        """Sends the next heartbeat at once, because a plan process crashed."""
        self._hurry.set()

    def fail(self) -> None:
        """Stops the worker, because it can run no more plans."""
        self.failed = True
        self.stop()

    def start_heartbeats(self) -> None:
        self._runtime.start(self._send_heartbeats, "penstock-heartbeat")

    def _send_heartbeats(self) -> None:
        while not self._ending.is_set():
            self._hurry.wait(self._interval)
            self._hurry.clear()
            try:
                if not self._ending.is_set():
                    self._send_heartbeat()
            except CancelledError:
                return  # The worker stops, or the program ends: no call will succeed any more.
            except OpError as error:
                # The dispatcher may come back: the worker retries until it is stopped.
                if self._is_registered and not self._ending.is_set():
                    _LOG.warning(
                        "worker %s: %s; it retries",
                        self.info.address,
                        error.message,
                        extra={"worker": self.info.address},
                    )
                self._note_failed_heartbeat()
            except Exception:
                self._note_failed_heartbeat()
                _LOG.exception("worker %s: a heartbeat failed; it retries", self.info.address)

    def _note_failed_heartbeat(self) -> None:
        self._is_registered = False
        self._heartbeat_failures += 1

    def _send_heartbeat(self) -> None:
        """Reports the work that was done; registers again at a dispatcher that was restarted."""
        jobs = self.tasks.statuses()
        self._elements += sum(job.elements for job in jobs)
        self._seconds += sum(job.seconds for job in jobs)
        self._kept = sum(job.buffered for job in jobs)
        heartbeat = WorkerHeartbeat(
            worker=self.info.worker,
            jobs=jobs,
            draining=self._gate.draining,
            restarts=self.tasks.restarts,
            failures=self.tasks.sent.failures,
        )
        reply = self.control.call(heartbeat, timing.WORKER_HEARTBEAT_CALL)
        assert isinstance(reply, WorkerHeartbeatReply)
        if not reply.known:
            self.register(timing.WORKER_HEARTBEAT_CALL)
        elif not self._is_registered:
            self._log("restored", "its dispatcher answers again")
        self._is_registered = True
        self._interval = self._fixed_interval or reply.heartbeat * timing.WORKER_HEARTBEAT
        self.tasks.tidy(reply.jobs)

    def drain(self, timeout: float | None) -> None:
        """Hands back all fetches, after the elements that are made; blocks for up to `timeout`."""
        self._gate.close(timeout)
        self._hurry.set()
        self._log("draining", "finishes the elements that it is making, and leaves")
        if isinstance(self.tasks, PlanProcesses):
            self.tasks.drain(timeout)
        else:
            self._gate.wait(timeout)

    def stop(self, leave: bool = True) -> None:
        """Stops everything. Streams that do not close soon are left to their threads."""
        self._ending.set()
        self._hurry.set()
        if leave:
            if not self.failed:
                self._log("stopped", "leaves")
            with contextlib.suppress(OpError):
                self.control.call(LeaveWorker(self.info.worker), timing.WORKER_LEAVE)
        if hasattr(self, "control"):
            self.control.close()
        closing = self._runtime.start(self._close, "penstock-close")
        closing.join(timing.WORKER_CLOSE)
        self._stopped.set()

    def _close(self) -> None:
        """Closes connections and streams; a stream closes after the function that it called."""
        if self.metrics is not None:
            self.metrics.close()
        if hasattr(self, "listener"):
            self.listener.close()
        if hasattr(self, "tasks"):
            self.tasks.close()
