"""A worker joins a coordinated read while the dispatcher and a worker are killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.service.host.services import find_session
from tests.integration.stage import Stage, open_stage

Round = tuple[int, ...]

MOST = 30_000
"""Rounds in which a worker that has joined must be used: some ten seconds, where it needs one."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path) as made:
        yield made


def pairs() -> Dataset:
    """First (0, 1), then pairs (2n, 2n + 1) without end; each worker draws different pairs."""
    numbers = Dataset.from_tensors(np.int64(0)).concatenate(Dataset.random())
    return numbers.flat_map(lambda x: Dataset.range((x % 2**32) * 2, (x % 2**32 + 1) * 2))


class Consumers:
    """Two readers in step."""

    def __init__(self, stage: Stage, states: list[Any] | None = None) -> None:
        reads = [
            pairs().apply(
                stage.distribute("parallel_epochs", job_name="j", consumer_index=i, num_consumers=2)
            )
            for i in range(2)
        ]
        self._pool = ThreadPoolExecutor(2)
        self.iterators = [iter(read) for read in reads]
        for iterator, state in zip(self.iterators, states or (), strict=False):
            iterator.load_state_dict(state)

    def __enter__(self) -> Consumers:
        return self

    def __exit__(self, *_: object) -> None:
        for iterator in self.iterators:
            iterator.close()
        self._pool.shutdown()

    def rounds(self, count: int) -> list[Round]:
        return [tuple(map(int, self._pool.map(next, self.iterators))) for _ in range(count)]

    def until(self, true: Callable[[list[Round]], bool]) -> list[Round]:
        found: list[Round] = []
        while not true(found):
            assert len(found) < MOST, "waited in vain"
            found += self.rounds(10)
        return found

    def states(self) -> list[Any]:
        return json.loads(json.dumps([it.state_dict() for it in self.iterators]))


def streams(rounds: list[Round]) -> int:
    """How many streams have begun: each of them begins with the same pair."""
    return rounds.count((0, 1))


def test_a_worker_that_joins_a_coordinated_read_is_used(stage: Stage) -> None:
    dispatcher, first = stage.own_dispatcher(), stage.own_worker()
    with Consumers(stage) as consumers:
        found = consumers.rounds(20)
        before = consumers.states()
        assert streams(found) == 1
        stage.own_worker()
        dispatcher.kill()
        dispatcher.start()
        stage.until(lambda status: len(status["workers"]) == 2)
        found += consumers.until(lambda rounds: streams(rounds) == 1)
        first.kill()
        found += consumers.rounds(20)
        after = consumers.states()
        rest = consumers.rounds(20)
    assert all(b == a + 1 for a, b in found + rest), "of one stream in every round"
    with Consumers(stage, before) as consumers:
        assert consumers.rounds(len(found) + len(rest) - 20) == found[20:] + rest
    assert find_session(stage.url).forget("j").forgotten == ("j",)
    with Consumers(stage, after) as consumers:
        assert consumers.rounds(len(rest)) == rest, "the state knows where streams began"
