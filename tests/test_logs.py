"""What servers log: events with their addresses, no routine messages, and no secrets."""

from __future__ import annotations

import argparse
import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli import server_processes
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import AbortedError
from penstock.service.host.journal import log_incident
from penstock.service.host.telemetry import FailureLog
from penstock.service.logic.status import Incident
from tests.test_cli import command, line_of, without_strangers

SECRET = "a5ecre7-that-no-log-may-have"
DATA = "an-element-that-no-log-may-have"


def fail(x: bytes) -> bytes:
    if x.endswith(b"3"):
        raise ValueError(f"cannot use {x!r}")
    return x


Lines = Callable[[], list[str]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """The lines that were logged to stderr since the last call."""
    logger = logging.getLogger("penstock")
    level = logger.level
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr(logger, "handlers", [])
    yield lambda: capsys.readouterr().err.splitlines()
    logger.setLevel(level)


def set_up(level: str | None, form: str = "text", quiet: bool = False) -> None:
    given = argparse.Namespace(log_level=level, log_format=form)
    server_processes.set_up_logs(given, quiet)


def test_lines_have_a_time_and_a_level(lines: Lines) -> None:
    set_up(None)
    log_incident(Incident(0.0, "joined", "worker w1:5051"))
    log_incident(Incident(0.0, "lost", "worker w1:5051: silent for 10 s"))
    first, second = lines()
    assert first.endswith("Z INFO dispatcher: joined: worker w1:5051")
    assert second.endswith("Z WARNING dispatcher: counts as lost: worker w1:5051: silent for 10 s")


def test_json_has_the_event_and_the_traceback(lines: Lines) -> None:
    set_up("debug", "json")
    about = {"job": "d/1", "job_name": "training", "dataset": "7"}
    log_incident(Incident(0.0, "began", "job 'training'", about))
    try:
        raise AbortedError("a\nb")
    except AbortedError:
        logging.getLogger("penstock.service").exception("dispatcher: a defect")
    first, second = map(json.loads, lines())
    assert (first["level"], first["event"]) == ("info", "began")
    assert first["message"] == "dispatcher: began: job 'training'"
    assert set(first) == {"time", "level", "message", "event", *about}
    assert first | about == first
    assert set(second) == {"time", "level", "message", "exception"}
    assert "a\nb" in second["exception"]


@pytest.mark.parametrize(
    ("level", "quiet", "expected"),
    [("debug", False, 4), (None, False, 2), ("info", True, 2), (None, True, 1), ("error", True, 0)],
)
def test_the_ordinary_is_for_debugging(
    lines: Lines, level: str | None, quiet: bool, expected: int
) -> None:
    set_up(level, quiet=quiet)
    for kind, text in [
        ("joined", "reader of job 'training'"),
        ("began", "anonymous job 7"),
        ("left", "worker w1:5051"),
        ("unreachable", "worker w1:5051, for a reader"),
    ]:
        log_incident(Incident(0.0, kind, text))
    assert len(lines()) == expected


def test_a_failing_function_is_named_with_its_place(lines: Lines) -> None:
    set_up(None)
    failures = FailureLog("w1:5051")
    for _ in range(5):
        with pytest.raises(Exception, match="cannot use") as raised:
            list(Dataset.from_tensors(f"{DATA}3").map(fail))
        failures.note(raised.value, "d/1")
    logged = lines()
    line = fail.__code__.co_firstlineno + 2
    assert logged[0].endswith(f"INFO worker w1:5051: ValueError in fail at test_logs.py:{line}")
    assert [text.rpartition("(")[2] for text in logged[1:]] == [
        "2 times so far)",
        "4 times so far)",
    ]
    assert DATA not in str(logged)


def test_servers_log_their_events_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(token))
    options = ["--token-file", str(token), "--log-level", "debug", "--log-format", "json"]
    options += ["--functions", "by_value"]
    work_dir = ["--work-dir", str(tmp_path / "journal")]
    with command("dispatcher", *work_dir, *options) as dispatcher:
        target = line_of(dispatcher).split()[3].rstrip(";")
        with command("worker", "--dispatcher", target, *options) as worker:
            line_of(worker)
            names = [f"{DATA}{i}" for i in range(6)]
            mode = service.distribute("distributed_epoch", target, job_name="training")
            dataset = Dataset.from_tensor_slices(names).map(fail).apply(mode).ignore_errors()
            assert len(list(dataset)) == 5
            worker.send_signal(signal.SIGTERM)
            worker_log = worker.communicate()[1]
        dispatcher.send_signal(signal.SIGTERM)
        dispatcher_log = dispatcher.communicate()[1]
    assert SECRET not in worker_log + dispatcher_log
    assert DATA not in worker_log + dispatcher_log
    entries = [json.loads(line) for line in without_strangers(dispatcher_log)]
    events = [entry["event"] for entry in entries if entry["level"] == "info"]
    # The last heartbeat of the worker, with its failures, may be lost.
    assert [event for event in events if event != "failed"] == EVENTS
    seen = [json.loads(line) for line in without_strangers(worker_log)]
    found = [entry.get("event", entry["message"]) for entry in seen]
    assert found == ["joined", "failed", "draining", "stopped"]
    assert "ValueError in fail at test_logs.py:" in seen[1]["message"]
    began = next(entry for entry in entries if entry["event"] == "began" and "job" in entry)
    assert began["job_name"] == "training"
    assert began["dataset"]
    assert seen[1]["job"] == began["job"]
    joined = next(entry for entry in entries if entry["event"] == "joined")
    assert {entry["worker"] for entry in seen} == {joined["worker"]}


EVENTS = ["started", "joined", "began", "ended", "left", "stopped"]


def test_a_restarted_dispatcher_says_what_it_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = service.DispatcherConfig(work_dir=str(tmp_path / "journal"), fault_tolerant_mode=True)
    caplog.set_level(logging.INFO, "penstock.service")
    for _ in range(2):
        with service.DispatchServer(config) as server:
            service.register_dataset(server.target, Dataset.range(3))
    assert "dispatcher: restored 0 iterations, 1 datasets and 0 workers from" in caplog.text
