"""Setting up services: the configurations of servers, how they start, and the schemes of URLs.

Users make the named tuples of a configuration; the servers read them as they are.
`check_dispatcher` and `check_worker` are the only checks. The first fields are TensorFlow's, in its
order; the last ones are penstock's own.

A server starts once and stops for good; both calls may be repeated. Threads of a server must not
refer to the server object, so that a dropped server stops. This module must stay light:
`import penstock` loads it.
"""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotAConfigError,
    UnfitServerError,
)

_FUNCTIONS = ("by_value", "by_reference")


class DispatcherConfig(NamedTuple):
    """How a dispatcher runs.

    Args:
        port: The port to listen on; 0 for a free one.
        protocol: "grpc".
        work_dir: A folder for the journal, made if it does not exist. A dispatcher that restarts
            with it continues where it was; without one, it forgets everything.
        fault_tolerant_mode: Requires a `work_dir`.
        worker_addresses: The only workers that may join, one per part, for policies that divide
            a dataset beforehand. "host", and "host:%port%" with any name of a port, mean any
            worker of that host.
        job_gc_check_interval_ms: How often to look for jobs without readers.
        job_gc_timeout_ms: How long a job without readers is kept; by default, and with -1,
            without limit.
        worker_timeout_ms: How long a worker may send no heartbeat before it counts as lost.
        worker_max_concurrent_snapshots: Accepted and ignored.
        host: The name or address to listen on, under which clients and workers reach it.
        token: The secret of this service; by default that of this user, from a private file.
        certificates: A folder made by `penstock certs`, for TLS.
        functions: "by_value", or "by_reference" to refuse pickles: functions then travel as
            module and name.
        forget_after_ms: How long a named job is kept after it was read to its end; by default an
            hour.
        metrics_port: The port of /metrics, /healthz and /readyz (HTTP), on the same `host`; 0 for
            a free one. By default there is none.
        standby: Whether it waits, before it listens, until another dispatcher with the same
            `work_dir` has ended or is silent, and then takes over.
        dashboard_port: The port of the dashboard, a page for browsers; 0 for a free one. By
            default there is none.
        dashboard_host: The name or address of the dashboard, if other machines should reach it.

    >>> config = DispatcherConfig(port=5050, work_dir="/var/lib/penstock", metrics_port=9100)
    >>> config.port, config.host, config.functions
    (5050, 'localhost', 'by_value')
    """

    port: int = 0
    protocol: str | None = "grpc"
    work_dir: str | None = None
    fault_tolerant_mode: bool = False
    worker_addresses: Sequence[str] | None = None
    job_gc_check_interval_ms: int | None = None
    job_gc_timeout_ms: int | None = None
    worker_timeout_ms: int | None = None
    worker_max_concurrent_snapshots: int = 0
    host: str = "localhost"
    token: str | bytes | None = None
    certificates: str | None = None
    functions: str = "by_value"
    forget_after_ms: int | None = None
    metrics_port: int | None = None
    standby: bool = False
    dashboard_port: int | None = None
    dashboard_host: str = "localhost"


class WorkerConfig(NamedTuple):
    """How a worker runs.

    Args:
        dispatcher_address: Where its dispatcher listens, "host:port"; with a standby
            "host:port,host:port".
        worker_address: The address that clients use; "%port%" is replaced by its port.
        port: The port to listen on; 0 for a free one.
        protocol: "grpc".
        heartbeat_interval_ms: The time between two heartbeats to the dispatcher. By default the
            dispatcher chooses it: 1 s, and up to 3 s if there are many workers.
        dispatcher_timeout_ms: How long it tries to reach the dispatcher when it starts.
        data_transfer_protocol: "tcp" or "shm" to offer only that one; by default both.
        data_transfer_address: As `worker_address`, for data; "%dts_port%" is replaced as well.
        worker_tags: Words about this worker, shown by `status`.
        host: The name or address to listen on.
        token: The secret of the service; by default that of this user, from a private file.
        certificates: A folder made by `penstock certs`, for TLS.
        functions: "by_value", or "by_reference" to run only functions of `modules`.
        modules: The modules whose functions may be run by reference.
        metrics_port: As in `DispatcherConfig`.

    >>> config = WorkerConfig(dispatcher_address="data1:5050,data2:5050", worker_tags=["gpu-box"])
    >>> config.dispatcher_address, config.port
    ('data1:5050,data2:5050', 0)
    """

    dispatcher_address: str
    worker_address: str | None = None
    port: int = 0
    protocol: str | None = "grpc"
    heartbeat_interval_ms: int | None = None
    dispatcher_timeout_ms: int | None = None
    data_transfer_protocol: str | None = None
    data_transfer_address: str | None = None
    worker_tags: Sequence[str] | None = None
    host: str = "localhost"
    token: str | bytes | None = None
    certificates: str | None = None
    functions: str = "by_value"
    modules: Sequence[str] = ()
    metrics_port: int | None = None


def check_dispatcher(config: Any) -> None:
    """Raises if no dispatcher can be started with `config`."""
    where = "DispatcherConfig"
    if not isinstance(config, DispatcherConfig):
        raise _wrong_config("DispatchServer", where, config)
    _check_server(where, config)
    for mode in ("fault_tolerant_mode", "standby"):
        if getattr(config, mode) and not config.work_dir:
            raise InvalidArgumentError(
                f"{where}: {mode} needs a work_dir, got {config.work_dir!r}; "
                "name a folder that outlives the process"
            )
    if config.dashboard_port is not None:
        _check_port(where, "dashboard_port", config.dashboard_port)
    _check_strings(where, "worker_addresses", config.worker_addresses)
    for name in ("job_gc_check_interval_ms", "forget_after_ms", "worker_timeout_ms"):
        _check_time(where, name, getattr(config, name))
    if config.job_gc_timeout_ms != -1:
        _check_time(where, "job_gc_timeout_ms", config.job_gc_timeout_ms)


def check_worker(config: Any) -> None:
    """Raises if no worker can be started with `config`."""
    where = "WorkerConfig"
    if not isinstance(config, WorkerConfig):
        raise _wrong_config("WorkerServer", where, config)
    _check_server(where, config)
    if config.dispatcher_address is None:
        raise InvalidArgumentError(f"{where}: dispatcher_address must be given, got None")
    if not isinstance(config.dispatcher_address, str):
        raise InvalidTypeError(
            f"{where}: dispatcher_address must be a string, got {config.dispatcher_address!r}"
        )
    if not config.dispatcher_address:
        raise UnfitServerError(
            f"{where}: dispatcher_address must be host:port, got ''; "
            'it is what follows "://" in the target of the dispatcher'
        )
    if config.data_transfer_protocol not in (None, "grpc", "tcp", "shm"):
        raise UnfitServerError(
            f'{where}: data_transfer_protocol must be "tcp", "shm" or None, '
            f"got {config.data_transfer_protocol!r}"
        )
    _check_strings(where, "worker_tags", config.worker_tags)
    if not all(config.worker_tags or ()):
        raise UnfitServerError(
            f"{where}: worker_tags must not be empty, got {config.worker_tags!r}; leave the empty "
            "one out"
        )
    for name in ("heartbeat_interval_ms", "dispatcher_timeout_ms"):
        _check_time(where, name, getattr(config, name))


def _check_strings(where: str, name: str, value: Any) -> None:
    if isinstance(value, str) or not all(isinstance(each, str) for each in value or ()):
        raise InvalidTypeError(f"{where}: {name} must be a list of strings, got {value!r}")


def seconds(milliseconds: int | None, default: float) -> float:
    """A time of a config in seconds; the default if it is 0 or None."""
    return milliseconds / 1000 if milliseconds else default


def _wrong_config(call: str, kind: str, value: Any) -> NotAConfigError:
    return NotAConfigError(
        f"{call}: config must be a {kind}, got {value!r} ({type(value).__name__})"
    )


def _check_server(where: str, config: DispatcherConfig | WorkerConfig) -> None:
    if config.protocol not in (None, "grpc"):
        raise UnfitServerError(f'{where}: protocol must be "grpc", got {config.protocol!r}')
    _check_port(where, "port", config.port)
    if config.metrics_port is not None:
        _check_port(where, "metrics_port", config.metrics_port)
    if config.functions not in _FUNCTIONS:
        raise InvalidArgumentError(
            f'{where}: functions must be "by_value" or "by_reference", got {config.functions!r}'
        )


def _check_port(where: str, name: str, port: Any) -> None:
    _check_integer(where, name, port)
    if not 0 <= port <= 65535:
        raise UnfitServerError(
            f"{where}: {name} must be from 1 to 65535, or 0 for a free one, got {port}"
        )


def _check_time(where: str, name: str, milliseconds: Any) -> None:
    if milliseconds is None:
        return
    _check_integer(where, name, milliseconds)
    if milliseconds < 0:
        raise InvalidArgumentError(f"{where}: {name} must be at least 0, got {milliseconds}")


def _check_integer(where: str, name: str, value: Any) -> None:
    if value is None:
        raise InvalidArgumentError(f"{where}: {name} must be an integer, got None")
    try:
        operator.index(value)
    except TypeError:
        raise InvalidTypeError(
            f"{where}: {name} must be an integer, got {value!r} ({type(value).__name__})"
        ) from None


class Lifecycle(ABC):
    """`start`, `join` and `stop` of a server, for any thread.

    Subclasses implement `_begin` and `_end`, and name themselves as users do.
    """

    public_name: ClassVar[str]

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        """Set when the server has stopped, also without a call of `stop`."""
        self._changing = threading.Lock()
        """Guards `_begun`, and makes `_begin` and `_end` exclude each other."""
        self._begun = False

    def start(self) -> None:
        """Starts the server, unless it runs already."""
        with self._changing:
            if self._stopped.is_set():
                raise FailedPreconditionError(
                    f"{self.public_name}.start: this server was stopped; make a new one"
                )
            if not self._begun:
                self._begin()
                self._begun = True

    def join(self) -> None:
        """Blocks until the server has stopped."""
        self._stopped.wait()

    def stop(self) -> None:
        """Stops the server; it cannot be started again."""
        with self._changing:
            self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _begin(self) -> None:
        """Starts to serve."""

    @abstractmethod
    def _end(self) -> None:
        """Sets `_stopped`, closes ports and files; may be called again, or before `_begin`."""


# Schemes: which service a URL in the `service` argument of `distribute` names


class Scheme(NamedTuple):
    """The meaning of URLs `name://rest`. Each function is called with the rest."""

    start: Callable[[str], Any]
    """Returns the `Service` (see `services`), and starts it if necessary."""
    outlives_readers: Callable[[str], bool] = lambda rest: False
    """Whether the service also runs while no iterator reads from it."""
    find_session: Callable[[str], Any] | None = None
    """Returns the `Session` with a service that outlives its readers. By default the rest is the
    address of a dispatcher."""
    check: Callable[[str], object] = lambda rest: None
    """Raises if the rest names no service, when a dataset is distributed."""


SCHEMES: dict[str, Scheme] = {}
"""The schemes by their names. `services` adds `grpc`, `penstock.launch` adds those of services that
it starts, and users may add more."""
