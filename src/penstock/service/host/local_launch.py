"""Launched services on this machine: any program of this user reads from them, by their URL."""

from __future__ import annotations

import os
import time
from typing import Any, Self

from penstock.errors import InvalidArgumentError
from penstock.service.host.hosted_service import HostedService
from penstock.service.host.local_workers import LocalWorkers
from penstock.service.host.server_setup import DispatcherConfig, check_dispatcher
from penstock.service.logic.scaling import WorkerRange, read_range


def launch(workers: Any, config: DispatcherConfig) -> LocalService:
    """Starts a dispatcher in this process, and its workers as processes of this machine."""
    allowed = _parse_workers(workers)
    check_dispatcher(config)
    group = LocalWorkers(allowed.least)
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
