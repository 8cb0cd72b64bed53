"""Services by URL (`grpc://`, `local://`, registered schemes), and calls to their dispatchers.

A service that was started for a dataset runs as long as that dataset is read, and a little longer,
because the next repetition begins when one has ended.

`local://N` has N worker processes on this machine, and its dispatcher in the reader's own process.
A worker process that ends is replaced. Workers end when their standard input is closed, so none
outlives a reader that was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from penstock.engine.processes import boot
from penstock.engine.processes.array_shares import ArrayShares
from penstock.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.references import decode_spec
from penstock.plan.resume import seeds_of
from penstock.service.host.array_store import send_everything
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.server_setup import DispatcherConfig
from penstock.service.host.session import Session, session
from penstock.service.protocol import timing
from penstock.service.protocol.messages import DatasetInfo, ForgetJobs, ForgetJobsReply

_LOG = logging.getLogger("penstock.service")

HOME = ""
"""The service of a part of a plan that runs on a worker: the dispatcher of that worker."""

REGISTERED_SEEDS: dict[tuple[str, str], list[int]] = {}
"""The seeds of datasets when they were registered, by dispatcher and dataset id; a restored state
brings other seeds."""


class Service(Protocol):
    """A dispatcher with workers: `session` calls the dispatcher until the service is closed."""

    @property
    def session(self) -> Session: ...

    def close(self) -> None: ...


class RunningService:
    """A service that this process neither starts nor stops."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def close(self) -> None:
        pass


_MOST_EARLY_ENDS = 3
"""So many workers in a row may end soon after their start before that is an error."""


class LocalService:
    """A dispatcher in this process, and workers in processes of their own."""

    def __init__(self, rest: str) -> None:
        count = _parse_count(rest)
        token = secrets.token_hex(16)
        self._dispatcher = dispatcher = Dispatcher(DispatcherConfig(token=token))
        dispatcher.start()
        self.session = Session(
            dispatcher.address,
            dispatcher.security,
            lambda request, _=0: dispatcher.handle(request),
            local=True,
        )
        self._workers = [
            _WorkerProcess(dispatcher.address, token, self.session) for _ in range(count)
        ]
        _RUNNING.add(self)

    def close(self) -> None:
        """Ends the workers; may be repeated."""
        for worker in self._workers:
            worker.shut_input()
        for worker in self._workers:
            worker.wait()
        self._dispatcher.stop()
        _RUNNING.discard(self)  # Last: `_close_all` closes what an exception left here.

    @property
    def processes(self) -> list[int]:
        """The ids of the worker processes."""
        return [worker.process.pid for worker in self._workers]


class _WorkerProcess:
    """One worker process, which a thread replaces when it ends."""

    def __init__(self, address: str, token: str, session: Session) -> None:
        self._command = [sys.executable, "-c", boot.program(boot.COMMAND), "worker"]
        self._command += ["--stop-with-stdin", "--quiet", "--dispatcher", address]
        self._environment = {**os.environ, "PENSTOCK_TOKEN": token, "PYTHONPATH": _module_paths()}
        self._session = session
        self._lock = threading.Lock()
        """Guards the two fields below; no process is started once `_closed` is set."""
        self._closed = False
        self._early_ends = 0
        self._start()
        threading.Thread(target=self._watch, name="penstock-local", daemon=True).start()

    def _start(self) -> None:
        self._started = time.monotonic()
        # A session of its own: Ctrl-C in the terminal reaches only the reader, which ends workers.
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=self._environment, start_new_session=True
        )

    def _watch(self) -> None:
        while True:
            code = self.process.wait()
            with self._lock:
                if self._closed:
                    return
                early = time.monotonic() - self._started < timing.EARLY_CRASH
                self._early_ends = self._early_ends + 1 if early else 0
                if self._early_ends >= _MOST_EARLY_ENDS:
                    self._session.failure = InternalError(
                        f"local://: worker processes end soon after they start (exit code {code}): "
                        "they cannot run here, or a function ends its process; see what they "
                        f"print, or try: {sys.executable} -m penstock worker --help"
                    )
                    return
                _LOG.warning(
                    "local://: a worker process ended (exit code %s); starting another", code
                )
                _close_input(self.process)
                self._start()

    def shut_input(self) -> None:
        """Ends the process by closing its input; it is not replaced."""
        with self._lock:
            self._closed = True
        _close_input(self.process)

    def wait(self) -> None:
        """Blocks until the process has ended; kills it after a while."""
        try:
            self.process.wait(timing.LOCAL_WORKER_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()


def _parse_count(rest: str) -> int:
    try:
        count = int(rest) if rest else os.cpu_count() or 1
    except ValueError:
        count = 0
    if count < 1:
        raise InvalidArgumentError(
            f"service.distribute: local://{rest} must name a number of worker processes, "
            "like local://4"
        )
    return count


def _module_paths() -> str:
    """Returns where this process finds modules: functions of modules travel by name."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)


_RUNNING: set[LocalService] = set()


@atexit.register
def _close_all() -> None:
    for service in list(_RUNNING):
        service.close()


_SCHEMES: dict[str, Callable[[str], Service]] = {
    "grpc": lambda address: RunningService(session(address)),
    "local": LocalService,
}


def register_scheme(name: str, serve: Callable[[str], Service]) -> None:
    """Makes `name://rest` a service: `serve(rest)` starts it and returns it."""
    _SCHEMES[name] = serve


def parse(service: Any, call: str = "service.distribute") -> tuple[str, str]:
    """Scheme and address of a service: a URL, an address alone (grpc), or a pair."""
    if isinstance(service, tuple | list) and len(service) == 2:
        scheme, address = service
    elif not isinstance(service, str) or not service:
        raise InvalidArgumentError(
            f"{call}: service must be a URL like grpc://localhost:5000 or local://4, "
            f"got {service!r}"
        )
    else:
        parts = service.split("://")
        if len(parts) > 2:
            raise InvalidArgumentError(f"{call}: service {service!r} holds more than one '://'")
        scheme, address = ("grpc", parts[0]) if len(parts) == 1 else (parts[0], parts[1])
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in sorted(_SCHEMES))
        raise NotFoundError(f"{call}: the scheme {scheme}:// is not registered; there are {known}")
    return scheme, address


class SharedService:
    """A service that several streams of one dataset use."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.arrays = ArrayShares()
        self.users = 0  #: guarded by _LOCK
        self.closed = False  #: guarded by _LOCK

    def leave(self) -> None:
        """Called by a stream that closes. The last one closes the service after a while."""
        with _LOCK:
            self.users -= 1
            if self.users or (isinstance(self.service, RunningService) and not self.arrays):
                return
        timer = threading.Timer(timing.LOCAL_LINGER, self._close_unused)
        timer.daemon = True
        timer.start()

    def _close_unused(self) -> None:
        with _LOCK:
            if self.users or self.closed:
                return
            self.closed = not isinstance(self.service, RunningService)
            self.arrays.close()
        if self.closed:
            self.service.close()


_LOCK = threading.Lock()
#: guarded by _LOCK
_SHARED: weakref.WeakKeyDictionary[nodes.IterationCounter, SharedService] = (
    weakref.WeakKeyDictionary()
)


def _reset_after_fork() -> None:
    """In a forked child: the services belong to the parent, and the lock may be held there."""
    global _SHARED, _LOCK
    _SHARED, _LOCK = weakref.WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


def borrow(node: nodes.Distribute, home: Session | None) -> SharedService:
    """The service of a dataset, started if necessary; the caller calls `leave` once."""
    with _LOCK:
        shared = _SHARED.get(node.iterations)
        if shared is None or shared.closed:
            shared = _SHARED[node.iterations] = SharedService(_start_service(node.service, home))
        shared.users += 1
        return shared


def _start_service(service: str, home: Session | None) -> Service:
    if service != HOME:
        scheme, address = parse(service)
        return _SCHEMES[scheme](address)
    if home is None:
        raise FailedPreconditionError(
            "distribute: this plan is a part of another one and runs on workers only"
        )
    return RunningService(home)


def register(
    service: str, plan: Node, spec: Any, dataset_id: str | None = None, lasting: bool = False
) -> str:
    """Registers a plan with the dispatcher of `service`; returns the id of the dataset.

    `lasting`: the user has the id, so the dispatcher must keep the dataset.
    """
    dispatcher = session(parse(service)[1])
    shares = ArrayShares()
    lease = shares.lease(by_content=True)
    try:
        registered = dispatcher.register(plan, spec, dataset_id, lasting=lasting, refer=lease.refer)
        for share in lease.shares:
            send_everything(dispatcher.call, share)
    finally:
        lease.close()
        shares.close()
    REGISTERED_SEEDS[dispatcher.address, registered] = seeds_of(plan)
    return registered


def has_shared_arrays(service: str, plan: Node) -> bool:
    """Whether a plan has arrays that its readers share with workers; raises if it cannot be sent.

    Only a reader can share them, so it registers the plan itself.
    """
    return session(parse(service)[1]).has_shared_arrays(plan)


def dataset_info(service: str, dataset_id: str) -> DatasetInfo:
    """What the dispatcher of `service` knows of a dataset."""
    return session(parse(service)[1]).dataset(dataset_id)


def spec_of_dataset(info: DatasetInfo) -> Any:
    """The spec of the elements of a registered dataset."""
    return decode_spec(info.spec)


def forget(service: str, job: str | None) -> ForgetJobsReply:
    """Makes the dispatcher of `service` forget a job, or all jobs without readers."""
    forgotten: ForgetJobsReply = session(parse(service, "forget")[1]).call(ForgetJobs(job))
    return forgotten


def status(service: str) -> dict[str, Any]:
    """The state of a service, as plain data."""
    return session(parse(service, "service.status")[1]).status()
