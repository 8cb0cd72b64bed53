"""Profiles count what each operator did, and name the bottleneck."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.engine.meters import OperatorProfile, Profile


def row(operator, busy, wait=0.0, depth=0):
    return OperatorProfile(operator, depth, 10, 1, 80, busy, wait)


def test_every_operator_has_its_numbers():
    iterator = iter(Dataset.range(100).map(lambda x: x + 1).batch(10).prefetch(1))
    assert len(list(iterator)) == 10
    rows = {r.operator: r for r in iterator.profile().operators}
    assert list(rows) == ["prefetch", "batch", "map", "range"]
    assert [r.elements for r in rows.values()] == [10, 10, 100, 100]
    assert all(r.nbytes == 800 for r in rows.values())
    assert [r.depth for r in rows.values()] == [0, 1, 2, 3]
    assert rows["map"].busy > 0
    assert rows["prefetch"].busy == 0


def test_what_is_computed_as_one_has_one_line():
    iterator = iter(Dataset.from_tensor_slices(np.zeros((8, 4))).shuffle(8).batch(2))
    list(iterator)
    assert [r.operator for r in iterator.profile().operators] == ["batch"]


def test_datasets_inside_a_dataset_have_no_line_of_their_own():
    iterator = iter(Dataset.range(5).flat_map(lambda x: Dataset.range(3).map(lambda y: y)))
    list(iterator)
    assert [r.operator for r in iterator.profile().operators] == ["flat_map", "range"]


@pytest.mark.parametrize(
    ("rows", "seconds", "expected"),
    [
        ((), 1.0, "nothing has been read yet"),
        ((row("batch", 0.01, 0.02),), 1.0, "the consumer: input took 0.030 s of 1.000 s"),
        ((row("batch", 0.1, 0.9), row("map", 0.7), row("range", 0.2)), 1.0, "map: 70% of the work"),
    ],
)
def test_the_bottleneck_is_named_in_words(rows, seconds, expected):
    assert Profile(rows, seconds).bottleneck.startswith(expected)


def test_a_profile_prints_as_a_table():
    lines = str(Profile((row("batch", 0.5, 0.4), row("map", 0.4, depth=1)), 1.0)).splitlines()
    assert lines[0].split() == ["operator", "elements", "MB", "busy", "s", "wait", "s"]
    assert lines[1].split() == ["batch", "10", "0.0", "0.500", "0.400"]
    assert lines[2].startswith("  map")
    assert lines[3].startswith("bottleneck: batch: 56% of the work")
