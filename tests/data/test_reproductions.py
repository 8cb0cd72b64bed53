"""Programs that once gave wrong data without an error, each with TensorFlow's answer."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset, experimental

CALLS: list[int] = []


def note_call(x: Any) -> Any:
    CALLS.append(int(x))
    return x


def ints(dataset: Any) -> list[int]:
    return [int(x) for x in dataset]


def test_1_ragged_batch() -> None:
    ds = Dataset.range(6).map(lambda x: np.zeros(3 if x < 3 else 4))
    assert [x.shape for x in ds.ragged_batch(2)] == [(2, None)] * 3


def cache_range() -> Dataset:
    return Dataset.range(5).map(note_call).cache()


@pytest.mark.parametrize(
    "make", [lambda: Dataset.zip((cache_range(), cache_range())), lambda: cache_range().take(5)]
)
def test_2_cache(make: Any) -> None:
    ds = make()
    list(ds)
    CALLS.clear()
    list(ds)
    list(ds)
    assert CALLS == []


def test_3_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('1,2"3,4\ne,f,g\n')
    assert list(experimental.CsvDataset([path], [""] * 3).ignore_errors()) == [(b"e", b"f", b"g")]


def test_4_range() -> None:
    assert ints(Dataset.from_tensor_slices(range(3))) == [0, 1, 2]


def test_5_interleave() -> None:
    release = threading.Event()

    def slow(x: Any) -> Any:
        assert x != 0 or release.wait(30)
        return x

    ds = Dataset.range(100).interleave(
        lambda x: Dataset.from_tensors(x).map(slow), 10, 1, 10, deterministic=False
    )
    iterator = iter(ds)
    first = int(next(iterator))
    release.set()
    assert first > 0
    assert sorted([first, *ints(iterator)]) == list(range(100))


def test_6_snapshot(tmp_path: Path) -> None:
    for _ in range(3):
        list(Dataset.range(100).shuffle(10).snapshot(tmp_path / "s"))
    assert len(os.listdir(tmp_path / "s")) == 1


def test_7_unbatch_none() -> None:
    ds = Dataset.range(4).map(lambda x: (x, None)).batch(2).unbatch()
    assert list(ds) == [(x, None) for x in range(4)]


def test_8_scan_list() -> None:
    ds = Dataset.range(6).scan([0, 1], lambda a, _: ([a[1], a[0] + a[1]], a[1]))
    assert ints(ds) == [1, 1, 2, 3, 5, 8]


def test_10_assert_cardinality() -> None:
    endless = experimental.assert_cardinality(experimental.INFINITE_CARDINALITY)
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected endless elements"):
        list(Dataset.range(2).apply(endless))


def test_11_spec() -> None:
    ds = Dataset.from_tensors(0).repeat(5)
    scanned = ds.scan(np.zeros(1), lambda s, _: (np.concatenate([s, s]), s))
    assert scanned.element_spec.shape.dims == (None,)


def test_12_cardinality() -> None:
    ds = Dataset.range(5).repeat().group_by_window(lambda x: x % 2, lambda k, w: w.batch(2), 2)
    assert ds.cardinality() == -1


def test_13_padding_none() -> None:
    ds = Dataset.range(1, 3).map(lambda x: (np.full(x, x), {"s": np.full(x, x)}))
    ((first, second),) = ds.padded_batch(2, padding_values=(np.int64(-1), None))
    assert first.tolist() == [[1, -1], [2, 2]]
    assert second["s"].tolist() == [[1, 0], [2, 2]]


def test_14_a_number_times_a_list() -> None:
    """NumPy's rule applies: the list is repeated. At least the user gets a warning."""
    with pytest.raises(ValueError, match=r"list of shape \[\(2,\)\] .* multiply a numpy.array"):
        list(Dataset.range(1, 3).map(lambda x: x * [1, 2]))
    right = Dataset.range(1, 3).map(lambda x: x * np.array([1, 2]))
    assert [x.tolist() for x in right] == [[1, 2], [2, 4]]


def test_18_slices_of_datasets() -> None:
    ds = Dataset.from_tensor_slices([Dataset.range(2), Dataset.range(3)])
    assert ints(ds.interleave(lambda part: part)) == [0, 0, 1, 1, 2]


def test_buckets_of_different_lengths_have_an_unknown_length() -> None:
    ds = Dataset.range(1, 7).map(lambda x: np.full(x, x))
    made = ds.bucket_by_sequence_length(len, [3, 6, 9], [2] * 4, pad_to_bucket_boundary=True)
    assert made.element_spec.shape.dims == (None, None)
    assert {x.shape[1] for x in made} == {2, 5, 8}
