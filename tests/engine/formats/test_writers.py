"""Writers of tables and tar archives: what other libraries read, and interrupted writes."""

import datetime
import os
from decimal import Decimal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import Ragged
from penstock.data import Dataset
from penstock.engine.formats import new_files
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    OpError,
)
from penstock.io import ArrowWriter, ParquetWriter, TarWriter
from tests.engine.formats.table_samples import plain


def rows(count=7):
    return [
        {
            "id": n,
            "half": np.float16(n),
            "small": np.int8(-n),
            "even": n % 2 == 0,
            "text": f"text {n} é",
            "data": bytes([n, 255]),
            "ids": np.arange(n, dtype=np.int32),
            "words": ["a"] * (n % 3),
            "grid": np.full((2, 3), n, np.float32),
            "deep": Ragged.from_rows([[n], [n, n]]),
            "place": {"city": "Rome", "at": np.float64(n)},
        }
        for n in range(count)
    ]


def write(path, rows, **options):
    with ParquetWriter(path, **options) as writer:
        for row in rows:
            writer.write(row)
    return str(path)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_pyarrow_reads_what_was_written(compression, tmp_path):
    path = write(tmp_path / "x.parquet", rows(), row_group_size=3, compression=compression)
    assert plain(pa.parquet.read_table(path).to_pylist()) == plain(rows())
    metadata = pa.parquet.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(3)] == [3, 3, 1]
    wanted = "ZSTD" if compression == "zstd" else "UNCOMPRESSED"
    assert metadata.row_group(0).column(0).compression == wanted
    schema = pa.parquet.read_schema(path)
    assert schema.field("ids").type == pa.list_(pa.int32())
    assert schema.field("grid").type == pa.list_(pa.list_(pa.float32(), 3), 2)


def test_elements_come_back_as_they_were(tmp_path):
    path = write(tmp_path / "x.parquet", rows())
    found = list(Dataset.from_parquet(path))
    assert [plain(row) for row in found] == plain(rows())
    assert found[3]["grid"].dtype == np.float32
    again = write(tmp_path / "y.parquet", found)
    assert [plain(row) for row in Dataset.from_parquet(again)] == plain(rows())


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_an_arrow_file_has_the_same_rows(compression, tmp_path):
    path = tmp_path / "x.arrow"
    with ArrowWriter(path, batch_size=3, compression=compression) as writer:
        for row in rows():
            writer.write(row)
    with pa.ipc.open_file(path) as reader:
        assert [reader.get_batch(i).num_rows for i in range(3)] == [3, 3, 1]
        assert plain(reader.read_all().to_pylist()) == plain(rows())
    assert [plain(row) for row in Dataset.from_arrow(path)] == plain(rows())


def test_a_schema_decides_where_rows_do_not(tmp_path):
    schema = pa.schema([("x", pa.float32()), ("ids", pa.list_(pa.int16()))])
    path = write(tmp_path / "x.parquet", [{"x": 1, "ids": []}, {"ids": [], "x": 2}], schema=schema)
    assert pa.parquet.read_table(path).to_pylist() == [{"x": 1, "ids": []}, {"x": 2, "ids": []}]
    empty = write(tmp_path / "y.parquet", [], schema=schema)
    assert pa.parquet.read_table(empty).num_rows == 0
    assert len(Dataset.from_parquet(empty)) == 0


def test_missing_values_are_nulls(tmp_path):
    path = write(tmp_path / "x.parquet", [{"x": None}, {"x": 3}])
    assert pa.parquet.read_table(path).to_pylist() == [{"x": None}, {"x": 3}]


def test_files_at_a_url(tmp_path):
    pairs = [
        (ArrowWriter, Dataset.from_arrow),
        (ParquetWriter, Dataset.from_parquet),
        (TarWriter, Dataset.from_tar),
    ]
    for n, (writer_of, reader) in enumerate(pairs):
        url = f"memory://writers{tmp_path}/{n}"
        with writer_of(url) as writer:
            writer.write({"__key__": "a", "txt": "text"})
        assert [plain(row) for row in reader(url)] == [{"__key__": b"a", "txt": b"text"}]


def interrupt(writer_of, path, row):
    with writer_of(path) as writer:
        writer.write(row)
        raise KeyError("stop")


@pytest.mark.parametrize("place", ["", "memory://interrupted"])
@pytest.mark.parametrize("writer_of", [ArrowWriter, ParquetWriter, TarWriter])
def test_an_interrupted_write_leaves_nothing(writer_of, place, tmp_path):
    path = f"{place}{tmp_path}/x"
    row = {"__key__": "a", "txt": "text"}

    def is_there():
        return fsspec.open(path).fs.exists(path)

    with pytest.raises(KeyError, match="stop"):
        interrupt(writer_of, path, row)
    assert not is_there()
    writer = writer_of(path)
    writer.write(row)
    assert not is_there()
    del writer
    with writer_of(path) as writer:
        writer.write(row)
        writer.close()
        assert is_there()
    with pytest.raises(KeyError, match="stop"):
        interrupt(writer_of, path, row | {"__key__": "b"})
    with fsspec.open(path) as file:
        content = file.read()
    assert b"a" in content
    assert os.listdir(tmp_path) == ([] if place else ["x"])


@pytest.mark.parametrize("writer_of", [ArrowWriter, ParquetWriter, TarWriter])
def test_a_disk_that_fails_at_the_end_leaves_nothing(writer_of, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(new_files.os, "replace", fail)
    writer = writer_of(tmp_path / "x")
    writer.write({"__key__": "a", "txt": "text"})
    with pytest.raises(OpError, match="x' failed: the disk is gone"):
        writer.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(NotFoundError, match="the folder of '.*missing/x' does not exist; make"):
        writer_of(tmp_path / "missing" / "x")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([{"x": 1}, {"x": 2, "y": 3}], InvalidArgumentError, r"row 1 has the columns \['x', 'y'\]"),
        ([{"x": 1}, {"x": "a"}], InvalidArgumentError, "column 'x' of row 1 has 'a', but its type"),
        ([{"x": []}], InvalidArgumentError, "the first 1 rows do not show the type of column 'x'"),
        ([{"x": object()}], InvalidTypeError, "a column cannot have a object; convert it"),
        (
            [{"x": np.zeros((2, 2))}, {"x": np.zeros((2, 3))}],
            InvalidArgumentError,
            "(?s)column 'x' of row 1 has .*fixed_size_list",
        ),
        ([3], InvalidTypeError, "a row must be a dict of columns, got 3"),
        ([], FailedPreconditionError, "x' has no rows, so its columns are not known"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(given, error, message, tmp_path):
    with pytest.raises(error, match=message):
        write(tmp_path / "x", given)
    assert os.listdir(tmp_path) == []


def at(*time):
    return datetime.datetime(2024, 5, 6, *time)


@pytest.mark.parametrize("writer_of", [ArrowWriter, ParquetWriter])
@pytest.mark.parametrize(
    ("first", "other", "kept"),
    [
        (1, 2.5, "2"),
        (1, np.float32(2.5), "2"),
        (1, np.True_, "1"),
        (1, Decimal("2.5"), "2"),
        (1, np.datetime64(5, "ns"), "5"),
        (0.5, True, "1.0"),
        (np.float32(0.5), 1e300, "inf"),
        (np.float16(0.5), 100_001, "inf"),
        (b"bytes", "text", "b'text'"),
        ([1], [2, 2.5], r"\[2, 2\]"),
        (np.array([1]), np.array([2.5]), r"\[2\]"),
        (np.array([1]), np.array([True]), r"\[1\]"),
        (np.array([0.5]), np.array([2**64 - 1], np.uint64), r"\[-1.0\]"),
        (np.array([[1]]), np.array([[2.5]]), r"\[\[2\]\]"),
        ({"a": 1}, {"a": 2.5}, r"\{'a': 2\}|\[\('a', 2\)\]"),
        ({"a": 1}, {"a": 2, "b": 3}, r"\{'a': 2\}|\[\('a', 2\)\]"),
    ],
)
def test_values_that_a_column_would_change_are_refused(writer_of, first, other, kept, tmp_path):
    with writer_of(tmp_path / "x") as writer:
        writer.write({"a": 0, "x": first})
        writer.write({"a": 0, "x": other})
        message = rf"(?s)column 'x' of row 1 has .*, which would change it to ({kept}); convert it"
        with pytest.raises(InvalidArgumentError, match=message):
            writer.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("s"), at(1, 2, 3, 4)),
        (pa.timestamp("s"), 2.5),
        (pa.date32(), at(1)),
        (pa.time32("s"), datetime.time(1, 2, 3, 4)),
        (pa.duration("s"), datetime.timedelta(microseconds=1)),
        (pa.dictionary(pa.int8(), pa.int64()), 2.5),
        (pa.large_list(pa.int64()), [2.5]),
    ],
)
def test_values_that_a_stated_type_would_change_are_refused(kind, value, tmp_path):
    with pytest.raises(InvalidArgumentError, match="column 'x' of row 0 has .* would change it"):
        write(tmp_path / "x", [{"x": value}], schema=pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (pa.float64(), [1, np.int8(2), 2.5, np.inf, None], [1.0, 2.0, 2.5, np.inf, None]),
        (pa.float32(), [0.1], [float(np.float32(0.1))]),
        (pa.float16(), [2048], [2048.0]),
        (pa.int8(), [1.0, np.uint64(3)], [1, 3]),
        (pa.string(), [b"text", "text", np.str_("text")], ["text"] * 3),
        (pa.list_(pa.float64()), [[1, 2.5], np.array([3]), ()], [[1.0, 2.5], [3.0], []]),
        (pa.list_(pa.int64(), 1), [np.array([1.0]), None], [[1], None]),
        (pa.list_(pa.binary()), [np.array([b"a"], object)], [[b"a"]]),
        (pa.struct([("a", pa.int64()), ("b", pa.bool_())]), [{"a": 1}], [{"a": 1, "b": None}]),
        (
            pa.timestamp("s"),
            [at(1), 3, None],
            [at(1), datetime.datetime(1970, 1, 1, 0, 0, 3), None],
        ),
        (pa.date32(), [at().date(), at()], [at().date()] * 2),
    ],
)
def test_values_that_a_stated_type_holds_are_written(kind, given, found, tmp_path):
    path = tmp_path / "x.arrow"
    with ArrowWriter(path, schema=pa.schema([("x", kind)])) as writer:
        for value in given:
            writer.write({"x": value})
    with pa.ipc.open_file(path) as reader:
        assert reader.read_all().column("x").to_pylist() == found


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="row_group_size must be at least 1, got 0"):
        ParquetWriter(tmp_path / "x", row_group_size=0)
    with pytest.raises(InvalidTypeError, match="schema must be a pyarrow.Schema, got 3"):
        ParquetWriter(tmp_path / "x", schema=3)
    with pytest.raises(InvalidArgumentError, match="compression must be one of .* got 'what'"):
        ParquetWriter(tmp_path / "x", compression="what")
    with pytest.raises(InvalidArgumentError, match="ArrowWriter: batch_size must be at least 1"):
        ArrowWriter(tmp_path / "x", batch_size=0)
    writer = ParquetWriter(tmp_path / "x")
    writer.write({"x": 1})
    writer.close()
    writer.close()
    with pytest.raises(FailedPreconditionError, match="x' is closed; make a new writer"):
        writer.write({"x": 1})
