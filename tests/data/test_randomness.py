"""Randomness belongs to the plan: every process and thread computes the same element."""

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


def test_a_random_function_returns_the_same_in_every_process():
    expected = values(noisy())
    assert values([noisy()[i] for i in range(20)]) == expected
    threads = Dataset.range(20).map(
        lambda x, g: (x, g.integers(1 << 30)), num_parallel_calls=4, random=True, seed=5
    )
    assert values(threads) == expected
    assert sorted(values(noisy().shuffle(20, seed=1))) == expected
    assert values(noisy().skip(7)) == expected[7:]
    assert values(noisy().shard(3, 1)) == expected[1::3]


def test_a_random_function_continues_after_a_resume():
    ds = noisy().filter(lambda x, _: True)
    iterator = iter(ds)
    first = values(next(iterator) for _ in range(8))
    other = iter(ds)
    other.load_state_dict(iterator.state_dict())
    assert first + values(other) == values(noisy())


def shuffled_windows():
    """Eight elements at a time, each window in an order that the function draws."""
    return Dataset.range(80).group_by_window(lambda _: 0, lambda _, window: window.shuffle(8), 8)


@pytest.mark.parametrize("taken", [0, 3, 8, 21])
def test_a_window_that_its_function_shuffles_continues_after_a_resume(taken):
    ds = shuffled_windows()
    iterator = iter(ds)
    for _ in range(taken):
        next(iterator)
    other = iter(ds)
    other.load_state_dict(iterator.state_dict())
    assert list(other) == list(iterator)


def test_windows_that_their_function_shuffles_differ_and_are_split_by_shards(global_seed):
    global_seed(None)
    orders = [int(x) % 8 for x in shuffled_windows()]
    assert len({tuple(orders[i : i + 8]) for i in range(0, 80, 8)}) > 1
    assert sorted([*shuffled_windows().shard(2, 0), *shuffled_windows().shard(2, 1)]) == [
        *range(80)
    ]


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


TEN = Dataset.range(10)
SHARDED_AFTER_DRAWING = {
    "shuffle": lambda: TEN.shuffle(10),
    "below a function": lambda: TEN.shuffle(10).map(abs).batch(1),
    "list_files": lambda: Dataset.list_files(__file__),
    "sample_from_datasets": lambda: Dataset.sample_from_datasets([TEN, TEN]),
    "memory cache": lambda: TEN.shuffle(10).cache(),
}


@pytest.mark.parametrize("make", SHARDED_AFTER_DRAWING.values(), ids=SHARDED_AFTER_DRAWING)
def test_shards_of_what_each_process_draws_anew_warn(make):
    with pytest.warns(UserWarning, match=r"Dataset.shard: .* before shard\(2, 1\).*give .* a seed"):
        make().shard(2, 1)


def test_shards_that_belong_together_do_not_warn(tmp_path, global_seed):
    """Warnings are errors here."""
    TEN.shuffle(10).shard(1, 0)
    TEN.shard(2, 0).shuffle(10)
    TEN.shuffle(10, seed=1).shard(2, 0)
    TEN.shuffle(10).cache(tmp_path / "c").shard(2, 0)
    TEN.shuffle(10).snapshot(tmp_path / "s").shard(2, 0)
    Dataset.list_files(__file__, shuffle=False).shard(2, 0)
    assert [int(x) for x in TEN.shuffle(1)[::2]] == [0, 2, 4, 6, 8]
    global_seed(1)
    TEN.shuffle(10).shard(2, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_shards_of_datasets_that_functions_shuffle_belong_together(epoch):
    """Each dataset plays one process: they share only the code."""

    def read_by(process):
        inner = Dataset.range(2).flat_map(lambda x: Dataset.range(x * 50, x * 50 + 50).shuffle(50))
        dataset = inner.shard(2, process)
        return [[int(x) for x in dataset] for _ in range(epoch + 1)][epoch]

    assert sorted(read_by(0) + read_by(1)) == list(range(100))
