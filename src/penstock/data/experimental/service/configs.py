"""What the servers of the data service are told: named tuples, checked when a server is made.

The first fields are TensorFlow's, in its order; those behind them are penstock's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.data import arguments as check
from penstock.errors import InvalidArgumentError, NotAConfigError, UnfitServerError

Config = TypeVar("Config")


class DispatcherConfig(NamedTuple):
    """How a dispatcher runs.

    Args:
        port: Where it listens; 0 for a free port.
        protocol: "grpc".
        work_dir: A folder for its journal. With one, a dispatcher that is started again goes on
            where it was; without, it forgets everything.
        fault_tolerant_mode: Insists on a `work_dir`.
        worker_addresses: The only workers there may be, for policies that divide beforehand; one
            part for each. A host without a port stands for any worker of that host.
        job_gc_check_interval_ms: How often it looks for jobs that nobody reads.
        job_gc_timeout_ms: How long such a job is kept.
        forget_after_ms: How long a named job is kept that was read to its end; by default an hour.
        worker_timeout_ms: How long a worker may be silent before it counts as lost.
        worker_max_concurrent_snapshots: Accepted, without meaning.
        host: The name or address that it listens on, and that others find it by.
        token: The secret of this service; by default that of this user, from a private file.
        certificates: A folder made by `penstock certs`, for TLS.
        functions: "by_value", or "by_reference" to take no pickles: functions are then named by
            module and name.
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


class WorkerConfig(NamedTuple):
    """How a worker runs.

    Args:
        dispatcher_address: Where its dispatcher listens, "host:port".
        worker_address: What clients reach it by; "%port%" stands for its port.
        port: Where it listens; 0 for a free port.
        protocol: "grpc".
        heartbeat_interval_ms: How often it tells the dispatcher that it lives.
        dispatcher_timeout_ms: For how long it tries to reach the dispatcher when it starts.
        data_transfer_protocol: "tcp" or "shm", to offer no other; by default both.
        data_transfer_address: As `worker_address`, for data; "%dts_port%" stands for the port.
        worker_tags: Words about this worker, for `status`.
        host: The name or address that it listens on.
        token: The secret of the service; by default that of this user, from a private file.
        certificates: A folder made by `penstock certs`, for TLS.
        functions: "by_value", or "by_reference" to run only functions of `modules`.
        modules: The modules whose functions may be run by reference.
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


def config_of(where: str, config: Any, kind: type[Config]) -> Config:
    if not isinstance(config, kind):
        raise NotAConfigError(
            f"{where}: config must be a {kind.__name__}, got {check.typed(config)}"
        )
    return config


def check_dispatcher(config: DispatcherConfig) -> None:
    """Raises what a dispatcher could not be started with."""
    where = "DispatcherConfig"
    _check_server(where, config)
    if config.fault_tolerant_mode and config.work_dir is None:
        raise InvalidArgumentError(
            f"{where}: fault_tolerant_mode needs a work_dir, got None; "
            "name a folder that outlives the process"
        )
    times = ("job_gc_check_interval_ms", "job_gc_timeout_ms", "forget_after_ms")
    for name in (*times, "worker_timeout_ms"):
        seconds(where, name, getattr(config, name))


def check_worker(config: WorkerConfig) -> None:
    """Raises what a worker could not be started with."""
    where = "WorkerConfig"
    _check_server(where, config)
    if config.dispatcher_address is None:
        raise InvalidArgumentError(f"{where}: dispatcher_address must be given, got None")
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
    for name in ("heartbeat_interval_ms", "dispatcher_timeout_ms"):
        seconds(where, name, getattr(config, name))


def _check_server(where: str, config: DispatcherConfig | WorkerConfig) -> None:
    if config.protocol not in (None, "grpc"):
        raise UnfitServerError(f'{where}: protocol must be "grpc", got {config.protocol!r}')
    port = check.integer(where, "port", config.port)
    if not 0 <= port <= 65535:
        raise UnfitServerError(
            f"{where}: port must be from 1 to 65535, or 0 for a free one, got {port}"
        )
    if config.functions not in ("by_value", "by_reference"):
        raise InvalidArgumentError(
            f'{where}: functions must be "by_value" or "by_reference", got {config.functions!r}'
        )


def seconds(where: str, name: str, milliseconds: int | None) -> float | None:
    """A time in seconds; None where it is left to the server, which 0 means as well."""
    if milliseconds is None:
        return None
    return check.integer(where, name, milliseconds, 0) / 1000 or None
