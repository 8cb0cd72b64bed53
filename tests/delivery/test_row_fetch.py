"""The preparations before a GPU reads rows by itself, with a simulation of CUDA's driver."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import jax
import numpy as np
import pytest

from penstock.delivery import cuda, jax_delivery, locked_memory, row_fetch
from penstock.delivery.cuda import Driver
from penstock.delivery.locked_memory import Buffers, LockedArrays
from penstock.delivery.row_fetch import owners_of_row_numbers, plan_copies
from penstock.element import nest
from penstock.element.chunk import Chunk
from tests.delivery.simulated_cuda import Library, OlderLibrary, deliver_chunk


def plan(library: Library, rows: Any, numbers: Any) -> Any:
    return plan_copies(rows, np.array(numbers), Driver(library))


@pytest.mark.parametrize(
    "numbers", [[[3]], [[5, 2, 2], [0, 9, 8]], [[4, 5, 6, 7]], [[8, 9], [0, 1]]]
)
def test_rows_arrive_in_order(library, numbers):
    rows = np.arange(80.0).reshape(10, 8)
    numbers = np.array(numbers)
    out = np.zeros((*numbers.shape, 8))
    copies = plan(library, rows, numbers)
    assert copies.begin(out.ctypes.data, 7)
    np.testing.assert_array_equal(out, rows[numbers])


def test_rows_that_lie_one_behind_the_other_are_one_copy(library):
    rows = np.arange(80.0).reshape(10, 8)
    copies = plan(library, rows, [[2, 3, 4, 8, 9, 0]])
    assert copies.sizes.tolist() == [3 * 64, 2 * 64, 64]


def test_older_drivers_copy_rows_too(monkeypatch):
    monkeypatch.setattr(row_fetch, "LOCKED", LockedArrays())
    rows = np.zeros((4, 8 << 10))
    library = OlderLibrary()
    copies = plan(library, rows, [[2, 0]])
    out = np.ones((2, 8 << 10))
    assert copies.begin(out.ctypes.data, 0)
    assert not out.any()


def test_small_rows_and_none_are_left_to_the_host(library):
    assert plan(library, np.arange(10.0), [[3, 1]]) is None
    assert plan(library, np.arange(10.0), [[3, 4]]) is not None
    assert plan(library, np.zeros((10, 0)), [[3, 1]]) is None
    assert plan(library, np.arange(80.0).reshape(10, 8), np.zeros((1, 0), int)) is None


def test_a_driver_that_cannot_copy_or_lock_says_so(monkeypatch):
    monkeypatch.setattr(row_fetch, "LOCKED", LockedArrays())
    rows = np.zeros((4, 8 << 10))
    refusing = Library(cuMemcpyBatchAsync_v2=1)
    assert not plan(refusing, rows, [[2]]).begin(0, 0)
    monkeypatch.setattr(row_fetch, "LOCKED", LockedArrays())
    assert plan(Library(cuMemHostRegister_v2=712), rows, [[2]]) is None
    assert not Driver(type("Old", (), {"cuInit": print})()).copies_rows


def test_an_array_is_locked_once_and_unlocked_when_it_is_gone(library):
    rows = np.zeros((4, 8))
    address, driver, locked = rows.ctypes.data, Driver(library), LockedArrays()
    assert locked.lock(rows.view(), driver)
    assert locked.lock(rows[:], driver)
    assert library.locked == {address: rows.nbytes}
    del rows
    gc.collect()
    assert library.locked == {}


def test_parts_of_one_array_are_locked_with_the_whole(library):
    rows = np.zeros((40, 8))
    driver, locked = Driver(library), LockedArrays()
    assert locked.lock(rows[:30], driver)
    assert locked.lock(rows[30:], driver)
    assert library.locked == {rows.ctypes.data: rows.nbytes}


def test_of_an_array_that_is_too_large_only_the_part_is_locked(library, monkeypatch):
    monkeypatch.setattr(locked_memory, "_memory", lambda: 1000)
    rows = np.zeros((40, 8))
    driver, locked = Driver(library), LockedArrays()
    assert locked.lock(rows[3:5], driver)
    assert library.locked == {rows[3:].ctypes.data: 128}
    assert not locked.lock(rows[3:10], driver)
    assert not locked.lock(rows[10:30], driver)


def test_before_a_fork_everything_is_unlocked_and_can_be_locked_again(library):
    rows, driver, locked = np.zeros((4, 8)), Driver(library), LockedArrays()
    with driver.on(0):
        assert locked.lock(rows, driver)
    locked.before_fork()
    assert library.locked == {}
    locked.mutex.release()
    assert locked.lock(rows, driver)
    assert library.locked == {rows.ctypes.data: rows.nbytes}
    del rows
    gc.collect()
    assert library.locked == {}


def test_files_and_scattered_memory_are_not_locked(library, tmp_path, monkeypatch):
    locked, driver = LockedArrays(), Driver(library)
    mapped = np.memmap(tmp_path / "rows", np.uint8, "w+", shape=(4, 8))
    assert not locked.lock(mapped, driver)
    assert not locked.lock(np.asarray(mapped)[1:], driver)
    assert not locked.lock(np.zeros((4, 8))[:, ::2], driver)
    assert not locked.lock(np.frombuffer(b"12345678"), driver)
    assert locked.lock(np.frombuffer(mmap.mmap(-1, 8)), driver)
    monkeypatch.setattr(locked_memory, "_memory", lambda: 100)
    assert not locked.lock(np.zeros(8), driver)


def test_a_gpu_is_entered_and_left(library):
    driver = Driver(library)
    with driver.on(1):
        assert library.entered == [101]
        with driver.on(0):
            assert library.entered == [101, 100]
    assert library.entered == []


def test_a_copy_begins_or_not():
    driver, source, to = Driver(Library()), np.arange(3), np.zeros(3, int)
    assert driver.copy(source.ctypes.data, source.nbytes, to.ctypes.data, driver.stream())
    np.testing.assert_array_equal(to, source)
    assert not Driver(Library(cuMemcpyHtoDAsync_v2=1)).copy(1, 2, 3, 0)


def test_without_a_driver_there_is_none(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(cuda.ctypes, "CDLL", missing)
    cuda.driver.cache_clear()
    assert cuda.driver() is None
    cuda.driver.cache_clear()


def test_numbers_have_the_owners_of_their_rows():
    assert owners_of_row_numbers([-1, 0, 0, 0, 1, 1, 1], 3) == [-1, 0, 1]


class Reading:
    """A stand-in for the event after a copy that reads a buffer."""

    def __init__(self) -> None:
        self.done = False
        self.waited = 0

    def is_over(self) -> bool:
        return self.done

    def wait(self) -> None:
        self.waited += 1
        self.done = True


def test_a_buffer_is_used_again_when_it_was_read(library):
    buffers, reader = Buffers(Driver(library)), Reading()
    first = buffers.take_free(3 << 20)
    array = first.array((3, 1 << 20), np.dtype(np.uint8))
    assert array.flags.writeable
    assert array.ctypes.data in library.locked
    first.reader = reader
    other = buffers.take_free(3 << 20)
    assert other is not first
    other.reader = Reading()
    reader.done = True
    assert buffers.take_free(3 << 20) is first


def test_when_all_buffers_are_read_the_oldest_is_waited_for(library):
    buffers, readers = Buffers(Driver(library)), [Reading() for _ in range(4)]
    made = []
    for reader in readers:
        made.append(buffers.take_free(3 << 20))
        made[-1].reader = reader
    assert made[3] is made[0]
    assert [reader.waited for reader in readers] == [1, 0, 0, 0]
    small = buffers.take_free(8)
    small.reader = Reading()
    assert buffers.take_free(8) is not small
    assert buffers.take_free(0).array((0, 3), np.dtype(np.float32)).shape == (0, 3)
    assert library.locked
    del made, small
    buffers.close()
    gc.collect()
    assert not library.locked


def test_a_mark_is_passed_or_waited_for_and_forgotten():
    library = Library(cuEventQuery=600)
    driver = Driver(library)
    event = driver.record_event(0, driver.stream())
    assert not event.is_over()
    event.wait()
    assert Driver(Library()).record_event(1, 0).is_over()
    assert library.entered == []


def test_jax_gets_what_cuda_copied(library, devices):
    delivery = jax_delivery.JaxCudaDelivery(devices, [-1, 0, 1, 0], 2, Driver(library))
    rows = np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 8, 4)
    mixed = [np.arange(100, dtype=">i4"), b"word"]
    chunk = Chunk(nest.tuple_of(4), [np.full(2, 2), rows, np.arange(2), mixed], 2)
    for i, (present, large, small, other) in enumerate(deliver_chunk(delivery, chunk)):
        assert present == 2
        np.testing.assert_array_equal(large, rows[i])
        assert large.devices() == {devices[0].device}
        assert (int(small), small.devices()) == (i, {devices[1].device})
        assert other == b"word" if i else other.tolist() == list(range(100))
    delivery.close()
    delivery.close()


def test_berths_and_buffers_are_used_again_even_if_what_was_received_is_gone(library, devices):
    delivery = jax_delivery.JaxCudaDelivery(devices, [0, 1], 2, Driver(library))
    kept = []
    for i in range(20):
        rows = np.full((1, 50), i, np.int32)
        ((first, second),) = deliver_chunk(delivery, Chunk(nest.PAIR, [rows, rows + 1], 1))
        kept.append((i, first))
        np.testing.assert_array_equal(second, rows[0] + 1)
        second.delete()
    for i, first in kept:
        np.testing.assert_array_equal(first, np.full(50, i))
    for landing in delivery._landings.values():
        assert len(landing._berths) == 3
    delivery.close()


def test_steps_that_were_not_received_keep_their_berths(library, devices):
    delivery = jax_delivery.JaxCudaDelivery(devices[:1], [0], 2, Driver(library))
    sent = [delivery.send(Chunk(nest.LEAF, [np.full((1, 50), i, np.int32)], 1)) for i in range(10)]
    for i, chunk in enumerate(sent):
        (array,) = delivery.receive(chunk.columns[0])
        np.testing.assert_array_equal(array, np.full(50, i))
    delivery.close()


@pytest.mark.parametrize("status", [0, 1])
def test_jax_gets_rows_by_their_numbers(library, devices, status):
    rows = np.arange(40 * 16, dtype=np.float32).reshape(40, 16)
    wide = np.arange(40 * 16.0).reshape(40, 16)
    words = np.array([b"%d" % i for i in range(40)], object)
    whole = Chunk(nest.tuple_of(3), [rows, wide, words], 40)
    driver = Driver(Library(cuMemcpyBatchAsync_v2=status, cuMemcpyHtoDAsync_v2=status))
    plain = jax_delivery.JaxCudaDelivery(devices, [-1, 0, 0, 0, 1, 1, 1], 2, driver)
    delivery = plain.of_rows(whole)
    numbers = [np.array([[3, 2], [5, 6]]), [np.array([7, 0, 1]), np.array([], int)]]
    chunk = Chunk(nest.tuple_of(3), [np.full(2, 2), *numbers], 2)
    for i, (_, *leaves) in enumerate(deliver_chunk(delivery, chunk)):
        for j, leaf in enumerate(leaves):
            expected = whole.columns[j % 3][numbers[j // 3][i]]
            np.testing.assert_array_equal(leaf, expected)
            assert isinstance(leaf, jax.Array) == (j % 3 < 2)
    delivery.close()
    plain.close()


def test_jax_fetches_no_rows_where_the_driver_cannot(devices):
    class WithoutBatches(Library):
        cuMemcpyBatchAsync_v2 = None

    driver = Driver(WithoutBatches())
    plain = jax_delivery.JaxCudaDelivery(devices, [0], 2, driver)
    assert plain.of_rows(Chunk(nest.LEAF, [np.zeros((4, 8))], 4)) is None
    plain.close()
