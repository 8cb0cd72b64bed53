"""An iterator knows its epoch and position, and a distributed dataset its length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.data import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Dataset
from penstock.data.experimental import service


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with service.DispatchServer() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
            yield dispatcher.target


def strategy() -> Any:
    return penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


PLAIN = Dataset.range(20).map(lambda x: x + 1)
FORMS = {
    "random access": lambda: iter(PLAIN.batch(2)),
    "stream": lambda: iter(PLAIN.filter(lambda x: x > 0).batch(2)),
    "prefetched": lambda: iter(PLAIN.filter(lambda x: x > 0).batch(2).prefetch(3)),
    "torch": lambda: iter(PLAIN.batch(2).as_torch()),
    "replicas": lambda: iter(strategy().experimental_distribute_dataset(PLAIN.batch(2))),
}


@pytest.mark.parametrize("form", FORMS)
def test_positions_count_what_the_caller_got(form: str) -> None:
    iterator = FORMS[form]()
    seen = [iterator.position]
    for _ in iterator:
        seen.append(iterator.position)
    assert seen == list(range(11))
    assert iterator.position == 10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before", [0, 3, 10])
def test_a_resumed_iterator_knows_its_position(form: str, before: int) -> None:
    iterator = FORMS[form]()
    for _ in range(before):
        next(iterator)
    other = FORMS[form]()
    other.load_state_dict(iterator.state_dict())
    iterator.close()
    assert iterator.position == other.position == before
    assert len(list(other)) == 10 - before
    assert other.position == 10


def test_numpy_iterators_have_positions_too() -> None:
    iterator = PLAIN.as_numpy_iterator()
    next(iterator)
    other = PLAIN.as_numpy_iterator()
    other.restore(iterator.save())
    assert (iterator.position, other.position) == (1, 1)


DATASETS = {
    "plain": lambda: PLAIN.batch(2),
    "torch": lambda: PLAIN.batch(2).as_torch(),
    "replicas": lambda: strategy().experimental_distribute_dataset(PLAIN.batch(2)),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_epochs_are_counted_and_loaded(kind: str) -> None:
    dataset, other = DATASETS[kind](), DATASETS[kind]()
    epochs = []
    for _ in range(3):
        iterator = iter(dataset)
        next(iterator)
        epochs.append(iterator.epoch)
    resumed = iter(other)
    resumed.load_state_dict(iterator.state_dict())
    assert (epochs, resumed.epoch, iter(other).epoch) == ([0, 1, 2], 2, 3)


def test_numpy_iterators_and_jax_arrays_have_epochs_too() -> None:
    dataset = Dataset.range(4)
    assert [dataset.as_numpy_iterator().epoch for _ in range(2)] == [0, 1]
    assert dataset.as_jax().epoch == 2


def test_a_torch_dataset_says_where_a_training_continues() -> None:
    def train(batches: Any, seen: list[tuple[int, int]], stop: int) -> None:
        for epoch in range(batches.epoch, 3):
            for batch in batches:
                seen.append((epoch, int(batch)))
                if len(seen) == stop:
                    return

    expected: list[tuple[int, int]] = []
    train(Dataset.range(4).shuffle(4, seed=1).as_torch(), expected, 99)
    assert len(expected) == 12
    for stop in range(1, 12):
        seen: list[tuple[int, int]] = []
        before = Dataset.range(4).shuffle(4, seed=1).as_torch()
        train(before, seen, stop)
        after = Dataset.range(4).shuffle(4, seed=1).as_torch()
        after.load_state_dict(before.state_dict())
        assert (after.epoch, after.position) == divmod(stop, 4)
        train(after, seen, 99)
        assert seen == expected


def test_a_new_epoch_follows_a_loop_that_ended_early() -> None:
    plain = Dataset.range(4).shuffle(4, seed=1)
    expected = [[int(x) for x in plain] for _ in range(2)]
    batches = Dataset.range(4).shuffle(4, seed=1).as_torch()
    for _ in batches:
        break
    assert (batches.epoch, batches.position) == (0, 1)
    assert [int(batch) for batch in batches] == expected[1]
    assert (batches.epoch, batches.position) == (2, 0)


def test_elements_that_failed_count() -> None:
    def fail(x: int) -> int:
        if x == 1:
            raise ValueError("one")
        return x

    iterator = iter(Dataset.range(4).map(fail))
    next(iterator)
    with pytest.raises(penstock.errors.InvalidArgumentError, match="one"):
        next(iterator)
    assert iterator.position == 2


def test_a_reader_of_a_service_knows_its_position_and_length(url: str) -> None:
    dataset = PLAIN.shuffle(20, seed=1).batch(3).apply(service.distribute("distributed_epoch", url))
    assert len(dataset) == dataset.cardinality() == 7
    assert len(dataset.take(5)) == 5
    iterator = iter(dataset)
    next(iterator)
    next(iterator)
    other = iter(dataset)
    other.load_state_dict(iterator.state_dict())
    iterator.close()
    assert other.position == 2
    assert len(list(other)) == 5
    assert other.position == 7


def test_a_registered_dataset_keeps_its_length(url: str) -> None:
    known = service.register_dataset(url, Dataset.range(8))
    assert len(service.from_dataset_id("distributed_epoch", url, known)) == 8
    endless = service.register_dataset(url, Dataset.range(8).repeat())
    found = service.from_dataset_id("distributed_epoch", url, endless)
    assert found.cardinality() == INFINITE_CARDINALITY


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Dataset.range(8), {"processing_mode": "parallel_epochs"}),
        (Dataset.range(8), {"job_name": "shared"}),
        (Dataset.range(8), {"processing_mode": service.ShardingPolicy.DATA}),
        # Workers may batch what they have: `Options.service.stateful`.
        (
            Dataset.range(8)
            .filter(lambda x: x > 2)
            .apply(penstock.data.experimental.assert_cardinality(5)),
            {},
        ),
    ],
)
def test_a_length_that_depends_on_other_readers_or_workers_is_unknown(
    url: str, dataset: Dataset, options: dict[str, Any]
) -> None:
    given = {"processing_mode": "distributed_epoch", "service": url} | options
    assert dataset.apply(service.distribute(**given)).cardinality() == UNKNOWN_CARDINALITY


def test_replicas_of_a_distributed_dataset_have_a_total(url: str) -> None:
    rows = Dataset.from_tensor_slices(np.arange(12)).batch(4)
    remote = rows.apply(service.distribute("distributed_epoch", url))
    distributed = strategy().experimental_distribute_dataset(remote)
    assert distributed.cardinality == len(distributed) == 3
    assert len(list(distributed)) == 3


def test_a_length_that_is_not_known_is_an_error() -> None:
    for dataset, size in [(PLAIN.repeat(), "infinite"), (PLAIN.filter(bool), "unknown")]:
        distributed = strategy().experimental_distribute_dataset(dataset.batch(2))
        with pytest.raises(TypeError, match=f"the number of batches is {size}"):
            len(distributed)
        assert distributed
