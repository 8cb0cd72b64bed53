"""Datasets that the workers of a service write, and `Dataset.load` reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from pyarrow import dataset as arrow_dataset

from penstock.data import Dataset
from penstock.data.experimental import distributed_save, service
from penstock.data.experimental.service import saving
from penstock.errors import AbortedError, AlreadyExistsError, InvalidArgumentError, UnknownError


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with service.DispatchServer() as dispatcher:
        config = service.WorkerConfig(dispatcher.target.removeprefix("grpc://"))
        with service.WorkerServer(config), service.WorkerServer(config):
            yield dispatcher.target


def files_of(names: list[str], tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text("".join(f"{path.name}{i}\n" for i in range(3)))
    return [str(path) for path in paths]


IN_ORDER = {
    "random access": lambda: Dataset.range(1000).map(lambda x: x * x),
    "fewer than shards": lambda: Dataset.range(3),
    "none": lambda: Dataset.range(0),
    "batches": lambda: Dataset.range(7).batch(2),
    "structures": lambda: Dataset.from_tensor_slices(({"a": [1, 2]}, ["x", "y"])),
    "pieces": lambda: Dataset.range(1000).filter(lambda x: x % 3 == 0),
    "one piece": lambda: Dataset.range(9).scan(np.int64(0), lambda s, x: (s + x, s)),
    "shuffled": lambda: Dataset.range(50).shuffle(50, seed=3, reshuffle_each_iteration=False),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_is_loaded_is_what_was_saved(name: str, target: str, tmp_path: Path) -> None:
    dataset = IN_ORDER[name]()
    distributed_save(dataset, tmp_path / "saved", target)
    loaded = Dataset.load(tmp_path / "saved")
    assert loaded.element_spec == dataset.element_spec
    assert repr(list(loaded)) == repr(list(dataset))
    assert loaded.cardinality() == len(list(dataset))


def test_the_process_that_reads_a_shard_writes_its_file(target: str, tmp_path: Path) -> None:
    lines = Dataset.list_files(files_of(list("abcde"), tmp_path)).interleave(read_lines)
    distributed_save(lines, tmp_path / "saved", target)
    assert sorted(Dataset.load(tmp_path / "saved")) == sorted(lines)


def read_lines(name: bytes) -> Any:
    from penstock.data import TextLineDataset

    return TextLineDataset(name)


def test_other_libraries_open_the_files(target: str, tmp_path: Path) -> None:
    dataset = Dataset.range(100).filter(lambda x: x < 3).map(lambda x: {"x": x, "t": b"a" * x})
    distributed_save(dataset, tmp_path, target)
    files = sorted(tmp_path.glob("*/*.shard/*.snapshot"))
    expected = {"x": [0, 1, 2], "t": [b"", b"a", b"aa"]}
    assert arrow_dataset.dataset(files, format="ipc").to_table().to_pydict() == expected
    assert polars.read_ipc(files).to_dict(as_series=False) == expected


def test_it_may_be_compressed_and_by_another_service(tmp_path: Path) -> None:
    for kind in ("GZIP", "SNAPPY"):
        folder = tmp_path / kind
        service.distributed_save(Dataset.range(5), folder, "local://1", compression=kind)
        assert list(Dataset.load(folder)) == list(range(5))


def test_what_was_there_is_kept(target: str, tmp_path: Path) -> None:
    distributed_save(Dataset.range(5), tmp_path, target)
    with pytest.raises(AlreadyExistsError, match="has a saved dataset; save into another folder"):
        distributed_save(Dataset.range(3), tmp_path, target)
    assert list(Dataset.load(tmp_path)) == list(range(5))


def test_a_shard_may_be_written_twice(target: str, tmp_path: Path) -> None:
    """It is as if a worker was killed between writing a shard and its reply."""

    class Twice(saving.ShardWriter):
        def __call__(self, number: Any) -> np.int64:
            super().__call__(number)
            return super().__call__(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "ShardWriter", Twice)
        distributed_save(Dataset.range(9), tmp_path, target)
    assert list(Dataset.load(tmp_path)) == list(range(9))


def test_a_failure_leaves_nothing(target: str, tmp_path: Path) -> None:
    def fails(x: Any) -> Any:
        if x == 7:
            raise RuntimeError("seven")
        return x

    with pytest.raises(UnknownError, match="seven"):
        distributed_save(Dataset.range(9).map(fails), tmp_path, target)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_cannot_be_saved(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"distributed_save: the dataset has no end, .*"):
        distributed_save(Dataset.range(5).repeat(), tmp_path, target)
    with pytest.raises(InvalidArgumentError, match='compression must be "GZIP" or None, got'):
        distributed_save(Dataset.range(5), tmp_path, target, compression="ZIP")
    with pytest.raises(InvalidArgumentError, match="path must name a folder, got ''"):
        distributed_save(Dataset.range(5), "", target)
    monkeypatch.setattr(saving.RunWriter, "commit", lambda self: False)
    with pytest.raises(AbortedError, match="another process has begun to write"):
        distributed_save(Dataset.range(5), tmp_path, target)


def test_a_folder_has_one_writer(target: str, tmp_path: Path) -> None:
    writer = saving.RunWriter(str(tmp_path), None, None, "test")
    with pytest.raises(AlreadyExistsError, match="distributed_save: .* is being written by"):
        distributed_save(Dataset.range(5), tmp_path, target)
    writer.abandon()
