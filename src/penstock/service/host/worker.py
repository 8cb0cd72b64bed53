"""`Worker`: a process's service to a dispatcher and its clients, from `start` to `stop`.

A worker registers, sends heartbeats, and computes what clients fetch from its data port, the only
port it has. Its threads share a `Running` and never refer to the `Worker`, so that a `Worker` which
was dropped is garbage-collected and stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from penstock.engine.context import Environment
from penstock.engine.endings import Ending
from penstock.errors import FailedPreconditionError, OpError
from penstock.service.host import fork_server, plan_process_main
from penstock.service.host.chunk_memory import host_id
from penstock.service.host.configs import WorkerConfig, check_worker, seconds
from penstock.service.host.connect import connect
from penstock.service.host.control_client import ControlClient
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_server import FetchGate, serve
from penstock.service.host.fork_server import Nursery
from penstock.service.host.lifecycle import Lifecycle
from penstock.service.host.listener import DataListener
from penstock.service.host.plan_cache import Decode, DecodedPlans, decoder
from penstock.service.host.plan_processes import PlanProcesses
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.security import Security
from penstock.service.host.session import Session, greeting, python_version
from penstock.service.host.sockets import join_address, split_address
from penstock.service.host.tasks import Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    PROTOCOL,
    HelloReply,
    LeaveWorker,
    RegisterWorker,
    WorkerHeartbeat,
    WorkerHeartbeatReply,
    WorkerInfo,
)
from penstock.version import VERSION

_LOG = logging.getLogger("penstock.service")


class Worker(Lifecycle):
    """A worker; `environment` makes the environment that plans run in."""

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
        self._decode = decoder(config.functions, tuple(config.modules))
        self._running: Running | None = None
        self._nursery: Nursery | None = None

    def isolate(self) -> None:
        """Has every plan run in a process of its own, so that a crash costs no more than that one.

        This forks, so it must come before `start`, in the main thread of a process that has no
        other threads yet. Where the system lacks what is needed, plans run in this process.
        """
        if fork_server.AVAILABLE:
            make_tasks = partial(_make_tasks, self._control(), *self._world())
            self._nursery = Nursery(partial(plan_process_main.run, make_tasks))

    def _begin(self) -> None:
        """Registers and serves; UnavailableError if the dispatcher does not answer in time."""
        running = Running(
            self._stopped, seconds(self._config.heartbeat_interval_ms, timing.WORKER_HEARTBEAT)
        )
        try:
            self._open(running)
            self._agree(running)
            running.register()
        except BaseException:
            running.stop(leave=False)
            raise
        running.beat_on()
        self._running = running
        # At the program's end, what is left ends with the process.
        self._ending = Ending(self, running.stop, atexit=False)

    def _agree(self, running: Running) -> None:
        """A dispatcher that takes no pickles must not have workers that would run them."""
        welcome = running.control.call(greeting())
        assert isinstance(welcome, HelloReply)
        if welcome.functions == "by_reference" and self._config.functions != "by_reference":
            raise FailedPreconditionError(
                f"worker: dispatcher {self._dispatcher} sends functions by reference only; start "
                'the worker with functions="by_reference" and the modules that it may run'
            )

    def _open(self, running: Running) -> None:
        control = running.control = self._control()
        processes = None
        if self._nursery is not None:
            processes = running.tasks = PlanProcesses(self._nursery, running.hurry, running.fail)
        listener = running.listener = DataListener(
            running.serve,
            self._security,
            self._config.host,
            self._config.port,
            client_host=processes,
        )
        running.info = self._info(listener.transfers)
        if processes is None:
            running.tasks = _make_tasks(control, *self._world(), running.info.address)
        else:
            processes.begin(running.info.address)
        listener.start()

    def _control(self) -> ControlClient:
        timeout = seconds(self._config.dispatcher_timeout_ms, timing.DISPATCHER_TIMEOUT)
        return ControlClient(self._dispatcher, self._security, timeout)

    def _world(self) -> tuple[Security, Decode, Callable[[], Environment]]:
        """What plans are decoded and run with."""
        return self._security, self._decode, self._environment

    def _info(self, transfers: dict[str, str]) -> WorkerInfo:
        config, port = self._config, str(split_address(transfers["tcp"])[1])
        address = (config.worker_address or _reached_by(config.host)).replace("%port%", port)
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
        return WorkerInfo(name, address, host_id(), offered, tuple(config.worker_tags or ()))

    @property
    def address(self) -> str:
        """Under which clients reach it."""
        return self._started("address").info.address

    @property
    def port(self) -> int:
        """Where it hands out data."""
        return split_address(self._started("port").listener.transfers["tcp"])[1]

    @property
    def failed(self) -> bool:
        """Whether it stopped because it could not go on."""
        return self._running is not None and self._running.failed

    def tasks(self) -> int:
        """How many streams it holds."""
        return len(self._started("tasks").tasks)

    def _end(self) -> None:
        if self._running is None:
            self._stopped.set()
        else:
            self._ending()

    def drain(self, timeout: float | None = None) -> None:
        """Answers the fetches that it has, for at most `timeout` seconds, and stops."""
        if self._running is not None:
            self._running.drain(timeout)
        self.stop()

    def _started(self, call: str) -> Running:
        if self._running is None:
            raise FailedPreconditionError(
                f"WorkerServer.{call}: it does not run; call start() first"
            )
        return self._running


def _make_tasks(
    control: ControlClient,
    security: Security,
    decode: Decode,
    environment: Callable[[], Environment],
    address: str,
) -> Tasks:
    """What runs plans for the worker at `address`, here or in a process of its own."""
    home = Session(control.address, security, control.call)
    plans = DecodedPlans(control.call, decode, address)
    return Tasks(plans.get, partial(_at_home, environment, home), address)


def _at_home(environment: Callable[[], Environment], home: Session) -> Environment:
    """The world of a plan on a worker: what it reads of the service, it reads of this one."""
    return replace(environment(), connect=partial(connect, home=home))


def _reached_by(host: str) -> str:
    """The address under which clients reach a worker that listens on `host`."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"[{host}]:%port%" if ":" in host else f"{host}:%port%"


class Running:
    """A worker at work. Who makes it sets what it works with, one after the other."""

    control: ControlClient
    listener: DataListener
    tasks: Tasks | PlanProcesses
    info: WorkerInfo

    def __init__(
        self, stopped: threading.Event, interval: float, runtime: Runtime = MACHINE
    ) -> None:
        self._runtime = runtime
        self._stopped = stopped
        """Tells those who wait for the end."""
        self._ending = runtime.event()
        self._interval = interval
        self._gate = FetchGate(runtime)
        self._hurry = runtime.event()
        self.failed = False
        """Whether it was stopped by `fail`."""

    def serve(self, connection: Connection) -> None:
        assert isinstance(self.tasks, Tasks)
        serve(connection, self.tasks, self._gate)

    def register(self, timeout: float | None = None) -> None:
        request = RegisterWorker(self.info, PROTOCOL, python_version(), VERSION, os.getpid())
        self.control.call(request, timeout)

    def hurry(self) -> None:
        """Has the next heartbeat come at once: there is news."""
        self._hurry.set()

    def fail(self) -> None:
        """Stops, because it cannot go on."""
        self.failed = True
        self.stop()

    def beat_on(self) -> None:
        self._runtime.start(self._beat, "penstock-beat")

    def _beat(self) -> None:
        while not self._ending.is_set():
            self._hurry.wait(self._interval)
            self._hurry.clear()
            try:
                if not self._ending.is_set():
                    self._say()
            except OpError:
                pass  # A dispatcher that is away comes back, or somebody stops the worker.
            except Exception:
                _LOG.exception("worker %s: a heartbeat failed; it goes on", self.info.address)

    def _say(self) -> None:
        beat = WorkerHeartbeat(
            self.info.worker, self.tasks.statuses(), self._gate.draining, self.tasks.restarts
        )
        beaten = self.control.call(beat, timing.WORKER_HEARTBEAT_CALL)
        assert isinstance(beaten, WorkerHeartbeatReply)
        if not beaten.known:
            self.register(timing.WORKER_HEARTBEAT_CALL)
        self.tasks.tidy(beaten.jobs)

    def drain(self, timeout: float | None) -> None:
        self._gate.close()
        self._hurry.set()
        if isinstance(self.tasks, PlanProcesses):
            self.tasks.drain(timeout)
        else:
            self._gate.wait(timeout)

    def stop(self, leave: bool = True) -> None:
        """Ends everything; what does not end by itself is left to its threads."""
        self._ending.set()
        self._hurry.set()
        if leave:
            with contextlib.suppress(OpError):
                self.control.call(LeaveWorker(self.info.worker), timing.WORKER_LEAVE)
        if hasattr(self, "control"):
            self.control.close()
        closing = self._runtime.start(self._close, "penstock-close")
        closing.join(timing.WORKER_CLOSE)
        self._stopped.set()

    def _close(self) -> None:
        """A stream cannot be closed before the function that it has called returns."""
        if hasattr(self, "listener"):
            self.listener.close()
        if hasattr(self, "tasks"):
            self.tasks.close()
