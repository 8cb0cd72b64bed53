"""Opening many tables: what all of them share is parsed once, and no rows are read."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from penstock.data.dataset import Dataset
from penstock.engine.formats import arrow_columns
from penstock.errors import DataLossError, InvalidArgumentError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls that take most of the time of opening a table."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def count_call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return call(*args, **options)

        monkeypatch.setattr(owner, name, count_call)

    count(ast, "literal_eval")
    count(pa.ipc, "open_file")
    count(pa, "OSFile")
    count(arrow_columns, "_find_specs")
    return counts


def test_arrow_files_of_one_schema(calls: Counter[str], tmp_path: Path) -> None:
    for number in range(5):
        feather.write_feather(pa.table({"x": [number], "y": ["a"]}), str(tmp_path / f"{number}"))
    rows = Dataset.from_arrow(f"{tmp_path}/*")
    assert calls["open_file"] == 0
    assert calls["_find_specs"] <= 1
    assert [int(row["x"]) for row in rows] == [0, 1, 2, 3, 4]
    feather.write_feather(pa.table({"x": ["a"], "y": ["a"]}), str(tmp_path / "9"))
    with pytest.raises(InvalidArgumentError, match="9"):
        Dataset.from_arrow(f"{tmp_path}/*")


def test_parquet_files_of_one_schema(calls: Counter[str], tmp_path: Path) -> None:
    for number in range(5):
        parquet.write_table(pa.table({"x": [number]}), tmp_path / f"{number}")
    rows = Dataset.from_parquet(f"{tmp_path}/*")
    assert len(rows) == 5
    assert calls["_find_specs"] <= 1
    assert calls["OSFile"] == 0
    assert rows[3]["x"] == 3
    assert calls["OSFile"] == 1, "only the file that has the row is opened to read rows"


def test_parquet_footers_of_any_length(tmp_path: Path) -> None:
    for count in (1, 20, 300):
        path = tmp_path / f"{count}.parquet"
        parquet.write_table(pa.table({f"column-{n}": [n, n] for n in range(count)}), path)
        rows = Dataset.from_parquet(path)
        assert len(rows) == 2
        assert rows[1] == {f"column-{n}": n for n in range(count)}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("place", ["", "memory://checksums"])
def test_parquet_pages_are_compared_with_their_checksums(
    place: str, version: str, tmp_path: Path
) -> None:
    sink = pa.BufferOutputStream()
    parquet.write_table(
        pa.table({"x": np.arange(100)}),
        sink,
        write_page_checksum=True,
        data_page_version=version,
        compression="none",
        use_dictionary=False,
    )
    content = bytearray(sink.getvalue().to_pybytes())
    content[content.find(np.arange(40, 44).tobytes())] ^= 255
    path = f"{place}{tmp_path}/x.parquet"
    with fsspec.open(path, "wb") as file:
        file.write(content)
    with pytest.raises(DataLossError, match="row group 0 cannot be read .*CRC"):
        list(Dataset.from_parquet(path))


def test_numpy_files_of_one_header(calls: Counter[str], tmp_path: Path) -> None:
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full(7, number, np.int16))
    rows = Dataset.from_numpy(f"{tmp_path}/*")
    assert calls["literal_eval"] <= 1
    assert [int(row) for row in rows] == [number for number in range(5) for _ in range(7)]
