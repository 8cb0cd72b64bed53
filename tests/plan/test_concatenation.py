"""Rows of concatenations: plans of thousands of datasets are walked without a deep stack."""

import functools
from typing import Any

import pytest

from penstock.data.dataset import Dataset
from penstock.plan.nodes import LONGEST_ROW, Concatenate, Node


def join_ranges(count: int) -> Dataset:
    """The numbers from 0 on, two in each of `count` datasets."""
    parts = [Dataset.range(2 * start, 2 * start + 2) for start in range(count)]
    return functools.reduce(Dataset.concatenate, parts)


def depth(plan: Node) -> int:
    return 1 + max(map(depth, plan.inputs), default=0)


@pytest.mark.parametrize("count", [2, LONGEST_ROW + 1, LONGEST_ROW + 2, 2 * LONGEST_ROW + 2, 1000])
def test_the_elements_of_all_datasets_come_in_order(count: int) -> None:
    dataset = join_ranges(count)
    assert [int(x) for x in dataset] == list(range(2 * count))
    assert dataset.cardinality() == 2 * count
    assert int(dataset[2 * count - 1]) == 2 * count - 1


def test_a_row_of_few_is_as_it_was_written() -> None:
    plan: Any = join_ranges(LONGEST_ROW + 1)._plan
    for _ in range(LONGEST_ROW):
        assert isinstance(plan, Concatenate)
        assert not isinstance(plan.second, Concatenate)
        plan = plan.first


def test_a_row_of_many_has_a_flat_plan() -> None:
    assert depth(join_ranges(1200)._plan) < LONGEST_ROW + 20


def test_a_row_of_many_is_resumed_and_read_further() -> None:
    dataset = join_ranges(600).filter(lambda x: x % 3 == 0).batch(4).prefetch(2)
    iterator = iter(dataset)
    for _ in range(70):
        next(iterator)
    resumed = iter(dataset)
    resumed.load_state_dict(iterator.state_dict())
    assert [x.tolist() for x in resumed] == [x.tolist() for x in iterator]
    assert "concatenate" in str(dataset.explain())
