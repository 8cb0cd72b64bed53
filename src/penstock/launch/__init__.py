"""`penstock.launch`: data services on this machine or on a cluster, started from Python.

A launched service runs until it is closed, for all programs that know its name or its address. The
room also starts the services of `local://` and `ray://`, which end with their readers. This module
must stay light: `import penstock` loads it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.missing_names import missing
from penstock.service.host.server_setup import SCHEMES, DispatcherConfig, Scheme

if TYPE_CHECKING:
    from penstock.launch.hosted_service import LocalService
    from penstock.launch.ray_service import LaunchedService

__all__ = ["local", "ray"]


def local(
    workers: int | str | None = None,
    *,
    port: int = 0,
    work_dir: str | None = None,
    dashboard_port: int | None = None,
) -> LocalService:
    """Starts a data service on this machine: a dispatcher in this program, workers beside it.

    Programs of this user read from it by its `url`, until it is closed or this program ends. So
    several processes can share a job, which "local://4" cannot do: each dataset that is read from
    "local://4" has a service of its own.

    Args:
        workers: The number of worker processes, or the fewest and the most ("1..8"): as many as
            readers can use. By default one for each core.
        port: The port of the dispatcher; 0 for a free one.
        work_dir: A folder for the dispatcher's journal. A service that is launched with it again
            continues with the same jobs.
        dashboard_port: The port of the dashboard, a page for browsers; by default there is none.

    >>> import penstock
    >>> from penstock.data.experimental import service
    >>> with penstock.launch.local(workers=1) as launched:
    ...     job = service.distribute("distributed_epoch", launched.url, job_name="training")
    ...     print(*penstock.data.Dataset.range(4).apply(job))
    0 1 2 3
    """
    from penstock.launch.hosted_service import launch_here

    config = DispatcherConfig(port=port, work_dir=work_dir, dashboard_port=dashboard_port)
    return launch_here(workers, config)


def ray(
    name: str = "shared",
    *,
    workers: int | str | None = None,
    cpus: float = 1.0,
    work_dir: str | None = None,
    wait: float = 20.0,
    runtime_env: dict[str, Any] | None = None,
) -> LaunchedService:
    """Starts a data service in the running Ray, as actors, which Ray places and restarts.

    Programs of this Ray read from it by its `url`, until it is closed. If it runs already, with
    the same options, it is returned.

    Args:
        name: Its name; "ray://NAME" is the `service` argument of `distribute`.
        workers: The number of workers, or the fewest and the most ("4..64"): as many as readers
            can use. By default from 1 to as many as the cluster has room for.
        cpus: The CPUs that Ray reserves for each worker.
        work_dir: A folder for the dispatcher's journal, which all nodes see at this path. Without
            one, the journal is on the head node of Ray.
        wait: For how many seconds to wait until the dispatcher runs. Workers may come later.
        runtime_env: The runtime environment of Ray for the actors: packages, modules, variables.

    >>> import penstock
    >>> with penstock.launch.ray("features", workers=2) as service:  # doctest: +SKIP
    ...     print(service.url)
    ray://features
    """
    from penstock.launch.ray_service import launch_service

    return launch_service(
        name,
        workers=workers,
        cpus=cpus,
        work_dir=work_dir,
        wait=wait,
        runtime_env=runtime_env,
    )


def register_schemes() -> None:
    """Makes `local://` and `ray://` services, which start when they are first read from."""
    SCHEMES["local"] = Scheme(
        start=_import_later("hosted_service:start_local"),
        check=_import_later("hosted_service:parse_local"),
    )
    SCHEMES["ray"] = Scheme(
        start=_import_later("ray_service:start_service"),
        outlives_readers=_import_later("ray_options:is_launched"),
        find_session=_import_later("ray_service:find_session"),
        check=_import_later("ray_options:parse_rest"),
    )


def _import_later(name: str) -> Callable[[str], Any]:
    """A function of this package, `module:function`, whose module its first call imports."""
    return lambda rest: pkgutil.resolve_name(f"penstock.launch.{name}")(rest)


if not TYPE_CHECKING:  # A type checker would take any name.

    def __getattr__(name: str) -> NoReturn:
        raise missing("launch", name, __all__)
