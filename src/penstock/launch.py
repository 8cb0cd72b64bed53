"""`penstock.launch`: data services on a cluster, started from Python.

A launched service runs until it is closed, for all programs that know its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.service.host.ray_launch import LaunchedService

__all__ = ["ray"]


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
    from penstock.service.host.ray_launch import launch

    return launch(
        name,
        workers=workers,
        cpus=cpus,
        work_dir=work_dir,
        wait=wait,
        runtime_env=runtime_env,
    )
