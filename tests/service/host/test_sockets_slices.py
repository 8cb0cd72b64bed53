"""Slices of bodies: large bodies are cut, unless slices are slow."""

from collections import deque
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.host import sockets
from penstock.service.host.sockets import SLICE, BodySlices, take_first


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sockets, "time", made)
    return made


@pytest.mark.parametrize("size", [0, 1, SLICE, SLICE + SLICE // 2])
def test_small_bodies_are_not_cut(size: int, clock: Clock) -> None:
    assert list(BodySlices().sizes(size)) == [size]


@given(st.integers(0, 20 * SLICE))
def test_large_bodies_are_cut_into_slices_that_fit_in_a_cache(size: int) -> None:
    with mock.patch.object(sockets, "time", Clock()):
        sizes = list(BodySlices().sizes(size))
    assert sum(sizes) == size
    if size > 2 * SLICE:
        assert all(SLICE // 2 < one <= SLICE + SLICE // 2 for one in sizes)


def test_bodies_are_not_cut_for_a_while_after_slow_slices(clock: Clock) -> None:
    cut = BodySlices()
    sizes = cut.sizes(8 * SLICE)
    for _ in range(3):
        assert next(sizes) == SLICE
        clock.now += 0.005
    assert list(sizes) == [5 * SLICE]
    later = [len(list(cut.sizes(4 * SLICE))) for _ in range(100)]
    assert later == [1] * 63 + [4] * 37


def test_slow_slices_are_noticed_in_bodies_of_two(clock: Clock) -> None:
    cut = BodySlices()
    for expected in ([SLICE, SLICE], [SLICE, SLICE], [SLICE, SLICE], [2 * SLICE]):
        sizes = []
        for size in cut.sizes(2 * SLICE):
            sizes.append(size)
            clock.now += 0.005
        assert sizes == expected


def test_a_single_slice_that_waits_for_a_full_buffer_is_not_slow(clock: Clock) -> None:
    cut = BodySlices()
    for number, size in enumerate(cut.sizes(100 * SLICE)):
        assert size == SLICE
        clock.now += 0.008 if number % 3 == 0 else 0.0


@given(st.lists(st.binary(max_size=5)), st.lists(st.integers(1, 7)))
def test_first_bytes_are_taken_from_parts(parts: list[bytes], sizes: list[int]) -> None:
    whole, left = b"".join(parts), deque(parts)
    for size in sizes:
        count = min(size, len(whole))
        assert b"".join(take_first(left, count)) == whole[:count]
        whole = whole[count:]
    assert b"".join(left) == whole
    take_first(left, len(whole))
    assert not left, "parts without bytes are taken, too"
