"""Clusters in this process: a dispatcher and workers with real sockets, for tests that read.

All that a test starts is stopped by `close`, and a test waits for conditions, never for a time.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.data.experimental import service

_PATIENCE = 60.0


class Cluster:
    """A dispatcher and workers, which may come and go."""

    def __init__(self, workers: int = 1, **config: Any) -> None:
        self.dispatcher = service.DispatchServer(service.DispatcherConfig(**config))
        self.target = self.dispatcher.target
        self.workers = [self.join() for _ in range(workers)]

    def join(self, **config: Any) -> service.WorkerServer:
        """One worker more."""
        address = self.target.partition("://")[2]
        return service.WorkerServer(
            service.WorkerConfig(address, **{"heartbeat_interval_ms": 200, **config})
        )

    def distribute(self, mode: Any = "distributed_epoch", **arguments: Any) -> Any:
        return service.distribute(mode, self.target, **arguments)

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.dispatcher.stop()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until(condition: Callable[[], Any]) -> Any:
    """Waits until something holds, and gives it; a test that waits for ever says for what."""
    deadline = time.monotonic() + _PATIENCE
    pause = threading.Event()
    for turn in itertools.count():
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"waited in vain for {condition}"
        pause.wait(min(0.001 * 2**turn, 0.05))
    raise AssertionError
