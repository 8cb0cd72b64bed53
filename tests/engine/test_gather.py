"""Batches of rows: views where they are consecutive, one gather where they are not."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from penstock.data import Dataset, Options
from penstock.element import columns
from penstock.element.chunk import Chunk
from penstock.engine import gather
from penstock.engine.gather import Gather, MappedFiles

ROWS = np.arange(60).reshape(20, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.batch(4),
        lambda ds: ds.skip(4).batch(4).batch(2),
        lambda ds: ds.shard(2, 1).batch(3),
        lambda ds: ds[3:15].batch(4).prefetch(1),
    ],
)
def test_a_batch_of_a_slice_is_a_view(make):
    for batch in make(Dataset.from_tensor_slices(ROWS)):
        assert np.shares_memory(batch, ROWS)
        assert not batch.flags.writeable


def test_batches_of_a_shuffle_are_one_gather_each(monkeypatch):
    asked = []
    take = columns.take

    def count_indices(column, indices):
        asked.append(len(indices))
        return take(column, indices)

    monkeypatch.setattr(columns, "take", count_indices)
    (batch,) = Dataset.from_tensor_slices(ROWS).shuffle(20, seed=1).batch(20)
    assert asked == [20]
    assert sorted(batch[:, 0].tolist()) == ROWS[:, 0].tolist()


def test_large_gathers_are_shared_by_threads_and_right(monkeypatch):
    monkeypatch.setattr(gather, "_WORTH_SHARING", 0)
    used = set()
    into = gather._take_into

    def note_thread(*arguments):
        used.add(threading.current_thread().name)
        into(*arguments)

    monkeypatch.setattr(gather, "_take_into", note_thread)
    rows = np.random.default_rng(0).integers(0, 99, (100, 7))
    indices = np.random.default_rng(1).integers(0, 100, 50)
    pick = Gather(3)
    np.testing.assert_array_equal(pick(rows, indices), rows[indices])
    assert "penstock-gather" in used
    pick.stop()


def test_a_part_that_fails_fails_the_gather(monkeypatch):
    monkeypatch.setattr(gather, "_WORTH_SHARING", 0)

    def fail_to_take(column, indices, out):
        raise OSError("the disk is gone")

    monkeypatch.setattr(gather, "_take_into", fail_to_take)
    pick = Gather(3)
    with pytest.raises(OSError, match="the disk is gone"):
        pick(np.zeros((10, 2)), np.arange(10))
    pick.stop()


@pytest.mark.parametrize("share", [0, 1 << 30])
def test_rows_are_gathered_and_copied_into_memory_that_is_there(monkeypatch, share):
    monkeypatch.setattr(gather, "_WORTH_SHARING", share)
    rows = np.random.default_rng(0).integers(0, 99, (100, 7))
    out, whole = np.empty((3, 7), rows.dtype), np.empty((100, 7), np.float64)
    pick = Gather(4)
    pick.into(out, rows, np.array([5, 99, 5]))
    pick.copy(whole, rows)
    np.testing.assert_array_equal(out, rows[[5, 99, 5]])
    np.testing.assert_array_equal(whole, rows)
    pick.stop()


def test_few_rows_strings_and_lists_are_gathered_by_the_caller(monkeypatch):
    monkeypatch.setattr(gather, "_WORTH_SHARING", 1)
    pick, order = Gather(2), np.array([2, 0, 1, 1])
    words = np.array([b"a", b"b", b"c"], object)
    assert pick(words, order).tolist() == [b"c", b"a", b"b", b"b"]
    assert pick([1, 2, 3], order) == [3, 1, 2, 2]
    assert pick(np.arange(3), np.array([2])).tolist() == [2]
    assert pick._pool is None


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows"
    np.arange(4000, dtype=np.int64).reshape(1000, 4).tofile(path)
    return path


def test_the_pages_of_a_mapped_file_are_released(file, monkeypatch):
    monkeypatch.setattr(gather, "_RELEASE", 100)
    advice = []
    monkeypatch.setattr(MappedFiles, "_advise", lambda self, name: advice.append(name))
    rows = np.memmap(file, np.int64, "r", shape=(1000, 4))
    ds = Dataset.from_tensor_slices(rows).shuffle(1000, seed=3).batch(100)
    found = np.concatenate(list(ds))
    assert sorted(found[:, 0].tolist()) == list(range(0, 4000, 4))
    assert advice[0] == "MADV_RANDOM"
    assert set(advice[1:]) == {"MADV_DONTNEED"}


def test_letting_go_of_pages_keeps_what_was_written(file, monkeypatch):
    """Only a copy-on-write map has its changes: the file does not."""
    monkeypatch.setattr(gather, "_RELEASE", 1)
    shared, private = (np.memmap(file, np.int64, mode, shape=(1000, 4)) for mode in ("r+", "c"))
    shared[7], private[8] = -7, -8
    for rows, changed in ((shared, 7), (private, 8)):
        order = np.array([changed, 1, changed])
        whole = Chunk.of([np.int64(0)]).__class__(
            Chunk.of([np.int64(0)]).tree, [np.asarray(rows)], 1000
        )
        picker = MappedFiles(whole)
        for _ in range(3):
            picked = picker.gather(whole, order, columns.take).columns[0]
            assert picked[:, 0].tolist() == [-changed, 4, -changed]


def test_inline_plans_start_no_thread():
    seen = set()

    def note(x):
        seen.add(threading.current_thread())
        return x

    ds = Dataset.range(50).map(note, num_parallel_calls=4).prefetch(4)
    ds = ds.interleave(lambda x: Dataset.from_tensors(x), 2, num_parallel_calls=2)
    assert sorted(ds.with_options(Options(executor="inline"))) == list(range(50))
    assert seen == {threading.current_thread()}
