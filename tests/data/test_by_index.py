"""Single elements by index, through a cache, a stated number of elements, and rows of batches."""

import itertools

import numpy as np
import pytest

from penstock import Dataset, TensorSpec, errors
from penstock.data import experimental


def test_a_cache_is_read_by_index():
    calls = []
    dataset = Dataset.range(3).map(lambda x: calls.append(x) or x * 10).cache()
    assert dataset[2] == 20
    list(dataset)
    calls.clear()
    assert [int(dataset[i]) for i in range(3)] == [0, 10, 20]
    assert not calls
    with pytest.raises(IndexError, match="there are 3 elements"):
        dataset[3]


def test_the_first_access_fills_a_cache_whose_input_has_no_index():
    calls = []
    dataset = Dataset.range(10).filter(lambda x: calls.append(x) or x % 2 == 0).cache()
    assert [int(dataset[i]) for i in (4, 1)] == [8, 2]
    assert calls[-10:] == list(range(10))  # Before it, a check of the result.
    assert len(calls) == 11
    with pytest.raises(errors.UnimplementedError, match="no random access"):
        dataset.repeat().filter(lambda x: True).cache()[0]
    with pytest.raises(errors.OutOfRangeError, match="there are only 5 elements"):
        dataset[5]


def test_fewer_elements_than_stated_are_an_error_behind_the_last():
    dataset = Dataset.range(3).apply(experimental.assert_cardinality(5))
    assert dataset[2] == 2
    with pytest.raises(errors.FailedPreconditionError, match="there are only 3 elements"):
        dataset[3]


def pair(x):
    return np.array([x, -x])


PAIRS = TensorSpec((2,), np.int64)


def test_rows_of_equal_batches_have_an_index():
    rows = Dataset.from_tensor_slices(([[1, 2], [3, 4]], [[5, 6], [7, 8]])).unbatch()
    assert [tuple(map(int, rows[i])) for i in range(4)] == [(1, 5), (2, 6), (3, 7), (4, 8)]
    mapped = Dataset.range(4).map(pair, output_signature=PAIRS).unbatch()
    assert [int(mapped[i]) for i in (0, 3, 7)] == [0, -1, -3]
    assert len(mapped) == 8
    with pytest.raises(IndexError, match="there are 4 elements"):
        rows[4]


def test_rows_of_a_filled_cache_have_an_index():
    mapped = Dataset.range(4).map(pair).cache()
    list(mapped)
    assert [int(mapped.unbatch()[i]) for i in (0, 3, 7)] == [0, -1, -3]


def test_rows_of_other_batches_have_none():
    """One element with more rows would shift all later rows."""
    with pytest.raises(errors.FailedPreconditionError, match="unbatch"):
        Dataset.range(5).batch(2).unbatch()[0]
    dataset = Dataset.range(20).map(lambda x: np.zeros(2 + (x == 9))).unbatch()
    assert dataset.cardinality() == experimental.UNKNOWN_CARDINALITY
    with pytest.raises(
        errors.FailedPreconditionError, match="number of rows of an element is not known"
    ):
        dataset[22]
    with pytest.raises(errors.FailedPreconditionError, match="unbatch"):
        dataset.map(lambda x: x)[22]
    with pytest.raises(errors.UnimplementedError, match="filter"):
        dataset.filter(lambda x: True)[22]


def test_rows_of_full_batches_are_known_behind_any_function():
    batches = Dataset.range(10).map(lambda x: {"a": x, "b": np.zeros(x)[:0]}).batch(4, True)
    steps = batches.prefetch(1).cache().shuffle(2, seed=0).take(5)
    assert batches.unbatch().cardinality() == steps.unbatch().cardinality() == 8
    assert [int(batches.unbatch()[i]["a"]) for i in (0, 3, 7)] == [0, 3, 7]
    assert len(list(steps.unbatch())) == 8
    assert Dataset.range(10).map(lambda x: x).batch(4).unbatch().cardinality() == -2
    both = batches.concatenate(batches.map(lambda x: {"a": x["a"][:1], "b": x["b"][:1]}))
    assert both.unbatch().cardinality() == -2
    halves = Dataset.range(8).map(lambda x: x).batch(4, True).rebatch(2)
    assert halves.element_spec.shape == (2,)


def draw(x, random):
    return x + random.random()


SOURCES = {
    "cache": lambda: Dataset.range(8).cache(),
    "cache of a filter": lambda: Dataset.range(9).filter(lambda x: x != 3).cache(),
    "unbatch": lambda: Dataset.range(8).batch(3, drop_remainder=True).unbatch(),
    "assert_cardinality": lambda: Dataset.range(9).apply(experimental.assert_cardinality(9)),
}
STEPS = {
    "shuffle": lambda dataset: dataset.shuffle(8, seed=9),
    "small shuffle and repeat": lambda dataset: dataset.shuffle(3, seed=9).repeat(2),
    "draw": lambda dataset: dataset.map(draw, random=True, seed=3),
    "batch": lambda dataset: dataset.batch(2),
    "skip, shard and repeat": lambda dataset: dataset.skip(1).shard(2, 1).repeat(2),
    "zip": lambda dataset: Dataset.zip(Dataset.range(99).shuffle(99, seed=2), dataset),
    "cache of windows": lambda dataset: (
        dataset.window(3, shift=2, drop_remainder=True)
        .flat_map(lambda window: window.batch(3))
        .map(draw, random=True, seed=4)
        .cache()
        .batch(2)
    ),
}


REFUSED = {
    *((source, step) for source in SOURCES for step in STEPS if "shuffle" in step),
    ("unbatch", "draw"),
} - {("assert_cardinality", "shuffle"), ("assert_cardinality", "small shuffle and repeat")}


@pytest.mark.parametrize(("source", "step"), sorted({*itertools.product(SOURCES, STEPS)} - REFUSED))
def test_elements_by_index_are_those_of_an_iteration(source, step):
    expected = [repr(element) for element in STEPS[step](SOURCES[source]())]
    dataset = STEPS[step](SOURCES[source]())
    assert [repr(dataset[index]) for index in range(len(expected))] == expected


@pytest.mark.parametrize(("source", "step"), sorted(REFUSED))
def test_what_a_stream_draws_in_its_own_way_has_no_index(source, step):
    with pytest.raises(errors.OpError, match="this plan has no random access"):
        STEPS[step](SOURCES[source]())[0]
