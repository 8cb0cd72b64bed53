"""Chunks of worker processes: their memory is locked once, and GPUs read it where it is."""

from __future__ import annotations

import gc
import mmap
import os
from typing import Any

import numpy as np
import pytest

from penstock.delivery import jax_delivery, locked_memory
from penstock.delivery.cuda import Driver
from penstock.delivery.locked_memory import LockedArrays, is_reused
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.reused import ReusedMemory, find_base
from penstock.engine.processes.chunk_memory import MappedSlabs, ReceiveBuffers, SlabPool
from tests.delivery.simulated_cuda import Library, deliver_chunk

SIZE = 3 << 20


class SharedMemory:
    """Memory that a worker writes and a client reads."""

    def __init__(self) -> None:
        self.pool, self.mapped = SlabPool(), MappedSlabs()

    def receive(self, value: int) -> np.ndarray[Any, Any]:
        """A batch of numbers that the worker wrote and the client mapped."""
        cell = self.pool.reuse(SIZE) or self.pool.extend(SIZE)
        assert cell is not None
        if cell.slab is not None:
            self.mapped.map(cell.slab, os.dup(cell.descriptor))
        cell.memory[:] = value
        return np.frombuffer(self.mapped.take(cell.segment, SIZE), np.int32).reshape(1, -1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_memory, "_SMALL", 64)


def test_the_memory_of_worker_processes_is_known_by_its_origin(small: None) -> None:
    shared = SharedMemory()
    rows = shared.receive(1)
    assert is_reused(rows)
    assert is_reused(rows[0, 100:])
    assert find_base(rows[0]).nbytes > SIZE
    received: Any = np.frombuffer(ReceiveBuffers().take(SIZE), np.int16)
    assert is_reused(received)
    assert not is_reused(rows[0, :1])
    assert not is_reused(rows.copy())
    assert not is_reused(np.frombuffer(mmap.mmap(-1, SIZE), np.uint8))


def test_origins_of_other_arrays_are_what_they_are_views_of() -> None:
    array = np.zeros((8, 8))
    assert find_base(array) is array
    assert find_base(array[1:].T) is array
    assert find_base(np.frombuffer(array.data, np.uint8)) is array


def test_a_slab_is_locked_once_and_unlocked_before_it_is_unmapped(small: None) -> None:
    library, locked, shared = Library(), LockedArrays(), SharedMemory()
    driver, to = Driver(library), np.zeros(SIZE // 4, np.int32)
    for value in range(4):
        rows = shared.receive(value)
        assert locked.copy(rows, driver, to.ctypes.data, 0)
        np.testing.assert_array_equal(to, rows[0])
        assert len(library.locked) == 1
    slab = find_base(rows)
    assert library.locked == {slab.ctypes.data: slab.nbytes}
    del slab
    shared.mapped.close()
    gc.collect()
    assert library.locked, "an array still shows it"
    del rows
    gc.collect()
    assert library.locked == {}


def test_memory_that_is_mapped_read_only_is_locked_with_another_flag() -> None:
    class ReadOnly(Library):
        def cuMemHostRegister_v2(self, address: Any, nbytes: Any, flags: Any) -> int:
            return super().cuMemHostRegister_v2(address, nbytes, flags) if flags.value & 8 else 1

    library, locked = ReadOnly(), LockedArrays()
    rows = SharedMemory().receive(1)
    assert locked.lock(rows, Driver(library))
    assert find_base(rows).ctypes.data in library.locked


def test_scattered_rows_and_failures_are_left_to_the_host(small: None) -> None:
    rows = SharedMemory().receive(1)
    to = np.zeros(SIZE // 4, np.int32)
    assert not LockedArrays().copy(rows[:, ::2], Driver(Library()), to.ctypes.data, 0)
    refusing = Driver(Library(cuMemHostRegister_v2=712))
    assert not LockedArrays().copy(rows, refusing, to.ctypes.data, 0)
    refusing = Driver(Library(cuMemcpyHtoDAsync_v2=1))
    assert not LockedArrays().copy(rows, refusing, to.ctypes.data, 0)


class Slow(Library):
    """A GPU that has finished no copy until the test says so."""

    is_done = False

    def cuEventQuery(self, event: Any) -> int:
        return 0 if self.is_done else 600


def test_a_cell_is_held_until_the_gpu_has_read_it(small: None, devices: list[Any]) -> None:
    library, shared = Slow(), SharedMemory()
    delivery = jax_delivery.JaxCudaDelivery(devices[:1], None, 2, Driver(library))
    for value in range(2):
        chunk = Chunk(nest.LEAF, [shared.receive(value)], 1)
        ((array,),) = deliver_chunk(delivery, chunk)
        np.testing.assert_array_equal(array, chunk.columns[0][0])
        del chunk
    gc.collect()
    assert not delivery._buffers._all, "the host has copied nothing"
    assert shared.mapped.unused_count == 0
    library.is_done = True
    delivery.send(Chunk(nest.LEAF, [np.zeros((1, 3), np.int32)], 1))
    gc.collect()
    assert shared.mapped.unused_count == 2
    delivery.close()


def test_without_locked_memory_chunks_arrive_all_the_same(
    small: None, library: Library, devices: list[Any]
) -> None:
    driver, shared = Driver(Library(cuMemHostRegister_v2=712)), SharedMemory()
    delivery = jax_delivery.JaxCudaDelivery(devices[:1], None, 2, driver)
    ((array,),) = deliver_chunk(delivery, Chunk(nest.LEAF, [shared.receive(5)], 1))
    assert set(np.asarray(array).view(np.uint8)) == {5}
    gc.collect()
    assert shared.mapped.unused_count == 1
    delivery.close()


def test_reused_memory_is_the_whole_buffer() -> None:
    whole = ReusedMemory.over(mmap.mmap(-1, 100))
    assert whole.nbytes == 100
    assert find_base(whole[10:20]) is whole
