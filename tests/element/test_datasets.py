"""Arrays of datasets: what `batch` makes of windows."""

import numpy as np
import pytest

from penstock import Dataset, TensorSpec
from penstock.data import DatasetSpec
from penstock.element.datasets import Datasets, is_dataset
from penstock.errors import InvalidArgumentError


def ints(dataset):
    return [int(x) for x in dataset]


def test_a_batch_of_windows_is_an_array_of_datasets():
    batches = list(Dataset.range(5).window(2).batch(2))
    assert [batch.shape for batch in batches] == [(2,), (1,)]
    assert [ints(window) for window in batches[0]] == [[0, 1], [2, 3]]
    assert ints(batches[1][0]) == [4]
    assert len(batches[0][:1]) == 1
    assert batches[0].ndim == 1
    assert repr(batches[0]) == "<Datasets [2]>"


def test_unbatch_and_rebatch_give_the_datasets_back():
    batched = Dataset.range(6).window(2).batch(2)
    assert batched.element_spec == DatasetSpec(TensorSpec([], np.int64), [None])
    assert ints(batched.unbatch().flat_map(lambda window: window)) == list(range(6))
    rebatched = batched.rebatch(3)
    assert [len(batch) for batch in rebatched] == [3]
    assert ints(rebatched.unbatch().flat_map(lambda window: window)) == list(range(6))


def test_lists_of_datasets_are_arrays():
    nested = [[Dataset.range(1), Dataset.range(2)], [Dataset.range(3), Dataset.range(4)]]
    rows = Dataset.from_tensor_slices(nested)
    assert rows.element_spec == DatasetSpec(TensorSpec([], np.int64), [2])
    assert [len(row) for row in rows] == [2, 2]
    whole = Dataset.from_tensors(nested[0]).unbatch()
    assert [ints(one) for one in whole] == [[0], [0, 1]]
    mapped = Dataset.range(2).map(lambda x: {"parts": [Dataset.range(x), Dataset.range(2)]})
    assert [len(row["parts"]) for row in mapped] == [2, 2]


def test_a_state_returns_to_a_row_inside_a_batch_of_windows():
    windows = Dataset.range(8).window(2).batch(2).unbatch().flat_map(lambda window: window)
    iterator = iter(windows)
    head = [int(next(iterator)) for _ in range(3)]
    other = iter(windows)
    other.load_state_dict(iterator.state_dict())
    assert head + ints(other) == list(range(8))


def test_only_datasets_of_one_kind_are_stacked():
    with pytest.raises(InvalidArgumentError, match="elements must have the same structure"):
        Dataset.from_tensors([Dataset.range(2), Dataset.from_tensors("a")])
    with pytest.raises(InvalidArgumentError, match=r"their shapes are \[\(1,\), \(2,\)\]"):
        Dataset.from_tensors([[Dataset.range(2)], [Dataset.range(2)] * 2])
    uneven = Dataset.range(6).window(2).batch(2).batch(2)
    with pytest.raises(InvalidArgumentError, match="cannot be batched"):
        list(uneven)
    assert not is_dataset(3)
    assert is_dataset(Datasets([Dataset.range(2)]))


def test_equal_plans_with_datasets_have_equal_fingerprints():
    def make(stop):
        return Dataset.from_tensors([Dataset.range(2), Dataset.range(stop)])

    assert make(3).fingerprint() == make(3).fingerprint()
    assert make(3).fingerprint() != make(4).fingerprint()
