"""`Ranges` against sets of numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.logic.ranges import Ranges

SPANS = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1]))
STEPS = st.lists(st.tuples(st.booleans(), SPANS), max_size=30)


def numbers(ranges) -> set[int]:
    return {number for start, stop in ranges for number in range(start, stop)}


@given(STEPS, SPANS)
def test_like_a_set(steps, probe) -> None:
    ranges, model = Ranges(), set()
    for add, (start, stop) in steps:
        if add:
            ranges.add(start, stop)
            model |= set(range(start, stop))
        else:
            ranges.remove(start, stop)
            model -= set(range(start, stop))
        assert ranges.count == len(model)
    pairs = list(ranges)
    assert numbers(pairs) == model
    assert all(one[1] < other[0] for one, other in pairwise(pairs))
    assert len(ranges) == len(pairs)
    assert bool(ranges) == bool(model)
    assert ranges.stop == max(model, default=-1) + 1
    assert all((number in ranges) == (number in model) for number in range(40))
    window = set(range(*probe))
    assert numbers(ranges.inside(*probe)) == window & model
    assert numbers(ranges.outside(*probe)) == window - model
    assert ranges == Ranges(reversed(pairs))


def test_touching_ranges_are_one() -> None:
    assert list(Ranges([(5, 7), (0, 2), (2, 5)])) == [(0, 7)]


def test_looks_like_what_it_is() -> None:
    assert repr(Ranges([(1, 2)])) == "Ranges([(1, 2)])"
    assert Ranges() != []
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ranges())
