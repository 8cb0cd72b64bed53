"""Formats that packages of their own read: ArrayRecord and Lance."""

import sys
import threading

import lance
import numpy as np
import pyarrow as pa
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from penstock.data import Dataset
from penstock.engine.formats import array_records
from penstock.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
)
from penstock.io import write_file
from penstock.plan.codec import decode, encode


def write_records(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:4")
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


RECORDS = [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("array_record", Dataset.from_array_record, "array_record"),
        ("lance", Dataset.from_lance, "lance"),
    ],
)
def test_a_missing_package_is_named(module, call, extra, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(
        UnavailableError, match=rf'needs {module}; .*pip install "penstock\[{extra}'
    ):
        call(tmp_path / "x")


def test_records_of_several_files_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(array_records, "_BLOCK_ROWS", 7)
    monkeypatch.setattr("penstock.engine.table_access._OPEN_FILES", 2)
    for number in range(4):
        write_records(tmp_path / f"{number}.array_record", RECORDS)
    dataset = Dataset.from_array_record(str(tmp_path / "*.array_record"))
    assert list(dataset) == RECORDS * 4
    assert sorted(dataset.shuffle(200, seed=1)) == sorted(RECORDS * 4)
    assert sorted(dataset.shuffle(blocks=3, seed=1)) == sorted(RECORDS * 4)


def test_several_threads_read_one_file(tmp_path):
    dataset = Dataset.from_array_record(write_records(tmp_path / "x", RECORDS))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(sorted(dataset.shuffle(50)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [sorted(RECORDS)] * 4


def test_a_file_without_records(tmp_path):
    assert list(Dataset.from_array_record(write_records(tmp_path / "x", []))) == []


def test_array_records_are_local(tmp_path):
    url = f"memory://array_records{tmp_path}/x"
    write_file(url, b"data")
    with pytest.raises(UnimplementedError, match="reads local files only, got 'memory://array_r"):
        Dataset.from_array_record(url)


def test_a_damaged_record_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "x"
    write_records(path, [bytes([number]) * 1000 for number in np.arange(100)])
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    dataset = Dataset.from_array_record(path)
    with pytest.raises(DataLossError, match=r"x' is damaged: records 4 to 5 cannot be read"):
        list(dataset.batch(2))
    assert dataset[99] == bytes([99]) * 1000


@pytest.fixture
def table(tmp_path):
    path = str(tmp_path / "x.lance")
    lance.write_dataset(pa.table({"x": np.arange(20), "y": [None, *["a"] * 19]}), path)
    return path


def test_a_version_stays_what_it_was(table):
    first = Dataset.from_lance(table, columns=["x"])
    lance.dataset(table).delete("x < 5")
    lance.write_dataset(pa.table({"x": [100], "y": ["b"]}), table, mode="append")
    assert [int(row["x"]) for row in first] == list(range(20))
    assert [int(row["x"]) for row in Dataset(decode(encode(first.__plan__)))] == list(range(20))
    latest = Dataset.from_lance(table, columns=["x"])
    assert [int(row["x"]) for row in latest] == [*range(5, 20), 100]
    assert [int(row["x"]) for row in Dataset.from_lance(table, columns=["x"], version=2)] == list(
        range(5, 20)
    )
    assert len(latest.__plan__.files[0].blocks) == 2
    assert int(
        latest.shuffle(blocks=1, seed=1).reduce(np.int64(0), lambda a, row: a + row["x"])
    ) == (sum(range(5, 20)) + 100)


def test_missing_values_and_columns(table):
    with pytest.raises(InvalidArgumentError, match="x.lance', row 0: column 'y' has no value"):
        list(Dataset.from_lance(table))
    assert [row["y"] for row in Dataset.from_lance(table, fill={"y": ""}).take(2)] == [b"", b"a"]
    with pytest.raises(InvalidArgumentError, match="has no column 'z'"):
        Dataset.from_lance(table, columns=["z"])


def test_datasets_that_are_not_there(table, tmp_path):
    with pytest.raises(NotFoundError, match=r"no Lance dataset at '.*missing'"):
        Dataset.from_lance(tmp_path / "missing")
    with pytest.raises(NotFoundError, match=r"no Lance dataset at '.*x.lance' at version 7"):
        Dataset.from_lance(table, version=7)
    with pytest.raises(InvalidArgumentError, match="version must be at least 1, got 0"):
        Dataset.from_lance(table, version=0)


def test_fragments_that_cannot_be_read_are_left_out(tmp_path, caplog):
    path = str(tmp_path / "x.lance")
    lance.write_dataset(pa.table({"x": np.arange(30)}), path, max_rows_per_file=10)
    found = Dataset.from_lance(path, on_error="skip")
    assert [int(row["x"]) for row in found] == list(range(30))
    data = lance.dataset(path).get_fragments()[1].data_files()[0].path
    with open(f"{path}/data/{data}", "r+b") as file:
        file.truncate(10)
    found = Dataset.from_lance(path, on_error="skip")
    assert [int(row["x"]) for row in found] == [*range(10), *range(20, 30)]
    assert "Dataset.from_lance: left out: " in caplog.text
    assert "could not be read and were left out" in caplog.text
    with pytest.raises(DataLossError, match="is damaged: rows"):
        list(Dataset.from_lance(path))
    with pytest.raises(InvalidArgumentError, match="from_lance: on_error must be"):
        Dataset.from_lance(path, on_error="maybe")


def test_an_overwritten_dataset_keeps_its_version_and_a_damaged_one_is_an_error(table):
    dataset = Dataset.from_lance(table, columns=["x"])
    plan = encode(dataset.__plan__)
    lance.write_dataset(pa.table({"x": [1]}), table, mode="overwrite")
    assert len(list(dataset)) == 20
    data = next(iter(lance.dataset(table, version=1).get_fragments())).data_files()[0].path
    with open(f"{table}/data/{data}", "r+b") as file:
        file.truncate(10)
    with pytest.raises(DataLossError, match=r"x.lance' is damaged: rows 0 to \d+ cannot be read"):
        list(Dataset(decode(plan)))
