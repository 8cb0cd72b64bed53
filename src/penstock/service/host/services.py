"""Services by URL (`grpc://` and other registered schemes), and calls to their dispatchers.

A service that was started for a dataset runs as long as that dataset is read, and a little longer,
because the next repetition begins when one has ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from penstock.engine.processes.array_shares import ArrayShares
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.references import decode_spec
from penstock.plan.resume import seeds_of
from penstock.service.host.array_store import send_everything
from penstock.service.host.server_setup import SCHEMES, Scheme
from penstock.service.host.session import Session, session
from penstock.service.protocol import timing
from penstock.service.protocol.messages import DatasetInfo, ForgetJobs, ForgetJobsReply

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


SCHEMES["grpc"] = Scheme(
    start=lambda address: RunningService(session(address)),
    outlives_readers=lambda address: True,
)


def register_scheme(name: str, serve: Callable[[str], Service]) -> None:
    """Makes `name://rest` a service: `serve(rest)` starts it and returns it."""
    SCHEMES[name] = Scheme(start=serve)


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
    if not scheme:
        raise InvalidArgumentError(f"{call}: service {service!r} has no scheme before '://'")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
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
        started: Service = SCHEMES[scheme].start(address)
        return started
    if home is None:
        raise FailedPreconditionError(
            "distribute: this plan is a part of another one and runs on workers only"
        )
    return RunningService(home)


def outlives_readers(service: str) -> bool:
    """Whether a service runs also without readers: a dispatcher, or a service launched on Ray."""
    scheme, rest = parse(service)
    return SCHEMES[scheme].outlives_readers(rest)


def _find_session(service: str, call: str = "service.distribute") -> Session:
    """The session with a service that outlives its readers."""
    scheme, rest = parse(service, call)
    known = SCHEMES[scheme]
    if known.find_session is None or not known.outlives_readers(rest):
        return session(rest)
    found: Session = known.find_session(rest)
    return found


def register(
    service: str, plan: Node, spec: Any, dataset_id: str | None = None, lasting: bool = False
) -> str:
    """Registers a plan with the dispatcher of `service`; returns the id of the dataset.

    `lasting`: the user has the id, so the dispatcher must keep the dataset.
    """
    dispatcher = _find_session(service)
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
    return _find_session(service).has_shared_arrays(plan)


def dataset_info(service: str, dataset_id: str) -> DatasetInfo:
    """What the dispatcher of `service` knows of a dataset."""
    return _find_session(service).dataset(dataset_id)


def spec_of_dataset(info: DatasetInfo) -> Any:
    """The spec of the elements of a registered dataset."""
    return decode_spec(info.spec)


def forget(service: str, job: str | None) -> ForgetJobsReply:
    """Makes the dispatcher of `service` forget a job, or all jobs without readers."""
    forgotten: ForgetJobsReply = _find_session(service, "forget").call(ForgetJobs(job))
    return forgotten


def status(service: str) -> dict[str, Any]:
    """The state of a service, as plain data."""
    return _find_session(service, "service.status").status()
