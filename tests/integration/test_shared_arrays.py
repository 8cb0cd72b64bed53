"""Large arrays of a plan reach workers without being copied for each of them."""

import os

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
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
