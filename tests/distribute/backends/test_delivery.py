"""Deliveries: they send chunks of steps to devices; the same tests for all backends."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from penstock.delivery import Delivery
from penstock.delivery.moving import find_overlapping
from penstock.distribute.backends import NAMES, Backend, load
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from tests.distribute.backends.test_backends import FRAMEWORKS, align_rows, places

WITH_GPU = [name for name in NAMES if load(name).handles("GPU")]


@pytest.fixture(params=NAMES)
def backend(request) -> Backend:
    return load(request.param)


def chunk_of(*columns: Any) -> Chunk:
    return Chunk(nest.tuple_of(len(columns)), list(columns), len(columns[0]))


def steps(
    backend: Backend, chunk: Chunk, owners: list[int], handles: Any = None
) -> list[list[Any]]:
    """What a consumer gets, step by step."""
    handles = handles or places(backend)
    delivery = backend.delivery([handles[0], handles[-1]], owners, 2)
    return deliver_chunk(delivery, chunk)


def deliver_chunk(delivery: Delivery, chunk: Chunk) -> list[list[Any]]:
    sent = delivery.send(chunk)
    assert len(sent) == len(chunk)
    assert sent.nbytes > 0
    parts = [sent.rows(0, 1), sent.rows(1, len(chunk))] if len(chunk) > 1 else [sent]
    found = [
        delivery.receive(list(leaves))
        for part in parts
        for leaves in zip(*part.columns, strict=True)
    ]
    delivery.close()
    delivery.close()
    return found


def test_every_column_arrives_step_by_step_on_the_device_of_its_replica(backend):
    rows = np.arange(24, dtype=np.int32).reshape(3, 4, 2)
    labels = np.arange(3, dtype=np.float32)
    got = steps(backend, chunk_of(np.full(3, 2), rows[:, :2], labels, rows[:, 2:]), [-1, 0, 0, 1])
    for i, (present, first, label, second) in enumerate(got):
        assert type(present) is np.int64
        assert backend.is_tensor(first)
        assert backend.is_tensor(label)
        np.testing.assert_array_equal(backend.numpy(first), rows[i, :2])
        np.testing.assert_array_equal(backend.numpy(second), rows[i, 2:])
        assert backend.numpy(label) == labels[i]
        if backend.name == "jax":
            assert first.devices() == {places(backend)[0]}
            assert second.devices() == {places(backend)[-1]}


def test_leaves_of_different_shapes_are_moved_one_by_one(backend):
    column = [np.arange(3), np.arange(0), np.float32(2.5)]
    got = [step[0] for step in steps(backend, chunk_of(column), [0])]
    assert all(map(backend.is_tensor, got))
    for tensor, leaf in zip(got, column, strict=True):
        np.testing.assert_array_equal(backend.numpy(tensor), leaf)


def test_strings_ragged_values_and_nothing_stay_on_the_host(backend):
    words = np.empty(2, object)
    words[:] = [b"a", b"b"]
    texts = np.array([[b"a", b"b"], [b"c", b"d"]], object)
    ragged = Ragged.from_rows([[1], [2, 3]])
    mixed = [ragged, np.arange(2, dtype=np.int32)]
    first, second = steps(backend, chunk_of(words, texts, ragged, mixed, [None, None]), [0] * 5)
    assert (first[0], second[0]) == (b"a", b"b")
    assert second[1].tolist() == [b"c", b"d"]
    assert second[2].tolist() == [2, 3]
    assert first[3] is ragged
    assert backend.is_tensor(second[3])
    assert first[4] is None


def test_bfloat16_and_columns_of_no_rows_are_moved(backend):
    small = np.ones((2, 3), ml_dtypes.bfloat16)
    first, second = steps(backend, chunk_of(small, np.zeros((2, 0, 5), np.uint8)), [0, 1])
    assert "bfloat16" in str(first[0].dtype)
    assert tuple(second[1].shape) == (0, 5)


def test_what_the_engine_made_is_not_copied_again(backend):
    made = align_rows(np.arange(4096, dtype=np.float32).reshape(2, 2048))
    first, _ = steps(backend, chunk_of(made), [0], backend.handles("CPU"))
    assert address(first[0]) == address(made)


@pytest.mark.parametrize("backend", FRAMEWORKS, indirect=True)
def test_arrays_that_must_not_change_are_copied(backend):
    made = align_rows(np.arange(4096, dtype=np.float32).reshape(2, 2048))
    seen = made.view()
    seen.flags.writeable = False
    first, _ = steps(backend, chunk_of(seen), [0])
    made[:] = -1
    np.testing.assert_array_equal(backend.numpy(first[0]), np.arange(2048, dtype=np.float32))


@pytest.mark.parametrize("backend", FRAMEWORKS, indirect=True)
def test_a_leaf_that_is_there_twice_becomes_two_tensors(backend):
    made = align_rows(np.arange(4096, dtype=np.float32).reshape(2, 2048))
    (first, second), _ = steps(backend, chunk_of(made, made[:, 16:]), [0, 1])
    assert address(first) != address(made)
    assert address(second) != address(made[:, 16:])


def test_arrays_that_no_tensor_can_live_in_are_copied(backend):
    rows = np.arange(6, dtype=np.int32).reshape(3, 2)
    for column in (rows[::-1], rows.astype(">i4"), rows[:, ::-1]):
        got = [backend.numpy(step[0]) for step in steps(backend, chunk_of(column), [0])]
        np.testing.assert_array_equal(got, column)


def test_torch_can_write_to_what_arrives_with_gradients():
    backend = load("torch")
    weight = backend.put(np.ones((), np.float32), places(backend)[0]).requires_grad_()
    made = np.zeros((3, 4, 2), np.float32)
    for (tensor,) in steps(backend, chunk_of(made), [0]):
        tensor.add_(weight)
        assert tensor.requires_grad


def test_leaves_of_lists_are_copied_only_if_others_share_their_memory():
    backend = load("torch")
    alone, twice = np.arange(5, dtype=np.float32), np.arange(6, dtype=np.float32)
    rows = np.zeros((4, 7), np.float32)
    column = [alone, twice, twice[1:], rows[0, :3]]
    got = steps(backend, chunk_of(column, rows), [0, 0], backend.handles("CPU"))
    kept = [address(one) == address(leaf) for (one, _), leaf in zip(got, column, strict=True)]
    assert kept == [True, False, False, False]
    assert address(got[0][1]) != address(rows)


def test_portions_of_one_batch_do_not_overlap_but_nested_parts_do():
    whole = np.zeros((3, 8))
    assert (
        find_overlapping([whole[:, :4], whole[:, 4:], np.zeros((3, 8)), [1], whole[:, :0]]) == set()
    )
    assert find_overlapping([whole, whole[:, 1:2], whole[:, 3:4]]) == {0, 1, 2}
    assert find_overlapping([whole[:, ::-1], np.zeros(3), whole[:, 6:]]) == {0, 2}


def some_rows() -> Chunk:
    large = np.arange(40 * 9000, dtype=np.float32).reshape(40, 9000)
    words = np.array([b"%d" % i for i in range(40)], object)
    small = np.arange(40, dtype=np.int32)
    flags = large[:, :8200] > 100000
    return Chunk(nest.tuple_of(4), [large, words, small, flags], 40)


def delivery_by_number(backend: Backend, rows: Chunk) -> Delivery | None:
    handles = places(backend)
    owners = [-1, *[0] * 4, *[1] * 4]
    return backend.delivery([handles[0], handles[-1]], owners, 2).of_rows(rows)


def test_only_gpus_fetch_rows_by_number(backend):
    by_number = delivery_by_number(backend, some_rows())
    assert (by_number is not None) == bool(backend.handles("GPU"))


def check_rows_by_number(backend: Backend, uneven: bool) -> None:
    rows = some_rows()
    by_number = delivery_by_number(backend, rows)
    assert by_number is not None
    first: Any = np.array([[3, 4, 5, 39], [7, 1, 1, 0]])
    second: Any = [np.array([8, 2]), np.array([], int)] if uneven else first + 0
    chunk = Chunk(nest.tuple_of(3), [np.full(2, 2), first, second], 2)
    assert by_number.send(chunk).tree == nest.graft(nest.tuple_of(3), (nest.LEAF, *[rows.tree] * 2))
    for i, (_, *leaves) in enumerate(deliver_chunk(by_number, chunk)):
        for j, leaf in enumerate(leaves):
            numbers = (first, second)[j // 4][i]
            np.testing.assert_array_equal(backend.numpy(leaf), rows.columns[j % 4][numbers])
            assert backend.is_tensor(leaf) == (j % 4 != 1)


# Exists only on machines with a GPU: an empty list of parameters would be a skipped test.
# tests/distribute/backends/test_row_fetch.py covers the same code with a simulated driver.
if WITH_GPU:

    @pytest.mark.parametrize("uneven", [False, True])
    @pytest.mark.parametrize("backend", WITH_GPU, indirect=True)
    def test_rows_sent_as_numbers_arrive_as_rows(backend, uneven):
        check_rows_by_number(backend, uneven)


def address(tensor: Any) -> int:
    if isinstance(tensor, np.ndarray):
        return int(tensor.__array_interface__["data"][0])
    pointer = getattr(tensor, "data_ptr", None) or tensor.unsafe_buffer_pointer
    return int(pointer())
