"""A dispatcher in this process, with workers that this process starts.

`local://` starts the workers as processes of this machine, `ray://` as actors of Ray. With a range
of workers, a thread starts as many of them as the readers can use.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.errors import OpError
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.runtime import MACHINE
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig
from penstock.service.host.session import Session
from penstock.service.logic.scaling import WorkerRange, WorkerScaling
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetStatus, GetStatusReply

_LOG = logging.getLogger("penstock.service")
_NAME = "penstock-scaling"


class WorkerGroup(Protocol):
    """The workers of one service: how they are started, replaced and ended."""

    def begin(self, config: WorkerConfig, fail: Callable[[OpError], None]) -> None:
        """Lets the workers register; `fail` is called if workers cannot run."""

    def __len__(self) -> int:
        """The number of workers, without those that leave."""

    def resize(self, count: int) -> None:
        """Starts workers, or lets the latest ones leave, until there are `count`."""

    def close(self) -> None:
        """Ends all workers; may be repeated."""


class HostedService:
    """Serves until it is closed, or this program ends; it closes `workers`."""

    def __init__(
        self, config: DispatcherConfig, workers: WorkerGroup, allowed: WorkerRange
    ) -> None:
        self._workers = workers
        self._closed = threading.Event()
        self.dispatcher = dispatcher = Dispatcher(config)
        _RUNNING.add(self)
        dispatcher.start()
        if (link := dispatcher.make_dashboard_link()) is not None:
            print(f"penstock dashboard at {link}", file=sys.stderr, flush=True)
        self.session = Session(
            dispatcher.address,
            dispatcher.security,
            lambda request, _=0: dispatcher.handle(request),
            local=True,
        )
        workers.begin(WorkerConfig(dispatcher.address, token=config.token), self._fail)
        if allowed.most > allowed.least:
            scaling = WorkerScaling(allowed)
            MACHINE.start(partial(_follow_load, dispatcher, workers, scaling, self._closed), _NAME)

    def _fail(self, error: OpError) -> None:
        self.session.failure = error

    def close(self) -> None:
        """Ends the workers; may be repeated."""
        self._closed.set()
        self._workers.close()
        self.dispatcher.stop()
        _RUNNING.discard(self)  # Last: `_close_all` closes what an exception left here.


def _follow_load(
    dispatcher: Dispatcher, workers: WorkerGroup, scaling: WorkerScaling, closed: threading.Event
) -> None:
    """Starts and ends workers as readers can use them, until the service is closed."""
    while not closed.wait(timing.SCALING):
        reply = dispatcher.handle(GetStatus())
        assert isinstance(reply, GetStatusReply)
        wanted, running = reply.status["wanted_workers"], len(workers)
        count = scaling.choose(MACHINE.now(), wanted, running)
        if count != running and not closed.is_set():
            _LOG.info("from %d to %d workers, which readers can use", running, count)
            workers.resize(count)


_RUNNING: set[HostedService] = set()


@atexit.register
def _close_all() -> None:
    for service in list(_RUNNING):
        service.close()


os.register_at_fork(after_in_child=_RUNNING.clear)  # They belong to the parent.
