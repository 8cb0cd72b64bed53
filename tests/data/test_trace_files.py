"""A trace is a file that Perfetto reads: tracks of operators, threads, workers and copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Dataset
from penstock.data import Options
from penstock.data.experimental import service
from penstock.engine import spans
from penstock.errors import FailedPreconditionError, NotFoundError, OpError


def double(x: int) -> int:
    return x * 2


def read(path: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The spans of a file, by group and track, as the format says."""
    events = json.loads(path.read_text())["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in groups.values()}
    for event in events:
        if event["ph"] == "X":
            group, track = groups[event["pid"]], tracks[event["pid"], event["tid"]]
            found[group].setdefault(track, []).append(event)
    return found


def test_operators_and_threads_have_tracks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = Options()
    options.executor = "threads"
    dataset = Dataset.range(40).map(double, num_parallel_calls=2).batch(4).prefetch(2)
    with penstock.trace(path):
        assert len(list(dataset.with_options(options))) == 10
    found = read(path)
    place = f"double at test_trace_files.py:{double.__code__.co_firstlineno}"
    assert list(found["operators"]) >= ["batch"]
    assert set(found["operators"]) == {"prefetch", "batch", f"map({place})", "range"}
    batches = found["operators"]["batch"]
    assert sum(span["args"]["elements"] for span in batches) == 10
    assert all(span["dur"] >= 0 and span["ts"] >= 0 for span in batches)
    names = {name.rpartition(" ")[0] for name in found["threads"]}
    assert names == {"MainThread", "penstock-prefetch", "penstock-calls"}
    called = [span for name, track in found["threads"].items() for span in track if "calls" in name]
    assert sum(span["args"]["elements"] for span in called) == 40
    assert {span["name"] for span in called} == {place}


def test_workers_and_copies_have_tracks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with service.DispatchServer() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)) as worker:
            mode = service.distribute("distributed_epoch", dispatcher.target)
            with penstock.trace(path):
                read_all = list(Dataset.range(12).map(double).batch(3).apply(mode).as_torch())
            place = worker.address
    assert len(read_all) == 4
    found = read(path)
    assert {name.partition("/")[0] for name in found["workers"]} == {place}
    made = [span for track in found["workers"].values() for span in track]
    assert sum(span["args"]["elements"] for span in made) == 4
    assert sum(span["args"]["elements"] for span in found["device copies"]["deliver"]) == 4
    assert {"deliver", "distribute"} <= set(found["operators"])


def test_a_trace_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def fail(x: int) -> int:
        raise ValueError("after some work")

    with pytest.raises(OpError, match="after some work"), penstock.trace(path):
        list(Dataset.range(3).map(fail))
    assert read(path)["operators"].keys() == {"range"}
    assert spans.active is None
    spans_before = len(read(path)["operators"]["range"])
    list(Dataset.range(3))
    assert len(read(path)["operators"]["range"]) == spans_before


def test_two_traces_at_once_and_wrong_paths_are_refused(tmp_path: Path) -> None:
    with (
        penstock.trace(tmp_path / "one.json"),
        pytest.raises(FailedPreconditionError, match="a trace is being recorded"),
        penstock.trace(tmp_path / "two.json"),
    ):
        pass
    with pytest.raises(TypeError, match="path must be a file, got 5"):
        penstock.trace(5)  # type: ignore[arg-type]
    missing = tmp_path / "missing" / "one.json"
    with (
        pytest.raises(
            NotFoundError, match="penstock.trace: .*missing.* cannot be written: No such"
        ),
        penstock.trace(missing),
    ):
        pass
    assert spans.active is None


def test_spans_that_are_too_many_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans, "MOST", 3)
    with penstock.trace(tmp_path / "trace.json"):
        list(Dataset.range(5).map(double))
    assert "of all spans are not in" in caplog.text
    assert sum(map(len, read(tmp_path / "trace.json")["threads"].values())) <= 3
