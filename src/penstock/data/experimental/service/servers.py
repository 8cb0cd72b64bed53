"""Servers of the data service in this process: a dispatcher, and workers.

The modules that serve load when the first server is made. A server that is dropped stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.data.dataset import ENVIRONMENT
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig

if TYPE_CHECKING:
    from penstock.service.host.dispatcher_server import Dispatcher
    from penstock.service.host.worker_server import Worker


class _Server:
    """`start`, `join` and `stop`, passed on to the server of this process."""

    def __init__(self, hosted: Dispatcher | Worker, start: bool) -> None:
        self._hosted = hosted
        if start:
            self.start()

    def start(self) -> None:
        """Starts the server, unless it runs already."""
        self._hosted.start()

    def join(self) -> None:
        """Blocks until the server has stopped."""
        self._hosted.join()

    def stop(self) -> None:
        """Stops the server; it cannot be started again."""
        self._hosted.stop()

    @property
    def metrics_url(self) -> str | None:
        """Where /metrics is, as in "http://localhost:9100/metrics"; None without `metrics_port`."""
        return self._hosted.metrics_url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class DispatchServer(_Server):
    """The dispatcher of a data service: it registers datasets, jobs and workers.

    Args:
        config: A `DispatcherConfig`; without one, it listens on a free port of this machine.
        start: Whether it starts at once.

    >>> with DispatchServer() as dispatcher:
    ...     print(dispatcher.target.rpartition(":")[0])
    grpc://localhost
    >>> dispatcher.failed, dispatcher.metrics_url, dispatcher.dashboard_link()
    (False, None, None)
    """

    _hosted: Dispatcher

    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        from penstock.service.host.dispatcher_server import Dispatcher

        super().__init__(Dispatcher(DispatcherConfig() if config is None else config), start)

    @property
    def target(self) -> str:
        """The `service` argument of `distribute`: "grpc://host:port"."""
        return f"grpc://{self._hosted.address}"

    @property
    def failed(self) -> bool:
        """Whether it stopped because another dispatcher took over its `work_dir`."""
        return self._hosted.failed

    def dashboard_link(self) -> str | None:
        """A new link to the dashboard, which is valid once; None without `dashboard_port`."""
        return self._hosted.make_dashboard_link()

    def _num_workers(self) -> int:
        return len(self._hosted.status()["workers"])


class WorkerServer(_Server):
    """A worker of a data service: it computes the elements that clients request.

    Args:
        config: A `WorkerConfig`, which names the dispatcher.
        start: Whether it starts at once.

    >>> with DispatchServer() as dispatcher:
    ...     config = WorkerConfig(dispatcher_address=dispatcher.target.removeprefix("grpc://"))
    ...     worker = WorkerServer(config)
    ...     print(worker.address.startswith("localhost:"), worker.metrics_url, worker.failed)
    ...     worker.drain(timeout=1.0)
    True None False
    """

    _hosted: Worker

    def __init__(self, config: WorkerConfig, start: bool = True) -> None:
        from penstock.service.host.worker_server import Worker

        super().__init__(Worker(config, lambda: ENVIRONMENT), start)

    @property
    def address(self) -> str:
        """The address that clients use: "host:port"."""
        return self._hosted.address

    def isolate(self) -> None:
        """Has every plan run in a process of its own, as `penstock worker` does.

        It forks: call it before `start`, in the main thread of a process without other threads.
        """
        self._hosted.isolate()

    @property
    def failed(self) -> bool:
        """Whether it stopped because of an error."""
        return self._hosted.failed

    def drain(self, timeout: float | None = None) -> None:
        """Finishes the elements that it makes, for at most `timeout` seconds, and stops.

        Clients ask other workers for all else that they have requested.
        """
        self._hosted.drain(timeout)

    def _num_tasks(self) -> int:
        return self._hosted.tasks()
