"""Metrics and probes, scraped over HTTP and parsed by prometheus_client."""

import contextlib
import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from penstock.data import Dataset
from penstock.data.dataset import ENVIRONMENT
from penstock.data.experimental import service
from penstock.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidTypeError,
    UnavailableError,
    UnfitServerError,
)
from penstock.service.host import journal as journals
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.http_pages import DISPATCHER_METRICS, WORKER_METRICS
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig
from penstock.service.host.worker_server import Worker
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetDataset, RegisterWorker, WorkerInfo
from penstock.version import VERSION
from tests.integration.clusters import until

TOKEN = "a token of these tests"
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"

MakeDispatcher = Callable[..., Dispatcher]
MakeWorker = Callable[..., Worker]


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[contextlib.ExitStack]:
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN)
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def dispatcher_of(stack: contextlib.ExitStack) -> MakeDispatcher:
    def start(**config: Any) -> Dispatcher:
        made = Dispatcher(DispatcherConfig(metrics_port=0, **config))
        stack.callback(made.stop)
        made.start()
        return made

    return start


@pytest.fixture
def worker_of(stack: contextlib.ExitStack) -> MakeWorker:
    def start(address: str) -> Worker:
        config = WorkerConfig(address, metrics_port=0, heartbeat_interval_ms=20)
        made = Worker(config, lambda: ENVIRONMENT)
        stack.callback(made.stop)
        made.start()
        return made

    return start


def get(url: str | None, path: str = "/metrics", accept: str = "") -> tuple[int, str]:
    assert url is not None
    request = urllib.request.Request(url.replace("/metrics", path), headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(server: Dispatcher | Worker) -> dict[str, float]:
    """The values of all samples, by name and the value of the label."""
    families = text_string_to_metric_families(get(server.metrics_url)[1])
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def read_squares(dispatcher: Dispatcher, count: int) -> None:
    squares = Dataset.range(count).map(lambda x: x * x)
    url = f"grpc://{dispatcher.address}"
    assert len(list(squares.apply(service.distribute("distributed_epoch", url)))) == count


def test_reading_is_counted(dispatcher_of: MakeDispatcher, worker_of: MakeWorker) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    read_squares(dispatcher, 20)
    until(lambda: scrape(dispatcher)["penstock_elements_made_total"] == 20)
    until(lambda: scrape(worker)["penstock_worker_elements_sent_total"] == 20)
    found, of_worker = scrape(dispatcher), scrape(worker)
    assert found["penstock_workers here"] == 1
    assert found["penstock_workers_joined_total"] == 1
    assert found["penstock_elements_handed_out_total"] == 20
    assert found["penstock_reader_seconds_total"] > found["penstock_reader_wait_seconds_total"] > 0
    assert found["penstock_making_seconds_total"] > 0
    assert found["penstock_readers_joined_total"] == found["penstock_readers_gone_total"] == 1
    assert found["penstock_requests_total OpenIteration"] == 1
    assert found["penstock_readers"] == found["penstock_wanted_workers"] == 0
    assert of_worker["penstock_worker_registered"] == 1
    assert of_worker["penstock_worker_elements_made_total"] == 20
    assert of_worker["penstock_worker_sent_bytes_total"] >= 160


def test_readers_are_measured_while_they_read(
    dispatcher_of: MakeDispatcher, worker_of: MakeWorker
) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    url = f"grpc://{dispatcher.address}"
    remote = Dataset.range(10**6).apply(service.distribute("distributed_epoch", url, job_name="j"))
    iterator = iter(remote)
    next(iterator)
    found = until(
        lambda: (now := scrape(dispatcher))["penstock_reader_memory_budget_bytes"] and now
    )
    assert found["penstock_readers"] == found["penstock_jobs reading"] == 1
    assert found["penstock_leased_elements"] > 0
    assert found["penstock_wanted_workers"] >= 1
    assert scrape(worker)["penstock_worker_connections"] >= 1
    del iterator


@pytest.mark.parametrize("kind", ["dispatcher", "worker"])
def test_every_metric_is_scraped_documented_and_only_grows(
    kind: str, dispatcher_of: MakeDispatcher, worker_of: MakeWorker
) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    read_squares(dispatcher, 5)
    server: Dispatcher | Worker = dispatcher if kind == "dispatcher" else worker
    metrics = DISPATCHER_METRICS if kind == "dispatcher" else WORKER_METRICS
    first, second = scrape(server), scrape(server)
    totals = [name for name in first if "_total" in name]
    assert totals
    assert [name for name in totals if second[name] < first[name]] == []
    families = {
        family.name + "_total" * (family.type == "counter"): family
        for family in text_string_to_metric_families(get(server.metrics_url)[1])
    }
    assert {metric.name for metric in metrics} == {
        name for name in families if name.startswith("penstock") and name != "penstock_build_info"
    }
    assert {metric.name: metric.help for metric in metrics}.items() <= {
        name: family.documentation for name, family in families.items()
    }.items()
    assert second[f"penstock_build_info {VERSION}"] == 1
    assert second["process_cpu_seconds_total"] > 0


def test_openmetrics_is_sent_to_scrapers_that_ask_for_it(dispatcher_of: MakeDispatcher) -> None:
    _, text = get(dispatcher_of().metrics_url, accept="application/openmetrics-text; version=1.0.0")
    families = list(openmetrics_parser.text_string_to_metric_families(text))
    assert "penstock_workers" in {family.name for family in families}


def test_the_page_lists_every_metric_with_its_label() -> None:
    listed = re.findall(r"^\| `(penstock_\w+)(?:\{(\w+)\})?` \|", PAGE.read_text(), re.MULTILINE)
    assert listed == [(each.name, each.label) for each in DISPATCHER_METRICS + WORKER_METRICS]


def test_the_number_of_samples_does_not_grow_with_workers_and_jobs(
    dispatcher_of: MakeDispatcher, worker_of: MakeWorker
) -> None:
    dispatcher = dispatcher_of()
    before = scrape(dispatcher).keys()
    worker_of(dispatcher.address)
    for number in range(20):
        info = WorkerInfo(f"w{number}", f"localhost:{number + 1}", "host", {})
        python = ".".join(map(str, sys.version_info[:2]))
        dispatcher.handle(RegisterWorker(info, python, 1))
    read_squares(dispatcher, 3)
    after = scrape(dispatcher)
    assert after.keys() == before
    assert after["penstock_workers here"] == 21


def test_refused_requests_are_counted(dispatcher_of: MakeDispatcher) -> None:
    dispatcher = dispatcher_of()
    with pytest.raises(Exception, match="no dataset"):
        dispatcher.handle(GetDataset("5"))
    found = scrape(dispatcher)
    assert found["penstock_requests_total GetDataset"] == 1
    assert found["penstock_request_failures_total GetDataset"] == 1


def test_rejected_connections_are_counted(
    dispatcher_of: MakeDispatcher, worker_of: MakeWorker
) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    for port in (dispatcher.port, worker.port):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"x" * 200)
    until(lambda: scrape(dispatcher)["penstock_rejected_connections_total"] == 1)
    until(lambda: scrape(worker)["penstock_worker_rejected_connections_total"] == 1)


def test_failed_elements_are_counted(dispatcher_of: MakeDispatcher, worker_of: MakeWorker) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)

    def fail(x: Any) -> Any:
        raise ValueError("no")

    failing = Dataset.range(1).map(fail, output_signature=Dataset.range(1).element_spec)
    url = f"grpc://{dispatcher.address}"
    with pytest.raises(InvalidArgumentError, match="ValueError: no"):
        list(failing.apply(service.distribute("distributed_epoch", url)))
    until(lambda: scrape(worker)["penstock_worker_element_failures_total"] >= 1)


# Probes


def test_a_worker_is_ready_while_its_dispatcher_answers(
    dispatcher_of: MakeDispatcher, worker_of: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "WORKER_HEARTBEAT_CALL", 0.1)
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    until(lambda: get(worker.metrics_url, "/readyz") == (200, "ready\n"))
    dispatcher.stop()
    url = worker.metrics_url
    until(lambda: get(url, "/readyz")[0] == 503)
    assert "its dispatcher does not answer" in get(url, "/readyz")[1]
    assert get(url, "/healthz") == (200, "alive\n")
    dispatcher_of(port=dispatcher.port)
    until(lambda: get(url, "/readyz")[0] == 200)
    assert scrape(worker)["penstock_worker_heartbeat_failures_total"] >= 1


def test_a_worker_that_waits_for_its_dispatcher_is_not_ready(
    stack: contextlib.ExitStack,
) -> None:
    with socket.socket() as nowhere, socket.socket() as free:
        for each in (nowhere, free):
            each.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        address = f"localhost:{nowhere.getsockname()[1]}"
        config = WorkerConfig(address, metrics_port=port, dispatcher_timeout_ms=60_000)
        worker = Worker(config, lambda: ENVIRONMENT)
        starting = threading.Thread(target=worker.start, daemon=True)
        starting.start()
        url = f"http://localhost:{port}/metrics"
        assert until(lambda: try_to_get(url, "/readyz"))[0] == 503
        assert get(url, "/healthz") == (200, "alive\n")
        # The dispatcher starts, and the worker registers.
        nowhere.close()
        dispatcher = Dispatcher(DispatcherConfig(int(address.rpartition(":")[2])))
        stack.callback(dispatcher.stop)
        dispatcher.start()
        until(lambda: get(url, "/readyz")[0] == 200)
        starting.join()
        worker.stop()
        assert try_to_get(url, "/healthz") is None


def try_to_get(url: str, path: str) -> tuple[int, str] | None:
    try:
        return get(url, path)
    except OSError:
        return None


def test_a_draining_worker_is_not_ready(
    dispatcher_of: MakeDispatcher, worker_of: MakeWorker
) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    assert worker._running is not None
    worker._running.drain(0.0)
    assert get(worker.metrics_url, "/readyz") == (503, "the worker is about to stop\n")
    assert scrape(worker)["penstock_worker_draining"] == 1


def test_a_dispatcher_is_not_ready_while_the_disk_does_not_store_its_journal(
    dispatcher_of: MakeDispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = dispatcher_of(work_dir=str(tmp_path / "work"))
    assert get(dispatcher.metrics_url, "/readyz") == (200, "ready\n")

    def fail(descriptor: int) -> None:
        raise OSError("the disk is gone")

    python = ".".join(map(str, sys.version_info[:2]))
    joins = RegisterWorker(WorkerInfo("w", "localhost:1", "h", {}), python, 1)
    with monkeypatch.context() as broken:
        broken.setattr(journals, "_sync", fail)
        broken.setattr(journals.Journal, "compact", lambda journal, facts: None)
        with pytest.raises(UnavailableError, match="the disk does not store the journal"):
            dispatcher.handle(joins)
        problem = "the disk does not store the journal\n"
        assert get(dispatcher.metrics_url, "/readyz") == (503, problem)
        assert get(dispatcher.metrics_url, "/healthz")[0] == 200
    until(lambda: get(dispatcher.metrics_url, "/readyz")[0] == 200)


def test_a_stopped_dispatcher_answers_nothing(dispatcher_of: MakeDispatcher) -> None:
    dispatcher = dispatcher_of()
    url = dispatcher.metrics_url
    dispatcher.stop()
    with pytest.raises(OSError, match="refused"):
        get(url)


# Wrong configurations


def test_without_a_port_there_is_no_server(stack: contextlib.ExitStack) -> None:
    dispatcher = Dispatcher(DispatcherConfig())
    stack.callback(dispatcher.stop)
    assert dispatcher.metrics_url is None


def test_a_missing_package_is_named(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    words = r'metrics_port: needs prometheus_client; install it with: pip install "penstock\[metr'
    with pytest.raises(UnavailableError, match=words):
        Dispatcher(DispatcherConfig(metrics_port=0))


def test_a_port_in_use_is_an_error_that_leaves_nothing_open(stack: contextlib.ExitStack) -> None:
    with socket.socket() as taken, socket.socket() as free:
        for each in (taken, free):
            each.bind(("127.0.0.1", 0))
            each.listen()
        own, port = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        with pytest.raises(AlreadyExistsError, match=f"port {port} is in use"):
            Dispatcher(DispatcherConfig(port=own, metrics_port=port))
        dispatcher = Dispatcher(DispatcherConfig(port=own))
        dispatcher.stop()


@pytest.mark.parametrize(
    ("port", "error"), [(-1, UnfitServerError), (65536, UnfitServerError), ("x", InvalidTypeError)]
)
def test_a_port_must_be_a_port(port: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="WorkerConfig: metrics_port must be"):
        Worker(WorkerConfig("localhost:1", metrics_port=port), lambda: ENVIRONMENT)


# The board

BOARD = json.loads((PAGE.parent / "grafana-board.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_every_expression_of_the_board_names_metrics_that_are_scraped(
    dispatcher_of: MakeDispatcher, worker_of: MakeWorker
) -> None:
    dispatcher = dispatcher_of()
    worker = worker_of(dispatcher.address)
    scraped = {name.partition(" ")[0] for server in (dispatcher, worker) for name in scrape(server)}
    named = [re.findall(r"\b(?:penstock|process)_\w+", each) for each in EXPRESSIONS]
    assert all(named)
    assert {name for names in named for name in names} - scraped == set()


def test_the_board_rates_counters_and_groups_by_labels_that_exist() -> None:
    labels = {metric.name: metric.label for metric in DISPATCHER_METRICS + WORKER_METRICS}
    for expression in EXPRESSIONS:
        totals = re.findall(r"\w+_total\b", expression)
        assert re.findall(r"(?:rate|increase)\((\w+)\[\$__rate_interval\]\)", expression) == totals
        for group in re.findall(r"by \((\w+)\)", expression):
            assert {labels[name] for name in re.findall(r"penstock_\w+", expression)} == {group}


def test_the_panels_of_the_board_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
