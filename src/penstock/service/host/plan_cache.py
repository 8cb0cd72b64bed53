"""The plan cache of a worker: fetches plans from the dispatcher by digest, and decodes each once.

A plan is code. A worker decodes only bytes that came from the dispatcher and have the right digest.
A worker that takes functions by reference decodes no pickles at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Callable

from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
)
from penstock.plan.codec import decode
from penstock.plan.nodes import Node
from penstock.plan.references import decode_by_reference
from penstock.service.protocol.messages import GetPlan, GetPlanReply, Reply, Request

_MOST_PLANS = 64
"""Decoded plans that are kept."""

_MOST_BYTES = 4 << 30
"""Longer plans are not fetched."""

Decode = Callable[[bytes], Node]


def make_decoder(functions: str, modules: tuple[str, ...]) -> Decode:
    """Returns the function that decodes plans, by the worker's options `functions`, `modules`."""
    if functions == "by_reference":
        for name in modules:
            _check_module(name)
        return lambda data: decode_by_reference(data, modules)
    return decode


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise InvalidArgumentError(
            f"worker: there is no module {name!r} to take functions from; start it where the "
            "module can be imported, or set PYTHONPATH"
        )


class PlanCache:
    """Decoded plans by digest. Two threads that need the same plan fetch it once."""

    def __init__(self, call: Callable[[Request], Reply], decode: Decode, address: str) -> None:
        self._call = call
        self._decode = decode
        self._address = address
        self._lock = threading.Lock()
        """Guards the two fields below."""
        self._plans: OrderedDict[str, Node] = OrderedDict()
        self._fetching: dict[str, threading.Lock] = {}
        """Held by the thread that fetches the plan with this digest."""

    def get(self, digest: str) -> Node:
        """Returns the plan; raises an error that says why this worker cannot have it."""
        with self._lock:
            if (plan := self._find(digest)) is not None:
                return plan
            fetching = self._fetching.setdefault(digest, threading.Lock())
        with fetching:
            with self._lock:
                if (plan := self._find(digest)) is not None:
                    return plan
            try:
                plan = self._decode_bytes(self._fetch(digest))
                self._keep(digest, plan)
            finally:
                with self._lock:
                    self._fetching.pop(digest, None)
        return plan

    def _find(self, digest: str) -> Node | None:
        if digest in self._plans:
            self._plans.move_to_end(digest)
        return self._plans.get(digest)

    def _keep(self, digest: str, plan: Node) -> None:
        with self._lock:
            self._plans[digest] = plan
            while len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)

    def _fetch(self, digest: str) -> bytes:
        data = bytearray()
        while True:
            part = self._call(GetPlan(digest, len(data)))
            assert isinstance(part, GetPlanReply)
            data += part.data
            if len(data) >= part.total or not part.data or part.total > _MOST_BYTES:
                break
        if hashlib.sha256(data).hexdigest() != digest:
            raise DataLossError(
                f"distribute: the {len(data)} bytes of the plan that the dispatcher gave to worker "
                f"{self._address} do not have the digest {digest[:12]}; register the dataset again"
            )
        return bytes(data)

    def _decode_bytes(self, data: bytes) -> Node:
        try:
            return self._decode(data)
        except OpError as error:
            cause = error.__cause__
            if not isinstance(cause, ImportError | AttributeError):
                raise
            raise FailedPreconditionError(self._explain_import_error(cause)) from cause

    def _explain_import_error(self, cause: ImportError | AttributeError) -> str:
        if isinstance(cause, ModuleNotFoundError):
            return (
                f"distribute: worker {self._address} has no module {cause.name!r}, which this "
                "dataset needs; install it where the worker runs, or start the worker in a folder "
                f"or with a PYTHONPATH from which {cause.name!r} can be imported"
            )
        return (
            f"distribute: worker {self._address} has another version of a module that this "
            f"dataset needs ({cause}); install the same one where the worker runs"
        )
