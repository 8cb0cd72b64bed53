"""`as_torch` in worker processes: every element once per epoch, from one of the workers.

Run by `test_apart` in a process of its own: a process with threads should not be forked.
"""

import logging
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock.data import Dataset, Options
from penstock.data.experimental import AutoShardPolicy
from penstock.errors import FailedPreconditionError, UnknownError

# From Python 3.14 on, workers are forked from a server. It imports these modules once.
multiprocessing.set_forkserver_preload(["torch", "penstock.data"])


def shuffled_inside(x: Any) -> Dataset:
    return Dataset.range(6).map(lambda y: x * 10 + y).shuffle(6)


def turn_off_sharding(dataset: Dataset) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    return dataset.with_options(options)


DATASETS = {
    "range": lambda: Dataset.range(23),
    "shuffled": lambda: Dataset.range(23).shuffle(23),
    "stream": lambda: Dataset.range(23).filter(lambda x: x % 5 != 0).shuffle(4),
    "shuffled inside": lambda: Dataset.range(5).flat_map(shuffled_inside),
    "in any order": lambda: Dataset.range(99).map(
        lambda x: x, num_parallel_calls=3, deterministic=False
    ),
    "batches": lambda: Dataset.range(23).shuffle(23).batch(4).prefetch(2),
    "fewer than workers": lambda: Dataset.range(1),
    "none": lambda: Dataset.range(0),
    "not to be sharded": lambda: turn_off_sharding(Dataset.range(23)),
}
WORKERS: dict[str, dict[str, Any]] = {
    "two": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def numbers(elements: Any) -> list[int]:
    return [int(number) for element in elements for number in np.atleast_1d(np.asarray(element))]


@pytest.mark.parametrize("name", DATASETS)
def test_every_element_comes_once_per_epoch(name: str) -> None:
    dataset = DATASETS[name]()
    expected = sorted(numbers(dataset))
    loader = DataLoader(dataset.as_torch(), batch_size=None, **WORKERS["persistent"])
    for _ in range(2):
        assert sorted(numbers(loader)) == expected


def test_workers_that_do_not_share_memory_read_their_shares() -> None:
    dataset = Dataset.range(9).shuffle(9).map(lambda x: (x, np.full(2, x)))
    loader = DataLoader(
        dataset.as_torch(), batch_size=None, num_workers=2, multiprocessing_context="spawn"
    )
    rows = [row.tolist() for x, row in loader if row.tolist() == [int(x)] * 2]
    assert sorted(rows) == [[x, x] for x in range(9)]


@pytest.mark.parametrize("workers", ["two", "persistent"])
def test_epochs_are_shuffled_anew_and_torch_seeds_decide(workers: str) -> None:
    made = Dataset.range(23).shuffle(23, seed=1).as_torch()

    def epochs(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        loader = DataLoader(made, batch_size=None, **WORKERS[workers])
        return [numbers(loader) for _ in range(3)]

    first = epochs(1)
    assert len(set(map(tuple, first))) == 3
    assert epochs(1) == first
    assert epochs(2) != first


def test_an_order_that_is_fixed_stays() -> None:
    loader = DataLoader(Dataset.range(23).as_torch(), batch_size=None, num_workers=2)
    assert numbers(loader) == list(range(23))
    fixed = Dataset.range(23).shuffle(23, seed=1, reshuffle_each_iteration=False)
    loader = DataLoader(fixed.as_torch(), batch_size=None, num_workers=2)
    assert numbers(loader) == numbers(fixed)


def test_with_random_access_a_worker_computes_its_own_share_only(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def count_call(x: Any) -> Any:
        with calls.open("a") as file:
            file.write(f"{x}\n")
        return x

    made = Dataset.range(24).shuffle(24).map(count_call).batch(3).as_torch()
    assert sorted(numbers(DataLoader(made, batch_size=None, num_workers=2))) == list(range(24))
    assert sorted(map(int, calls.read_text().split())) == list(range(24))


def test_the_length_is_that_of_all_workers_together() -> None:
    loader = DataLoader(Dataset.range(23).batch(4).as_torch(), batch_size=None, num_workers=2)
    assert len(loader) == len(list(loader)) == 6


class ResumingDataset(IterableDataset[Any]):
    """The elements of another dataset, with a save and a resume between two of them."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __iter__(self) -> Iterator[Any]:
        assert get_worker_info() is not None
        first = iter(self.made)
        yield next(first)
        yield next(first)
        rest = iter(self.made)
        rest.load_state_dict(first.state_dict())
        yield from rest


@pytest.mark.parametrize("name", ["shuffled", "stream"])
def test_a_share_can_be_saved_and_resumed(name: str) -> None:
    dataset = DATASETS[name]()
    loader = DataLoader(ResumingDataset(dataset.as_torch()), batch_size=None, num_workers=2)
    assert sorted(numbers(loader)) == sorted(numbers(dataset))


def without_3(x: Any) -> Any:
    if x == 3:
        raise KeyError("3")
    return x


def test_a_failure_in_a_worker_arrives_as_what_it_was() -> None:
    loader = DataLoader(Dataset.range(6).map(without_3).as_torch(), batch_size=None, num_workers=2)
    found = []
    with pytest.raises(UnknownError, match="Dataset.map: without_3 at .* KeyError: '3'"):
        found.extend(map(int, loader))
    assert found == [0, 1, 2]


def test_devices_are_not_for_workers() -> None:
    loader = DataLoader(Dataset.range(3).as_torch(device="meta"), batch_size=None, num_workers=1)
    match = "Dataset.as_torch: a worker process of a DataLoader must leave devices alone, but the "
    with pytest.raises(FailedPreconditionError, match=match + "tensors are for 'meta'; leave out"):
        list(loader)


class LogTo:
    """Makes workers write the warnings of penstock to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, worker: int) -> None:
        logging.getLogger("penstock").addHandler(logging.FileHandler(self.path))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_shard_of_a_shuffled_order_warns_once(workers: str, tmp_path: Path) -> None:
    made = Dataset.range(24).shuffle(24, seed=1).batch(2).shard(2, 1).as_torch()
    log = tmp_path / "log"
    log.touch()
    loader = DataLoader(made, batch_size=None, worker_init_fn=LogTo(log), **WORKERS[workers])
    assert len(numbers(loader)) == len(numbers(loader)) == 12
    (warning,) = log.read_text().splitlines()
    assert warning.startswith("Dataset.as_torch: the elements are shuffled before shard, and")
    assert "use as_torch(num_workers=2) without a DataLoader, or call torch.manual_seed" in warning


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.range(24).shard(2, 1).shuffle(24, seed=1),
        Dataset.range(24).shuffle(24, seed=1).shard(1, 0),
        Dataset.range(24).shuffle(24, seed=1, reshuffle_each_iteration=False).shard(2, 1),
    ],
)
def test_a_shard_of_one_order_warns_of_nothing(dataset: Dataset, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    loader = DataLoader(
        dataset.as_torch(), batch_size=None, num_workers=2, worker_init_fn=LogTo(log)
    )
    assert sorted(numbers(loader)) == sorted(numbers(dataset))
    assert log.read_text() == ""
