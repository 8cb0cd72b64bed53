"""Services by URL (`grpc://` and other registered schemes), and the calls to their dispatchers.

A session is all calls of this process to one dispatcher, shared by all its readers. A service that
was started for a dataset runs as long as that dataset is read, and a little longer, because the
next repetition begins when one has ended.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock.element.columns import Array
from penstock.engine.endings import Ending
from penstock.engine.mapped_files import refer_to_file
from penstock.engine.processes.array_offers import ArrayOffers
from penstock.engine.processes.chunk_memory import can_share, host_id
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, OpError
from penstock.plan import nodes
from penstock.plan.array_references import ArrayReference, Refer, SharedArray
from penstock.plan.codec import encode
from penstock.plan.nodes import Node
from penstock.plan.parts import with_parts
from penstock.plan.references import encode_by_reference, encode_spec
from penstock.plan.resume import seeds_of, structure
from penstock.plan.splits import shape_of
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.plan_store import PART, join_array_names, send_everything
from penstock.service.host.security import Security
from penstock.service.host.server_setup import SCHEMES, Scheme
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    DatasetInfo,
    ForgetJobs,
    ForgetJobsReply,
    GetDataset,
    GetStatus,
    GetStatusReply,
    Hello,
    HelloReply,
    PutPlan,
    PutPlanReply,
    RegisterDataset,
    RegisterDatasetReply,
    Reply,
    Request,
)

_ATTEMPTS = 3
"""How often requests are sent that belong together, if the dispatcher forgets between them."""

_Reply = TypeVar("_Reply")


def retry_forgotten(send: Callable[[], _Reply], error: type[OpError]) -> _Reply:
    """Returns what `send` returns, and repeats it after `error`.

    For requests that belong together: the dispatcher forgets a dataset and its plan with their last
    reader, which may leave between two of them.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(error):
            return send()
    return send()


def greeting() -> Hello:
    """The first request of each client and worker."""
    return Hello(python_version())


def python_version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


class Session:
    """A dispatcher, by its address. `call` sends a request and returns its reply.

    `security` is what data connections to the workers of that dispatcher need.
    """

    def __init__(
        self, address: str, security: Security, call: Callable[..., Reply], *, local: bool = False
    ) -> None:
        self.address = address
        self.security = security
        self.own_host = host_id()
        self.local = local
        """Whether the dispatcher is in this process, and all workers are on this machine."""
        self.no_workers = (
            "the worker processes of local:// have not started yet"
            if local
            else f"dispatcher {address} has no workers; start one with: "
            f"penstock worker --dispatcher {address}"
        )
        """Why a dispatcher without workers has none."""
        self.failure: OpError | None = None
        """Set once the dispatcher is known to have ended; readers raise it."""
        self._call = call
        self._functions: str | None = None  #: guarded by _lock
        self._lock = threading.Lock()

    def call(self, request: Request, timeout: float | None = None) -> Any:
        """The reply; raises the error that an `ErrorReply` names."""
        return self._call(request) if timeout is None else self._call(request, timeout)

    @property
    def functions(self) -> str:
        """How functions are sent; the first use sends `Hello`, which compares versions."""
        with self._lock:
            if self._functions is None:
                welcome: HelloReply = self.call(greeting())
                self._functions = welcome.functions
            return self._functions

    def dispatcher(self) -> str:
        """The name of the dispatcher; it changes if it restarts without its journal."""
        welcome: HelloReply = self.call(greeting())
        return welcome.dispatcher

    def register(
        self,
        plan: Node,
        spec: Any,
        dataset_id: str | None = None,
        again: bool = True,
        lasting: bool = False,
        refer: Refer = refer_to_file,
    ) -> str:
        """Registers a plan; returns the id of the dataset, a new one unless `again` is False.

        Unless it is `lasting`, the dispatcher may forget the dataset while it has no readers.
        `refer` returns what is sent instead of a large array.
        """
        divided = with_parts(plan)
        arrays: list[str] = []
        encoded = self._encode(divided, partial(_note_shared, refer, arrays))
        encoded = join_array_names(arrays, encoded)
        digest = hashlib.sha256(encoded).hexdigest()
        request = RegisterDataset(
            digest,
            structure(plan),
            encode_spec(spec),
            shape_of(divided),
            plan.cardinality,
            dataset_id or None,
            request=uuid.uuid4().hex if again else digest,
            lasting=lasting,
            seeds=tuple(seeds_of(plan)),
        )
        return self._send_plan(request, encoded)

    def has_shared_arrays(self, plan: Node) -> bool:
        """Whether a plan has arrays that its readers share; raises if it cannot be sent.

        Only a reader can share them, so it registers the plan itself.
        """
        arrays: list[str] = []
        if can_share():
            self._encode(plan, partial(_note_shared, _refer_to_any, arrays))
        return bool(arrays)

    def _encode(self, plan: Node, refer: Refer) -> bytes:
        if self.functions == "by_reference":
            return encode_by_reference(plan, refer)
        return _encode_plan(plan, refer)

    def _send_plan(self, request: RegisterDataset, encoded: bytes) -> str:
        """Stores and registers a plan."""

        def send() -> str:
            self._put(request.digest, encoded)
            registered: RegisterDatasetReply = self.call(request)
            return registered.dataset_id

        return retry_forgotten(send, FailedPreconditionError)

    def _put(self, digest: str, encoded: bytes) -> None:
        # The first part is empty, so that a plan that the dispatcher has is not sent.
        stored: PutPlanReply = self.call(PutPlan(digest, 0, len(encoded), b""))
        while stored.offset < len(encoded):
            part = encoded[stored.offset : stored.offset + PART]
            stored = self.call(PutPlan(digest, stored.offset, len(encoded), part))

    def dataset(self, dataset_id: str) -> DatasetInfo:
        info: DatasetInfo = self.call(GetDataset(dataset_id))
        return info

    def forget(self, job: str | None) -> ForgetJobsReply:
        """Makes the dispatcher forget a job, or all jobs without readers."""
        forgotten: ForgetJobsReply = self.call(ForgetJobs(job))
        return forgotten

    def status(self) -> dict[str, Any]:
        """The state of the service, as plain data."""
        status: GetStatusReply = self.call(GetStatus(), timing.STATUS_CALL)
        return status.status


def _note_shared(refer: Refer, names: list[str], array: Array) -> ArrayReference | None:
    """The reference to an array, whose name is added to `names` if it is shared."""
    reference = refer(array)
    if isinstance(reference, SharedArray):
        names.append(reference.name)
    return reference


def _refer_to_any(array: Array) -> ArrayReference:
    """What the reference to an array would be."""
    return refer_to_file(array) or SharedArray("", array.dtype, array.shape)


def _encode_plan(plan: Node, refer: Refer) -> bytes:
    try:
        return encode(plan, refer)
    except Exception as error:
        raise InvalidArgumentError(
            f"service.distribute: {_find_unsendable(plan, refer)} cannot be sent to workers "
            f"({type(error).__name__}: {error}); have the function make or import what it needs "
            "when it is called"
        ) from error


def _find_unsendable(plan: Node, refer: Refer) -> str:
    """The operator that cannot be sent, although its inputs can be."""
    for part in plan.inputs:
        try:
            encode(part, refer)
        except Exception:
            return _find_unsendable(part, refer)
    return f"{plan.label}({', '.join(map(str, plan.functions))})"


#: guarded by _OPENING
_SESSIONS: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


def session(address: str) -> Session:
    """The session of this process with the dispatcher at `address`."""
    if not address:
        raise InvalidArgumentError("service: the address of the dispatcher is empty")
    with _OPENING:
        found = _SESSIONS.get(address)
        if found is None:
            security = Security.of_client(address)
            control = ControlClient(address, security)
            found = Session(address, security, control.call)
            Ending(found, control.close)
            _SESSIONS[address] = found
        return found


# Services by URL

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
    """Makes `name://rest` a service: `serve(rest)` starts it and returns it.

    A scheme that is known already keeps whether and how its services are found without readers.
    """
    new = Scheme(serve)
    SCHEMES[name] = SCHEMES.get(name, new)._replace(start=serve, check=new.check)


def parse(service: Any, call: str = "service.distribute") -> tuple[str, str]:
    """Scheme and address of a service: a URL, or an address alone (grpc)."""
    if not isinstance(service, str) or not service:
        raise InvalidArgumentError(
            f"{call}: service must be a URL like grpc://localhost:5000 or local://4, "
            f"got {service!r}"
        )
    if service.count("://") > 1:
        raise InvalidArgumentError(f"{call}: service {service!r} holds more than one '://'")
    before, separator, address = service.rpartition("://")
    scheme = before if separator else "grpc"
    if not scheme:
        raise InvalidArgumentError(f"{call}: service {service!r} has no scheme before '://'")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
        raise NotFoundError(f"{call}: the scheme {scheme}:// is not registered; there are {known}")
    if not separator and address.partition(":")[0] in SCHEMES:
        name, _, rest = address.partition(":")
        raise InvalidArgumentError(
            f"{call}: {service!r} would be a dispatcher on a host named {name!r}; "
            f"write {name}://{rest}, or grpc://{address} if there is such a host"
        )
    SCHEMES[scheme].check(address)
    return scheme, address


class SharedService:
    """A service that several streams of one dataset use."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.arrays = ArrayOffers()
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
    """In a forked child: sessions and services are the parent's, and locks may be held there."""
    global _SESSIONS, _OPENING, _SHARED, _LOCK
    _SESSIONS, _OPENING = weakref.WeakValueDictionary(), threading.Lock()
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


def find_session(service: str, call: str = "service.distribute") -> Session:
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
    dispatcher = find_session(service)
    offers = ArrayOffers()
    user = offers.add_user(by_content=True)
    try:
        registered = dispatcher.register(plan, spec, dataset_id, lasting=lasting, refer=user.refer)
        for offer in user.offers:
            send_everything(dispatcher.call, offer)
    finally:
        user.close()
        offers.close()
    REGISTERED_SEEDS[dispatcher.address, registered] = seeds_of(plan)
    return registered
