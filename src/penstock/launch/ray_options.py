"""What `ray://` and `penstock.launch.ray` say about a service: its name, workers and resources."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from penstock.engine.formats.extras import load_extra
from penstock.errors import InvalidArgumentError
from penstock.launch.hosted_service import WorkerRange, read_range
from penstock.service.protocol import timing

AUTO, LOCAL = "auto", "local"
"""Names of services of readers: in the running Ray, or in a Ray that ends with the program."""

NAMESPACE = "penstock"
"""The namespace of Ray that launched services are in."""

_KEYS = ("workers", "cpus", "wait", "linger", "work_dir")


def load_ray() -> Any:
    """The module `ray`, which only programs that ask for it import."""
    return load_extra("ray", "ray://", "ray")


@dataclass(frozen=True)
class RayOptions:
    """A service on Ray. Readers that give equal options, in one namespace of Ray, share one.

    Args:
        name: The name of a launched service, or `AUTO` or `LOCAL`.
        workers: The fewest and the most workers; None for up to as many as the cluster has room.
        cpus: The CPUs that Ray reserves for each worker.
        wait: For how many seconds a reader waits for a first worker.
        work_dir: A folder for the journal, at the same path on every node.
        linger: For how many seconds it runs on without readers.
        lasting: It runs until it is closed, also without readers.
    """

    name: str = AUTO
    workers: WorkerRange | None = None
    cpus: float = 1.0
    wait: float = timing.RAY_WAIT
    linger: float = timing.RAY_UNUSED
    work_dir: str | None = None
    lasting: bool = False

    @property
    def text(self) -> str:
        """The options as a URL; equal options have equal texts."""
        query = [f"cpus={self.cpus:g}", f"linger={self.linger:g}"]
        if self.workers is not None:
            query.insert(0, f"workers={self.workers.least}..{self.workers.most}")
        if self.work_dir is not None:
            query.append(f"work_dir={self.work_dir}")
        return f"ray://{self.name}?{'&'.join(query)}"


def parse_rest(rest: str) -> RayOptions:
    """The options in `rest`, which follows `ray://`: `auto`, `?workers=4..64&cpus=1`, `NAME`."""
    url = f"service.distribute: ray://{rest}"
    name, _, query = rest.partition("?")
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidArgumentError(
            f"{url}: {query!r} must be key=value pairs, like ?workers=4..64&cpus=1"
        ) from None
    values: dict[str, Any] = dict(given)
    if len(values) != len(given) or not values.keys() <= set(_KEYS):
        raise InvalidArgumentError(
            f"{url}: the keys must be different ones of {', '.join(_KEYS)}, got "
            f"{', '.join(key for key, _ in given)}"
        )
    if is_launched(rest) and values.keys() - {"wait"}:
        raise InvalidArgumentError(
            f"{url}: the service {name!r} was launched with its options; only ?wait=SECONDS may "
            "follow its name"
        )
    return make_options(url, name=name or AUTO, **values)


def is_launched(rest: str) -> bool:
    """Whether `ray://rest` names a launched service, which outlives its readers."""
    return rest.partition("?")[0] not in ("", AUTO, LOCAL)


def make_options(call: str, *, work_dir: str | None = None, **given: Any) -> RayOptions:
    """Options that are checked; raises an error that names `call`."""
    if given.get("workers") is not None:
        given["workers"] = _parse_workers(call, given["workers"])
    for name in ("cpus", "wait", "linger"):
        if name in given:
            given[name] = _parse_number(call, name, given[name])
    return RayOptions(work_dir=work_dir or None, **given)


def _parse_workers(call: str, workers: Any) -> WorkerRange:
    found = read_range(str(workers))
    if found is None:
        raise InvalidArgumentError(
            f"{call}: workers must be a number, like 4, or the fewest and the most, like 4..64, "
            f"got {workers!r}"
        )
    return found


def _parse_number(call: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidArgumentError(f"{call}: {name} must be a number, at least 0, got {value!r}")
    return number
