"""Sessions: what this process says to one dispatcher, whoever in it reads or writes."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from penstock.engine.endings import Ending
from penstock.errors import FailedPreconditionError, InvalidArgumentError, OpError
from penstock.plan.codec import encode
from penstock.plan.nodes import Node
from penstock.plan.parts import with_parts
from penstock.plan.references import encode_by_reference, encode_spec
from penstock.plan.resume import seeds_of, structure
from penstock.plan.splits import shape_of
from penstock.service.host.chunk_memory import host_id
from penstock.service.host.control_client import ControlClient
from penstock.service.host.security import Security
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    PROTOCOL,
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
from penstock.version import VERSION

_ATTEMPTS = 3
"""How often a plan is sent that others make the dispatcher forget meanwhile."""

_PART = 4 << 20
"""Bytes of a plan that travel in one message."""


def greeting() -> Hello:
    """What everybody says first."""
    return Hello(PROTOCOL, python_version(), VERSION)


def python_version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


class Session:
    """A dispatcher, by its address. `call` sends a request and gives its answer.

    `security` is what data connections to the workers of that dispatcher need.
    """

    def __init__(self, address: str, security: Security, call: Callable[..., Reply]) -> None:
        self.address = address
        self.security = security
        self.here = host_id()
        self.failure: OpError | None = None
        """Why nobody will ever answer, if that is known."""
        self._call = call
        self._functions: str | None = None
        self._lock = threading.Lock()

    def call(self, request: Request, timeout: float | None = None) -> Any:
        """The answer; a refusal is raised as the error that it names."""
        return self._call(request) if timeout is None else self._call(request, timeout)

    @property
    def functions(self) -> str:
        """How functions travel; asking says hello, so other versions are refused here."""
        with self._lock:
            if self._functions is None:
                welcome: HelloReply = self.call(greeting())
                self._functions = welcome.functions
            return self._functions

    def dispatcher(self) -> str:
        """The name of the dispatcher, another one if it came back without its memory."""
        welcome: HelloReply = self.call(greeting())
        return welcome.dispatcher

    def register(
        self,
        plan: Node,
        spec: Any,
        dataset_id: str | None = None,
        again: bool = True,
        lasting: bool = False,
    ) -> str:
        """Makes a plan known; gives the id of the dataset, a new one unless `again` is False.

        Unless it is `lasting`, the dispatcher may forget it when nobody reads it.
        """
        divided = with_parts(plan)
        by_reference = self.functions == "by_reference"
        encoded = encode_by_reference(divided) if by_reference else _encoded(divided)
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
        return self._registered(request, encoded)

    def _registered(self, request: RegisterDataset, encoded: bytes) -> str:
        """The last reader of an equal plan may leave, and the plan go, before it is registered."""
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
        # The first part is empty: a plan that is there already is not sent again.
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


def _encoded(plan: Node) -> bytes:
    try:
        return encode(plan)
    except Exception as error:
        raise InvalidArgumentError(
            f"service.distribute: {_unsent(plan)} cannot be sent to workers "
            f"({type(error).__name__}: {error}); have the function make or import what it needs "
            "when it is called"
        ) from error


def _unsent(plan: Node) -> str:
    """The operator that cannot be sent, where all that it is made of can be."""
    for part in plan.inputs:
        try:
            encode(part)
        except Exception:
            return _unsent(part)
    return f"{plan.label}({', '.join(map(str, plan.functions))})"


_SESSIONS: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


def _begin_anew() -> None:
    """In a forked child: its parent's connections are not its own, and locks may be held there."""
    global _SESSIONS, _OPENING
    _SESSIONS, _OPENING = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


def session(address: str) -> Session:
    """The session with the dispatcher at `address`; one for all of this process."""
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
