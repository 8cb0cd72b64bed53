"""A collector of traces: an HTTP server of this process that receives spans as OTLP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class ReceivedSpan:
    """A span as it arrived, with the name of the service that sent it."""

    def __init__(self, span: Any, service: str) -> None:
        self.name, self.service = span.name, service
        self.trace, self.id, self.parent = span.trace_id, span.span_id, span.parent_span_id
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = {each.key: _value(each.value) for each in span.attributes}


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """The received data, in bytes and as spans."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[ReceivedSpan]:
        found = []
        for body in list(self.bodies):
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                names = {each.key: _value(each.value) for each in sent.resource.attributes}
                for scope in sent.scope_spans:
                    assert scope.scope.name == "penstock"
                    found += [ReceivedSpan(span, names["service.name"]) for span in scope.spans]
        return found


@contextmanager
def running_collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
