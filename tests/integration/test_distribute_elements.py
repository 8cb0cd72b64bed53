"""Every kind of element and of dataset is sent through real sockets and arrives unchanged."""

import collections

import ml_dtypes
import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset
from tests.engine.list_values import plain
from tests.integration.clusters import Cluster

Point = collections.namedtuple("Point", ["x", "y"])


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as made:
        yield made


def check(cluster, dataset, transfer):
    made = dataset.apply(cluster.distribute(data_transfer_protocol=transfer))
    assert made.element_spec == dataset.element_spec
    expected, found = list(dataset), list(made)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        assert plain(one) == plain(other)


def generate_pairs():
    for number in range(50):
        yield number, "x" * (number % 3)


def shuffle_few(x):
    return Dataset.range(x + 4).shuffle(8, seed=1).take(3)


RAGGED = tf.Ragged.from_rows([[1, 2], [], [3], [4, 5, 6]])

DATASETS = {
    "numbers": lambda: Dataset.range(100),
    "floats": lambda: Dataset.from_tensor_slices(np.linspace(0, 1, 50, dtype=np.float32)),
    "bools": lambda: Dataset.range(20).map(lambda x: x % 2 == 0),
    "strings": lambda: Dataset.from_tensor_slices(["a", "bb", "", "ä", "x" * 100]),
    "strings of strings": lambda: Dataset.from_tensor_slices([["a", "bb"], ["", "c\0d"]]),
    "tuples": lambda: Dataset.range(10).map(lambda x: (x, (x * 2, np.float32(x)))),
    "dicts": lambda: Dataset.range(10).map(lambda x: {"b": x, "a": (x, b"t")}),
    "named tuples": lambda: Dataset.range(10).map(lambda x: Point(x, x + 1)),
    "None inside": lambda: Dataset.range(10).map(lambda x: (x, None, {"a": None})),
    "empty arrays": lambda: Dataset.range(10).map(lambda x: np.zeros((0, 3), np.int16)),
    "sometimes empty": lambda: Dataset.range(10).map(lambda x: np.zeros(int(x) % 3, np.uint8)),
    "different shapes": lambda: Dataset.range(30).map(lambda x: np.arange(x)),
    "bfloat16": lambda: Dataset.range(10).map(lambda x: np.full(3, x, ml_dtypes.bfloat16)),
    "complex": lambda: Dataset.range(4).map(lambda x: np.complex64(x + 1j)),
    "ragged rows": lambda: Dataset.from_tensor_slices(RAGGED),
    "ragged batches": lambda: Dataset.from_tensor_slices(RAGGED).batch(3),
    "generated": lambda: Dataset.from_generator(
        generate_pairs,
        output_signature=(tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.string)),
    ),
    "empty": lambda: Dataset.range(0),
    "empty by filter": lambda: Dataset.range(50).filter(lambda x: x < 0),
    "random functions behind a filter": lambda: (
        Dataset.range(60)
        .filter(lambda x: x % 3 != 0)
        .map(lambda x, random: x + random.random(), random=True, seed=3)
    ),
    "random datasets inside datasets": lambda: (
        Dataset.range(9).flat_map(Dataset.range).flat_map(shuffle_few).repeat(2)
    ),
    "large rows": lambda: Dataset.range(5).map(lambda x: np.full(300_000, x)),
}


@pytest.mark.parametrize("transfer", ["shm", "tcp"])
@pytest.mark.parametrize("name", DATASETS)
def test_elements_arrive_as_they_are(cluster, name, transfer):
    check(cluster, DATASETS[name](), transfer)


def huge(x):
    return np.full(80 << 20, x, np.uint8)


@pytest.mark.parametrize("transfer", ["shm", "tcp"])
def test_an_element_may_be_larger_than_all_that_is_asked_for_ahead(cluster, transfer):
    made = Dataset.range(2).map(huge).apply(cluster.distribute(data_transfer_protocol=transfer))
    for number, element in enumerate(made):
        assert element.shape == (80 << 20,)
        assert element[0] == element[-1] == number


def test_infinite_datasets_are_read_as_far_as_the_caller_takes(cluster):
    made = Dataset.range(5).repeat().apply(cluster.distribute())
    assert made.cardinality() == tf.data.INFINITE_CARDINALITY
    assert [int(x) for x in made.take(12)] == [0, 1, 2, 3, 4] * 2 + [0, 1]
    odd = Dataset.counter().filter(lambda x: x % 2 == 1).apply(cluster.distribute())
    assert [int(x) for x in odd.take(300)] == list(range(1, 600, 2))


def test_distribute_inside_what_is_distributed(cluster):
    inner = Dataset.range(20).map(lambda x: x * 2).apply(cluster.distribute())
    outer = inner.map(lambda x: x + 1).apply(cluster.distribute())
    assert sorted(map(int, outer)) == list(range(1, 41, 2))
    twice = inner.apply(cluster.distribute("parallel_epochs"))
    assert sorted(map(int, twice)) == sorted([*range(0, 40, 2)] * 2)


def test_distribute_inside_a_function(cluster):
    distribute = cluster.distribute()

    def some(x):
        return Dataset.range(3).map(lambda y: x * 10 + y).apply(distribute)

    expected = [x * 10 + y for x in range(5) for y in range(3)]
    assert [int(x) for x in Dataset.range(5).flat_map(some)] == expected
    remote = Dataset.range(5).interleave(some, cycle_length=2).apply(distribute)
    assert sorted(map(int, remote)) == expected


def test_two_distributed_datasets_side_by_side(cluster):
    one = Dataset.range(50).map(lambda x: x + 1).apply(cluster.distribute())
    two = Dataset.range(50).filter(lambda x: x >= 0).apply(cluster.distribute())
    assert [(int(a), int(b)) for a, b in Dataset.zip((one, two))] == [(x + 1, x) for x in range(50)]


def test_files_are_read_by_many_and_every_line_comes_once(cluster, tmp_path):
    names = []
    for file in range(7):
        path = tmp_path / f"{file}.txt"
        path.write_text("".join(f"{file}-{line}\n" for line in range(file * 20)))
        names.append(str(path))
    dataset = tf.data.TextLineDataset(names).map(lambda line: line + b"!")
    assert list(dataset.apply(cluster.distribute())) == list(dataset)


def test_repetitions_shuffle_anew(cluster):
    dataset = Dataset.range(30).shuffle(30, seed=5)
    expected = [int(x) for x in dataset.repeat(3)]
    assert [int(x) for x in dataset.apply(cluster.distribute()).repeat(3)] == expected
    again = dataset.repeat(3).apply(cluster.distribute())
    assert [int(x) for x in again] == expected
