"""Large arrays of a plan reach workers without being copied for each of them."""

import contextlib
import os
import re
from pathlib import Path

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.data.experimental.service import distribute
from penstock.errors import FailedPreconditionError
from penstock.plan import array_references
from tests.integration.clusters import Cluster


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


def worker_memory():
    """Kilobytes of shared arrays, by their PSS, and of other memory, of each plan process."""
    found = []
    for process in filter(is_descendant, map(int, filter(str.isdigit, os.listdir("/proc")))):
        with contextlib.suppress(OSError):  # It has ended.
            maps = Path(f"/proc/{process}/smaps").read_text().split("VmFlags")
            shared = [part for part in maps if "memfd:penstock-array" in part]
            if shared:
                pages = sum(int(re.search(r"\nPss: *(\d+)", part)[1]) for part in shared)
                own = re.search(r"\nPss_Anon: *(\d+)", rollup_of(process))[1]
                found.append((pages, int(own)))
    return found


def rollup_of(process):
    return Path(f"/proc/{process}/smaps_rollup").read_text()


def is_descendant(process):
    with contextlib.suppress(OSError):  # It has ended.
        while process > 1:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            if process == os.getpid():
                return True
    return False


def test_local_workers_share_one_copy_of_an_array():
    rows = np.arange(64 << 17).reshape(-1, 1 << 13)  # 64 MB
    dataset = Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=1).batch(16).repeat()
    here, there = iter(dataset), iter(dataset.apply(distribute("distributed_epoch", "local://2")))
    read = 0
    while read < len(rows) // 16 or len(worker_memory()) < 2:
        np.testing.assert_array_equal(next(there), next(here))
        read += 1
    memory = worker_memory()
    assert sum(pages for pages, _ in memory) <= 1.2 * (64 << 10)
    assert max(own for _, own in memory) < 64 << 10
