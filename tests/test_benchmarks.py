"""The code of the benchmarks: both sides do the same work, and verdicts can fail."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    control,
    figures,
    formats,
    functions,
    functions_grid,
    functions_ways,
    light_clients,
    record,
    remote,
    report,
    scaling,
)
from benchmarks.__main__ import SUITES, arguments
from benchmarks.distribute import DISTRIBUTE
from benchmarks.environments import ROOT
from benchmarks.functions_work import WORKS
from benchmarks.peers import bare, material, penstock
from benchmarks.peers.bare import Loop
from benchmarks.peers.elements import UnderWay
from benchmarks.peers.serve import contents, leaves_of, time_passes
from benchmarks.peers.steps import Stretch
from benchmarks.rounds import Result
from benchmarks.workloads import Rival, Suite, Workload
from penstock.data.experimental import service
from penstock.distribute import PerReplica
from tests.integration.clusters import until


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES.keys())
def test_penstock_and_the_truth_have_a_program_for_every_workload(suite: Suite) -> None:
    assert set(suite.names) <= penstock.PROGRAMS.keys() & bare.PROGRAMS.keys()


@pytest.mark.parametrize("workload", DISTRIBUTE.workloads, ids=DISTRIBUTE.names)
def test_steps_of_replicas_are_the_whole_data(workload: Workload) -> None:
    found = contents(penstock.PROGRAMS[workload.name](workload.quick))
    assert found == contents(bare.PROGRAMS[workload.name](workload.quick))
    assert (found["items"], found["cells"]) == (workload.quick, 65_536 * 128)


@pytest.mark.parametrize("name", ["packed", "packed_ragged", "tfrecord", "tfrecord_interleave"])
def test_pipelines_of_documents_and_records_yield_what_the_bare_loop_yields(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material, "RECORDS", tmp_path)
    found = contents(penstock.PROGRAMS[name](300))
    assert found == contents(bare.PROGRAMS[name](300))
    assert found["cells"] > 0


@pytest.mark.parametrize("name", ["tokenise", "augment", "rows", "wait"])
def test_functions_on_all_cores_get_every_item(name: str) -> None:
    work = WORKS[name]
    items = work.items(10)
    found = np.concatenate(list(functions_ways.threads(work, items)))
    assert np.array_equal(found, np.stack([work.function(item) for item in items]))


@pytest.mark.parametrize("name", formats.TASKS)
def test_every_way_to_read_a_file_gets_every_row(name: str) -> None:
    task = formats.TASKS[name]
    rates = formats.compare(task, rows=min(3000, task.rows // 20), rounds=1)
    # The tests' environment does not have these.
    packages = {"grain": "grain", "webdataset": "webdataset", "tf.data": "tensorflow"}
    missing = {way for way, package in packages.items() if find_spec(package) is None}
    assert list(rates) == [way for way in task.ways if way not in missing]
    assert len(formats.table(name, task, rates).splitlines()) == 1 + len(rates)


def test_a_format_that_is_too_slow_is_found() -> None:
    task = formats.TASKS["json"]
    assert formats.misses(task, {"penstock": 14.0, "datasets": 10.0}) == ["datasets"]
    assert formats.misses(task, {"penstock": 15.0, "json.loads": 99.0}) == []
    many = formats.TASKS["many"]
    assert formats.misses(many, {"penstock": 9_999.0}) == ["penstock"]
    assert "(owed: 10,000)" in formats.table("many", many, {"penstock": 9_999.0})


def test_functions_are_compared_with_the_pool_and_the_loader() -> None:
    assert min(functions_ways.measure(WORKS["rows"], "penstock, threads", 300)) > 0
    rates = {way: functions.Rates(100.0, 50.0) for way in ("bare pool", "DataLoader")}
    rates["penstock, AUTOTUNE"] = functions.Rates(120.0, 40.0)
    row = functions.table("tokenise", WORKS["tokenise"], 2, rates)[-1]
    assert row[2:] == (
        *("penstock, AUTOTUNE", "120", "1.20x", "1.20x", "40", "0.80x"),
        "MISS: 1.5x DataLoader",
    )
    measured = functions.Measurements(here=True)
    assert measured.rates("rows", "no such way", 1, 1) is None
    assert "KeyError" in measured.missing["rows, no such way"]


def test_the_grid_measures_a_setting_and_when_it_changed_last() -> None:
    setting = functions_grid.Setting("threads", 2, 8)
    found = functions_grid.measure("rows", setting, warm=0.0, seconds=0.05)
    assert (found["setting"], found["settled"]) == ((8, "threads", 2), 0.0)
    assert found["rate"] > 0
    assert len(functions_grid.GRID) == 24


def test_a_pass_continues_where_the_last_pass_stopped() -> None:
    steps = Stretch(itertools.count(), 2)
    assert [list(steps), list(steps)] == [[0, 1], [2, 3]]


def test_an_iterator_is_under_way_before_the_clock_starts() -> None:
    begun = []

    def numbers() -> Iterator[int]:
        begun.append(True)
        yield from range(100)

    pipeline = UnderWay(Loop(numbers), 3, ahead=2)
    pipeline.begin()
    assert begun == [True]
    assert [list(pipeline), list(pipeline)] == [[2, 3, 4], [2, 3, 4]]
    assert time_passes(pipeline, 0.0)["items"] == 3
    assert begun == [True] * 3


def test_a_method_called_values_holds_no_leaves() -> None:
    mapping = {"a": 1}
    assert leaves_of([mapping]) == [mapping]


def test_values_of_replicas_count_as_leaves() -> None:
    assert leaves_of((PerReplica((1, 2)), [3, (4,)])) == [1, 2, 3, 4]


def test_a_row_says_how_fast_and_whether_the_ratio_is_kept() -> None:
    ours = Result(Rival("penstock"), 512, first=5e4, rounds=[4e4, 2e4, 3e4])
    kept, missed = (
        Result(Rival("tf_distribute", 10), 512, first=1e6, rounds=[nanoseconds])
        for nanoseconds in (3e5, 2.9e5)
    )
    table = [
        dict(zip(report.headings("step"), row, strict=True))
        for row in report.rows([ours, kept, missed])
    ]
    assert [row["verdict"] for row in table] == ["", "ok", "MISS"]
    assert (table[0]["ns/step"], table[0]["steps/s"]) == ("30,000.0", "33,333")
    assert (table[1]["penstock is"], table[2]["penstock is"]) == ("10.00x", "9.67x")
    assert not report.has_failed([ours, kept])
    assert report.has_failed([ours, kept, missed])


def test_a_peer_that_failed_has_no_figures() -> None:
    ours = Result(Rival("penstock"), 512, rounds=[3e4])
    ended = Result(Rival("tf_distribute", 10), 512, rounds=[0.0], problem="ended by itself")
    row = list(report.rows([ours, ended]))[1]
    assert row == ("tf.distribute", "-", "", "", "", "", "10x", "failed", "ended by itself")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("distribute rows", "distribute: no workload 'rows'; there are replicas_1, replicas_2"),
        ("distribute --peers grain", "--peers: no peer 'grain'; there are penstock, tf_distribute"),
        ("data --peers tf_distribute", "--peers: no peer 'tf_distribute'; there are penstock"),
        ("distribute --rounds 0", "--rounds: must be at least 1, got 0"),
        ("distribute --quick --write", "--write: only for complete runs"),
    ],
)
def test_nonsense_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(words.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["formats", "examples", "scaling", "workloads --here"])
def test_a_python_without_penstock_is_told_where_there_is_one(command: str) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-S",
            "-m",
            "benchmarks",
            *command.split(),
        ],  # -S: without installed packages.
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert f"PYTHON=.venv/bin/python scripts/bench {command}" in run.stderr


def test_light_clients_read_from_a_real_dispatcher() -> None:
    words = "control --readers 3 --workers 2 --seconds 0.5 --warm-up 0.1 --processes 1 --rate 1e4"
    chosen = arguments(words.split())
    found = control.measure(chosen)
    assert found["Lease"] > 0
    assert found["elements"] > 0
    assert found["errors"] == 0
    assert "requests per second" in control.table(chosen, found)


def test_light_workers_send_heartbeats() -> None:
    counts = light_clients.Counts()
    with service.DispatchServer() as dispatcher:
        address = dispatcher.target.partition("://")[2]
        client = light_clients.CountedClient(address, counts)
        worker = light_clients.LightWorker("w").open(client)
        until(lambda: counts.total().get("WorkerHeartbeat", 0) >= 2)
        worker.stop()


@pytest.mark.parametrize(
    ("change", "well"),
    [({}, True), ({"elements": 96.0}, False), ({"user": 1.1}, False), ({"errors": 1.0}, False)],
)
def test_a_dispatcher_owes_progress_at_no_more_than_one_core(
    change: dict[str, float], well: bool
) -> None:
    chosen = arguments("control --readers 1 --rate 100".split())
    found = {"user": 0.5, "system": 0.2, "elements": 99.0, "errors": 0.0, **change}
    assert control.is_well(chosen, found) == well


def test_every_remote_reader_is_compared_with_the_link() -> None:
    rates = remote.measure(megabytes=1, rounds=1)
    assert list(rates) == list(remote.readers())
    assert len(remote.table(rates).splitlines()) == 1 + len(rates)


def test_a_reader_that_uses_too_little_of_the_link_is_named() -> None:
    assert remote.misses({"plain": 50.0, "npy": 40.0, "arrow": 39.0}) == ["arrow"]


def test_waits_and_worker_seconds_of_a_phase_of_scaling() -> None:
    phase = scaling.Phase(load=2.0, seconds=10.0)
    phase.steps = [(0.0, 2.0, 4.0), (4.0, 0.0, 2.0), (6.0, 0.5, 2.0)]
    phase.workers = [(0.0, 1), (4.0, 2), (9.0, 3)]
    assert (phase.wait(), phase.wait(after=4.0)) == (2.5 / 8, 0.5 / 4)
    assert phase.worker_seconds == 1 * 4 + 2 * 5 + 3 * 1
    assert phase.history(places=6) == "1 1 2 2 2 3"
    assert scaling.compare_seconds([phase, phase], {2.0: (2, 0.0)}) == 17 / 20
    assert "1 1 1 1 1 2 2 2 2 2 3 3" in scaling.table([phase], {2.0: (2, 0.0)}, settle=4.0)
    assert arguments(["scaling", "--phase", "30"]).phase == 30.0


def test_results_are_recorded_and_drawn_with_what_is_missed(tmp_path: Path) -> None:
    ours = Result(Rival("penstock"), 512, first=5e4, rounds=[4e4, 2e4, 3e4])
    missed = Result(Rival("tf_distribute", 10), 512, first=1e6, rounds=[2.9e5])
    absent = Result(Rival("grain"), 512, problem="no network", missing=True)
    workload = Workload("replicas_1", "a pipeline", 512, 512, ())
    found = record.record(
        DISTRIBUTE, [(workload, [ours, missed, absent])], "- Date: today\n- Machine: <this one>"
    )
    path = record.write_record(found, tmp_path)
    kept = json.loads(path.read_text())
    assert path.name == "distribute.json"
    results = kept["workloads"][0]["results"]
    assert [result["verdict"] for result in results] == ["", "MISS", "missing"]
    assert (results[0]["least"], results[0]["most"], results[1]["ratio"]) == (2e4, 4e4, 9.67)
    figure = figures.draw_file(path).read_text()
    assert "9.67x, owed 10x" in figure
    assert "Date: today; Machine: &lt;this one&gt;" in figure


@pytest.mark.parametrize("path", sorted(record.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_figures_are_those_of_the_kept_results(path: Path) -> None:
    figure = path.with_suffix(".svg")
    kept = json.loads(path.read_text())
    assert figure.read_text() == figures.draw(kept), "run python -m benchmarks.figures"
    assert f"](benchmarks/{figure.name})" in (record.FOLDER.parent / "benchmarks.md").read_text()
