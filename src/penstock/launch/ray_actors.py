"""The actors of a service on Ray: one with the dispatcher, and one for each worker.

The actor with the dispatcher owns those of the workers: when it ends, Ray ends them too, and
restarts it with new ones. Readers know this actor, and ask it for the dispatcher's address.
"""

from __future__ import annotations

import glob
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock.engine.formats.extras import load_extra
from penstock.errors import OpError
from penstock.launch.hosted_service import HostedService, LocalWorkers, WorkerRange
from penstock.launch.ray_options import LOCAL, RayOptions, load_ray
from penstock.service.host.http_pages import DISPATCHER_METRICS, Metric, Values
from penstock.service.host.runtime import MACHINE
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig
from penstock.service.host.sockets import is_loopback, split_address
from penstock.service.protocol import timing

_LOG = logging.getLogger("penstock.service")

JOURNAL = "penstock-ray-"
"""How the names of folders with the journals of services on Ray begin."""


class ServicePlace(NamedTuple):
    """Where the dispatcher of a service is, and why there are no workers, if there are none."""

    address: str
    problem: str | None


class ServiceActor:
    """A dispatcher and its workers. Unless it is `lasting`, it ends when no program reads.

    Args:
        options: The options of the service.
        token: The secret of the service.
        folder: The name of the journal's folder on this node, unless the options have a `work_dir`.
    """

    def __init__(self, options: RayOptions, token: str, folder: str) -> None:
        log_for_ray()
        self._options, self._token = options, token
        self._lock = threading.Lock()
        self._heard = {"": time.monotonic()}  #: guarded by _lock; when each program was last heard
        self._jobs: dict[str, str] = {}  #: guarded by _lock; the job of Ray that each program is of
        self._left: set[str] = set()  #: guarded by _lock; programs whose late messages do not count
        self._folder = os.path.join(tempfile.gettempdir(), folder)
        remove_orphans(tempfile.gettempdir())
        self._service = self._host_service(options)
        MACHINE.start(self._watch, "penstock-ray")

    def _host_service(self, options: RayOptions) -> HostedService:
        allowed = _find_range(options)
        self._workers = RayWorkers(allowed.least, options.cpus)
        config = DispatcherConfig(
            host="localhost" if options.name == LOCAL else load_ray().util.get_node_ip_address(),
            token=self._token,
            work_dir=options.work_dir or self._folder,
            fault_tolerant_mode=True,
        )
        try:
            return HostedService(config, self._workers, allowed)
        except Exception:
            if not _is_restarted():
                raise
            # Ray does not restart an actor that raises here, but one whose process ends. The
            # process before this one may still hold the journal.
            _LOG.exception("ray: the dispatcher could not be restarted; tries again")
            os._exit(1)

    def connect(self, program: str, job: str = "") -> tuple[str, ServicePlace]:
        """The token and the place of the service, for a program of a job that begins to read."""
        with self._lock:
            self._left.discard(program)
            self._jobs[program] = job
            self._heard.pop("", None)  # It waits no longer for a first program.
            self._heard[program] = time.monotonic()
        return self._token, self.renew(program)

    def renew(self, program: str) -> ServicePlace:
        """The place of the service, for a program that still reads."""
        with self._lock:
            if program not in self._left:
                self._heard[program] = time.monotonic()
        return ServicePlace(self._service.dispatcher.address, self._find_problem())

    def options(self) -> RayOptions:
        return self._options

    def leave(self, program: str) -> None:
        """Ends the service if no other program reads, unless it is `lasting`."""
        with self._lock:
            self._left.add(program)
            self._heard.pop(program, None)
            unused = not self._heard
        if unused and not self._options.lasting:
            self.end()

    def end(self) -> None:
        """Ends the service for good; the caller gets no answer."""
        self._service.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        ray = load_ray()
        ray.kill(ray.get_runtime_context().current_actor)

    def _find_problem(self) -> str | None:
        if self._service.dispatcher.status()["workers"]:
            return None
        return self._workers.find_problem()

    def _watch(self) -> None:
        """Publishes metrics, and ends the service when no program has read for a while."""
        metrics = RayMetrics(self._options.name)
        while True:
            time.sleep(timing.RAY_RENEWAL)
            metrics.publish(self._service.dispatcher.measure())
            if not self._options.lasting and not self._has_readers():
                _LOG.info("ray: no program has read for %g s; ends", self._options.linger)
                self.end()

    def _has_readers(self) -> bool:
        now = time.monotonic()
        with self._lock:
            silent = any(at < now - timing.RAY_SILENCE for at in self._heard.values())
        ended = _find_ended_jobs() if silent else set()
        with self._lock:
            self._heard = {
                name: at
                for name, at in self._heard.items()
                if at > now - self._options.linger and self._jobs.get(name) not in ended
            }
            return bool(self._heard)


def remove_orphans(folder: str) -> None:
    """Removes journals of services whose actors were killed, which left them in `folder`.

    A dispatcher touches its journal all the time. Ray restarts an actor long before its journal is
    so old.
    """
    oldest = time.time() - timing.RAY_ORPHAN
    for path in glob.glob(os.path.join(glob.escape(folder), f"{JOURNAL}*")):
        with suppress(OSError):  # It belongs to another user, or another actor removes it.
            touched = max(entry.stat().st_mtime for entry in [*os.scandir(path), Path(path)])
            if touched < oldest:
                shutil.rmtree(path)


class WorkerActor:
    """One worker, in processes below that of the actor, so that users' functions cannot end it."""

    def __init__(self, config: WorkerConfig) -> None:
        log_for_ray()
        self._workers = LocalWorkers(1, 1)
        dispatcher, _ = split_address(config.dispatcher_address)
        # With `ray://local` nothing needs to be reachable from other machines.
        host = dispatcher if is_loopback(dispatcher) else load_ray().util.get_node_ip_address()
        self._workers.begin(config._replace(host=host), _give_up)

    def confirm(self) -> None:
        """Returns once Ray has placed the actor."""

    def leave(self) -> None:
        """Returns when the worker has finished what clients have requested, and has ended."""
        self._workers.resize(0)
        self._workers.wait_until_empty()


def _give_up(error: OpError) -> None:
    """Ends the process of the actor; Ray starts another, perhaps on another node."""
    _LOG.error("ray: %s", error.message)
    os._exit(1)


class RayWorkers:
    """A `WorkerGroup` of actors, which Ray places on its nodes and restarts."""

    def __init__(self, count: int, cpus: float) -> None:
        self._ray = load_ray()
        self._count, self._cpus = count, cpus
        self._make = self._ray.remote(WorkerActor).options(num_cpus=cpus, max_restarts=-1)
        self._lock = threading.Lock()
        """Guards the fields below; no worker is started once `_closed` is set."""
        self._closed = False
        self._config: WorkerConfig | None = None
        self._confirmed: dict[Any, Any] = {}
        """The actors, and the answer of each, which Ray has once the actor is placed."""

    def begin(self, config: WorkerConfig, fail: Callable[[OpError], None]) -> None:
        self._config = config
        self.resize(self._count)

    def __len__(self) -> int:
        with self._lock:
            return len(self._confirmed)

    def resize(self, count: int) -> None:
        """As in `WorkerGroup`; starts none before Ray has placed all that were started."""
        with self._lock:
            if self._closed:
                return
            for actor in list(self._confirmed)[count:]:
                del self._confirmed[actor]
                actor.leave.remote()  # Without a handle, Ray ends the actor after this call.
            if count > len(self._confirmed) and self._wait_confirmed()[1]:
                _LOG.info("ray: starts no more workers: %s", self._describe_shortage())
                return
            for _ in range(len(self._confirmed), count):
                actor = self._make.remote(self._config)
                self._confirmed[actor] = actor.confirm.remote()

    def find_problem(self) -> str:
        """Why no worker runs."""
        with self._lock:
            confirmed, pending = self._wait_confirmed()
        try:
            self._ray.get(confirmed)
        except self._ray.exceptions.RayError as error:
            return f"Ray cannot start a worker: {error}"
        return self._describe_shortage() if pending else STARTING

    def _wait_confirmed(self) -> tuple[list[Any], list[Any]]:
        """The answers of actors that Ray has placed, and of actors that wait for a place."""
        answers = list(self._confirmed.values())
        if not answers:
            return [], []
        confirmed, pending = self._ray.wait(answers, num_returns=len(answers), timeout=0)
        return confirmed, pending

    def _describe_shortage(self) -> str:
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return describe_shortage(self._cpus, alive, self._find_free())

    def _find_free(self) -> list[Mapping[str, float]]:
        """What is free on each node, or on all nodes together if Ray does not report more."""
        state = load_extra("ray._private.state", "ray://", "ray")
        with suppress(Exception):  # It is not public, so it may differ in another version of Ray.
            return list(state.available_resources_per_node().values())
        return [self._ray.available_resources()]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for actor in self._confirmed:
                with suppress(Exception):  # Ray ends them with this actor anyway.
                    self._ray.kill(actor)


STARTING = "the workers have not started yet"


def describe_shortage(
    cpus: float, nodes: Sequence[Mapping[str, float]], free: Sequence[Mapping[str, float]]
) -> str:
    """Why Ray has no room for a worker, from what its nodes have, and what is free on each."""
    largest = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
    total = sum(node.get("CPU", 0.0) for node in nodes)
    left = [node.get("CPU", 0.0) for node in free] or [0.0]
    if largest < cpus:
        return f"a worker needs {cpus:g} CPU, and the largest node of Ray has {largest:g}"
    if max(left) >= cpus:
        return STARTING
    spread = f", at most {max(left):g} on one node" if sum(left) >= cpus else ""
    return (
        f"Ray has no room for a worker, which needs {cpus:g} CPU: {sum(left):g} of {total:g} CPU "
        f"on {len(nodes)} nodes are free{spread}"
    )


def _find_range(options: RayOptions) -> WorkerRange:
    if options.workers is not None:
        return options.workers
    total = load_ray().cluster_resources().get("CPU", 1.0)
    return WorkerRange(1, max(1, int(total / (options.cpus or 1.0))))


def _find_ended_jobs() -> set[str]:
    """The jobs that have ended, also by `ray.shutdown`, as far as this version of Ray reports."""
    state = load_extra("ray._private.state", "ray://", "ray")
    with suppress(Exception):  # It is not public, so it may differ in another version of Ray.
        return {str(job["JobID"]) for job in state.jobs() if job["IsDead"]}
    return set()


def _is_restarted() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns of what its own property uses.
        return bool(load_ray().get_runtime_context().was_current_actor_reconstructed)


def log_for_ray() -> None:
    """Writes the log of this process to its standard error, which Ray keeps for each actor."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("penstock").setLevel(logging.INFO)


_SERVICE = "service"


class RayMetrics:
    """Publishes the metrics of a dispatcher in Ray, which begins their names with `ray_`.

    A tag names the service. Ray counts increments of counters.
    """

    def __init__(self, service: str) -> None:
        self._tags = {_SERVICE: service}
        self._metrics = [(metric, _make_metric(metric)) for metric in DISPATCHER_METRICS]
        self._counted: dict[tuple[str, str], float] = {}

    def publish(self, values: Values) -> None:
        for metric, published in self._metrics:
            for label, value in _each_value(values[metric.name]):
                tags = {**self._tags, metric.label: label} if metric.label else self._tags
                if metric.is_counter:
                    self._count((metric.name, label), value, published, tags)
                else:
                    published.set(value, tags=tags)

    def _count(
        self, key: tuple[str, str], value: float, published: Any, tags: dict[str, str]
    ) -> None:
        added = value - self._counted.get(key, 0.0)
        if added > 0:
            published.inc(added, tags=tags)
            self._counted[key] = value


def _make_metric(metric: Metric) -> Any:
    metrics = load_extra("ray.util.metrics", "ray://", "ray")
    keys = (_SERVICE, metric.label) if metric.label else (_SERVICE,)
    if metric.is_counter:
        # Ray ends the names of counters in `_total` itself.
        name = metric.name.removesuffix("_total")
        return metrics.Counter(name, description=metric.help, tag_keys=keys)
    return metrics.Gauge(metric.name, description=metric.help, tag_keys=keys)


def _each_value(value: float | Mapping[str, float]) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        yield from value.items()
    else:
        yield "", value
