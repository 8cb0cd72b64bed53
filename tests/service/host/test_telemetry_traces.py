"""Traces of elements, with readers and workers of this process and spans in memory."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode, Tracer

from penstock import TensorSpec
from penstock.data import Dataset, Options
from penstock.errors import InvalidArgumentError
from penstock.service.host import telemetry
from penstock.service.host.telemetry import ReaderTraces, read_every
from penstock.service.logic.feeds import Ask, Feed
from tests.integration.clusters import Cluster, until

Spans = dict[str, list[ReadableSpan]]

STEPS = ("penstock.make", "penstock.send", "penstock.hand_out")


class CollectedSpans:
    """The spans that have ended, by name, and the tracer that makes them."""

    def __init__(self, **arguments: Any) -> None:
        self.provider = TracerProvider(**arguments)
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("penstock")

    def by_name(self) -> Spans:
        found: Spans = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


@pytest.fixture
def collected_spans(monkeypatch: pytest.MonkeyPatch) -> CollectedSpans:
    made = CollectedSpans()
    monkeypatch.setattr(telemetry, "_provider", made.provider)
    monkeypatch.setenv("PENSTOCK_TRACE_EVERY", "1")
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=2) as made:
        yield made


def children(spans: Spans, name: str, parent: ReadableSpan) -> list[ReadableSpan]:
    assert parent.context is not None
    return [
        span
        for span in spans.get(name, ())
        if span.parent is not None and span.parent.span_id == parent.context.span_id
    ]


def check_traces(spans: Spans) -> None:
    """Checks that each handed out element was made and sent, and that the rest was discarded."""
    discarded = [span for span in spans["penstock.element"] if span.events]
    handed_out = [span for span in spans["penstock.element"] if not span.events]
    assert handed_out
    assert {event.name for span in discarded for event in span.events} <= {"discarded"}
    for element in handed_out:
        assert element.parent is None
        steps = [child for name in STEPS for child in children(spans, name, element)]
        assert [step.name for step in steps] == list(STEPS)
        times = [element.start_time, *(step.start_time for step in steps), element.end_time]
        assert times == sorted(times)  # type: ignore[type-var]
        assert steps[-1].end_time == element.end_time
    assert len(spans["penstock.hand_out"]) == len(handed_out)


def numbers(count: int) -> Dataset:
    return Dataset.range(count).map(lambda x: x + 1)


def allow_any_order(dataset: Dataset) -> Dataset:
    options = Options()
    options.deterministic = False
    return dataset.with_options(options)


PLANS = {
    "random access": lambda: numbers(40),
    "a stream": lambda: numbers(40).filter(lambda x: x % 2 == 0),
    "pieces": lambda: Dataset.range(6).flat_map(Dataset.range),
    "interleaved inputs": lambda: Dataset.range(9).interleave(
        lambda n: Dataset.range(n * 7), cycle_length=3, block_length=2
    ),
    "short inputs": lambda: Dataset.range(60).interleave(
        lambda n: Dataset.range(n % 4), cycle_length=4
    ),
    "batches": lambda: numbers(40).batch(3),
    "unordered": lambda: allow_any_order(numbers(40).filter(lambda x: x % 2 == 0)),
    "failures": lambda: numbers(10).map(lambda x: np.int64(1) // (x % 2)).ignore_errors(),
}


@pytest.mark.parametrize("mode", ["parallel_epochs", "distributed_epoch"])
@pytest.mark.parametrize("name", PLANS)
def test_every_traced_element_is_handed_out_once(
    name: str, mode: str, cluster: Cluster, collected_spans: CollectedSpans
) -> None:
    assert list(PLANS[name]().apply(cluster.distribute(mode)))
    check_traces(collected_spans.by_name())


def test_the_elements_of_leases_are_traced(
    cluster: Cluster, collected_spans: CollectedSpans
) -> None:
    assert len(list(numbers(40).apply(cluster.distribute(job_name="named")))) == 40
    spans = collected_spans.by_name()
    check_traces(spans)
    attributes = [dict(span.attributes or {}) for span in spans["penstock.element"]]
    assert {each["penstock.job_name"] for each in attributes} == {"named"}
    addresses = {worker.address for worker in cluster.workers}
    assert {each["penstock.worker"] for each in attributes} <= addresses
    assert {each["penstock.ordinal"] for each in attributes} >= {0, 1}


def test_one_element_of_many_is_traced(
    cluster: Cluster, collected_spans: CollectedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TRACE_EVERY", "10")
    dataset = numbers(40).apply(cluster.distribute(max_outstanding_requests=1))
    assert len(list(dataset)) == 40
    spans = collected_spans.by_name()["penstock.element"]
    assert [dict(span.attributes or {})["penstock.ordinal"] for span in spans] == [0, 10, 20, 30]


def test_the_sampler_of_the_program_decides(
    cluster: Cluster, collected_spans: CollectedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = CollectedSpans(sampler=ALWAYS_OFF)
    monkeypatch.setattr(telemetry, "_provider", never.provider)
    assert len(list(numbers(40).apply(cluster.distribute()))) == 40
    assert never.by_name() == {}


@pytest.mark.parametrize("every", ["", "0"])
def test_nothing_is_traced_without_a_tracer_or_with_0(
    every: str, cluster: Cluster, collected_spans: CollectedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TRACE_EVERY", every)
    if not every:
        monkeypatch.setattr(telemetry, "_provider", None)
    assert len(list(numbers(40).apply(cluster.distribute()))) == 40
    assert collected_spans.by_name() == {}


def test_a_share_that_is_no_number_is_an_error(
    cluster: Cluster, collected_spans: CollectedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_every() == 1
    monkeypatch.setenv("PENSTOCK_TRACE_EVERY", "1%")
    with pytest.raises(InvalidArgumentError, match="PENSTOCK_TRACE_EVERY: must be a whole number"):
        next(iter(numbers(40).apply(cluster.distribute())))


def test_an_element_that_fails_is_marked_without_its_message(
    cluster: Cluster, collected_spans: CollectedSpans
) -> None:
    def fail(x: Any) -> Any:
        raise ValueError(f"a secret of {x}")

    dataset = Dataset.range(3).map(fail, output_signature=TensorSpec((), "int64"))
    with pytest.raises(InvalidArgumentError, match="a secret of 0"):
        next(iter(dataset.apply(cluster.distribute())))
    first = next(
        span
        for span in collected_spans.by_name()["penstock.element"]
        if (span.attributes or {})["penstock.ordinal"] == 0
    )
    # The worker may end its span after the reader has the error.
    [make] = until(lambda: children(collected_spans.by_name(), "penstock.make", first))
    spans = collected_spans.by_name()
    for span in (first, make):
        assert span.status.status_code == StatusCode.ERROR
        assert dict(span.attributes or {})["error.type"] == "InvalidArgumentError"
    assert "secret" not in "".join(span.to_json() for each in spans.values() for span in each)


def test_elements_that_are_not_handed_out_are_discarded(
    cluster: Cluster, collected_spans: CollectedSpans
) -> None:
    iterator = iter(numbers(1000).apply(cluster.distribute()))
    next(iterator)
    iterator.close()
    events = [e.name for s in collected_spans.by_name()["penstock.element"] for e in s.events]
    assert set(events) == {"discarded"}


def test_a_processor_that_raises_does_not_stop_the_elements(
    cluster: Cluster, collected_spans: CollectedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise OSError("no room")

    collected_spans.provider.add_span_processor(Faulty())
    with caplog.at_level(logging.ERROR, "penstock.service"):
        assert len(list(numbers(40).apply(cluster.distribute()))) == 40
    assert "traces: a span could not be made" in caplog.text


# The spans without a service: which element a request belongs to


def ask(feed: Feed, request: int, start: int, stop: int) -> Ask:
    return Ask(request, f"host:{request}/id", feed, start, stop, None, start)


def test_an_element_that_was_lost_keeps_its_trace() -> None:
    collected = CollectedSpans()
    reader, feed = ReaderTraces(collected.tracer, 100, {}), Feed(3)
    carried = reader.request(ask(feed, 1, 0, 4))
    assert reader.request(ask(feed, 2, 4, 8)) == ""
    assert reader.request(ask(feed, 3, 0, 4)) == carried
    reader.note_arrival(1, 0)  # Of the worker that was lost.
    feed.next = 1
    reader.note_arrival(3, 0)
    reader.note_pull(0.5)
    [element], [hand_out] = collected.by_name().values()
    hand_out, element = sorted((element, hand_out), key=lambda span: span.name, reverse=True)
    assert [(e.name, dict(e.attributes or {})) for e in element.events] == [
        ("requested again", {"penstock.worker": "host:3"})
    ]
    assert hand_out.attributes == {"penstock.waited_seconds": 0.5}


def test_there_is_no_trace_of_an_element_behind_the_end() -> None:
    collected = CollectedSpans()
    reader, feed = ReaderTraces(collected.tracer, 1, {}), Feed(0)
    assert reader.request(ask(feed, 1, 0, 4))
    feed.end(0)
    reader.note_pull(0.0)
    reader.close()
    assert collected.by_name() == {}


def test_a_reader_follows_a_bounded_number_of_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_MOST_FOLLOWED", 3)
    reader, feed = ReaderTraces(CollectedSpans().tracer, 1, {}), Feed(0)
    carried = [reader.request(ask(feed, number, number, number + 1)) for number in range(5)]
    assert list(map(bool, carried)) == [True, True, True, False, False]
