"""The tracer of a worker, from the variables of OpenTelemetry."""

import builtins
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from penstock.service.host import telemetry

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment that names a collector, for a process that has no provider yet."""
    monkeypatch.setattr(telemetry, "_provider", None)
    monkeypatch.setattr(telemetry, "_is_prepared", None)
    for name, value in ENDPOINT.items():
        monkeypatch.setenv(name, value)
    yield monkeypatch
    if telemetry._provider is not None:
        telemetry._provider.shutdown()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (
            {
                **ENDPOINT,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            True,
        ),
    ],
)
def test_variables_say_whether_spans_are_sent(variables: dict[str, str], wanted: bool) -> None:
    assert telemetry.is_wanted(variables) == wanted


@pytest.mark.parametrize(
    "variable", [{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_TRACES_EXPORTER": "zipkin"}]
)
def test_other_exporters_are_named(
    variable: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.service"):
        assert not telemetry.is_wanted({**ENDPOINT, **variable})
    assert next(iter(variable.values())) in caplog.text
    assert "set OTEL_TRACES_EXPORTER=otlp" in caplog.text


def test_a_missing_package_is_named_once(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str, *arguments: Any) -> Any:
        raise ModuleNotFoundError(name=name)

    environment.setattr(telemetry.importlib, "import_module", refuse)
    with caplog.at_level(logging.WARNING, "penstock.service"):
        telemetry.prepare()
        telemetry.set_up()
    assert telemetry.find_tracer() is None
    [record] = caplog.records
    assert 'pip install "penstock[traces]"' in record.getMessage()


def test_a_wrong_variable_is_a_warning(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with caplog.at_level(logging.WARNING, "penstock.service"):
        telemetry.set_up()
    assert telemetry.find_tracer() is None
    assert "worker: it sends no spans: " in caplog.text


@pytest.mark.parametrize(("variable", "name"), [("", "penstock-worker"), ("mine", "mine")])
def test_the_name_of_the_service(variable: str, name: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_SERVICE_NAME", variable)
    telemetry.set_up()
    assert isinstance(telemetry._provider, TracerProvider)
    assert telemetry._provider.resource.attributes["service.name"] == name
    assert telemetry.find_tracer() is not None


def test_a_program_without_opentelemetry_has_no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_provider", None)
    assert telemetry.find_tracer() is None  # These tests set no provider for the whole program.
    monkeypatch.delitem(telemetry.sys.modules, "opentelemetry.trace")

    def refuse(name: str, *arguments: Any) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert telemetry.find_tracer() is None
