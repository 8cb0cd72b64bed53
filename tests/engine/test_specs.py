"""Specs are found without iterating: unknown dimensions stay unknown, and calls are few."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import TensorSpec, int64
from penstock.data import Dataset
from penstock.data.experimental import SHARD_HINT
from penstock.engine.specs import is_certain, is_steady
from penstock.errors import InvalidArgumentError, InvalidTypeError, OpError

SCALAR = TensorSpec((), int64)


class CountedFunction:
    def __init__(self, answer):
        self.answer = answer
        self.given = []

    def __call__(self, x):
        self.given.append(np.shape(x))
        return self.answer(x)


def test_a_function_is_asked_about_the_first_two_elements():
    function = CountedFunction(lambda x: x * 2)
    ds = Dataset.range(10).map(function)
    assert function.given == []
    assert ds.element_spec == SCALAR
    assert ds.element_spec == ds.batch(2).unbatch().element_spec
    assert function.given == [(), ()]


def test_a_function_behind_a_hint_is_asked_about_all_elements():
    hinted = Dataset.range(10).shard(SHARD_HINT, SHARD_HINT)
    assert hinted.map(lambda x: x * 2).element_spec == SCALAR
    assert hinted.flat_map(lambda x: Dataset.from_tensors(x)).element_spec == SCALAR


def test_a_dimension_that_comes_from_an_unknown_one_is_unknown():
    function = CountedFunction(lambda x: (x * 2, x.sum(), x[:, None], np.zeros((2, 3))))
    spec = Dataset.range(10).batch(4).map(function).element_spec
    assert [s.shape.dims for s in spec] == [(None,), (), (None, 1), (2, 3)]
    assert function.given == [(4,), (4,), (3,)]


def test_a_dimension_that_comes_from_a_value_is_unknown():
    ds = Dataset.range(1, 5).map(lambda x: np.full((int(x), 2), x))
    assert ds.element_spec.shape.dims == (None, 2)
    assert ds.padded_batch(2).element_spec.shape.dims == (None, None, 2)


def test_known_sizes_stay_known():
    ds = Dataset.range(10).batch(4, drop_remainder=True).map(lambda x: x + 1)
    assert ds.element_spec == TensorSpec((4,), int64)


def test_a_function_that_fails_on_shortened_input_leaves_its_sizes_unknown():
    ds = Dataset.range(8).batch(4).map(lambda x: x.reshape(2, 2) if len(x) == 4 else 1 / 0)
    assert ds.element_spec.shape.dims == (2, 2)
    ds = Dataset.range(8).batch(4).map(lambda x: x if len(x) == 4 else [][0])
    assert ds.element_spec.shape.dims == (None,)


def test_a_declared_signature_costs_no_call():
    function = CountedFunction(lambda x: x)
    ds = Dataset.range(3).map(function, output_signature=SCALAR).batch(2)
    assert ds.element_spec == TensorSpec((None,), int64)
    assert function.given == []


def test_without_elements_a_function_is_asked_with_zeros():
    assert Dataset.range(0).map(lambda x: (x, x > 0)).element_spec[1].dtype == bool
    empty = Dataset.range(9).filter(lambda x: x < 0).map(lambda x: x + 1)
    assert empty.element_spec == SCALAR


def test_an_endless_filter_that_lets_nothing_pass_is_given_up():
    ds = Dataset.range(3).repeat().filter(lambda x: bool(x < 0)).map(lambda x: x + 1)
    assert ds.element_spec == SCALAR


def test_answers_that_differ_are_reported_with_the_function():
    ds = Dataset.range(3).map(lambda x: (x, x) if x else x)
    with pytest.raises(
        InvalidTypeError, match="Dataset.map: <lambda> at test_specs.py:.*elements 0"
    ):
        ds.element_spec  # noqa: B018


def test_iterating_asks_for_no_spec():
    function = CountedFunction(lambda x: x)
    assert len(list(Dataset.range(5).map(function).batch(2).prefetch(1))) == 3
    assert len(function.given) == 5


def test_rows_that_samples_show_are_relied_on_where_shapes_are_one():
    rows = Dataset.range(9)
    for dataset, certain, steady in (
        (rows.batch(4), True, True),
        (rows.batch(4, drop_remainder=True).map(lambda x: x[:3]), False, True),
        (rows.batch(4).map(lambda x: x[:3]), False, False),
        (rows.batch(4).map(lambda x: x[:3]).filter(lambda x: True), False, False),
        (rows.map(lambda x: x).batch(4, drop_remainder=True), False, True),
        (rows.map(lambda x: x).batch(2).batch(4, drop_remainder=True).take(1), False, True),
        (rows.batch(4).map(lambda x: x[:3]).rebatch(2, drop_remainder=True), False, True),
    ):
        _ = dataset.element_spec
        plan = dataset.__plan__
        assert (is_certain(plan), is_steady(plan)) == (certain, steady), plan


def test_the_spec_of_windows_of_nothing():
    windows = Dataset.range(0).window(2).flat_map(lambda window: window.batch(2))
    assert windows.element_spec == TensorSpec([None], int64)
    assert list(windows) == []


def test_repetitions_are_samples_too():
    doubled = lambda state, _: (np.concatenate([state, state]), state)  # noqa: E731
    ds = Dataset.from_tensors(0).repeat(5).scan(np.zeros(1), doubled)
    assert ds.element_spec.shape.dims == (None,)


def test_windows_of_several_keys_are_asked():
    ds = Dataset.range(4).group_by_window(
        lambda x: x % 2, lambda key, window: window.batch(int(key) + 1, drop_remainder=True), 2
    )
    assert ds.element_spec.shape.dims == (None,)


@pytest.mark.parametrize(
    "value",
    [bytearray(b"a"), 1 << 70, {"a": (1, bytearray(b"a"))}, [1, [2, 3]]],
    ids=["type", "number", "structure", "rows"],
)
def test_an_unfit_result_has_the_error_of_the_iteration(value):
    ds = Dataset.range(3).map(lambda x: value)
    with pytest.raises(OpError, match="for element 0: ") as iterated:
        list(ds)
    with pytest.raises(OpError, match="for element 0: ") as found:
        _ = ds.element_spec
    assert str(found.value) == str(iterated.value)
    assert "test_specs.py" in str(found.value)
    scanned = Dataset.range(3).scan(0, lambda state, x: (state, value))
    with pytest.raises(OpError, match=r"Dataset\.scan: .* at test_specs\.py:.* for element 0: "):
        _ = scanned.element_spec


def test_a_function_that_fails_on_the_first_elements_gets_advice():
    def decode(x):
        if x < 2:
            raise ValueError(f"corrupt {x}")
        return x

    ds = Dataset.range(6).map(decode).ignore_errors()
    assert list(ds) == [2, 3, 4, 5]
    with pytest.raises(InvalidArgumentError, match="corrupt 0") as found:
        _ = ds.element_spec
    assert "failed on all of them" in found.value.__notes__[0]
    assert "output_signature" in found.value.__notes__[0]
    stated = Dataset.range(6).map(decode, output_signature=SCALAR).ignore_errors()
    assert stated.element_spec == SCALAR
    assert list(stated) == [2, 3, 4, 5]
