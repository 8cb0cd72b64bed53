"""Randomness belongs to the plan: whoever computes an element, it is the same."""

from __future__ import annotations

import pytest

import penstock
from penstock.data import Dataset


@pytest.fixture
def global_seed():
    yield penstock.random.set_seed
    penstock.random.set_seed(None)


def noisy(seed=5):
    return Dataset.range(20).map(lambda x, g: (x, g.integers(1 << 30)), random=True, seed=seed)


def values(ds):
    return [tuple(map(int, element)) for element in ds]


def test_a_random_function_gives_the_same_whoever_computes_it():
    expected = values(noisy())
    assert values([noisy()[i] for i in range(20)]) == expected
    threads = Dataset.range(20).map(
        lambda x, g: (x, g.integers(1 << 30)), num_parallel_calls=4, random=True, seed=5
    )
    assert values(threads) == expected
    assert sorted(values(noisy().shuffle(20, seed=1))) == expected
    assert values(noisy().skip(7)) == expected[7:]
    assert values(noisy().shard(3, 1)) == expected[1::3]


def test_a_random_function_goes_on_after_a_resume():
    ds = noisy().filter(lambda x, _: True)
    iterator = iter(ds)
    first = values(next(iterator) for _ in range(8))
    other = iter(ds)
    other.load_state_dict(iterator.state_dict())
    assert first + values(other) == values(noisy())


def test_every_epoch_and_every_seed_has_its_own_numbers():
    ds = noisy()
    assert values(ds) != values(ds)
    repeated = values(noisy().repeat(2))
    assert repeated[:20] != repeated[20:]
    assert values(noisy(5)) != values(noisy(6))


def test_a_global_seed_makes_unseeded_operators_repeatable(global_seed):
    def orders():
        global_seed(3)
        shuffled = Dataset.range(30).shuffle(30)
        return [list(shuffled), list(shuffled), list(Dataset.range(30).shuffle(30))]

    first = orders()
    assert orders() == first
    assert first[0] != first[1]
    assert first[0] != first[2]


def test_a_split_of_an_unseeded_shuffle_is_a_split():
    ds = Dataset.range(30).shuffle(30, reshuffle_each_iteration=False)
    assert sorted([*ds.take(10), *ds.skip(10)]) == list(range(30))
    assert list(ds) == list(ds)
