"""Proportions: no source is ever a whole element away from its share."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.streams.choosing import DrawOrder, draws, whole_weights
from tests.effort import examples

WEIGHTS = st.lists(st.integers(0, 60) | st.just(70_000), min_size=1, max_size=7).filter(any)


@examples(60)
@given(weights=WEIGHTS)
def test_every_prefix_has_each_share_rounded_up_or_down(weights):
    total, counts = sum(weights), [0] * len(weights)
    for now, source in enumerate(draws(tuple(weights), counts, 300), 1):
        counts[source] += 1
        for weight, count in zip(weights, counts, strict=True):
            assert abs(count - Fraction(now * weight, total)) < 1


@examples(30)
@given(weights=WEIGHTS, steps=st.lists(st.integers(0, 9), max_size=20), start=st.integers(0, 99))
def test_an_order_is_the_same_from_any_counts_and_in_any_steps(weights, steps, start):
    weights = whole_weights(weights)
    expected = draws(weights, [0] * len(weights), start + sum(steps) + 10)
    order = DrawOrder(weights, np.bincount(expected[:start], minlength=len(weights)).tolist())
    for step in steps:
        assert order.peek(10)[:step].tolist() == expected[start : start + step]
        order.advance(step)
        start += step
    assert order.counts.tolist() == np.bincount(expected[:start], minlength=len(weights)).tolist()


def test_an_order_goes_on_behind_its_blocks(monkeypatch):
    monkeypatch.setattr("penstock.engine.streams.choosing._BLOCK", 7)
    for weights in [(2, 1), (70_000, 30_001, 5)]:
        order, found = DrawOrder(weights), []
        for _ in range(100):
            found += order.peek(4).tolist()
            order.advance(len(order.peek(4)))
        assert found == draws(weights, [0] * len(weights), len(found))


def test_weights_are_exact():
    assert whole_weights([0.1, 0.2, 0.7]) == (1, 2, 7)
    assert whole_weights([1e-5, 2]) == (1, 200_000)
    assert whole_weights([np.float32(0.3), 3]) == (1, 10)
