"""Traces of real processes: a reader and a worker send spans to a collector over HTTP."""

import os
import signal
import subprocess
import sys
from socket import socket

from penstock.data.experimental import service
from tests.integration.collectors import Collector, running_collector
from tests.test_cli import command, line_of

READER = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from penstock.data import Dataset
from penstock.data.experimental import service

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
squares = Dataset.range(20).map(lambda x: x * x)
remote = squares.apply(service.distribute("distributed_epoch", sys.argv[1], job_name="training"))
assert sorted(remote) == [x * x for x in range(20)]
provider.shutdown()
"""

UNTRACED = """
import sys
from penstock.data import Dataset
from penstock.data.experimental import service

def is_loaded(x):
    import sys
    return "opentelemetry" in sys.modules

loaded = Dataset.range(3).map(is_loaded)
print(list(loaded.apply(service.distribute("distributed_epoch", "local://1"))))
print("opentelemetry" in sys.modules)
"""


def run_program(text: str, *arguments: str, **environment: str) -> str:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    program = [sys.executable, "-c", text, *arguments]
    return subprocess.run(
        program, env=variables, check=True, capture_output=True, text=True, timeout=300
    ).stdout


def trace_one_element(collector: Collector, target: str) -> str:
    """Reads with one traced element; returns the address of the worker, which has ended."""
    to_collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    with command("worker", "--dispatcher", target, **to_collector) as worker:
        address = line_of(worker).split()[-1]
        names = {"OTEL_SERVICE_NAME": "reader", "PENSTOCK_TRACE_EVERY": "1000"}
        run_program(READER, target, **to_collector, **names)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert worker.stderr is not None
        assert "WARNING" not in worker.stderr.read()
    return address


def test_one_element_is_one_trace_of_a_reader_and_a_worker() -> None:
    with running_collector() as collector, service.DispatchServer() as dispatcher:
        address = trace_one_element(collector, dispatcher.target)
        spans = collector.spans
    assert sorted((span.name, span.service) for span in spans) == [
        ("penstock.element", "reader"),
        ("penstock.hand_out", "reader"),
        ("penstock.make", "penstock-worker"),
        ("penstock.send", "penstock-worker"),
    ]
    element, hand_out, make, send = sorted(spans, key=lambda span: span.name)
    assert {span.trace for span in spans} == {element.trace}
    assert not element.parent
    assert {span.parent for span in (hand_out, make, send)} == {element.id}
    # Both processes have the clock of one machine.
    times = [element.start, make.start, make.end, send.start]
    times += [hand_out.start, hand_out.end, element.end]
    assert times == sorted(times)
    assert element.attributes["penstock.job_name"] == "training"
    assert element.attributes["penstock.ordinal"] == 0
    assert {s.attributes["penstock.worker"] for s in (element, make, send)} == {address}
    assert make.attributes["penstock.elements"] == 1
    assert send.attributes["penstock.bytes"] == 8
    assert make.attributes["penstock.making_seconds"] > 0
    assert hand_out.attributes["penstock.waited_seconds"] > 0


def test_elements_arrive_without_the_collector() -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))  # It does not listen, so connections are refused.
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with (
            service.DispatchServer() as dispatcher,
            command(
                "worker",
                "--dispatcher",
                dispatcher.target,
                OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
                OTEL_BSP_SCHEDULE_DELAY="1",
            ) as worker,
        ):
            line_of(worker)
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "PENSTOCK_TRACE_EVERY": "1"}
            run_program(READER, dispatcher.target, **variables, OTEL_EXPORTER_OTLP_TIMEOUT="1")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0


def test_a_program_without_opentelemetry_does_not_load_it() -> None:
    assert run_program(UNTRACED) == "[np.False_, np.False_, np.False_]\nFalse\n"
