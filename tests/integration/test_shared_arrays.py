"""Large arrays of a plan reach workers without being copied for each of them."""

import collections
import contextlib
import functools
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.data.experimental.service import distribute
from penstock.engine.processes import array_offers
from penstock.errors import FailedPreconditionError
from penstock.plan import array_references
from penstock.service.host.plan_store import ArrayStore
from tests.integration.clusters import Cluster, until
from tests.integration.stage import open_stage


@pytest.fixture
def large_from_4_kb(monkeypatch):
    monkeypatch.setattr(array_references, "LARGE", 4096)


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(4000).reshape(1000, 4))
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def test_workers_map_the_file_of_the_client(rows, tmp_path, large_from_4_kb):
    with Cluster(1, work_dir=str(tmp_path / "journal")) as cluster:
        dataset = Dataset.from_tensor_slices(rows).shuffle(1000, seed=1).batch(8)
        read = list(dataset.apply(cluster.distribute()))
        np.testing.assert_array_equal(read, list(dataset))
        stored = os.scandir(tmp_path / "journal" / "plans")
        assert sum(plan.stat().st_size for plan in stored) < rows.nbytes / 4


def test_a_worker_without_the_file_says_so(rows, tmp_path, large_from_4_kb):
    with Cluster(1) as cluster:
        dataset_id = service.register_dataset(cluster.target, Dataset.from_tensor_slices(rows))
        os.rename(tmp_path / "rows.npy", tmp_path / "elsewhere.npy")
        read = service.from_dataset_id("distributed_epoch", cluster.target, dataset_id)
        with pytest.raises(FailedPreconditionError, match=r"rows\.npy'.*cannot be read here"):
            next(iter(read))


@pytest.fixture
def array():
    """Six parts, each sent in a message of its own.

    The values differ in every test process: a holder of an equal array would supply them.
    """
    return np.random.default_rng(os.getpid()).integers(0, 1 << 60, (3072, 1024))


@pytest.fixture
def parts(monkeypatch):
    """The parts of arrays that clients send to the dispatcher."""
    sent = []
    put = ArrayStore.put

    def noting(store, name, total, offset, data, everything):
        if data:
            sent.append((name, offset))
        return put(store, name, total, offset, data, everything)

    monkeypatch.setattr(ArrayStore, "put", noting)
    return sent


@pytest.fixture
def no_holder(monkeypatch):
    """Makes the client and the workers seem to be on different machines."""

    def fail(*_):
        raise OSError("not on this machine")

    monkeypatch.setattr(array_offers, "ArrayHolder", fail)


def test_workers_of_a_service_share_the_memory_of_a_client_on_their_machine(array, parts):
    with Cluster(2) as cluster:
        dataset = Dataset.from_tensor_slices(array).shuffle(100, seed=1).batch(16)
        distributed = dataset.apply(cluster.distribute())
        np.testing.assert_array_equal(list(distributed), list(dataset))
        array[7] = 1
        again = np.concatenate(list(distributed))
        assert sorted(again[:, 0]) == sorted(array[:, 0])
    assert parts == []


def test_the_workers_of_another_machine_get_an_array_once(array, parts, no_holder):
    with Cluster(2) as cluster:
        dataset = Dataset.from_tensor_slices(array).shuffle(3072, seed=3).batch(16)
        read = list(dataset.apply(cluster.distribute()))
        np.testing.assert_array_equal(read, list(dataset))
    assert sorted(offset >> 22 for _, offset in parts) == list(range(6))


@pytest.mark.parametrize("functions", ["by_value", "by_reference"])
def test_arrays_of_functions_travel_too(array, parts, no_holder, functions):
    with Cluster(0, functions=functions) as cluster:
        cluster.workers.append(cluster.join(functions=functions, modules=["_operator"]))
        pick = functools.partial(operator.getitem, array)
        dataset = Dataset.range(5).map(pick).apply(cluster.distribute())
        np.testing.assert_array_equal(list(dataset), array[:5])
    assert len(parts) == 6


FIRST_READER = """
import sys
import numpy as np
import penstock
rows = np.random.default_rng(int(sys.argv[2])).integers(0, 1 << 60, (3072, 1024))
service = penstock.data.experimental.service
dataset = penstock.data.Dataset.from_tensor_slices(rows).batch(64)
job = service.distribute("distributed_epoch", sys.argv[1], job_name="a", max_outstanding_requests=1)
iterator = iter(dataset.apply(job))
print(*next(iterator)[:, 0], flush=True)
sys.stdin.readline()
"""


def test_a_reader_of_a_job_replaces_the_killed_one_whose_memory_was_shared(array, parts):
    with Cluster(2) as cluster:
        command = [sys.executable, "-c", FIRST_READER, cluster.target, str(os.getpid())]
        killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert len(killed.stdout.readline().split()) == 64
        job = cluster.distribute(job_name="a", max_outstanding_requests=1)
        iterator = iter(Dataset.from_tensor_slices(array).batch(64).apply(job))
        batches = [next(iterator)]
        killed.kill()
        killed.communicate()
        while not parts:
            batches.append(next(iterator))
        batches.append(next(iterator))
    rows = {row.tobytes() for row in array}
    read = [row.tobytes() for batch in batches for row in batch]
    assert len(set(read)) == len(read) == 64 * len(batches)
    assert rows.issuperset(read)


def test_a_dispatcher_that_restarts_gets_the_parts_again(array, parts, no_holder, tmp_path):
    with open_stage(tmp_path) as stage:
        dispatcher = stage.dispatcher(work_dir=str(tmp_path / "journal"))
        stage.worker()
        dataset = Dataset.from_tensor_slices(array)
        iterator = iter(dataset.apply(stage.distribute()))
        read = [next(iterator)]
        dispatcher.stop()
        stage.dispatcher(work_dir=str(tmp_path / "journal"))
        read += list(iterator)
    np.testing.assert_array_equal(read, array)


def test_a_registered_dataset_outlives_its_client_and_a_restart(array, parts, tmp_path):
    work_dir = str(tmp_path / "journal")
    with open_stage(tmp_path) as stage:
        dispatcher = stage.dispatcher(work_dir=work_dir)
        dataset_id = service.register_dataset(stage.url, Dataset.from_tensor_slices(array))
        assert len(parts) == 6
        assert service.register_dataset(stage.url, Dataset.from_tensor_slices(array)) != dataset_id
        dispatcher.stop()
        stage.dispatcher(work_dir=work_dir)
        stage.worker()
        read = service.from_dataset_id("distributed_epoch", stage.url, dataset_id)
        np.testing.assert_array_equal(list(read.batch(64)), array.reshape(-1, 64, 1024))
    assert len(parts) == 6


def find_holders():
    """By the inode of each shared array: the PSS of its pages and the other memory, in kilobytes,
    of each process of this program's workers that maps it."""
    holders = collections.defaultdict(list)
    for process in filter(is_descendant, map(int, filter(str.isdigit, os.listdir("/proc")))):
        with contextlib.suppress(OSError):  # It has ended.
            maps = Path(f"/proc/{process}/smaps").read_text().split("VmFlags")
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            own = int(re.search(r"\nPss_Anon: *(\d+)", rollup)[1])
            for part in maps:
                if found := re.search(r"(\d+) +/memfd:penstock-array(?s:.*?)\nPss: *(\d+)", part):
                    holders[found[1]].append((int(found[2]), own))
    return holders


def is_descendant(process):
    with contextlib.suppress(OSError):  # It has ended.
        while process > 1:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            if process == os.getpid():
                return True
    return False


@pytest.mark.parametrize("kind", ["array", "strings"])
def test_local_workers_share_one_copy(kind):
    others = set(find_holders())  # Those of services that earlier tests have left are still ending.
    if kind == "array":
        rows = np.arange(64 << 17).reshape(-1, 1 << 13)  # 64 MB
    else:
        rows = [b"%07d" % i * 1000 for i in range(9000)]  # 63 MB
    dataset = Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=1).batch(16).repeat()
    here, there = iter(dataset), iter(dataset.apply(distribute("distributed_epoch", "local://2")))

    def read():
        """Compares some batches."""
        for _ in range(50):
            assert next(there).tolist() == next(here).tolist()

    def find_both():
        """Reads, and looks at the workers. They touch further pages while they are looked at, so a
        single sum may be too large."""
        read()
        ours = [held for array, held in find_holders().items() if array not in others]
        both = [held for held in ours if len(held) == 2]
        shared = sum(pages for held in both for pages, _ in held)
        return both if 50 << 10 <= shared <= 1.2 * (64 << 10) else None

    for _ in range(len(rows) // 800):  # The first epoch touches all pages.
        read()
    assert max(own for held in until(find_both) for _, own in held) < 64 << 10


def test_a_table_in_memory_travels_once_and_is_read_by_blocks() -> None:
    count = 200_000
    table = pyarrow.table({"x": np.arange(count), "s": [f"row {i}" for i in range(count)]})
    batches = pyarrow.Table.from_batches(table.to_batches(max_chunksize=30_000))
    dataset = Dataset.from_arrow(batches).shuffle(count, seed=3).batch(500)
    served = dataset.apply(distribute("distributed_epoch", "local://2"))
    for here, there in zip(dataset, served, strict=True):
        assert np.array_equal(here["x"], there["x"])
        assert np.array_equal(here["s"], there["s"])
