"""Numbered plans: the service sends row numbers, and the rows arrive as if it had sent them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset, Options
from penstock.delivery import Delivery
from penstock.delivery.row_fetch import fetch_rows, owners_of_row_numbers
from penstock.delivery.row_numbers import replace_by_row_numbers
from penstock.distribute.backends import numpy_backend
from penstock.element.chunk import Chunk
from penstock.plan.optimize import prepare


class RowsByNumber(Delivery):
    """Does with NumPy what a GPU does, and counts the calls."""

    def __init__(self, owners: list[int]) -> None:
        self._owners = owners
        self._rows: Chunk | None = None

    def of_rows(self, rows: Chunk) -> RowsByNumber:
        made = RowsByNumber(owners_of_row_numbers(self._owners, len(rows.columns)))
        made._rows = rows
        return made

    def send(self, chunk: Chunk) -> Chunk:
        rows = self._rows
        if rows is None:
            return chunk
        used.append(chunk)
        return fetch_rows(chunk, rows, self._owners, lambda leaf, _, n: list(rows.columns[leaf][n]))


used: list[Chunk] = []


@pytest.fixture
def by_number(monkeypatch):
    """Lets the numpy backend fetch rows by their numbers."""

    def delivery(self: Any, handles: Any, columns: Any, ahead: int) -> RowsByNumber:
        return RowsByNumber(list(columns))

    used.clear()
    return lambda: monkeypatch.setattr(numpy_backend.NumpyBackend, "delivery", delivery)


def element(count: int) -> dict[str, Any]:
    words = np.array([b"%d" % i for i in range(count)], object)
    images = np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3)
    return {"images": images, "words": words, "labels": np.arange(count)}


def steps(dataset: Dataset, replicas: int, **options: Any) -> list[Any]:
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    made = strategy.experimental_distribute_dataset(dataset, tf.distribute.InputOptions(**options))
    found = []
    for value in made:
        results = strategy.experimental_local_results(value)
        found.append([{key: leaf.tolist() for key, leaf in one.items()} for one in results])
    return found


def off(dataset: Dataset) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


@pytest.mark.filterwarnings("ignore:.*the same order as the one before")
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.batch(4),
        lambda ds: ds.shuffle(20, seed=1).batch(6, drop_remainder=True).prefetch(2),
        lambda ds: off(ds.shuffle(7, seed=1).batch(5)),
        lambda ds: off(ds.batch(5).repeat(2)),
        lambda ds: ds.skip(2).take(15).shard(2, 1).batch(3).repeat(2).take(3),
        lambda ds: (
            ds.shuffle(20, seed=3)
            .repeat(2)
            .batch(7)
            .apply(tf.data.experimental.assert_cardinality(6))
        ),
    ],
)
def test_the_steps_are_the_same(make, replicas, by_number):
    dataset = make(Dataset.from_tensor_slices(element(20)))
    expected = steps(dataset, replicas)
    by_number()
    assert steps(dataset, replicas) == expected
    assert used


@pytest.mark.parametrize("last_batch", ["drop", "repeat", "pad"])
def test_the_last_batch_is_filled_alike(last_batch, by_number):
    dataset = Dataset.from_tensor_slices(element(10)).batch(4)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = tf.distribute.InputOptions(last_batch=last_batch)

    def texts():
        return list(map(str, strategy.experimental_distribute_dataset(dataset, options)))

    expected = texts()
    by_number()
    assert texts() == expected
    assert bool(used) == (last_batch != "pad")


def test_whole_elements_of_functions_are_the_same(by_number):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def make(context):
        return Dataset.from_tensor_slices(element(10)).shuffle(10, seed=2).batch(3)

    def texts():
        return list(map(str, strategy.distribute_datasets_from_function(make)))

    expected = texts()
    by_number()
    assert texts() == expected
    assert used


def test_a_state_fits_both_ways(by_number):
    dataset = Dataset.from_tensor_slices(element(20)).shuffle(20, seed=5).batch(4)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    next(iterator)
    state, rest = iterator.state_dict(), list(map(str, iterator))
    by_number()
    other = iter(strategy.experimental_distribute_dataset(dataset))
    other.load_state_dict(state)
    assert list(map(str, other)) == rest
    assert used


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.from_tensor_slices(np.zeros((4, 2))),
        lambda: Dataset.from_tensor_slices(np.zeros((4, 2))).batch(2).batch(2),
        lambda: Dataset.from_tensor_slices(np.zeros((4, 2))).map(lambda x: x).batch(2),
        lambda: Dataset.from_tensor_slices(np.zeros((4, 2))).padded_batch(2),
        lambda: Dataset.from_tensor_slices(np.zeros((4, 2))).cache().batch(2),
        lambda: Dataset.from_tensor_slices(tf.Ragged.from_rows([[1], [2, 3]])).batch(2),
        lambda: Dataset.range(4).batch(2),
    ],
)
def test_other_plans_have_no_numbers(make):
    assert replace_by_row_numbers(prepare(make().__plan__)) is None
