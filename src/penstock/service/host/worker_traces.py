"""What a worker adds to the trace of an element: spans of its making and of its sending."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.service.host.tasks import Fetched, FetchedChunk
from penstock.service.host.tracer import (
    Attributes,
    contain_errors,
    find_parent,
    find_tracer,
    make_span,
)


def trace_answer(
    carried: str, parts: Iterator[Fetched], started: int, worker: str
) -> Iterator[Fetched]:
    """Yields `parts`, and makes the spans of the first one for the trace that a request carries.

    A part is made until it is yielded, and sent until the caller asks for the next one.
    """
    tracer = find_tracer()
    first = next(parts, None)
    if first is None:
        return
    made = time.time_ns()
    yield first
    sent = time.time_ns()
    if tracer is not None:
        with contain_errors():
            parent, attributes = find_parent(carried), _describe(first, worker)
            error = "" if isinstance(first, FetchedChunk) else first.fault.kind
            make_span(tracer, "penstock.make", parent, (started, made), attributes, error)
            make_span(tracer, "penstock.send", parent, (made, sent), attributes)
    yield from parts


def _describe(part: Fetched, worker: str) -> Attributes:
    if not isinstance(part, FetchedChunk):
        return {"penstock.worker": worker, "penstock.elements": 1}
    return {
        "penstock.worker": worker,
        "penstock.elements": len(part.chunk),
        "penstock.bytes": part.chunk.nbytes,
        "penstock.making_seconds": part.seconds,
    }
