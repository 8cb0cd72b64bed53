"""The tracer of this process, by OpenTelemetry, and spans of what has already happened.

A program that has set up OpenTelemetry has a tracer. A process of `penstock worker` sets one up
itself if its environment names a collector. It loads OpenTelemetry before it forks plan processes,
and each of them makes a provider: the thread that sends spans does not survive a fork.

OpenTelemetry is imported in no other process. Spans must never stop the elements: errors are
logged, and nothing here waits for a collector, except `flush`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | int | float]

_MODULES = (
    "opentelemetry.sdk.trace.export",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
_PREFIX = "OTEL_EXPORTER_OTLP_"
_HTTP = "http/protobuf"
_CARRIED = "traceparent"

_LOG = logging.getLogger("penstock.service")

_provider: TracerProvider | None = None
"""The provider of this process, if it is a process of `penstock worker` that sends spans."""

_is_prepared: bool | None = None
"""Whether OpenTelemetry is loaded; None until `prepare` was called. Forked processes inherit it."""


def find_tracer() -> Tracer | None:
    """Returns the tracer of this process or of its program; None if there is none."""
    if _provider is not None:
        return _provider.get_tracer("penstock", VERSION)
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("penstock", VERSION)


# Setting up a worker


def prepare() -> bool:
    """Loads OpenTelemetry if the environment names a collector; returns whether it did.

    Logs once why a worker cannot send the spans that the environment asks for.
    """
    global _is_prepared
    if _is_prepared is None:
        _is_prepared = is_wanted(os.environ) and _load()
    return _is_prepared


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment names a collector that this process can send spans to."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    named = any(environment.get(f"{_PREFIX}{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or exporter == "none" or not (exporter or named):
        return False
    protocol = environment.get(f"{_PREFIX}TRACES_PROTOCOL") or environment.get(f"{_PREFIX}PROTOCOL")
    if exporter in ("", "otlp") and protocol in (None, "", _HTTP):
        return True
    _LOG.warning(
        "worker: OTEL_TRACES_EXPORTER is %r and the protocol is %r, but a worker sends spans by "
        "otlp and %s only, so it sends none; set OTEL_TRACES_EXPORTER=otlp, "
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=%s, and an endpoint that accepts it (port 4318)",
        exporter,
        protocol,
        _HTTP,
        _HTTP,
    )
    return False


def _load() -> bool:
    try:
        for module in _MODULES:
            importlib.import_module(module)
    except ImportError as error:
        _LOG.warning(
            "worker: the environment names a collector of traces, but the worker sends no spans, "
            'because %s is missing; install it with: pip install "penstock[traces]"',
            error.name,
        )
        return False
    return True


def set_up() -> None:
    """Makes the provider of this process, if the environment names a collector."""
    global _provider
    if _provider is None and prepare():
        try:
            _provider = _make_provider()
        except Exception as error:  # A variable has a wrong value: elements are made nevertheless.
            _LOG.warning("worker: it sends no spans: %s", error)


def _make_provider() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "penstock-worker"}))
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


def flush() -> None:
    """Sends the spans that wait. Blocks for as long as the collector does not answer."""
    if _provider is not None:
        _provider.force_flush()


# Spans


def make_span(
    tracer: Tracer,
    name: str,
    parent: Span,
    times: tuple[int, int],
    attributes: Attributes,
    error: str = "",
) -> None:
    """Makes a span of what has already happened; `times` are its start and its end.

    `error` is the class of the error with which it ended.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context

    context = set_span_in_context(parent, Context())
    span = tracer.start_span(name, context, attributes=attributes, start_time=times[0])
    if error:
        mark_failed(span, error)
    span.end(times[1])


def mark_failed(span: Span, error: str) -> None:
    """Marks a span with the class of an error. The message of an error may quote elements."""
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def carry(span: Span) -> str:
    """Returns what a request carries to a worker, so that its spans become children of `span`."""
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span, Context()))
    return carrier[_CARRIED]


def find_parent(carried: str) -> Span:
    """Returns the span of another process, from what `carry` returned there."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({_CARRIED: carried}, Context())
    return get_current_span(context)


@contextlib.contextmanager
def contain_errors() -> Iterator[None]:
    """Logs what a tracer raises: a program may have any tracer, and any processor of spans."""
    try:
        yield
    except Exception:
        _LOG.exception("traces: a span could not be made; the elements are not affected")
