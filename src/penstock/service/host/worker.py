"""`Worker`: a process's service to a dispatcher and its clients, from `start` to `stop`.

It registers, says regularly that it lives, and makes what clients fetch from its data port, the
only port it has. Nothing that runs in its threads knows the `Worker` itself, so one that is
dropped stops.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from penstock.engine.context import Environment
from penstock.engine.endings import Ending
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.service.host import nursery, plan_process
from penstock.service.host.connect import connect
from penstock.service.host.connections import here
from penstock.service.host.control import ControlClient
from penstock.service.host.decoding import Decode, DecodedPlans, decoder
from penstock.service.host.listener import DataListener
from penstock.service.host.nursery import Nursery
from penstock.service.host.ports import joined
from penstock.service.host.processes import PlanProcesses
from penstock.service.host.running import Running
from penstock.service.host.security import Security, split_address
from penstock.service.host.session import Session, greeting
from penstock.service.host.tasks import Tasks
from penstock.service.protocol.messages import Welcome, WorkerInfo

HEARTBEAT = 1.0
DISPATCHER_TIMEOUT = 30.0

FUNCTIONS = ("by_value", "by_reference")
TRANSFERS = (None, "tcp", "shm")


class Worker:
    """A worker of the dispatcher at `dispatcher_address`.

    Args:
        dispatcher_address: `host:port` of the dispatcher.
        environment: Gives the world that plans run in.
        worker_address: Under which clients reach it; `%port%` stands for the port it got.
        port: Of the data; 0 for a free one.
        host: The address that it listens at.
        heartbeat_interval: Seconds between two signs of life.
        dispatcher_timeout: Seconds to wait for the dispatcher at the start.
        transfer: The only protocol in which it hands out data, "tcp" or "shm"; None for all.
        transfer_address: Where the data is, if that is not `worker_address`.
        tags: Words that clients may choose workers by.
        token: The secret that all of a service share; None: it is looked for.
        certificates: A folder of certificates for TLS.
        functions: "by_value", or "by_reference" to run nothing but functions of `modules`.
        modules: See `functions`.
    """

    def __init__(
        self,
        dispatcher_address: str,
        environment: Callable[[], Environment],
        *,
        worker_address: str = "localhost:%port%",
        port: int = 0,
        host: str = "localhost",
        heartbeat_interval: float | None = None,
        dispatcher_timeout: float | None = None,
        transfer: str | None = None,
        transfer_address: str | None = None,
        tags: tuple[str, ...] = (),
        token: str | bytes | None = None,
        certificates: str | None = None,
        functions: str = "by_value",
        modules: tuple[str, ...] = (),
    ) -> None:
        _check(functions, transfer)
        self._timeout = DISPATCHER_TIMEOUT if dispatcher_timeout is None else dispatcher_timeout
        self._interval = HEARTBEAT if heartbeat_interval is None else heartbeat_interval
        self._security = Security.of_client(dispatcher_address, token, certificates)
        self._security.check_exposure(host, port)
        self._security.warn_of_exposure(f"worker at {joined(host, port)}", host)
        self._dispatcher = dispatcher_address.rpartition("://")[2]
        self._environment = environment
        self._listens = (host, port)
        self._addresses = (worker_address, transfer_address)
        self._transfer = transfer
        self._tags = tuple(tags)
        self._functions = functions
        self._decode = decoder(functions, tuple(modules))
        self._stopped = threading.Event()
        self._running: Running | None = None
        self._nursery: Nursery | None = None

    def isolate(self) -> None:
        """Has every plan run in a process of its own, so that a crash costs no more than that one.

        This forks, so it must come before `start`, in the main thread of a process that has no
        other threads yet. Where the system lacks what is needed, plans run in this process.
        """
        if nursery.AVAILABLE:
            make_tasks = partial(_make_tasks, self._control(), *self._world())
            self._nursery = Nursery(partial(plan_process.run, make_tasks))

    def start(self) -> None:
        """Begins to serve; UnavailableError if the dispatcher does not answer in time."""
        if self._running is not None or self._stopped.is_set():
            raise FailedPreconditionError("Worker.start: it was started before; make a new one")
        running = Running(self._stopped, self._interval)
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
        self._end = Ending(self, running.stop, atexit=False)

    def _agree(self, running: Running) -> None:
        """A dispatcher that takes no pickles must not have workers that would run them."""
        welcome = running.control.call(greeting())
        assert isinstance(welcome, Welcome)
        if welcome.functions == "by_reference" != self._functions:
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
            running.serve, self._security, *self._listens, client_host=processes
        )
        running.info = self._info(listener.transfers)
        if processes is None:
            running.tasks = _make_tasks(control, *self._world(), running.info.address)
        else:
            processes.begin(running.info.address)
        listener.start()

    def _control(self) -> ControlClient:
        return ControlClient(self._dispatcher, self._security, self._timeout)

    def _world(self) -> tuple[Security, Decode, Callable[[], Environment]]:
        """What plans are decoded and run with."""
        return self._security, self._decode, self._environment

    def _info(self, transfers: dict[str, str]) -> WorkerInfo:
        port = str(split_address(transfers["tcp"])[1])
        address, data = (
            (text or "").replace("%port%", port).replace("%dts_port%", port)
            for text in self._addresses
        )
        offered = {**transfers, "tcp": data or address}
        if self._transfer is not None:
            offered = {name: at for name, at in offered.items() if name == self._transfer}
        if not offered:
            raise FailedPreconditionError(
                'Worker: memory cannot be shared on this machine; use transfer="tcp"'
            )
        return WorkerInfo(
            f"{address}/{uuid.uuid4().hex[:12]}", address, here(), offered, self._tags
        )

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

    def join(self) -> None:
        """Waits until it is stopped."""
        self._stopped.wait()

    def stop(self) -> None:
        """Stops at once; twice is fine."""
        if self._running is None:
            self._stopped.set()
        else:
            self._end()

    def drain(self, timeout: float | None = None) -> None:
        """Answers the fetches that it has, for at most `timeout` seconds, and stops."""
        if self._running is not None:
            self._running.drain(timeout)
        self.stop()

    def _started(self, call: str) -> Running:
        if self._running is None:
            raise FailedPreconditionError(f"Worker.{call}: it does not run; call start() first")
        return self._running

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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


def _check(functions: str, transfer: str | None) -> None:
    if functions not in FUNCTIONS:
        raise InvalidArgumentError(
            f'Worker: functions must be "by_value" or "by_reference", got {functions!r}'
        )
    if transfer not in TRANSFERS:
        raise InvalidArgumentError(
            f'Worker: transfer must be "tcp", "shm" or None, got {transfer!r}'
        )
