"""Call processes write rows of large batches; the batches equal those that threads make."""

import gc
import os
import resource
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import Dataset, Options
from penstock.element.chunk import Chunk
from penstock.element.reused import ReusedMemory, find_base
from penstock.engine import calling
from penstock.engine.processes import batch_memory
from penstock.engine.processes.batch_memory import (
    BatchCells,
    BatchLayout,
    BatchPlaces,
    SharedBatch,
    TaskRows,
    write_rows,
)
from tests.effort import examples

ROWS = Chunk.of([(np.full((64, 32), i, np.float32), np.int64(i)) for i in range(8)])
SIZE = 200
"""Batches of so many rows are large."""


def layout_of(size: int = SIZE, rows: Chunk = ROWS) -> BatchLayout:
    layout = BatchLayout.of(rows, size)
    assert layout is not None
    return layout


def lend(cells: BatchCells, layout: BatchLayout | None = None) -> SharedBatch:
    batch = cells.lend(layout or layout_of())
    assert batch is not None
    return batch


def address(batch: SharedBatch) -> int:
    return int(batch.rows(ROWS.tree, 0, 1).columns[0].ctypes.data)  # type: ignore[union-attr]


# Layouts and cells


def test_rows_are_written_to_their_place() -> None:
    cells = BatchCells()
    batch = lend(cells)
    memory = memoryview(batch.cell.memory).cast("B")
    assert write_rows(ROWS, TaskRows(batch, 16).sent, memory)
    assert write_rows(ROWS, TaskRows(batch, 8).sent, memory)
    images, labels = batch.rows(ROWS.tree, 8, 16).columns
    assert labels.tolist() == [*range(8), *range(8)]  # type: ignore[union-attr]
    assert np.array_equal(images[:, 5, 5], labels)  # type: ignore[call-overload]


def test_rows_that_do_not_fit_are_not_written() -> None:
    batch = lend(BatchCells())
    memory = memoryview(batch.cell.memory).cast("B")
    other = Chunk.of([(np.zeros((64, 32), np.int32), np.int64(0))])
    assert not write_rows(other, TaskRows(batch, 0).sent, memory)
    assert not write_rows(Chunk.of([np.zeros((64, 32))]), TaskRows(batch, 0).sent, memory)
    assert not write_rows(ROWS, TaskRows(batch, SIZE - 4).sent, memory)


@pytest.mark.parametrize(
    ("element", "size"),
    [(np.zeros(4), 8), (b"text", 1 << 20), (np.zeros(1 << 20), 1 << 20)],
)
def test_small_batches_and_other_columns_have_no_layout(element: Any, size: int) -> None:
    assert BatchLayout.of(Chunk.of([element]), size) is None


def test_a_cell_is_used_again_once_nothing_shows_it_and_no_task_writes_to_it() -> None:
    cells = BatchCells()
    batch: SharedBatch | None = lend(cells)
    assert batch is not None
    where, task, part = address(batch), TaskRows(batch, 0), batch.rows(ROWS.tree, 8, 8)
    del batch
    gc.collect()
    assert address(lend(cells)) != where
    del task
    gc.collect()
    assert address(lend(cells)) != where
    del part
    gc.collect()
    assert where in {address(batch) for batch in [lend(cells) for _ in range(3)]}


def test_beyond_the_limit_no_memory_is_lent() -> None:
    room = batch_memory.size_class(layout_of().nbytes)
    cells = BatchCells(limit=2 * room)
    kept = [lend(cells), lend(cells)]
    assert cells.lend(layout_of()) is None
    kept.pop()
    gc.collect()
    kept.append(lend(cells))


def test_idle_cells_of_another_size_make_room() -> None:
    room = batch_memory.size_class(layout_of().nbytes)
    cells = BatchCells(limit=2 * room)
    number = lend(cells).cell.number
    gc.collect()
    assert cells.knows(number)
    lend(cells, layout_of(2 * SIZE))
    assert not cells.knows(number)


def test_there_are_not_more_files_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_memory, "_MOST_CELLS", 3)
    cells = BatchCells()
    kept = [cells.lend(layout_of()) for _ in range(4)]
    assert [batch is None for batch in kept] == [False, False, False, True]


def test_a_program_that_may_open_few_files_has_few_cells() -> None:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, most))
    try:
        cells = BatchCells()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    kept = [cells.lend(layout_of()) for _ in range(4)]
    assert [batch is None for batch in kept] == [False, False, False, True]


def test_a_batch_that_exceeds_all_memory_takes_none_from_others() -> None:
    cells = BatchCells(limit=batch_memory.size_class(layout_of().nbytes))
    number = lend(cells).cell.number
    gc.collect()
    assert cells.lend(layout_of(3 * SIZE)) is None
    assert cells.knows(number)


def test_without_memory_files_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, size: int) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(batch_memory, "make_sealed_file", refuse)
    assert BatchCells().lend(layout_of()) is None


# Tasks and batches


@examples(200)
@given(st.integers(2, 70), st.integers(1, 150), st.integers(0, 500))
def test_tasks_divide_batches(size: int, rows: int, first: int) -> None:
    places, at = BatchPlaces(size, first), first
    for _ in range(50):
        count = places.round_rows(at, rows)
        start = (at - first) % size
        assert 1 <= count <= max(rows, 1)
        assert start + count <= size or (start == 0 and count % size == 0)
        at += count


def test_only_rows_that_follow_each_other_are_placed() -> None:
    places, cells = BatchPlaces(SIZE, 100), BatchCells()
    assert places.place(100, 50, cells) is None  # The layout is not known yet.
    places.learn(ROWS)
    assert places.place(150, 50, cells) is None  # The rows before were not placed.
    placed = [places.place(at, 50, cells) for at in range(300, 500, 50)]
    assert [rows and rows.start for rows in placed] == [0, 50, 100, 150]
    assert len({rows.batch.cell.number for rows in placed if rows is not None}) == 1
    assert places.place(550, 50, cells) is None
    assert places.place(700, SIZE, cells) is None  # A task that is a whole batch needs no place.


# Pipelines


def image_and_label(x: Any) -> Any:
    return {"image": np.full((64, 64), x, np.float32), "label": x}


def batches_of(count: int, size: int, function: Any = image_and_label) -> Dataset:
    return Dataset.range(count).map(function, num_parallel_calls=2).batch(size)


def run(dataset: Dataset, executor: Any) -> Any:
    return iter(dataset.with_options(Options(executor=executor)))


@pytest.fixture
def short_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task has one element, so that a batch has many tasks."""
    monkeypatch.setattr(calling, "_TASK_SECONDS", 0.0)


def is_in_place(batch: Any) -> bool:
    return isinstance(find_base(batch), ReusedMemory)


@pytest.mark.usefixtures("short_tasks")
@pytest.mark.parametrize("count", [256, 300])
def test_batches_are_those_of_threads(count: int) -> None:
    dataset = batches_of(count, 64)
    found = list(run(dataset, "processes"))
    expected = list(run(dataset, "threads"))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype
            assert np.array_equal(mine[name], theirs[name])
            assert mine[name].flags.writeable
    # The first batches are joined by copying: how rows lie in memory is learned from them.
    assert is_in_place(found[-1]["image"])
    assert not is_in_place(expected[-1]["image"])


@pytest.mark.usefixtures("short_tasks")
def test_batches_that_are_kept_and_changed_do_not_change_later() -> None:
    kept = []
    for batch in run(batches_of(1000, 50), "processes"):
        batch["image"] += 1
        kept.append(batch["image"])
    assert [int(rows[0, 0, 0]) for rows in kept] == list(range(1, 1001, 50))
    assert all(
        (rows[:, 3, 3] == np.arange(at + 1, at + 51)).all()
        for at, rows in zip(range(0, 1000, 50), kept, strict=True)
    )


@pytest.mark.usefixtures("short_tasks")
def test_a_state_within_the_data_continues_with_the_same_batches() -> None:
    dataset = batches_of(400, 64).with_options(Options(executor="processes"))
    iterator = iter(dataset)
    first = [int(next(iterator)["label"][0]) for _ in range(3)]
    state = iterator.state_dict()
    rest = [batch["label"].tolist() for batch in iterator]
    again = iter(dataset)
    again.load_state_dict(state)
    assert [batch["label"].tolist() for batch in again] == rest
    assert (first, rest[0][0]) == ([0, 64, 128], 192)


@pytest.mark.usefixtures("short_tasks")
@pytest.mark.parametrize("odd", [150, 192])
def test_failures_and_crashes_cost_their_batch_and_no_other(odd: int) -> None:
    def fail(x: Any) -> Any:
        if x == odd:
            os.kill(os.getpid(), signal.SIGKILL)
        if x == odd + 64:
            raise ValueError("odd")
        return np.full((64, 64), x, np.float32)

    found = list(run(batches_of(512, 64, fail).ignore_errors(), "processes"))
    lost = {odd // 64, odd // 64 + 1}
    assert [int(b[0, 0, 0]) for b in found] == [64 * i for i in range(8) if i not in lost]
    assert all((b[:, 1, 1] - b[0, 1, 1] == np.arange(64)).all() for b in found)


@pytest.mark.usefixtures("short_tasks")
def test_rows_that_change_their_shape_are_refused_as_in_threads() -> None:
    def change(x: Any) -> Any:
        return np.full((64, 64) if x < 200 else (64, 32), x, np.float32)

    texts = []
    for executor in ("threads", "processes"):
        iterator = run(batches_of(256, 64, change), executor)
        assert [int(next(iterator)[0, 0, 0]) for _ in range(3)] == [0, 64, 128]
        with pytest.raises(ValueError, match="shape") as raised:
            next(iterator)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("short_tasks")
def test_an_iterator_that_is_dropped_does_not_disturb_the_next_one() -> None:
    for size in (40, 64, 50):
        iterator = run(batches_of(2000, size), "processes")
        for _ in range(4):
            next(iterator)
        del iterator
    found = [batch["label"] for batch in run(batches_of(640, 64), "processes")]
    assert np.concatenate(found).tolist() == list(range(640))


FEW_FILES = """
import resource
import numpy as np
from penstock.data import Dataset, Options
from penstock.engine import calling

calling._TASK_SECONDS = 0.0

def fill(x):
    if x == 100:  # From now on, this process has no room for another file.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return np.full((64, 64), x, np.float32)

dataset = Dataset.range(1280).map(fill, num_parallel_calls=2).batch(64)
rows = np.concatenate(list(dataset.with_options(Options(executor="processes"))))
print((rows[:, 1, 1] == np.arange(1280)).all())
"""


def test_processes_that_cannot_map_a_cell_send_their_rows() -> None:
    """In a program of its own: the processes of this one have enough files."""
    assert output_of(FEW_FILES) == "True\n"


FORKING = """
import os, signal

parent, cells = os.getpid(), []

def lend():  # Between the preparation of a fork and the fork, as another thread may do.
    if os.getpid() == parent:
        cells[0]._lock.acquire()

os.register_at_fork(before=lend, after_in_parent=lambda: cells[0]._lock.release())

from penstock.engine.processes.batch_memory import BatchCells

cells.append(BatchCells())
child = os.fork()
if child == 0:
    signal.alarm(60)
    if (grandchild := os.fork()) == 0:
        os._exit(0)
    os.waitpid(grandchild, 0)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_while_a_cell_is_lent_can_fork_again() -> None:
    assert output_of(FORKING) == "0\n"


def output_of(program: str) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout
