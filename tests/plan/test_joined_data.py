"""Plans with many strings are sent as two arrays per column, and decode to the same strings."""

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow
import pytest

from penstock.data import Dataset
from penstock.element import nest
from penstock.plan import codec
from penstock.plan.array_references import LARGE
from penstock.plan.joined_data import JoinedData, join_strings
from penstock.plan.nodes import Slices

TEXTS = [b"%06d" % i * 40 for i in range(5000)]


def slices(value: Any) -> Slices:
    plan = Dataset.from_tensor_slices(value).__plan__
    assert isinstance(plan, Slices)
    return plan


def send_plan(plan: Slices) -> Slices:
    decoded = codec.decode(codec.encode(plan))
    assert isinstance(decoded, Slices)
    return decoded


def leaves(elements: Iterable[Any]) -> list[Any]:
    found = [leaf for element in elements for leaf in nest.flatten(element)[0]]
    return [(type(leaf), np.asarray(leaf).dtype, np.asarray(leaf).tolist()) for leaf in found]


@pytest.mark.parametrize(
    "value",
    [
        TEXTS,
        np.array(TEXTS, object),
        {"text": TEXTS, "label": np.arange(5000), "other": [text[:3] for text in TEXTS]},
        (TEXTS, [text[::-1] for text in TEXTS]),
    ],
    ids=["list", "array", "dict", "two columns"],
)
def test_a_plan_that_was_sent_means_the_same(value: Any) -> None:
    plan = slices(value)
    found = send_plan(plan)
    assert isinstance(found.data, JoinedData)
    assert found.data.spec == plan.data.spec
    assert Dataset(found).element_spec == Dataset(plan).element_spec
    assert found.cardinality == plan.cardinality
    assert hash(found.data) == hash(plan.data)
    for dataset in (Dataset(found), Dataset(send_plan(found))):
        here = Dataset(plan).shuffle(5000, seed=3).batch(7)
        there = dataset.shuffle(5000, seed=3).batch(7)
        assert leaves(here.take(99)) == leaves(there.take(99))
        assert leaves([Dataset(plan)[4999]]) == leaves([dataset[4999]])
    assert "chunk" not in vars(found.data), "all strings were made"
    assert found == plan
    assert codec.fingerprint(found) == codec.fingerprint(plan)


@pytest.mark.parametrize(
    "value",
    [
        [b"few"],
        np.arange(1 << 18),
        np.array(TEXTS, object).reshape(50, 100),
        [text[: LARGE // 5001] for text in TEXTS],
    ],
    ids=["few", "numbers", "two axes", "just too few"],
)
def test_other_data_is_sent_as_it_is(value: Any) -> None:
    assert join_strings(slices(value).data) is None


def test_rows_cannot_be_changed_after_a_plan_was_sent() -> None:
    found = send_plan(slices({"text": TEXTS, "x": np.zeros((5000, 2))}))
    with pytest.raises(ValueError, match="read-only"):
        next(iter(Dataset(found)))["x"][0] = 1


def test_strings_are_joined_once() -> None:
    strings = np.array(TEXTS, object)
    data = slices(strings).data
    strings[7] = b"changed"  # Datasets have arrays of strings of their own.
    joined = join_strings(data)
    assert joined is not None
    assert joined.rows.columns[0][7:8].tolist() == [TEXTS[7]]
    assert join_strings(data) is joined
    assert b"joined" not in pickle.dumps(data)


def test_the_arrays_are_referred_to() -> None:
    sizes = []
    codec.encode(slices(TEXTS * 30), lambda array: sizes.append(array.nbytes))  # type: ignore[func-returns-value,arg-type]
    assert sizes == [30 * 5000 * 240, 8 * (30 * 5000 + 1)]


def test_a_table_has_the_same_fingerprint_after_it_was_sent() -> None:
    plan = Dataset.from_arrow(pyarrow.table({"x": [1, 2, 3]})).__plan__
    assert codec.fingerprint(codec.decode(codec.encode(plan))) == codec.fingerprint(plan)
