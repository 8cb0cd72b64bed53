"""`InputOptions.balance`: the same rows in every step, dealt out by their costs."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as tf
from penstock.distribute.input.balancing import deal, even_sizes
from penstock.errors import InvalidArgumentError, InvalidTypeError
from tests.effort import examples


def build_strategy(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def distribute_dataset(dataset: Any, replicas: int, **options: Any) -> Any:
    options = tf.distribute.InputOptions(**options)
    return build_strategy(replicas).experimental_distribute_dataset(dataset, options)


def portions(value: Any) -> list[list[int]]:
    return [part.tolist() for part in value.values]


def squares(batch: Any) -> Any:
    return batch.astype(float) ** 2


def most(parts: list[list[int]]) -> float:
    return max(sum(float(x) ** 2 for x in part) for part in parts)


@examples(60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(1, 6))
def test_any_deal_keeps_rows_sizes_and_order_and_costs_no_more(costs, count):
    values, sizes = np.array(costs, float), even_sizes(len(costs), count)
    order = deal(values, sizes)
    assert sorted(order.tolist()) == list(range(len(costs)))
    before = np.split(np.arange(len(costs)), np.cumsum(sizes)[:-1])
    after = np.split(order, np.cumsum(sizes)[:-1])
    assert all(part.tolist() == sorted(part) for part in after)
    dearest = [max(values[part].sum() for part in parts) for parts in (before, after)]
    assert dearest[1] <= dearest[0]


def test_two_portions_of_few_rows_are_dealt_almost_as_well_as_possible():
    numbers = np.random.default_rng(3)
    for _ in range(20):
        costs = numbers.lognormal(5, 1, 10) ** 2
        order = deal(costs, [5, 5])
        rows = itertools.combinations(range(10), 5)
        best = min(
            max(costs[list(half)].sum(), costs.sum() - costs[list(half)].sum()) for half in rows
        )
        assert max(costs[order[:5]].sum(), costs[order[5:]].sum()) <= 1.15 * best


@pytest.mark.parametrize("policy", ["AUTO", "OFF"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_step_has_the_rows_of_its_batch(replicas: int, policy: str):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    numbers = np.random.default_rng(1).integers(1, 1000, 70)
    dataset = tf.data.Dataset.from_tensor_slices(numbers).batch(12).with_options(options)
    steps = list(distribute_dataset(dataset, replicas, balance=squares))
    parts = [[value.tolist()] if replicas == 1 else portions(value) for value in steps]
    assert [sorted(itertools.chain(*step)) for step in parts] == [
        sorted(batch.tolist()) for batch in dataset
    ]
    assert [list(map(len, step)) for step in parts] == [
        even_sizes(len(batch), replicas) for batch in dataset
    ]
    for step, batch in zip(parts[:-1], dataset, strict=False):
        assert most(step) <= 1.2 * (batch.astype(float) ** 2).sum() / replicas


def test_ragged_features_move_together():
    rows = tf.data.Dataset.range(1, 9).map(lambda n: {"n": n, "tokens": np.full(n, n)})
    dataset = rows.ragged_batch(8)
    value = next(
        iter(distribute_dataset(dataset, 2, balance=lambda b: b["tokens"].row_lengths ** 2))
    )
    for numbers, tokens in zip(value["n"].values, value["tokens"].values, strict=True):
        assert [len(row) for row in tokens] == numbers.tolist()
    assert [sum(x**2 for x in part) for part in portions(value["n"])] == [102, 102]


def test_tuples_are_separate_arguments():
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(4), np.array([9.0, 8, 1, 2]))).batch(4)
    value = next(iter(distribute_dataset(dataset, 2, balance=lambda number, cost: cost)))
    assert portions(value[0]) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("mode", ["pad", "repeat", "drop"])
def test_filled_batches_are_balanced_too(mode: str):
    dataset = tf.data.Dataset.range(1, 11).batch(6)
    steps = list(distribute_dataset(dataset, 3, balance=squares, last_batch=mode))
    assert len(steps) == (1 if mode == "drop" else 2)
    last = steps[-1]
    values, mask = last if mode == "pad" else (last, None)
    parts = portions(values)
    assert list(map(len, parts)) == [2, 2, 2]
    if mask is not None:
        # Padding goes to the portions with the most expensive rows.
        assert parts == [[10, 0], [9, 0], [7, 8]]
        assert portions(mask) == [[True, False], [True, False], [True, True]]


def test_states_resume_in_balanced_steps_and_fit_other_numbers_of_replicas():
    numbers = np.random.default_rng(2).integers(1, 1000, 40)
    dataset = tf.data.Dataset.from_tensor_slices(numbers).batch(8)
    expected = [portions(value) for value in distribute_dataset(dataset, 2, balance=squares)]
    iterator = iter(distribute_dataset(dataset, 2, balance=squares))
    for count in range(5):
        state = iterator.state_dict()
        again = iter(distribute_dataset(dataset, 2, balance=squares))
        again.load_state_dict(state)
        assert [portions(value) for value in again] == expected[count:]
        other = iter(distribute_dataset(dataset, 4, balance=squares))
        other.load_state_dict(state)
        assert [sorted(itertools.chain(*portions(value))) for value in other] == [
            sorted(itertools.chain(*step)) for step in expected[count:]
        ]
        next(iterator)


def test_explain_says_what_it_gains():
    dataset = tf.data.Dataset.from_tensor_slices([40, 30, 3, 4]).batch(4)
    balanced = distribute_dataset(dataset, 2, balance=squares)
    assert "squares at test_balancing.py" in balanced.explain()
    assert "not measured before the first step" in balanced.explain()
    list(balanced)
    assert (
        "the most expensive portion of a step has 1.27 times the mean cost, 1.98 times without it "
        "(steps measured: 1); a step that waits for it takes 64% of the time" in balanced.explain()
    )
    assert "batches are cut by the batch rule" in balanced.explain()


def test_one_replica_gets_batches_as_they_are():
    def never(batch: Any) -> Any:
        raise AssertionError("nothing to balance")

    dataset = tf.data.Dataset.range(4).batch(4)
    balanced = distribute_dataset(dataset, 1, balance=never)
    assert [value.tolist() for value in balanced] == [[0, 1, 2, 3]]
    assert "dealt" not in balanced.explain()


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (lambda batch: 1.0, "must return one cost from 0 on for each of the 4 rows of a batch"),
        (lambda batch: -batch, "must return one cost from 0 on for each of the 4 rows"),
        (lambda batch: batch / 0.0, "must return one cost from 0 on for each of the 4 rows"),
        (lambda batch: batch[9], "failed: IndexError: index 9 is out of bounds"),
    ],
)
def test_wrong_costs_are_refused(cost: Any, message: str):
    with np.errstate(all="ignore"):
        iterator = iter(distribute_dataset(tf.data.Dataset.range(1, 5).batch(4), 2, balance=cost))
        with pytest.raises(Exception, match=rf"^InputOptions\(balance=.*\) {message}"):
            next(iterator)


def test_a_batch_without_costs_is_one_error():
    def cost(batch: Any) -> Any:
        return batch if 5 not in batch else "?"

    iterator = iter(distribute_dataset(tf.data.Dataset.range(12).batch(4), 2, balance=cost))
    assert sorted(itertools.chain(*portions(next(iterator)))) == [0, 1, 2, 3]
    with pytest.raises(InvalidArgumentError, match="failed: ValueError: could not convert"):
        next(iterator)
    assert sorted(itertools.chain(*portions(next(iterator)))) == [8, 9, 10, 11]


def test_wrong_options_are_refused():
    with pytest.raises(InvalidTypeError, match="InputOptions: balance must be a function"):
        tf.distribute.InputOptions(balance="length")
    options = tf.distribute.InputOptions(balance=squares)
    with pytest.raises(InvalidArgumentError, match="balance is for batches that are cut"):
        build_strategy(2).distribute_datasets_from_function(
            lambda context: tf.data.Dataset.range(4).batch(2), options
        )


def test_a_state_of_the_stream_rule_is_refused():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.range(8).batch(4).with_options(options)
    state = iter(distribute_dataset(dataset, 2)).state_dict()
    with pytest.raises(InvalidArgumentError, match="cut by the stream rule, this one is"):
        iter(distribute_dataset(dataset, 2, balance=squares)).load_state_dict(state)
