"""Profiles count what each operator did, and name the bottleneck."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.data import Dataset, TextLineDataset
from penstock.engine.advice import SPREAD, hint_of
from penstock.engine.profiles import OperatorProfile, Profile


def row(operator, busy, wait=0.0, depth=0):
    return OperatorProfile(operator, depth, 10, 1, 80, busy, wait)


def reading(wait, **settings):
    return dataclasses.replace(row("distribute", 0.0, wait), **settings)


def far(operator, busy):
    return OperatorProfile(operator, 1, 10, 1, 80, busy, 0.0, workers=2, hint="use a faster one")


WORKERS = "map: 94% of the work of 2 workers (1.500 s): add workers, or use a faster one"
CALL = "f at a.py:2: the program waits for this call, for 8.0 s so far"
WAY = "the way from the workers: none of 2 workers computes for more than 15% of the time: send"


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


def test_without_elements_nothing_is_advised():
    iterator = iter(Dataset.range(0).map(lambda x: x))
    assert list(iterator) == []
    assert iterator.profile().bottleneck == "there have been no elements so far"


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
        ((row("distribute", 0.0, 0.9), far("map", 1.5), far("range", 0.1)), 1.0, WORKERS),
        ((row("distribute", 0.0, 0.9), far("map", 0.3)), 1.0, WAY),
        ((row("map", 0.6, 0.3), row("distribute", 0.0, 0.3), far("map", 2.0)), 1.0, "map: 100% of"),
        ((reading(0.9, busiest=0.6), far("map", 0.6)), 1.0, "map: 100% of the work of 2 workers"),
        ((reading(9.0, call="f at a.py:2", call_seconds=8.0), far("map", 0.1)), 10.0, CALL),
        ((reading(9.0, call="f at a.py:2", call_seconds=4.0), far("map", 18.0)), 10.0, "map: 100%"),
    ],
)
def test_the_bottleneck_is_named_in_words(rows, seconds, expected):
    assert Profile(rows, seconds).bottleneck.startswith(expected)


@pytest.mark.parametrize(
    ("rows", "ending"),
    [
        ((row("batch", 0.01),), "so it waits 1.0% of the time: nothing to gain"),
        ((row("batch", 0.5),), "prefetch(AUTOTUNE), so that it works while the program computes"),
        ((row("prefetch", 0, 0.5), row("batch", 0.5)), "cores or machines: service.distribute"),
    ],
)
def test_the_bottleneck_ends_with_advice(rows, ending):
    assert Profile(rows, 1.0).bottleneck.endswith(ending)


@pytest.mark.parametrize(
    ("elements", "ending"),
    [
        (10_000, "call f in parallel: map(..., num_parallel_calls=AUTOTUNE)"),
        (200_000, "takes 2.5 microseconds, too little to divide the calls: compute many "),
    ],
)
def test_short_calls_are_not_to_be_divided(elements, ending):
    hint = "call f in parallel: map(..., num_parallel_calls=AUTOTUNE)"
    one = dataclasses.replace(row("map", 0.5), function="f", elements=elements, hint=hint)
    assert ending in Profile((one,), 1.0).bottleneck


def test_a_random_function_is_not_to_be_vectorized():
    one = hint_of(Dataset.range(3).map(lambda x, random: x, random=True).__plan__)
    busy = dataclasses.replace(row("map", 0.5), elements=200_000, hint=one)
    assert busy.advice == one


@pytest.mark.parametrize(
    ("hint", "ending"),
    [
        (f"make f faster, or {SPREAD}", "(1.500 s): make f faster, or add workers"),
        (f"its calls run in 2 processes: {SPREAD}", ": its calls run in 2 processes: add workers"),
        ("", "(1.500 s): add workers"),
    ],
)
def test_workers_are_not_advised_to_use_a_service(hint, ending):
    rows = (row("distribute", 0.0, 0.9), dataclasses.replace(far("map", 1.5), hint=hint))
    assert Profile(rows, 1.0).bottleneck.endswith(ending)


@pytest.mark.parametrize(
    ("dataset", "advice"),
    [
        (Dataset.range(3).map(abs), "call abs in parallel: map(..., num_parallel_calls=AUTOTUNE)"),
        (Dataset.range(3).map(np.abs, vectorized=True), "make absolute faster, or divide"),
        (Dataset.range(3).filter(lambda x: x > 0), "make <lambda> at test_profiles.py:"),
        (Dataset.from_tensors("x").interleave(Dataset.from_tensors), "read several inputs at once"),
        (Dataset.from_generator(lambda: iter("ab"), output_types=str), "<lambda> at test_profiles"),
        (TextLineDataset("missing"), "read several files at once: list_files(...).interleave("),
        (Dataset.range(3), ""),
    ],
)
def test_operators_have_advice(dataset, advice):
    hint = hint_of(dataset.__plan__)
    assert hint.startswith(advice)
    assert bool(hint) == bool(advice)


def test_a_profile_prints_as_a_table():
    lines = str(Profile((row("batch", 0.5, 0.4), row("map", 0.4, depth=1)), 1.0)).splitlines()
    assert lines[0].split() == ["operator", "elements", "MB", "busy", "s", "wait", "s"]
    assert lines[1].split() == ["batch", "10", "0.0", "0.500", "0.400"]
    assert lines[2].startswith("  map")
    assert lines[3].startswith("bottleneck: batch: 56% of the work")


def test_a_notebook_shows_the_table():
    printed = []
    profile = Profile((row("batch", 0.5, 0.4),), 1.0)
    profile._repr_pretty_(SimpleNamespace(text=printed.append), cycle=False)
    assert printed == [str(profile)]
