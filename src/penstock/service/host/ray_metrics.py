"""The metrics of a dispatcher as metrics of Ray, whose names Ray begins with `ray_`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.engine.formats.extras import load_extra
from penstock.service.host.metrics import DISPATCHER_METRICS, Metric, Values

_SERVICE = "service"


class RayMetrics:
    """Publishes values under the name of a service; Ray counts increments of counters."""

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
