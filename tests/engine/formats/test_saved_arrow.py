"""What `save`, `snapshot` and `cache` write: Arrow IPC files that other libraries open."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
from pyarrow import dataset as arrow_dataset
from pyarrow import feather

from penstock.data.dataset import Dataset
from penstock.element.ragged import Ragged
from penstock.engine.formats import chunks

Save = Callable[[Dataset, Path], Any]


WRITERS: dict[str, tuple[Save, str]] = {
    "save": (lambda dataset, path: dataset.save(path), "*/*.shard/*.snapshot"),
    "snapshot": (lambda dataset, path: list(dataset.snapshot(path)), "*/*/*.shard/*.snapshot"),
    "cache": (lambda dataset, path: list(dataset.cache(f"{path}/c")), "c.data-00000-of-00001"),
}


def rows() -> Dataset:
    return Dataset.from_tensor_slices(
        {
            "image": np.arange(24, dtype=np.uint8).reshape(4, 3, 2),
            "text": [b"", b"a", b"bb", b"\xff"],
            "ids": Ragged.from_rows([[1], [], [2, 3], [4]]),
        }
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_writes_files_that_others_open(writer: str, tmp_path: Path) -> None:
    save, pattern = WRITERS[writer]
    save(rows(), tmp_path)
    files = sorted(tmp_path.glob(pattern))
    expected = {
        "image": [row.tolist() for row in np.arange(24).reshape(4, 6)],
        "text": [b"", b"a", b"bb", b"\xff"],
        "ids": [[1], [], [2, 3], [4]],
    }
    assert arrow_dataset.dataset(files, format="ipc").to_table().to_pydict() == expected
    tables = [feather.read_table(str(file)) for file in files]
    assert pa.concat_tables(tables).to_pydict() == expected
    assert polars.read_ipc(files).to_dict(as_series=False) == expected
    found = list(Dataset.from_arrow(files))
    assert [row["image"].tolist() for row in found] == np.arange(24).reshape(4, 3, 2).tolist()
    assert [row["ids"].tolist() for row in found] == expected["ids"]
    assert [row["text"] for row in found] == expected["text"]


def test_arrays_of_different_shapes_are_read_as_tables(tmp_path: Path) -> None:
    shapes = [(2, 3), (0, 1), (1, 2)]
    dataset = Dataset.range(3).map(lambda i: {"x": np.ones(shapes[i]) * i})
    dataset.save(tmp_path)
    found = Dataset.from_arrow(f"{tmp_path}/*/*.shard/*.snapshot")
    values = [row["x"] for row in found]
    if int(pa.__version__.partition(".")[0]) < 24:  # It does not know the type.
        values = [value["data"].reshape(value["shape"]) for value in values]
    else:
        assert found.element_spec == dataset.element_spec
        assert found[2]["x"].tolist() == [[2.0, 2.0]]
    assert [value.tolist() for value in values] == [row["x"].tolist() for row in dataset]


def test_batches_with_a_smaller_last_one_are_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 64)
    batches = rows().batch(3)
    batches.save(tmp_path / "saved")
    list(batches.snapshot(str(tmp_path / "snapshot")))
    list(batches.cache(f"{tmp_path}/cache"))
    names = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert [name for name in names if name.endswith(".1")] == []
    found = list(Dataset.load(tmp_path / "saved"))
    assert [len(batch["text"]) for batch in found] == [3, 1]
    assert found[0]["ids"].to_list() == [[1], [], [2, 3]]


def test_a_cache_of_changing_shapes_that_nothing_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 64)
    dataset = Dataset.range(7).map(lambda i: np.full((9,) * (1 + int(i) // 3), i))
    cached = dataset.cache(f"{tmp_path}/c")
    expected = [element.tolist() for element in dataset]
    for _ in range(2):
        assert [element.tolist() for element in cached] == expected
    assert [element.tolist() for element in cached.skip(4)] == expected[4:]
    files = sorted(tmp_path.glob("c.data*"))
    assert [file.name for file in files] == [
        "c.data-00000-of-00001",
        "c.data-00000-of-00001.1",
        "c.data-00000-of-00001.2",
    ]
    assert sum(pa.ipc.open_file(file).read_all().num_rows for file in files) == 7


def test_saving_and_loading_need_no_pyarrow(tmp_path: Path) -> None:
    program = f"""
import sys
from penstock.data import Dataset
Dataset.range(3).map(lambda x: {{"a": x, "b": b"x"}}).save({str(tmp_path)!r})
assert [int(x["a"]) for x in Dataset.load({str(tmp_path)!r})] == [0, 1, 2]
assert "pyarrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


KILLED = """
import os, signal, sys
from penstock.data import Dataset
from penstock.engine.formats import chunks

chunks.BLOCK_ROWS = 10

def element(number):
    if number == 35:
        os.kill(os.getpid(), signal.SIGKILL)
    return number

dataset = Dataset.range(100).map(element)
if sys.argv[1] == "cache":
    list(dataset.cache(sys.argv[2] + "/c"))
else:
    dataset.save(sys.argv[2])
"""


@pytest.mark.parametrize("method", ["cache", "save"])
def test_a_killed_writer_leaves_no_file_that_opens(method: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, method, str(tmp_path)], check=False)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    left = [file for file in files if file.read_bytes().startswith(b"ARROW1")]
    assert len(left) == 1
    for file in left:
        with pytest.raises(pa.ArrowInvalid, match="Not an Arrow file"):
            pa.ipc.open_file(file)
    whole = Dataset.range(100).cache(f"{tmp_path}/c")
    assert [int(x) for x in whole] == list(range(100))
