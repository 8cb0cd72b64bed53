"""Telemetry: traces of elements by OpenTelemetry, operators' meters, traffic, a log of failures.

No log, metric or trace has elements, messages of users' exceptions, or secrets.

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
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.contract import Stream
from penstock.engine.figures import Figures, FigureTree
from penstock.engine.meters import Meter, Meters
from penstock.errors import InvalidArgumentError, OpError
from penstock.plan.nodes import Branch, Node, Tail, Take, walk_plan
from penstock.service.logic.feeds import Ask, Feed
from penstock.service.protocol.messages import Plain, WorkStatus
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
            return ""  # The sampler of the program has left this element out.
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
    """The address of the worker that is asked. Its id also has a part that names its start."""
    return ask.worker.partition("/")[0]


# Meters of a worker's operators
#
# A stream may be opened again and again, for other ranges of its elements. Every opening has meters
# of its own, so that no two threads count in one meter.


@dataclass
class _Opening:
    """A stream that was opened, and what was reported of its meters."""

    plan: Node
    meters: Meters
    stream: weakref.ref[Stream]
    hidden: set[int] = field(default_factory=set)
    """The ids of meters of operators that are not shown, because those inside them are."""
    reported: dict[int, Figures] = field(default_factory=dict)

    def show_as_written(self, written: Node) -> None:
        """Shows what a user has written instead of what bounds it to a piece or to a request."""
        known = set(map(id, walk_plan(written)))
        for _, meter in self.meters.walk(self.plan):
            if isinstance(meter.node, Node):
                shown = _find_shown(meter.node, known)
                if shown is not meter.node and id(shown) in self.meters.by_node:
                    self.hidden.add(id(meter))
                meter.shown = shown

    def take(self) -> list[Figures]:
        rows = [self._take(depth, meter) for depth, meter in self._walk()]
        return rows if any(row.chunks or row.errors or row.seconds for row in rows) else []

    def _walk(self) -> Iterator[tuple[int, Meter]]:
        around: list[int] = []
        """The depths of the hidden operators around this one."""
        for depth, meter in self.meters.walk(self.plan):
            while around and around[-1] >= depth:
                around.pop()
            if id(meter) in self.hidden:
                around.append(depth)
            else:
                yield depth - len(around), meter

    def _take(self, depth: int, meter: Meter) -> Figures:
        now, before = meter.read(depth), self.reported.get(id(meter))
        self.reported[id(meter)] = now
        return now if before is None else now.plus(before, -1)


class OpenedMeters:
    """The meters of all openings of one stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._openings: list[_Opening] = []
        """Guarded by `_lock`."""

    def add(self, plan: Node, meters: Meters, stream: Stream, written: Node) -> None:
        """Adds an opening, which is forgotten some time after its stream is gone.

        `plan` has bounds that `written` does not have.
        """
        opening = _Opening(plan, meters, weakref.ref(stream))
        opening.show_as_written(written)
        with self._lock:
            self._openings.append(opening)

    def take(self) -> tuple[Figures, ...]:
        """What the operators of the stream have done since the last call."""
        with self._lock:
            # First: a stream that is gone by now counts nothing more.
            left = [opening for opening in self._openings if opening.stream() is not None]
            taken = [rows for opening in self._openings if (rows := opening.take())]
            self._openings = left
        if len(taken) <= 1:
            return tuple(taken[0]) if taken else ()
        tree = FigureTree()
        for rows in taken:
            tree.add(rows)
        return tuple(tree.rows())


def _find_shown(node: Node, known: set[int]) -> Node:
    """The operator that a user wrote, inside of the bounds that the service has put around it."""
    in_piece = False
    while isinstance(node, Tail | Branch) or (
        isinstance(node, Take) and (in_piece or id(node) not in known)
    ):
        in_piece = in_piece or isinstance(node, Tail)
        node = node.inputs[0]
    return node


# Traffic: what was made and sent to clients, for metrics and heartbeats
#
# A plan process counts what it sends, and reports it to its worker with its other work. A process
# that crashes has not reported what it sent since the last heartbeat.


class SentTotals(Plain, frozen=True):
    """What was sent to clients."""

    elements: int = 0
    nbytes: int = 0
    """Bytes of the elements, before they are compressed."""
    failures: int = 0
    """Elements that could not be computed: their clients got the error."""

    def __add__(self, other: SentTotals) -> SentTotals:
        return SentTotals(
            elements=self.elements + other.elements,
            nbytes=self.nbytes + other.nbytes,
            failures=self.failures + other.failures,
        )


def add_work(one: WorkStatus, other: WorkStatus) -> WorkStatus:
    """What was made for an iteration in both."""
    return WorkStatus(
        job=one.job,
        elements=one.elements + other.elements,
        seconds=one.seconds + other.seconds,
        buffered=one.buffered + other.buffered,
        nbytes=one.nbytes + other.nbytes,
    )


class Traffic:
    """Adds up what the threads of a process send."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = SentTotals()  #: guarded by _lock
        self._new = SentTotals()  #: guarded by _lock

    def add(self, elements: int = 0, nbytes: int = 0, failures: int = 0) -> None:
        with self._lock:
            self._new += SentTotals(elements, nbytes, failures)

    @property
    def total(self) -> SentTotals:
        """All that was sent."""
        with self._lock:
            return self._taken + self._new

    def take(self) -> SentTotals:
        """Returns what was sent since the last call."""
        with self._lock:
            new, self._new = self._new, SentTotals()
            self._taken += new
            return new


class ReportedWork:
    """The work of one plan process since the last heartbeat of its worker, as it reports it."""

    def __init__(self) -> None:
        self.buffered: dict[str, int] = {}
        """Bytes that the process keeps for each job, as it has last reported them."""
        self._done: dict[str, WorkStatus] = {}

    def add(self, jobs: Iterable[WorkStatus], first: bool) -> None:
        """Adds a message of a report; `first`: it is the first message of a new report."""
        if first:
            self.buffered = {}
        for job in jobs:
            so_far = self._done.get(job.job, WorkStatus(job.job, 0, 0.0))
            self._done[job.job] = msgspec.structs.replace(add_work(so_far, job), buffered=0)
            self.buffered[job.job] = job.buffered

    def take(self) -> list[WorkStatus]:
        """Returns the work that was done for every job since the last call."""
        done, self._done = self._done, {}
        found = {name: done.get(name, WorkStatus(name, 0, 0.0)) for name in self.buffered} | done
        return [
            msgspec.structs.replace(job, buffered=self.buffered.get(name, 0))
            for name, job in found.items()
        ]


# Failures of users' functions

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class FailureLog:
    """Logs errors of users' functions on a worker: the first, second, fourth, eighth... of each.

    The class and the place say enough. The message of an error may quote elements, so it goes to
    the reader only.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        """How often each class was raised at each place; guarded by `_lock`."""

    def note(self, error: BaseException, job: str) -> None:
        """Counts an error in place of an element of a job, and logs it if its turn has come."""
        cause = error.__cause__ if isinstance(error, OpError) and error.__cause__ else error
        name, place = type(cause).__name__, _place_of(cause)
        with self._lock:
            self._counts[name, place] += 1
            count = self._counts[name, place]
        if count & (count - 1) == 0:
            times = f" ({count} times so far)" if count > 1 else ""
            event = {"event": "failed", "worker": self._worker, "job": job}
            _LOG.info("worker %s: %s%s%s", self._worker, name, place, times, extra=event)

    def warn_of_state(self, reason: str, job: str) -> None:
        """Warns that a worker that leaves cannot hand over the state of a stream."""
        _LOG.warning(
            "worker %s: leaves a stream without its state (%s); another worker computes the "
            "stream again from an earlier state or from its start, and the reader waits meanwhile",
            self._worker,
            reason,
            extra={"event": "failed", "worker": self._worker, "job": job},
        )


def _place_of(error: BaseException) -> str:
    """` in f at train.py:12`: the innermost frame outside penstock; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return f" in {code.co_name} at {os.path.basename(code.co_filename)}:{line}"
    return ""
