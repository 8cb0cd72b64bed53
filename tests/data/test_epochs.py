"""A dataset that is made anew in each epoch repeats the first order, and says so."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.data import Dataset

SAME_ORDER = "this epoch has the same order as the one before"


def shuffle_range(**options: Any) -> Dataset:
    return Dataset.range(8).shuffle(8, **options)


def is_warned(*passes: Callable[[], Any]) -> bool:
    """Whether one of the passes over elements warns."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for read in passes:
            read()
    assert all(SAME_ORDER in str(warning.message) for warning in found)
    return bool(found)


@pytest.mark.parametrize("seed", [1, None])
def test_a_dataset_made_in_each_epoch_warns(seed: int | None) -> None:
    dataset = shuffle_range(seed=seed)
    first = [batch.tolist() for batch in dataset.batch(4)]
    with pytest.warns(UserWarning, match=SAME_ORDER) as found:
        second = [batch.tolist() for batch in dataset.batch(4)]
    assert first == second
    assert found[0].filename == __file__


def test_a_strategy_in_each_epoch_warns() -> None:
    strategy = penstock.distribute.MirroredStrategy(["CPU:0"])
    batches = shuffle_range().batch(4)
    list(strategy.experimental_distribute_dataset(batches))
    with pytest.warns(UserWarning, match=SAME_ORDER) as found:
        list(strategy.experimental_distribute_dataset(batches))
    assert found[0].filename == __file__


def test_it_warns_once_where_epochs_go_on() -> None:
    dataset = shuffle_range()
    assert is_warned(*[lambda: list(dataset.batch(4))] * 2)
    assert not is_warned(lambda: list(dataset.batch(4)))


def test_one_dataset_does_not_warn() -> None:
    dataset = shuffle_range().batch(4)
    assert not is_warned(*[lambda: list(dataset)] * 3)


def test_an_order_that_is_kept_does_not_warn() -> None:
    kept, cached = shuffle_range(reshuffle_each_iteration=False), shuffle_range().cache()
    assert not is_warned(*[lambda: list(kept.batch(4))] * 2)
    assert not is_warned(*[lambda: list(cached.batch(4))] * 2)


def test_parts_of_one_order_do_not_warn() -> None:
    dataset = shuffle_range()
    assert not is_warned(lambda: list(dataset.take(2)), lambda: list(dataset.skip(2)))
    assert not is_warned(
        lambda: list(dataset.map(lambda x: x + 1)),
        lambda: list(dataset.map(lambda x: x + 2)),
    )


def test_a_look_at_the_first_elements_does_not_warn() -> None:
    dataset = shuffle_range()
    assert not is_warned(*[lambda: next(iter(dataset.batch(4)))] * 3)


def test_a_resumed_epoch_does_not_warn() -> None:
    dataset = shuffle_range()
    iterator = iter(dataset.batch(2))
    next(iterator)
    state = iterator.state_dict()
    rest = [batch.tolist() for batch in iterator]
    other = iter(dataset.batch(2))
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
