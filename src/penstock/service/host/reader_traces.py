"""The traces of one reader: which elements it follows, from their request to their handing out.

A reader follows the first element of some of its requests. The request carries the context of the
trace to the worker, which adds its spans. Attributes are numbers, addresses and names of jobs;
never tokens or elements.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgumentError
from penstock.service.host.tracer import (
    Attributes,
    carry,
    contain_errors,
    find_tracer,
    make_span,
    mark_failed,
)
from penstock.service.logic.feeds import Ask, Feed

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

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
