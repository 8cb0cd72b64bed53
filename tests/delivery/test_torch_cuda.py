"""Delivery to a GPU of torch: with a simulated GPU, what it does before and after the copies."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from penstock.delivery import locked_memory, row_fetch, torch_delivery
from penstock.delivery.cuda import Driver
from penstock.delivery.locked_memory import LockedArrays
from penstock.delivery.torch_delivery import open_delivery
from penstock.element import nest
from penstock.element.chunk import Chunk
from tests.delivery.simulated_cuda import Library, deliver_chunk
from tests.delivery.simulated_torch import GPU, OnGpu, Torch
from tests.delivery.test_reused_memory import SharedMemory


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    made, locked, driver = Torch(), LockedArrays(), Driver(Library())
    monkeypatch.setattr(torch_delivery, "torch", made)
    monkeypatch.setattr(torch_delivery, "driver", lambda: driver)
    monkeypatch.setattr(torch_delivery, "LOCKED", locked)
    monkeypatch.setattr(row_fetch, "LOCKED", locked)
    monkeypatch.setattr(row_fetch, "_WORTH_FETCHING", 16)
    monkeypatch.setattr(locked_memory, "_SMALL", 64)
    return made


def numbers(tensor: Any) -> Any:
    assert isinstance(tensor, OnGpu)
    return tensor.numpy()


@pytest.mark.parametrize("columns", [None, [0, 0, 0]])
def test_columns_go_through_locked_memory(torch: Torch, columns: Any) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(3, 8)
    words = np.array([b"a", b"b", b"c"], object)
    shapes = [np.arange(2), np.arange(3), np.arange(4)]
    delivery = open_delivery([GPU], columns, 2)
    made = deliver_chunk(delivery, Chunk(nest.tuple_of(3), [rows, words, shapes], 3))
    for i, (row, word, shape) in enumerate(made):
        np.testing.assert_array_equal(numbers(row), rows[i])
        np.testing.assert_array_equal(numbers(shape), shapes[i])
        assert word == words[i]
    assert torch.locked == 4
    assert torch.cuda.current.waited, "the caller's stream waits for the copies"
    delivery.close()


def test_the_gpu_reads_chunks_of_worker_processes_in_place(torch: Torch) -> None:
    shared, delivery = SharedMemory(), open_delivery([GPU], None, 2)
    torch.cuda.is_done = False
    for value in range(3):
        ((tensor,),) = deliver_chunk(delivery, Chunk(nest.LEAF, [shared.receive(value)], 1))
        assert set(numbers(tensor).view(np.uint8)) == {value}
    gc.collect()
    assert torch.locked == 0
    assert shared.mapped.unused_count == 0, "the GPU may still read them"
    torch.cuda.is_done = True
    delivery.send(Chunk(nest.LEAF, [np.zeros(2)], 2))
    gc.collect()
    assert shared.mapped.unused_count == 3
    delivery.close()


def test_events_and_streams_do_not_wait_for_the_garbage_collector(torch: Torch) -> None:
    """A process that is forked later would abort when its garbage collector frees them."""
    gc.collect()
    gc.disable()
    try:
        delivery = open_delivery([GPU], None, 2)
        for value in range(3):
            deliver_chunk(delivery, Chunk(nest.LEAF, [np.full(8, value)], 8))
        found = [weakref.ref(each) for each in (*delivery._used, *delivery._streams.values())]
        assert found
        delivery.close()
        assert not any(reference() for reference in found)
    finally:
        gc.enable()


def test_a_chunk_that_cannot_be_locked_is_copied(
    torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Driver(Library(cuMemHostRegister_v2=712))
    for driver in (refusing, None):
        monkeypatch.setattr(torch_delivery, "driver", lambda driver=driver: driver)
        delivery = open_delivery([GPU], None, 2)
        chunk = Chunk(nest.LEAF, [SharedMemory().receive(5)], 1)
        ((tensor,),) = deliver_chunk(delivery, chunk)
        assert set(numbers(tensor).view(np.uint8)) == {5}
        delivery.close()
    assert torch.locked == 2


def test_rows_are_fetched_by_number(torch: Torch) -> None:
    large = np.arange(640, dtype=np.float32).reshape(40, 16)
    words = np.array([b"%d" % i for i in range(40)], object)
    plain = open_delivery([GPU], None, 2)
    delivery = plain.of_rows(Chunk(nest.tuple_of(2), [large, words], 40))
    assert delivery is not None
    batches = np.array([[3, 2, 9], [5, 6, 39]])
    made = deliver_chunk(delivery, Chunk(nest.LEAF, [batches], 2))
    for batch, (rows, some) in zip(batches, made, strict=True):
        np.testing.assert_array_equal(numbers(rows), large[batch])
        assert some.tolist() == words[batch].tolist()
    assert torch.locked == 0
    delivery.close()
    plain.close()


def test_a_caller_that_computes_slowly_is_waited_for(torch: Torch) -> None:
    delivery = open_delivery([GPU], None, 1)
    for _ in range(5):
        deliver_chunk(delivery, Chunk(nest.LEAF, [np.zeros((1, 4))], 1))
    assert torch.cuda.waits == 1
    delivery.close()
