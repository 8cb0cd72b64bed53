"""Shared memory: reused when no array shows it, without ever blocking; freed at the end."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from penstock.engine.processes.chunk_memory import MappedSlabs, Slab, SlabPool, slab_limit
from penstock.errors import DataLossError
from penstock.service.protocol.data_messages import Fetch, Release, Rows
from tests.service.host.wire_peers import (
    open_link,
    rows_in,
    rows_of,
)


def test_segments_are_used_again_once_no_array_shows_them() -> None:
    with open_link("shm") as (client, worker):
        first, segment = rows_in(worker, client, 100_000, 1)
        part = first[0, 50_000:]
        del first
        other, other_segment = rows_in(worker, client, 100_000, 2)
        assert other_segment != segment
        assert (part == 1).all()
        del part
        gc.collect()
        client.send(Fetch(1, 1, 0, 1))
        assert worker.receive()[0] == Release((segment,))
        assert rows_in(worker, client, 100_000, 3)[1] == segment
        assert worker.pending()
        assert worker.receive()[0] == Fetch(1, 1, 0, 1)
        assert (other == 2).all()


def test_a_worker_can_send_to_a_client_that_keeps_all_memory() -> None:
    with open_link("shm") as (client, worker):
        kept = [rows_in(worker, client, 30_000_000, fill) for fill in range(12)]
        segments = [segment for _, segment in kept]
        assert segments[0] >= 0
        assert segments[-1] == -1
        assert all((array == fill).all() for fill, (array, _) in enumerate(kept))


def test_releases_are_reported_without_a_fetch() -> None:
    with open_link("shm") as (client, worker):
        used = set()
        for fill in range(200):
            worker.send_rows(1, fill, rows_of(100_000, fill))
            message, columns = client.receive()
            assert isinstance(message, Rows)
            used.add(message.segment)
            assert columns is not None
            assert (columns[0] == fill).all()  # type: ignore[attr-defined]
        assert len(used) < 50


def test_arrays_outlive_their_connection() -> None:
    with open_link("shm") as (client, worker):
        array, segment = rows_in(worker, client, 100_000, 7)
        assert segment >= 0
    gc.collect()
    assert (array == 7).all()


def mapped_slabs() -> int:
    with open("/proc/self/maps", encoding="ascii") as file:
        return sum("memfd:penstock" in line for line in file)


def test_nothing_of_shared_memory_is_left() -> None:
    gc.collect()
    maps, files = mapped_slabs(), len(os.listdir("/proc/self/fd"))
    with open_link("shm") as (client, worker):
        array, _ = rows_in(worker, client, 100_000, 7)
        assert mapped_slabs() > maps
    del array, client, worker
    gc.collect()
    assert mapped_slabs() <= maps
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_dropped_connection_is_collected() -> None:
    with open_link("shm") as (client, worker):
        kept, _ = rows_in(worker, client, 100_000, 1)
        alive = weakref.ref(client)
    del client, worker
    gc.collect()
    assert alive() is None
    assert kept[0, 0] == 1


# Each side without the other


def test_the_cell_that_came_back_last_is_given_out_first() -> None:
    pool = SlabPool()
    assert pool.reuse(100_000) is None
    cells = [pool.extend(100_000) for _ in range(3)]
    first, second, third = [cell.segment for cell in cells if cell is not None]
    pool.release([second, first])
    assert [lend_cell(pool, 100_000), lend_cell(pool, 90_000)] == [first, second]
    assert pool.reuse(100_000) is None
    pool.release([third])
    assert pool.reuse(200_000) is None, "too small"
    assert pool.reuse(10_000) is None, "a waste"
    pool.close()


def lend_cell(pool: SlabPool, size: int) -> int:
    cell = pool.reuse(size)
    assert cell is not None
    return cell.segment


def test_slabs_of_which_nothing_is_lent_make_room() -> None:
    pool = SlabPool(limit=100 << 20)
    small = pool.extend(100_000)
    large = pool.extend(60 << 20)
    assert small is not None
    assert large is not None
    assert pool.extend(30 << 20) is None
    pool.release([small.segment])
    other = pool.extend(30 << 20)
    assert other is not None
    assert other.slab is not None
    assert other.slab.dropped == (0,)
    assert pool.extend(200 << 20) is None, "larger than all"
    pool.close()


def test_retired_cells_are_never_lent_again_and_their_slabs_make_room() -> None:
    pool = SlabPool(limit=100 << 20)
    cells = [pool.extend(100_000) for _ in range(2)]
    retired, released = [cell.segment for cell in cells if cell is not None]
    pool.retire([retired])
    assert pool.reuse(100_000) is None
    assert pool.extend(90 << 20) is None, "one cell is still lent"
    pool.release([released])
    assert lend_cell(pool, 100_000) == released
    pool.release([released])
    large = pool.extend(90 << 20)
    assert large is not None
    assert large.slab is not None
    assert large.slab.dropped == (0,)
    with pytest.raises(DataLossError, match="is not lent"):
        pool.retire([retired])
    pool.close()


FORKED = """
import os
import numpy as np
from penstock.data import Dataset, Options
from penstock.data.experimental.service import distribute
from penstock.engine import calling

calling._TASK_SECONDS = {seconds}

def make(x):
    return np.full((64, 64), x, np.int64)

def main():
    dataset = {dataset}
    iterator = iter(dataset)
    batches = [next(iterator) for _ in range(20)]
    expected = [batch.copy() for batch in batches]
    go, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go, 1)
        os._exit(0 if np.array_equal(batches, expected) else 1)
    batches.clear()
    rest = [int(rows[0, 0, 0]) for rows in iterator]
    assert rest == list(range(20 * {size}, 4000, {size})), rest[:5]
    os.write(done, b"x")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

if __name__ == "__main__":
    main()
"""
PROCESSES = (
    "Dataset.range(4000).map(make, num_parallel_calls=2).batch({size})"
    ".with_options(Options(executor='processes'))"
)
SERVICE = (
    "Dataset.range(4000).map(make).batch({size})"
    ".apply(distribute('distributed_epoch', 'local://2'))"
)


@pytest.mark.parametrize(
    ("dataset", "size", "seconds"),
    [(PROCESSES, 64, 60.0), (PROCESSES, 64, 0.0), (SERVICE, 8, 0.0)],
    ids=["large tasks", "tasks of one element", "workers"],
)
def test_a_forked_process_keeps_the_batches_that_it_has(
    dataset: str, size: int, seconds: float
) -> None:
    program = FORKED.format(dataset=dataset.format(size=size), size=size, seconds=seconds)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout == "0\n", run.stderr


def test_a_system_that_gives_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    files = len(os.listdir("/proc/self/fd"))

    def fail(*_: object) -> None:
        raise OSError("none left")

    for name in ("memfd_create", "ftruncate"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            assert SlabPool().extend(100_000) is None
    assert len(os.listdir("/proc/self/fd")) <= files


def test_what_is_not_lent_does_not_come_back() -> None:
    with pytest.raises(DataLossError, match="segment 5 is not lent"):
        SlabPool().release([5])


@pytest.mark.parametrize(
    ("slab", "message"),
    [
        (Slab(0, 1 << 16, 512), "is not a slab"),
        (Slab(1, 0, 512), "is not a slab"),
        (Slab(1, 1 << 16, 0), "is not a slab"),
        (Slab(1, 1 << 16, 1 << 20), "is not a slab"),
        (Slab(1, 1 << 40, 1), "bytes are too many"),
        (Slab(1, 1 << 16, 100), "it does not have 6553600 bytes"),
    ],
)
def test_slabs_that_cannot_be(slab: Slab, message: str) -> None:
    pool, mapped = SlabPool(), MappedSlabs()
    cell = pool.extend(1 << 16)
    assert cell is not None
    assert cell.slab == Slab(0, 1 << 16, 512)
    mapped.map(cell.slab, os.dup(cell.descriptor))
    with pytest.raises(DataLossError, match=message):
        mapped.map(slab, os.dup(cell.descriptor))
    pool.close()


def test_a_dropped_slab_is_forgotten() -> None:
    pool, mapped = SlabPool(), MappedSlabs()
    cell = pool.extend(1 << 16)
    assert cell is not None
    assert cell.slab is not None
    mapped.map(cell.slab, os.dup(cell.descriptor))
    kept = mapped.take(cell.segment, 100)
    mapped.map(Slab(1, 1 << 16, 512, (0,)), os.dup(cell.descriptor))
    with pytest.raises(DataLossError, match="no segment 0 of 100 bytes"):
        mapped.take(0, 100)
    assert bytes(kept) == bytes(100)
    pool.close()


def test_a_connection_shares_more_memory_on_a_machine_that_has_more() -> None:
    assert slab_limit(4 << 30) == slab_limit(16 << 30) == 256 << 20
    assert slab_limit(128 << 30) == 2 << 30
    batch = 77 << 20
    pool = SlabPool(limit=slab_limit(128 << 30))
    assert all(pool.extend(batch) is not None for _ in range(5)), "pages are taken when written to"
    pool.close()
