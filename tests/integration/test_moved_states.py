"""Workers in processes of their own that leave, or are killed, while a large state moves."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.service.host.data_client import Link
from tests.integration.chaos.cluster import Program, free_port
from tests.integration.clusters import until
from tests.integration.stage import Stage, open_stage

COUNT = 300


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path) as made:
        made.dispatcher()
        yield made


@pytest.fixture
def successors(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The log messages of readers in this process that name the worker that continues."""
    found: list[Any] = []
    fetch = Link.fetch

    def note(link: Link, *arguments: Any, successor: Any, **more: Any) -> None:
        fetch(link, *arguments, successor=successor, **more)
        if successor is not None:
            found.append(successor)

    monkeypatch.setattr(Link, "fetch", note)
    return found


def numbers(held: int, log: str, kilobytes: int = 256) -> Dataset:
    """Shuffled numbers that one worker computes; `log` gets each number and its process."""

    def make(x: Any) -> Any:
        threading.Event().wait(0.005)
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {x[0]}\n")
        return x[0]

    in_order = Dataset.range(COUNT).scan(np.int64(0), lambda total, x: (total + x, x))
    large = in_order.map(lambda x: np.full(kilobytes << 7, x)).shuffle(held, seed=5)
    return large.map(make, output_signature=Dataset.range(1).element_spec)


def order_of(held: int) -> list[int]:
    return [int(x[0]) for x in numbers(held, os.devnull, 1).map(lambda x: (x,))]


def read_until_two_workers(
    stage: Stage, iterator: Any, successors: list[Any]
) -> tuple[list[int], Program]:
    """Reads until the reader knows a second worker, which it would continue with."""
    found, port = [int(next(iterator))], free_port()
    second = stage.own_worker(port)
    while not any(info.address.endswith(f":{port}") for info in successors):
        found.append(int(next(iterator)))
    return found, second


@pytest.mark.parametrize("job", [None, "shared"])
@pytest.mark.parametrize("reads", [True, False], ids=["busy", "idle"])
def test_no_element_is_made_again_where_a_large_state_moves(
    stage: Stage, successors: list[Any], tmp_path: Path, reads: bool, job: str | None
) -> None:
    held, log = 40, tmp_path / "made"
    first = stage.own_worker()
    remote = numbers(held, str(log)).apply(stage.distribute(job_name=job))
    with iter(remote) as iterator:
        found, _ = read_until_two_workers(stage, iterator, successors)
        first.signal(signal.SIGTERM)
        if not reads:
            assert first.process.wait(60) == 0
        found += [int(x) for x in iterator]
        assert first.process.wait(60) == 0
    assert found == order_of(held)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert Counter(int(x) for _, x in lines) == Counter(range(COUNT))
    assert len({who for who, _ in lines}) == 2


@pytest.mark.parametrize("killed", ["old", "new"])
def test_a_worker_that_is_killed_while_a_state_moves_costs_no_element(
    stage: Stage, successors: list[Any], tmp_path: Path, killed: str
) -> None:
    held, log = 160, tmp_path / "made"
    first = stage.own_worker()
    remote = numbers(held, str(log)).apply(stage.distribute())
    with iter(remote) as iterator:
        found, second = read_until_two_workers(stage, iterator, successors)
        first.signal(signal.SIGTERM)
        until(lambda: "finishes the elements" in (tmp_path / "program-0.log").read_text())
        found += [int(x) for x in islice(iterator, 3)]
        (first if killed == "old" else second).kill()
        if killed == "new":
            stage.own_worker()
        found += [int(x) for x in iterator]
    assert found == order_of(held)


def test_workers_leave_one_after_the_other(
    stage: Stage, successors: list[Any], tmp_path: Path
) -> None:
    """The state moves from worker to worker, as in a rollout."""
    held, log = 40, tmp_path / "made"
    worker = stage.own_worker()
    remote = numbers(held, str(log)).apply(stage.distribute())
    with iter(remote) as iterator:
        found = []
        for _ in range(3):
            more, following = read_until_two_workers(stage, iterator, successors)
            found += more
            worker.signal(signal.SIGTERM)
            assert worker.process.wait(60) == 0
            worker = following
        found += [int(x) for x in iterator]
    assert found == order_of(held)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert Counter(int(x) for _, x in lines) == Counter(range(COUNT))
