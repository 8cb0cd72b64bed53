"""Shuffles by arithmetic: bijections, within their window, equal for every order of access."""

import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.permute import shuffle_index
from tests.effort import examples

LENGTHS = [1, 2, 3, 10, 63, 64, 65, 100, 1000, (1 << 14) + 1, 40_000]
BUFFERS = [1, 2, 3, 7, 64, 65, 130, 1000, 20_000, 1 << 40]


def order(length: int, buffer: int, key: int = 1) -> np.ndarray:
    return shuffle_index(range(length), length, buffer, key)


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_element_comes_once_and_not_too_early(length, buffer):
    for key in (0, 1, 2**63 - 1):
        found = order(length, buffer, key)
        assert np.array_equal(np.sort(found), np.arange(length))
        assert (found - np.arange(length)).max() <= buffer - 1


@given(st.integers(1, 300), st.integers(1, 400), st.integers(0, 2**64 - 1), st.data())
@examples(100)
def test_it_does_not_matter_who_asks_for_which_positions(length, buffer, key, data):
    whole = order(length, buffer, key)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    asked = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1)))
    for index in (range(start, stop), range(start, stop, 3), range(stop - 1, start - 1, -1)):
        found = shuffle_index(index, length, buffer, key)
        assert found.tolist() == whole[list(index)].tolist()
    assert shuffle_index(asked, length, buffer, key).tolist() == whole[asked].tolist()


@pytest.mark.parametrize("buffer", [1, 2, 5, 100, 5000])
def test_without_an_end_every_prefix_is_filled_up(buffer):
    found = shuffle_index(range(20_000), None, buffer, 3)
    assert len(set(found.tolist())) == len(found)
    assert (found - np.arange(len(found))).max() <= buffer - 1
    missing = set(range(20_000)) - set(found.tolist())
    assert all(number > 20_000 - 2 * buffer for number in missing)


def test_only_a_buffer_of_one_is_the_identity():
    assert order(100, 1).tolist() == list(range(100))
    assert order(100, 2).tolist() != list(range(100))


def test_keys_give_different_orders():
    for length, buffer in [(100, 10), (100, 100), (1 << 15, 1 << 15)]:
        assert len({order(length, buffer, key).tobytes() for key in range(20)}) == 20


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_full_window_gives_every_permutation_equally_often(length):
    keys = 6000
    counts = Counter(tuple(order(length, length, key).tolist()) for key in range(keys))
    expected = keys / len(list(itertools.permutations(range(length))))
    squares = sum((counts[p] - expected) ** 2 for p in itertools.permutations(range(length)))
    # The 0.999 quantiles of chi-square with 1, 5 and 23 degrees of freedom.
    assert squares / expected < {2: 10.83, 3: 20.52, 4: 49.73}[length]


@pytest.mark.parametrize("length", [1000, 40_000, 1 << 16])
def test_a_full_window_spreads_elements_evenly(length):
    """Where the first half goes, in 16 parts; 37.7 is the 0.999 quantile for 15 degrees."""
    places = np.argsort(order(length, length, 5))[: length // 2]
    counts = np.histogram(places, 16, (0, length))[0]
    expected = length / 32
    assert ((counts - expected) ** 2).sum() / expected < 37.7


@pytest.mark.parametrize("buffer", [10, 100, 5000])
def test_a_smaller_window_is_used(buffer):
    distances = np.abs(order(40_000, buffer, 5) - np.arange(40_000))
    assert buffer / 8 < distances.mean() < buffer


def test_neighbours_do_not_stay_neighbours():
    found = order(1 << 16, 1 << 16, 9)
    assert np.mean(np.abs(np.diff(found)) == 1) < 0.001
    assert abs(np.corrcoef(found, np.arange(len(found)))[0, 1]) < 0.02


@pytest.mark.parametrize("buffer", [10, 10_000, 10**9])
@pytest.mark.parametrize("index", [range(5 * 10**8, 5 * 10**8 + 1000), np.arange(1000) * 10**5])
def test_a_billion_elements_take_no_memory(buffer, index):
    shuffle_index(index, 10**9, buffer, 4)
    tracemalloc.start()
    try:
        found = shuffle_index(index, 10**9, buffer, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(found.tolist())) == 1000
    assert peak < 4 << 20
