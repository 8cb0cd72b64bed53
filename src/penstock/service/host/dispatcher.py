"""The dispatcher as a server: requests come in, what the logic decides is done and answered.

With a `work_dir` it can be killed at any time and started again; whoever talked to it goes on.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from penstock.engine.endings import Ending
from penstock.engine.formats.files import reported
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.service.host.control import ControlServer
from penstock.service.host.ledger import Ledger
from penstock.service.host.plans import Plans
from penstock.service.host.ports import joined
from penstock.service.host.privacy import check_folder
from penstock.service.host.security import Security
from penstock.service.logic.forgetting import SPARE_SECONDS
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import (
    PROTOCOL,
    GetPlan,
    Hello,
    PlanPart,
    PlanStored,
    PutPlan,
    RegisterDataset,
    Reply,
    Request,
    Welcome,
)
from penstock.version import VERSION

_TICK = 0.5
_FUNCTIONS = ("by_value", "by_reference")
_PYTHON = ".".join(platform.python_version_tuple()[:2])

_LOG = logging.getLogger("penstock.service")


class Dispatcher:
    """A dispatcher; it stops when nobody holds it. Times are in seconds.

    Args:
        port: Where it listens; 0 for a free port.
        host: What it listens on; other machines can reach it only if this is not loopback.
        work_dir: Where its journal and the plans are; it is made if it does not exist.
        fault_tolerant: Insists on a `work_dir`.
        worker_addresses: The only workers there may be.
        job_gc_check_interval: How often it looks for jobs that nobody reads.
        job_gc_timeout: How long such a job is kept.
        forget_after: How long a job is kept that was read to its end; by default an hour.
        worker_timeout: How long a worker may be silent.
        token: The secret of the service; by default that of this user.
        certificates: A folder of certificates, for TLS.
        functions: How functions travel, "by_value" or "by_reference".
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "localhost",
        work_dir: str | None = None,
        fault_tolerant: bool = False,
        worker_addresses: Sequence[str] | None = None,
        job_gc_check_interval: float | None = None,
        job_gc_timeout: float | None = None,
        forget_after: float | None = None,
        worker_timeout: float | None = None,
        token: str | bytes | None = None,
        certificates: str | None = None,
        functions: str = "by_value",
    ) -> None:
        _check(fault_tolerant, work_dir, functions)
        self.security = Security.of_server(host, port, token, certificates)
        settings = _settings(worker_addresses, job_gc_timeout, forget_after, worker_timeout)
        self._desk = desk = _Desk(settings, work_dir, functions)
        try:
            self._server = ControlServer(desk.handle, host, port, self.security)
        except BaseException:
            desk.close()
            raise
        self.port, self._host = self._server.port, host
        # Neither the server nor the thread knows this object, so that it can be dropped.
        interval = min(job_gc_check_interval or _TICK, _TICK)
        self._ticking = threading.Thread(
            target=desk.run, args=(interval,), name="penstock-dispatcher", daemon=True
        )
        self._end = Ending(self, _stop, self._server, desk)

    @property
    def address(self) -> str:
        """`host:port`, for clients and workers."""
        anywhere = self._host in ("", "0.0.0.0", "::")
        return joined(platform.node() if anywhere else self._host, self.port)

    def start(self) -> None:
        """Begins to answer; a second time does nothing."""
        if self._desk.closed.is_set():
            raise FailedPreconditionError(
                f"dispatcher {self.address} was stopped and cannot be started again; make a new one"
            )
        if not self._ticking.is_alive():
            self._ticking.start()
            self._server.start()

    def stop(self) -> None:
        """Answers no more, and gives back its port and its files; twice is fine."""
        self._end()
        if self._ticking.is_alive():
            self._ticking.join(10.0)

    def join(self) -> None:
        """Waits until it is stopped."""
        self._desk.closed.wait()

    def handle(self, request: Request) -> Reply:
        """Answers a request of this process, or raises what is wrong with it."""
        return self._desk.handle(request)

    def status(self) -> dict[str, Any]:
        """What goes on, as plain data."""
        return self._desk.ledger.status()


def _check(fault_tolerant: bool, work_dir: str | None, functions: str) -> None:
    if fault_tolerant and not work_dir:
        raise InvalidArgumentError(
            "dispatcher: fault_tolerant_mode needs a work_dir; name a folder that stays when the "
            "dispatcher is started again"
        )
    if functions not in _FUNCTIONS:
        raise InvalidArgumentError(
            f'dispatcher: functions must be "by_value" or "by_reference", got {functions!r}'
        )


def _settings(
    worker_addresses: Sequence[str] | None,
    job_gc_timeout: float | None,
    forget_after: float | None,
    worker_timeout: float | None,
) -> Settings:
    return Settings(
        dispatcher=uuid.uuid4().hex,
        python=_PYTHON,
        version=VERSION,
        worker_addresses=tuple(worker_addresses or ()),
        worker_timeout=worker_timeout or Settings.worker_timeout,
        job_gc_timeout=job_gc_timeout or None,
        forget_after=forget_after or Settings.forget_after,
    )


def _stop(server: ControlServer, desk: _Desk) -> None:
    server.stop()
    desk.close()


class _Desk:
    """Where requests are handled: the ledger and the plans, and the folder of both."""

    def __init__(self, settings: Settings, work_dir: str | None, functions: str) -> None:
        self.closed = threading.Event()
        self._functions = functions
        folder = os.path.abspath(os.path.expanduser(work_dir)) if work_dir else None
        if folder is not None:
            with reported(folder, "dispatcher: work_dir"):
                os.makedirs(folder, mode=0o700, exist_ok=True)
            check_folder(folder, "dispatcher: work_dir")
        # The journal first: who has it has the folder.
        self.ledger = Ledger(settings, folder and os.path.join(folder, "journal.sqlite"))
        try:
            self._plans = Plans(folder and os.path.join(folder, "plans"))
            self._strays = self._plans.strays(self.ledger.has_plan)
            """Plans that were sent and not registered when the dispatcher stopped."""
            self._started = time.monotonic()
        except BaseException:
            self.ledger.close()
            raise

    def handle(self, request: Request) -> Reply:
        match request:
            case Hello(protocol, python, version):
                _check_peer(protocol, python, version)
                return Welcome(self.ledger.name, self._functions)
            case PutPlan(digest, offset, total, data):
                return PlanStored(self._plans.put(digest, offset, total, data))
            case GetPlan(digest, offset):
                return PlanPart(*self._plans.get(digest, offset))
            case RegisterDataset(digest):
                self._check_plan(digest)
                answer = self.ledger.answer(request)
                self._check_plan(digest)  # Only now nobody forgets it any more.
                return answer
        return self.ledger.answer(request)

    def _check_plan(self, digest: str) -> None:
        if digest not in self._plans:
            raise FailedPreconditionError(
                f"RegisterDataset: plan {digest[:12]!r} has not arrived; send it first"
            )

    def _forget_plans(self) -> None:
        unused = self.ledger.orphans()
        if self._strays and time.monotonic() - self._started > SPARE_SECONDS:
            unused, self._strays = unused + self._strays, []
        for digest in unused:
            if not self.ledger.has_plan(digest):
                self._plans.forget(digest)

    def run(self, interval: float) -> None:
        """Looks at the clock until it is closed."""
        while not self.closed.wait(interval):
            try:
                self.ledger.tick()
                self._forget_plans()
            except Exception:
                _LOG.exception("dispatcher: looking at the clock failed; it goes on")

    def close(self) -> None:
        self.closed.set()
        self.ledger.close()
        self._plans.close()


def _check_peer(protocol: int, python: str, version: str) -> None:
    for what, theirs, ours in (
        ("penstock", version, VERSION),
        ("the protocol of penstock", str(protocol), str(PROTOCOL)),
        ("Python", python, _PYTHON),
    ):
        if theirs != ours:
            raise FailedPreconditionError(
                f"the dispatcher runs {what} {ours}, and this process {theirs}; use the same "
                "version for the dispatcher, its workers and its clients"
            )
