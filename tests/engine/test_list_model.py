"""The list model itself, against answers that TensorFlow gave."""

import itertools

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from tests.engine.example_plans import (
    group_plan,
    interleave_plan,
    map_plan,
    numbers,
    rows,
    scan_plan,
)
from tests.engine.list_model import items
from tests.engine.list_values import FAULT

LENGTHS = [1, 3, 2, 2, 0, 1]


def list_elements(plan):
    """The elements as Python's own numbers and lists."""
    return [show_item(item) for item in itertools.islice(items(plan), 100)]


def show_item(item):
    if item is FAULT:
        return "fails"
    if isinstance(item, tuple):
        return tuple(map(show_item, item))
    return (
        [show_item(x) for x in items(item.__plan__)] if isinstance(item, Dataset) else item.tolist()
    )


def thrice(x):
    return Dataset(rows(x, x, x))


def six_times(x):
    return Dataset(rows(*[x] * 6))


def count_to(x):
    return Dataset(map_plan(numbers(int(x)), lambda y: x * 10 + y))


def of_length(x):
    return Dataset(map_plan(numbers(LENGTHS[int(x)]), lambda y: x * 10 + y))


@pytest.mark.parametrize(
    ("source", "function", "cycle", "block", "expected"),
    [
        (numbers(4), thrice, 2, 1, [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]),
        (
            *(numbers(6, 1), six_times, 2, 4),
            [1] * 4 + [2] * 4 + [1, 1, 2, 2] + [3] * 4 + [4] * 4 + [3, 3, 4, 4] + [5] * 6,
        ),
        (numbers(3), thrice, 1, 1, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        (numbers(5), count_to, 2, 1, [10, 20, 21, 30, 31, 40, 32, 41, 42, 43]),
        (numbers(5), count_to, 3, 2, [10, 20, 21, 30, 31, 40, 41, 32, 42, 43]),
        (numbers(6), of_length, 2, 1, [0, 10, 11, 20, 12, 21, 30, 31, 50]),
        (numbers(6), of_length, 3, 1, [0, 10, 20, 11, 21, 30, 12, 31, 50]),
        (numbers(6), of_length, 2, 2, [0, 10, 11, 20, 21, 12, 30, 31, 50]),
        (numbers(6), of_length, 3, 2, [0, 10, 11, 20, 21, 30, 31, 12, 50]),
        (numbers(6), of_length, 4, 3, [0, 10, 11, 12, 20, 21, 30, 31, 50]),
        (numbers(0), thrice, 2, 1, []),
    ],
)
def test_interleave(source, function, cycle, block, expected):
    assert list_elements(interleave_plan(source, function, cycle, block)) == expected


@pytest.mark.parametrize(
    ("size", "shift", "stride", "drop", "expected"),
    [
        (3, 3, 1, False, [[0, 1, 2], [3, 4, 5], [6]]),
        (3, 3, 1, True, [[0, 1, 2], [3, 4, 5]]),
        (3, 1, 2, True, [[0, 2, 4], [1, 3, 5], [2, 4, 6]]),
        (2, 5, 1, False, [[0, 1], [5, 6]]),
        (9, 9, 1, True, []),
    ],
)
def test_window(size, shift, stride, drop, expected):
    assert list_elements(n.Window(numbers(7), size, shift, stride, drop)) == expected


def test_group_by_window_ends_with_the_rest_by_key():
    def window_batches(key, window):
        return Dataset(n.Batch(window.__plan__, 5))

    plan = group_plan(rows(5, 1, 5, 2, 1, 5, 0), lambda x: x, window_batches, 2)
    assert list_elements(plan) == [[5, 5], [1, 1], [0], [2], [5]]


def test_a_failing_element_loses_its_batch():
    def inverse(x):
        return np.int64(4) // x if x else 1 / 0

    failing = map_plan(rows(1, 2, 0, 4), inverse)
    assert list_elements(n.IgnoreErrors(failing)) == [4, 2, 1]
    assert list_elements(n.IgnoreErrors(n.Batch(failing, 2))) == [[4, 2]]
    assert list_elements(n.Batch(n.IgnoreErrors(failing), 2)) == [[4, 2], [1]]


def test_choose_stops_at_an_empty_dataset_or_continues():
    parts = (rows(1), rows(2, 3), rows(4))
    choice = rows(0, 1, 0, 1, 2)
    assert list_elements(n.Choose(choice, parts, True)) == [1, 2]
    assert list_elements(n.Choose(choice, parts, False)) == [1, 2, 3, 4]


def test_rebatch_goes_through_its_sizes():
    source = n.Unbatch(n.Batch(numbers(8), 4))
    assert list_elements(n.Rebatch(source, (2, 1, 1))) == [[0, 1], [2], [3], [4, 5], [6], [7]]
    assert list_elements(n.Rebatch(source, (3,), True)) == [[0, 1, 2], [3, 4, 5]]
    assert list_elements(n.Rebatch(source, (0, 4))) == [[], [0, 1, 2, 3], [], [4, 5, 6, 7], []]
    assert list_elements(n.Rebatch(source, (5, 0, 0))) == [[0, 1, 2, 3, 4], [], [], [5, 6, 7]]


def test_scan_and_counting():
    assert list_elements(scan_plan(numbers(5), lambda s, x: (s + x, s + x))) == [0, 1, 3, 6, 10]
    assert list_elements(n.Shard(numbers(7), 3, 1)) == [1, 4]
    assert list_elements(n.Unique(rows(1, 37, 2, 37, 2, 1))) == [1, 37, 2]
    assert list_elements(n.TakeWhile(numbers(9), Function(lambda x: x < 3))) == [0, 1, 2]
    assert list_elements(n.Enumerate(rows(7, 8), 5)) == [(5, 7), (6, 8)]
    assert list_elements(n.Take(n.Repeat(numbers(2)), 5)) == [0, 1, 0, 1, 0]
    assert list_elements(n.Repeat(numbers(0))) == []
