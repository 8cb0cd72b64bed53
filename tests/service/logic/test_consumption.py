"""Consumption: the same as plain dicts of ranges, in fewer bytes."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.service.logic.consumption import Consumed, Lengths
from penstock.service.logic.ranges import Ranges
from tests.effort import examples

STREAMS = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(STREAMS, st.none(), st.integers(1, 5)),
        st.tuples(STREAMS, st.integers(0, 4), st.integers(1, 5)),
    ),
    max_size=60,
)


@examples(200)
@given(STEPS)
def test_what_was_consumed_is_what_was_added(steps) -> None:
    """Each step tells the length of a stream, or of consumed elements of one."""
    lengths, consumed, known, model = Lengths(), None, {}, {}
    consumed = Consumed(lengths)
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
    again, same = Lengths(), Consumed(lengths)
    again.unpack(lengths.packed())
    same.unpack(*consumed.packed())
    assert (dict(again), dict(same)) == (known, dict(consumed))
    assert all(stream in consumed for stream in model)
    assert len(consumed) == len(model)


def elements(ranges: Ranges) -> set[int]:
    return {at for start, stop in ranges for at in range(start, stop)}


def test_lengths_are_forgotten_one_by_one() -> None:
    lengths = Lengths()
    lengths[3] = 5
    assert (len(lengths), lengths.get(2), lengths.get(3), lengths.get(9, 7)) == (1, None, 5, 7)
    del lengths[3]
    assert (len(lengths), 3 in lengths) == (0, False)
