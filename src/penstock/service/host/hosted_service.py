"""A dispatcher in this process, with workers that this process starts.

`local://` starts the workers as processes of this machine, `ray://` as actors of Ray. With a range
of workers, a thread starts as many of them as the readers can use. Any program of this user reads
from a service that `launch.local` has started, by its URL.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

from penstock.errors import InvalidArgumentError, OpError
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.local_workers import LocalWorkers
from penstock.service.host.runtime import MACHINE
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig, check_dispatcher
from penstock.service.host.session import Session
from penstock.service.logic.scaling import WorkerRange, WorkerScaling, read_range
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


def launch_here(workers: Any, config: DispatcherConfig) -> LocalService:
    """Starts a dispatcher in this process, and its workers as processes of this machine."""
    allowed = _parse_workers(workers)
    check_dispatcher(config)
    group = LocalWorkers(allowed.least, allowed.most)
    hosted = None
    try:
        hosted = HostedService(config, group, allowed)
        _await_workers(hosted, allowed.least)
    except BaseException:
        (hosted or group).close()
        raise
    return LocalService(hosted)


def _await_workers(hosted: HostedService, count: int) -> None:
    """Waits until the workers have registered, so that all first readers know all of them."""
    while len(hosted.dispatcher.status()["workers"]) < count:
        if hosted.session.failure is not None:
            raise hosted.session.failure
        time.sleep(0.01)


def _parse_workers(workers: Any) -> WorkerRange:
    if workers is None:
        workers = os.cpu_count() or 1
    is_number = isinstance(workers, int) and not isinstance(workers, bool)
    found = read_range(str(workers)) if is_number or isinstance(workers, str) else None
    if found is None:
        raise InvalidArgumentError(
            "launch.local: workers must be a number of processes, like 4, or the fewest and the "
            f'most of them, like "1..8", got {workers!r}'
        )
    return found


class LocalService:
    """A service on this machine; `close`, or the end of this program, ends it."""

    def __init__(self, hosted: HostedService) -> None:
        self._hosted = hosted

    @property
    def url(self) -> str:
        """The `service` argument of `distribute`, in any program of this user."""
        return f"grpc://{self._hosted.dispatcher.address}"

    def close(self) -> None:
        """Ends the dispatcher and its workers; may be repeated."""
        self._hosted.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
