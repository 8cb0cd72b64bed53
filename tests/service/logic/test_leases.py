"""`Ranges` against sets of numbers, and `ConsumedRanges` against dicts of them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.logic.leases import ConsumedRanges, Lengths, Ranges
from tests.effort import examples

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


STREAMS = st.integers(0, 12)
CONSUMED = st.lists(
    st.one_of(
        st.tuples(STREAMS, st.none(), st.integers(1, 5)),
        st.tuples(STREAMS, st.integers(0, 4), st.integers(1, 5)),
    ),
    max_size=60,
)


@examples(200)
@given(CONSUMED)
def test_what_was_consumed_is_what_was_added(steps) -> None:
    """Each step reports the length of a stream, or of consumed elements of one."""
    lengths, consumed, known, model = Lengths(), None, {}, {}
    consumed = ConsumedRanges(lengths)
    for stream, start, stop in steps:
        if start is None:
            if max(model.get(stream, {0})) < stop and stream not in known:
                lengths[stream] = known[stream] = stop
                consumed.settle(stream)
        elif start < (end := min(stop, known.get(stream, stop))):
            consumed.add(stream, [(start, end)])
            model.setdefault(stream, set()).update(range(start, end))
    assert dict(lengths) == known
    assert consumed.count == sum(map(len, model.values()))
    assert {s: elements(ranges) for s, ranges in consumed.items()} == model
    again, same = Lengths(), ConsumedRanges(lengths)
    again.unpack(lengths.pack())
    same.unpack(*consumed.pack())
    assert (dict(again), dict(same)) == (known, dict(consumed))
    assert all(stream in consumed for stream in model)
    assert len(consumed) == len(model)


def elements(ranges: Ranges) -> set[int]:
    return {at for start, stop in ranges for at in range(start, stop)}


def test_lengths_become_known_one_by_one() -> None:
    lengths = Lengths()
    lengths[3] = 5
    assert (len(lengths), lengths.get(2), lengths.get(3), lengths.get(9, 7)) == (1, None, 5, 7)
    assert (2 in lengths, 3 in lengths) == (False, True)
