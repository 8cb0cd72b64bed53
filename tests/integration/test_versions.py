"""Rolling upgrades: processes of two installed versions of penstock serve one reader together.

The reader is this process, which has the older version.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from penstock import errors
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.version import PROTOCOL, VERSION
from tests.integration.chaos.cluster import Program
from tests.integration.installations import install
from tests.integration.stage import Stage, open_stage

LATER, TOO_LATE = PROTOCOL + 1, PROTOCOL + 2


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"), LATER)


@pytest.fixture(scope="module")
def too_late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"), TOO_LATE)


def leave(worker: Program) -> None:
    """Ends a worker as a rollout does: it finishes its current elements."""
    worker.signal(signal.SIGTERM)
    worker.process.wait(60)


@pytest.mark.parametrize("forward", [True, False], ids=["upgrade", "rollback"])
def test_dispatcher_and_workers_are_replaced_one_by_one(
    stage: Stage, later: Path, forward: bool
) -> None:
    first, second = (None, later) if forward else (later, None)
    dispatcher, worker = stage.own_dispatcher(source=first), stage.own_worker(source=first)
    dataset = Dataset.range(200).take(190).map(lambda x: x * 3)
    expected = [3 * x for x in range(190)]
    ordered = iter(dataset.apply(stage.distribute()))
    shared = iter(dataset.apply(stage.distribute(job_name="shared")))
    found = [[int(x) for x in islice(each, 30)] for each in (ordered, shared)]

    dispatcher.kill()
    dispatcher.source = second
    dispatcher.start()
    for some, each in zip(found, (ordered, shared), strict=True):
        some += [int(x) for x in islice(each, 30)]
    stage.own_worker(source=second)
    stage.until(lambda status: len(status["workers"]) == 2)
    versions = {each["version"] for each in stage.status()["workers"]}
    assert versions == {VERSION, f"0.{LATER}.0"}
    leave(worker)

    assert found[0] + [int(x) for x in ordered] == expected
    assert sorted(found[1] + [int(x) for x in shared]) == expected


@pytest.mark.parametrize("forward", [True, False], ids=["upgrade", "rollback"])
def test_what_a_stream_holds_moves_to_a_worker_of_another_version(
    stage: Stage, later: Path, forward: bool
) -> None:
    first, second = (None, later) if forward else (later, None)
    stage.dispatcher()
    worker = stage.own_worker(source=first)
    in_order = Dataset.range(300).scan(np.int64(0), lambda total, x: (total + x, x))
    dataset = in_order.map(lambda x: np.full(1 << 10, x)).shuffle(32, seed=1).map(lambda x: x[0])
    iterator = iter(dataset.apply(stage.distribute()))
    found = [int(x) for x in islice(iterator, 30)]
    stage.own_worker(source=second)
    stage.until(lambda status: len(status["workers"]) == 2)
    found += [int(x) for x in islice(iterator, 30)]
    leave(worker)
    assert found + [int(x) for x in iterator] == [int(x) for x in dataset]


def test_a_reader_of_a_later_version_uses_older_servers(stage: Stage, later: Path) -> None:
    stage.dispatcher()
    stage.worker()
    program = """
import sys
from penstock.data import Dataset
from penstock.data.experimental.service import distribute
from penstock.plan.nodes import Take
dataset = Dataset.range(9).take(7).apply(distribute("distributed_epoch", sys.argv[1]))
print([int(x) for x in dataset])
new = Dataset(Take(Dataset.range(9)._plan, 7, novelty=1))
try:
    print(list(new.apply(distribute("distributed_epoch", sys.argv[1]))))
except Exception as error:
    print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", program, stage.url]
    environment = os.environ | {"PYTHONPATH": str(later)}
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    elements, refusal = said.stdout.splitlines()
    assert elements == str(list(range(7)))
    assert refusal.startswith("FailedPreconditionError")
    assert "Dataset.take: the plan sets novelty, which this version of penstock does" in refusal


def test_two_versions_away_is_refused_by_a_newer_dispatcher(stage: Stage, too_late: Path) -> None:
    stage.own_dispatcher(source=too_late)
    refusal = (
        f"dispatcher localhost:{stage.port} speaks protocol {TOO_LATE} of penstock and refuses this"
        f" process, which speaks protocol {PROTOCOL}; upgrade penstock here"
    )
    with pytest.raises(errors.FailedPreconditionError, match=refusal):
        stage.worker()
    with pytest.raises(errors.FailedPreconditionError, match=refusal):
        next(iter(Dataset.range(9).apply(stage.distribute())))


def test_two_versions_away_is_refused_by_a_newer_worker(
    stage: Stage, too_late: Path, tmp_path: Path
) -> None:
    stage.dispatcher()
    with pytest.raises(
        RuntimeError,
        match=f"penstock worker: dispatcher localhost:{stage.port} speaks protocol {PROTOCOL} of "
        f"penstock, and this process protocols {LATER} to {TOO_LATE}; upgrade penstock there",
    ):
        stage.own_worker(source=too_late)


def test_a_reader_and_a_worker_that_are_two_versions_apart(
    stage: Stage, later: Path, too_late: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher of the version between serves both; data connections fail with a clear error."""
    monkeypatch.setattr("penstock.service.protocol.timing.UNREACHABLE", 0.1)
    stage.own_dispatcher(source=later)
    stage.own_worker(source=too_late)
    refusal = f"worker localhost:[0-9]+ speaks protocol {TOO_LATE} of penstock and refuses this"
    with pytest.raises(errors.OpError, match=refusal):
        next(iter(Dataset.range(9).apply(stage.distribute())))
    assert service.status(stage.url)["workers"][0]["version"] == f"0.{TOO_LATE}.0"
