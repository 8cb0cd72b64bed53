"""Clusters in this process: a dispatcher and workers with real sockets, for tests that read.

`close` stops all that a test has started. A test waits for a condition, never for a time.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from penstock.data.experimental import service

_PATIENCE = 60.0


class Cluster:
    """A dispatcher and workers, which a test may add and stop."""

    def __init__(self, workers: int = 1, **config: Any) -> None:
        self.dispatcher = service.DispatchServer(service.DispatcherConfig(**config))
        self.target = self.dispatcher.target
        self.address = self.target.partition("://")[2]
        self.workers = [self.join() for _ in range(workers)]

    def join(self, **config: Any) -> service.WorkerServer:
        """Starts another worker."""
        return service.WorkerServer(
            service.WorkerConfig(self.address, **{"heartbeat_interval_ms": 200, **config})
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


class Calls:
    """A function that counts its calls on workers of this process, and can block them."""

    counters: ClassVar[dict[int, int]] = {}
    gates: ClassVar[dict[int, threading.Event]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.key = len(self.counters)
        self.counters[self.key] = 0
        self.gates[self.key] = threading.Event()
        self.open()

    def __call__(self, x: Any) -> Any:
        with Calls.lock:
            Calls.counters[self.key] += 1
        Calls.gates[self.key].wait()
        return x

    @property
    def count(self) -> int:
        return self.counters[self.key]

    def open(self) -> None:
        self.gates[self.key].set()

    def shut(self) -> None:
        self.gates[self.key].clear()


def until(condition: Callable[[], Any]) -> Any:
    """Waits until `condition()` is true, and returns its value; fails after a minute."""
    deadline = time.monotonic() + _PATIENCE
    pause = 0.001
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true after {_PATIENCE:.0f} s: {condition}"
        threading.Event().wait(pause)
        pause = min(2 * pause, 0.05)
    return found


def wait_until_settled(what: Callable[[], Any]) -> Any:
    """Waits until `what()` has returned the same value for a while, and returns that."""
    found = [what()]

    def same() -> bool:
        found.append(what())
        return len(found) > 12 and len({repr(each) for each in found[-12:]}) == 1

    until(same)
    return found[-1]
