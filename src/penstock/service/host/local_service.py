"""`local://N`: a dispatcher in the reader's process, and workers in processes of their own.

With a range, as in `local://1..8`, a thread starts as many workers as the readers can use.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from functools import partial

from penstock.errors import OpError
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.local_workers import LocalWorkers
from penstock.service.host.runtime import MACHINE
from penstock.service.host.server_setup import DispatcherConfig
from penstock.service.host.session import Session
from penstock.service.logic.scaling import WorkerRange, WorkerScaling
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetStatus, GetStatusReply

_LOG = logging.getLogger("penstock.service")
_NAME = "penstock-scaling"


class LocalService:
    """Serves until it is closed, or this program ends; it closes `workers`."""

    def __init__(self, workers: LocalWorkers, allowed: WorkerRange) -> None:
        self._workers = workers
        self._closed = threading.Event()
        token = secrets.token_hex(16)
        self._dispatcher = dispatcher = Dispatcher(DispatcherConfig(token=token))
        _RUNNING.add(self)
        dispatcher.start()
        self.session = Session(
            dispatcher.address,
            dispatcher.security,
            lambda request, _=0: dispatcher.handle(request),
            local=True,
        )
        workers.begin(dispatcher.address, token, self._fail)
        if allowed.most > allowed.least:
            scaling = WorkerScaling(allowed)
            MACHINE.start(partial(_follow_load, dispatcher, workers, scaling, self._closed), _NAME)

    def _fail(self, error: OpError) -> None:
        self.session.failure = error

    def close(self) -> None:
        """Ends the workers; may be repeated."""
        self._closed.set()
        self._workers.close()
        self._dispatcher.stop()
        _RUNNING.discard(self)  # Last: `_close_all` closes what an exception left here.


def _follow_load(
    dispatcher: Dispatcher, workers: LocalWorkers, scaling: WorkerScaling, closed: threading.Event
) -> None:
    """Starts and ends workers as readers can use them, until the service is closed."""
    while not closed.wait(timing.SCALING):
        reply = dispatcher.handle(GetStatus())
        assert isinstance(reply, GetStatusReply)
        wanted, running = reply.status["wanted_workers"], len(workers)
        count = scaling.choose(MACHINE.now(), wanted, running)
        if count != running and not closed.is_set():
            _LOG.info("local://: from %d to %d workers, which readers can use", running, count)
            workers.resize(count)


_RUNNING: set[LocalService] = set()


@atexit.register
def _close_all() -> None:
    for service in list(_RUNNING):
        service.close()


os.register_at_fork(after_in_child=_RUNNING.clear)  # They belong to the parent.
