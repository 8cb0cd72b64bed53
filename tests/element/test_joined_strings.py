"""Joined strings are read as the strings that they were made of."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.element.joined_strings import JoinedStrings

STRINGS = st.lists(st.binary(max_size=9), max_size=20)


@given(STRINGS, st.slices(20))
def test_slices_are_those_of_a_list(strings: list[bytes], part: slice) -> None:
    found = JoinedStrings.of(strings)[part]
    assert found.dtype == object
    assert found.tolist() == strings[part]


@given(STRINGS.filter(bool), st.data())
def test_strings_are_taken_in_any_order(strings: list[bytes], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(strings) - 1)))
    joined = JoinedStrings.of(strings)
    assert len(joined) == len(strings)
    assert joined.take(np.array(indices, np.int64)).tolist() == [strings[i] for i in indices]


def test_many_strings_are_two_arrays() -> None:
    joined = JoinedStrings.of([b"some", b"", b"strings"])
    assert bytes(joined.data) == b"somestrings"
    assert joined.starts.tolist() == [0, 4, 4, 11]
    assert not joined.data.flags.writeable
    assert not joined.starts.flags.writeable
