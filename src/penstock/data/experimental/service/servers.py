"""Servers of the data service in this process: a dispatcher, and workers.

What really serves loads when the first server is made. A server that is dropped stops by itself.
"""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from penstock.data.dataset import ENVIRONMENT
from penstock.data.experimental.service.configs import (
    DispatcherConfig,
    WorkerConfig,
    check_dispatcher,
    check_worker,
    config_of,
    seconds,
)
from penstock.errors import FailedPreconditionError

if TYPE_CHECKING:
    from penstock.service.host.dispatcher import Dispatcher
    from penstock.service.host.worker import Worker


class Hosted(Protocol):
    """What really serves."""

    def start(self) -> None: ...

    def join(self) -> None: ...

    def stop(self) -> None: ...


SomeHosted = TypeVar("SomeHosted", bound=Hosted)


class _Server(Generic[SomeHosted]):
    """Starts once, and may be asked to stop as often as anybody likes."""

    def __init__(self, hosted: SomeHosted, start: bool) -> None:
        self._hosted = hosted
        self._lock = threading.Lock()
        self._started = self._stopped = False
        if start:
            self.start()

    def start(self) -> None:
        """Starts the server, unless it runs already."""
        with self._lock:
            if self._stopped:
                raise FailedPreconditionError(
                    f"{type(self).__name__}.start: this server was stopped; make a new one"
                )
            if not self._started:
                self._hosted.start()
                self._started = True

    def join(self) -> None:
        """Waits until the server is stopped."""
        self._hosted.join()

    def stop(self) -> None:
        """Stops the server; it can not be started again."""
        with self._lock:
            self._stopped = True
            self._hosted.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class DispatchServer(_Server["Dispatcher"]):
    """The dispatcher of a data service: it knows the datasets, the workers, and who reads what.

    Args:
        config: A `DispatcherConfig`; without one, it listens on a free port of this machine.
        start: Whether it starts at once.

    >>> with DispatchServer() as dispatcher:
    ...     print(dispatcher.target.rpartition(":")[0])
    grpc://localhost
    """

    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        given = DispatcherConfig() if config is None else config
        checked = config_of("DispatchServer", given, DispatcherConfig)
        check_dispatcher(checked)
        super().__init__(_dispatcher(checked), start)

    @property
    def target(self) -> str:
        """What `distribute` calls `service`: "grpc://host:port"."""
        return f"grpc://{self._hosted.address}"

    def _num_workers(self) -> int:
        return len(self._hosted.status()["workers"])


def _dispatcher(config: DispatcherConfig) -> Dispatcher:
    from penstock.service.host.dispatcher import Dispatcher

    where = "DispatcherConfig"
    return Dispatcher(
        port=config.port,
        host=config.host,
        work_dir=config.work_dir,
        fault_tolerant=config.fault_tolerant_mode,
        worker_addresses=config.worker_addresses,
        job_gc_check_interval=seconds(
            where, "job_gc_check_interval_ms", config.job_gc_check_interval_ms
        ),
        job_gc_timeout=seconds(where, "job_gc_timeout_ms", config.job_gc_timeout_ms),
        forget_after=seconds(where, "forget_after_ms", config.forget_after_ms),
        worker_timeout=seconds(where, "worker_timeout_ms", config.worker_timeout_ms),
        token=config.token,
        certificates=config.certificates,
        functions=config.functions,
    )


class WorkerServer(_Server["Worker"]):
    """A worker of a data service: it makes elements for whoever reads them.

    Args:
        config: A `WorkerConfig`, which names the dispatcher.
        start: Whether it starts at once.
    """

    def __init__(self, config: WorkerConfig, start: bool = True) -> None:
        checked = config_of("WorkerServer", config, WorkerConfig)
        check_worker(checked)
        super().__init__(_worker(checked), start)

    @property
    def address(self) -> str:
        """What clients reach it by: "host:port"."""
        return self._hosted.address

    def isolate(self) -> None:
        """Has every plan run in a process of its own, as `penstock worker` does.

        It forks: call it before `start`, in the main thread of a process that has no others.
        """
        self._hosted.isolate()

    @property
    def failed(self) -> bool:
        """Whether it has stopped because it could not go on."""
        return self._hosted.failed

    def drain(self, timeout: float | None = None) -> None:
        """Stops as soon as what others wait for is made; nothing new is begun."""
        self._hosted.drain(timeout)
        self.stop()

    def _num_tasks(self) -> int:
        return self._hosted.tasks()


def _worker(config: WorkerConfig) -> Worker:
    from penstock.service.host.worker import Worker

    where, transfer = "WorkerConfig", config.data_transfer_protocol
    return Worker(
        config.dispatcher_address,
        lambda: ENVIRONMENT,
        worker_address=config.worker_address or f"{_reached(config.host)}:%port%",
        port=config.port,
        host=config.host,
        heartbeat_interval=seconds(where, "heartbeat_interval_ms", config.heartbeat_interval_ms),
        dispatcher_timeout=seconds(where, "dispatcher_timeout_ms", config.dispatcher_timeout_ms),
        transfer=None if transfer == "grpc" else transfer,
        transfer_address=config.data_transfer_address,
        tags=tuple(config.worker_tags or ()),
        token=config.token,
        certificates=config.certificates,
        functions=config.functions,
        modules=tuple(config.modules),
    )


def _reached(host: str) -> str:
    """How others call a server that listens on `host`."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
