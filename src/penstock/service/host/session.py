"""Sessions: the calls of this process to one dispatcher, shared by all its readers."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import uuid
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.element.columns import Array
from penstock.engine.endings import Ending
from penstock.engine.mapped_files import refer_to_file
from penstock.engine.processes.chunk_memory import can_share, host_id
from penstock.errors import FailedPreconditionError, InvalidArgumentError, OpError
from penstock.plan.array_references import ArrayReference, Refer, SharedArray
from penstock.plan.codec import encode
from penstock.plan.nodes import Node
from penstock.plan.parts import with_parts
from penstock.plan.references import encode_by_reference, encode_spec
from penstock.plan.resume import seeds_of, structure
from penstock.plan.splits import shape_of
from penstock.service.host.array_store import join_array_names
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.security import Security
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    DatasetInfo,
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
"""How often a plan is sent, if the dispatcher forgets it before it is registered."""

_PART = 4 << 20
"""Bytes of a plan in one message."""


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
        self.here = host_id()
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
        """Whether a plan has arrays that its readers share; raises if it cannot be sent."""
        arrays: list[str] = []
        if can_share():
            self._encode(plan, partial(_note_shared, _refer_to_any, arrays))
        return bool(arrays)

    def _encode(self, plan: Node, refer: Refer) -> bytes:
        if self.functions == "by_reference":
            return encode_by_reference(plan, refer)
        return _encode_plan(plan, refer)

    def _send_plan(self, request: RegisterDataset, encoded: bytes) -> str:
        """Stores and registers a plan. It retries, because the dispatcher may drop an equal plan
        between both calls, when its last reader leaves."""
        for left in reversed(range(_ATTEMPTS)):
            self._put(request.digest, encoded)
            try:
                registered: RegisterDatasetReply = self.call(request)
                return registered.dataset_id
            except FailedPreconditionError:
                if not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _put(self, digest: str, encoded: bytes) -> None:
        # The first part is empty, so that a plan that the dispatcher has is not sent.
        stored: PutPlanReply = self.call(PutPlan(digest, 0, len(encoded), b""))
        while stored.offset < len(encoded):
            part = encoded[stored.offset : stored.offset + _PART]
            stored = self.call(PutPlan(digest, stored.offset, len(encoded), part))

    def dataset(self, dataset_id: str) -> DatasetInfo:
        info: DatasetInfo = self.call(GetDataset(dataset_id))
        return info

    def status(self) -> dict[str, Any]:
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


def _reset_after_fork() -> None:
    """In a forked child: the connections belong to the parent, and locks may be held there."""
    global _SESSIONS, _OPENING
    _SESSIONS, _OPENING = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


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
