"""Traces of elements, by OpenTelemetry: the tracer of a process, spans, and what a reader follows.

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
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgumentError
from penstock.service.logic.feeds import Ask, Feed
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


# The traces of one reader: which elements it follows, from their request to their handing out.
# A reader follows the first element of some of its requests. The request carries the context of the
# trace to the worker, which adds its spans. Attributes are numbers, addresses and names of jobs;
# never tokens or elements.


_VARIABLE = "PENSTOCK_TRACE_EVERY"
_EVERY = 100

_MOST_FOLLOWED = 256
"""Elements that one reader follows at once. Each pull looks at all of them."""


def read_every() -> int:
    """Returns of how many elements one is traced, from the environment; 0: none is."""
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return _EVERY
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"{_VARIABLE}: must be a whole number, got {text!r}; "
            "use 100 to trace one element of 100, 1 for one of each request, or 0 for none"
        )
    return int(text)


@dataclass
class TracedElement:
    """An element that was requested and not yet handed out, and its span."""

    feed: Feed
    ordinal: int
    span: Span
    request: int
    """The last request for it."""
    arrived: int = 0
    """When it arrived, in nanoseconds since 1970; 0 if it has not."""

    @property
    def is_missing(self) -> bool:
        """Whether the stream ends before it: there is no such element, and no trace of it."""
        return self.ordinal >= self.feed.limit


class ReaderTraces:
    """The elements that one reader follows. The thread that pulls calls all methods.

    One element of `every` is traced, and at most one of each request: its first. `attributes`
    describe the job.
    """

    def __init__(self, tracer: Tracer, every: int, attributes: Attributes) -> None:
        self._tracer, self._every, self._attributes = tracer, every, attributes
        self._untraced = 0
        """How many elements are requested before the next one is traced."""
        self._followed: list[TracedElement] = []

    @classmethod
    def of_job(cls, job: str, name: str | None) -> ReaderTraces | None:
        """Returns the traces of a reader; None if its process makes none."""
        tracer = find_tracer()
        if tracer is None or not (every := read_every()):
            return None
        named = {} if name is None else {"penstock.job_name": name}
        return cls(tracer, every, {"penstock.job": job, **named})

    def request(self, ask: Ask) -> str:
        """Returns the context of the trace that a request carries; empty for most requests."""
        is_due = self._untraced <= 0
        self._untraced = (self._every if is_due else self._untraced) - (ask.stop - ask.start)
        lost = self._find_lost(ask)
        with contain_errors():
            if lost is not None:
                return _follow_again(lost, ask)
            if is_due and len(self._followed) < _MOST_FOLLOWED:
                return self._follow(ask)
        return ""

    def _find_lost(self, ask: Ask) -> TracedElement | None:
        """Finds the element that was requested before, did not arrive, and is requested again."""
        for element in self._followed:
            if element.feed is ask.feed and element.ordinal == ask.start and not element.arrived:
                return element
        return None

    def _follow(self, ask: Ask) -> str:
        from opentelemetry.context import Context

        attributes = {
            **self._attributes,
            "penstock.stream": ask.feed.stream,
            "penstock.ordinal": ask.start,
            "penstock.elements": ask.stop - ask.start,
            "penstock.worker": _address(ask),
        }
        # A trace of its own: the program's current span works on other elements.
        span = self._tracer.start_span("penstock.element", Context(), attributes=attributes)
        if not span.get_span_context().trace_flags.sampled:
            return ""  # The sampler of the program has decided so.
        self._followed.append(TracedElement(ask.feed, ask.start, span, ask.request))
        return carry(span)

    def note_arrival(self, request: int, ordinal: int, error: str = "") -> None:
        """Notes that element `ordinal` has arrived, or an error of the class `error` instead."""
        for element in self._followed:
            if element.request == request and element.ordinal == ordinal:
                element.arrived = time.time_ns()
                if error:
                    with contain_errors():
                        mark_failed(element.span, error)

    def note_pull(self, seconds: float) -> None:
        """Ends the traces of elements that a pull has handed out, after `seconds`."""
        followed, self._followed = self._followed, []
        for element in followed:
            feed = element.feed
            if feed.has_handed_out(element.ordinal):
                with contain_errors():
                    self._hand_out(element, seconds)
            elif feed.void:
                _discard(element)
            elif not element.is_missing:
                self._followed.append(element)

    def _hand_out(self, element: TracedElement, seconds: float) -> None:
        now = time.time_ns()
        times = element.arrived or now, now
        waited = {"penstock.waited_seconds": seconds}
        make_span(self._tracer, "penstock.hand_out", element.span, times, waited)
        element.span.end(now)

    def close(self) -> None:
        """Ends all traces: the reader does not hand out what it has requested."""
        followed, self._followed = self._followed, []
        for element in followed:
            _discard(element)


def _follow_again(element: TracedElement, ask: Ask) -> str:
    element.request = ask.request
    element.span.add_event("requested again", {"penstock.worker": _address(ask)})
    return carry(element.span)


def _discard(element: TracedElement) -> None:
    if element.is_missing:
        return
    with contain_errors():
        element.span.add_event("discarded")
        element.span.end()


def _address(ask: Ask) -> str:
    """The address of the worker that is asked; its id has a part more, for each start another."""
    return ask.worker.partition("/")[0]
