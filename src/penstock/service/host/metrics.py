"""Metrics and probes of dispatchers and workers, over HTTP: /metrics, /healthz and /readyz.

Every metric is declared here once, and docs/metrics.md lists the same ones. Labels have few
values, which do not grow with the number of jobs, readers or workers. prometheus_client is loaded
when a server with a metrics port is made.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, get_args

from penstock.engine.formats.extras import load_extra
from penstock.service.host.http_server import HttpRequest, HttpServer, Page
from penstock.service.host.security import Security
from penstock.service.host.sockets import join_address
from penstock.service.logic.status import Tally
from penstock.service.protocol.messages import Request
from penstock.version import VERSION

Values = Mapping[str, float | Mapping[str, float]]
"""The value of each metric by its name; of a metric with a label, by the label's value."""


class Metric(NamedTuple):
    """A metric: a counter if its name ends in `_total`, else a gauge."""

    name: str
    help: str
    label: str = ""

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


DISPATCHER_METRICS = (
    Metric("penstock_workers", "Registered workers, by state.", "state"),
    Metric("penstock_wanted_workers", "How many workers the readers could use."),
    Metric("penstock_readers", "Clients that read now."),
    Metric("penstock_jobs", "Iterations of jobs that the dispatcher remembers, by state.", "state"),
    Metric("penstock_datasets", "Registered datasets."),
    Metric("penstock_leased_elements", "Elements that readers hold a lease on."),
    Metric("penstock_reader_memory_bytes", "Bytes that readers have requested and not handed out."),
    Metric("penstock_reader_memory_budget_bytes", "The most bytes that readers may hold."),
    Metric("penstock_worker_memory_bytes", "Bytes of elements that workers keep for readers."),
    Metric("penstock_elements_handed_out_total", "Elements that readers gave to their programs."),
    Metric("penstock_reader_seconds_total", "Seconds that readers have read."),
    Metric("penstock_reader_wait_seconds_total", "Seconds of these that programs waited."),
    Metric("penstock_elements_made_total", "Elements that workers made, also more than once."),
    Metric("penstock_making_seconds_total", "Seconds that workers spent on making elements."),
    Metric("penstock_workers_joined_total", "Workers that registered."),
    Metric("penstock_workers_gone_total", "Workers that left, were replaced, or were lost."),
    Metric("penstock_workers_lost_total", "Workers that were silent for too long."),
    Metric("penstock_readers_joined_total", "Readers that opened an iteration."),
    Metric("penstock_readers_gone_total", "Readers that left or were lost."),
    Metric("penstock_readers_lost_total", "Readers that were silent for too long."),
    Metric("penstock_iterations_begun_total", "Iterations of jobs that began."),
    Metric("penstock_requests_total", "Requests to the dispatcher, by kind.", "kind"),
    Metric("penstock_request_failures_total", "Requests that were refused, by kind.", "kind"),
    Metric(
        "penstock_rejected_connections_total",
        "Connections that ended before the token was proved.",
    ),
)

WORKER_METRICS = (
    Metric("penstock_worker_registered", "1 if the dispatcher knows this worker, else 0."),
    Metric("penstock_worker_draining", "1 if this worker is about to stop, else 0."),
    Metric("penstock_worker_connections", "Connections of clients to this worker."),
    Metric("penstock_worker_plan_processes", "Processes that run plans."),
    Metric("penstock_worker_plan_process_crashes_total", "Plan processes that crashed."),
    Metric("penstock_worker_elements_made_total", "Elements that this worker made."),
    Metric("penstock_worker_making_seconds_total", "Seconds spent on making elements."),
    Metric("penstock_worker_elements_sent_total", "Elements that were sent to clients."),
    Metric("penstock_worker_sent_bytes_total", "Bytes of these elements, before compression."),
    Metric("penstock_worker_element_failures_total", "Elements that could not be computed."),
    Metric("penstock_worker_kept_bytes", "Bytes of elements that are kept for readers."),
    Metric("penstock_worker_heartbeat_failures_total", "Heartbeats that were not answered."),
    Metric(
        "penstock_worker_rejected_connections_total",
        "Connections that ended before the token was proved.",
    ),
)

WORKER_STATES = ("here", "suspected", "draining")
JOB_STATES = ("reading", "idle", "finished")

_EXTRA = "metrics_port"


class RequestCounts:
    """Counts requests by the names of their classes. Thread-safe."""

    def __init__(self) -> None:
        kinds = [kind.__name__ for kind in get_args(Request)]
        self._lock = threading.Lock()
        self._asked = Counter(dict.fromkeys(kinds, 0))  #: guarded by _lock
        self._failed = self._asked.copy()  #: guarded by _lock

    def count(self, request: Request) -> None:
        with self._lock:
            self._asked[type(request).__name__] += 1

    def count_failure(self, request: Request) -> None:
        with self._lock:
            self._failed[type(request).__name__] += 1

    def values(self) -> Values:
        with self._lock:
            return {
                "penstock_requests_total": dict(self._asked),
                "penstock_request_failures_total": dict(self._failed),
            }


def dispatcher_values(status: Mapping[str, Any], tally: Tally) -> Values:
    """The values of metrics, from the status of a dispatcher and what it has counted."""
    workers, jobs = status["workers"], status["jobs"]
    return {
        "penstock_workers": _count_by_state((each["state"] for each in workers), WORKER_STATES),
        "penstock_wanted_workers": status["wanted_workers"],
        "penstock_readers": sum(job["clients"] for job in jobs),
        "penstock_jobs": _count_by_state(map(_job_state, jobs), JOB_STATES),
        "penstock_datasets": len(status["datasets"]),
        "penstock_leased_elements": sum(job["leased"] for job in jobs),
        "penstock_reader_memory_bytes": sum(job["held"] for job in jobs),
        "penstock_reader_memory_budget_bytes": sum(job["budget"] for job in jobs),
        "penstock_worker_memory_bytes": sum(worker["buffered"] for worker in workers),
        **{f"penstock_{name}_total": value for name, value in vars(tally).items()},
    }


def _job_state(job: Mapping[str, Any]) -> str:
    if job["clients"]:
        return "reading"
    return "finished" if job["finished"] else "idle"


def _count_by_state(found: Iterator[str], states: tuple[str, ...]) -> Mapping[str, float]:
    # Every state, so that a series never disappears.
    return dict.fromkeys(states, 0) | Counter(found)


class Collector:
    """Gives prometheus_client the families of `metrics`, with the values of each scrape."""

    def __init__(self, metrics: tuple[Metric, ...], read: Callable[[], Values]) -> None:
        self._core = load_extra("prometheus_client.core", _EXTRA, "metrics")
        self._metrics, self._read = metrics, read

    def collect(self) -> Iterator[Any]:
        """Called by the registry in every scrape."""
        values = self._read()
        for metric in self._metrics:
            yield self._make_family(metric, values[metric.name])
        build = self._core.InfoMetricFamily("penstock_build", "The version of penstock.")
        build.add_metric([], {"version": VERSION})
        yield build

    def _make_family(self, metric: Metric, value: float | Mapping[str, float]) -> Any:
        core = self._core
        kind = core.CounterMetricFamily if metric.is_counter else core.GaugeMetricFamily
        if not isinstance(value, Mapping):
            return kind(metric.name, metric.help, value=value)
        family = kind(metric.name, metric.help, labels=[metric.label])
        for label, each in value.items():
            family.add_metric([label], each)
        return family


class MetricsServer:
    """Serves the metrics and probes of one server.

    Args:
        host: The name or address to listen on.
        port: The port; 0 for a free one.
        security: The token and certificates, which connections from other machines need.
        metrics: The metrics of this kind of server.
        read: Returns their values.
        find_problem: Returns why the server cannot serve now; None if it can.
    """

    def __init__(
        self,
        host: str,
        port: int,
        security: Security,
        *,
        metrics: tuple[Metric, ...],
        read: Callable[[], Values],
        find_problem: Callable[[], str | None],
    ) -> None:
        client = load_extra("prometheus_client", _EXTRA, "metrics")
        registry = client.CollectorRegistry()
        registry.register(Collector(metrics, read))
        client.ProcessCollector(registry=registry)
        choose_encoder = client.exposition.choose_encoder

        def show_metrics(request: HttpRequest) -> Page:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
            return Page(encode(registry), content_type=content_type)

        def show_readiness(request: HttpRequest) -> Page:
            problem = find_problem()
            if problem is not None:
                return Page(f"{problem}\n", HTTPStatus.SERVICE_UNAVAILABLE)
            return Page("ready\n")

        pages = {
            "/metrics": show_metrics,
            "/healthz": lambda request: Page("alive\n"),
            "/readyz": show_readiness,
        }
        self._server = HttpServer(host, port, security, pages)
        self._host = host

    def url(self) -> str:
        """Where the metrics are: http://host:port/metrics."""
        host = platform.node() if self._host in ("", "0.0.0.0", "::") else self._host
        return f"{self._server.scheme}://{join_address(host, self._server.port)}/metrics"

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        """Closes the port; may be called again."""
        self._server.close()
