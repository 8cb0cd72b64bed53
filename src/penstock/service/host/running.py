"""Running: what the threads of a worker share, from its start to its end.

Nothing here knows the `Worker`, so that one which was dropped is collected and stops.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from penstock.errors import OpError
from penstock.service.host.control_client import ControlClient
from penstock.service.host.data_connection import Connection
from penstock.service.host.listener import DataListener
from penstock.service.host.outside import MACHINE, Outside
from penstock.service.host.processes import PlanProcesses
from penstock.service.host.serving import Gate, serve
from penstock.service.host.session import python_version
from penstock.service.host.tasks import Tasks
from penstock.service.protocol.messages import (
    PROTOCOL,
    LeaveWorker,
    RegisterWorker,
    WorkerBeat,
    WorkerBeaten,
    WorkerInfo,
)
from penstock.version import VERSION

_LOG = logging.getLogger("penstock.service")

_BEAT_TIMEOUT = 5.0
_LEAVE_TIMEOUT = 0.5
_CLOSE_SECONDS = 0.5


class Running:
    """A worker at work. Who makes it sets what it works with, one after the other."""

    control: ControlClient
    listener: DataListener
    tasks: Tasks | PlanProcesses
    info: WorkerInfo

    def __init__(
        self, stopped: threading.Event, interval: float, outside: Outside = MACHINE
    ) -> None:
        self._outside = outside
        self._stopped = stopped
        """Tells those who wait for the end."""
        self._ending = outside.event()
        self._interval = interval
        self._gate = Gate(outside)
        self._hurry = outside.event()
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
        self._outside.start(self._beat, "penstock-beat")

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
        beat = WorkerBeat(
            self.info.worker, self.tasks.statuses(), self._gate.draining, self.tasks.restarts
        )
        beaten = self.control.call(beat, _BEAT_TIMEOUT)
        assert isinstance(beaten, WorkerBeaten)
        if not beaten.known:
            self.register(_BEAT_TIMEOUT)
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
                self.control.call(LeaveWorker(self.info.worker), _LEAVE_TIMEOUT)
        if hasattr(self, "control"):
            self.control.close()
        closing = self._outside.start(self._close, "penstock-close")
        closing.join(_CLOSE_SECONDS)
        self._stopped.set()

    def _close(self) -> None:
        """A stream cannot be closed before the function that it has called returns."""
        if hasattr(self, "listener"):
            self.listener.close()
        if hasattr(self, "tasks"):
            self.tasks.close()
