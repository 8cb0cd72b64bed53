"""Readers: where names come from, and how options reach the files."""

import contextlib
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data import (
    AUTOTUNE,
    Dataset,
    FixedLengthRecordDataset,
    TextLineDataset,
    TFRecordDataset,
)
from penstock.data.experimental import CsvDataset, make_csv_dataset
from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.io import TFRecordOptions, TFRecordWriter


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name, text in (("a", "a0\na1\na2\n"), ("b", "b0\n"), ("c", "c0\nc1\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    return sorted(tmp_path.iterdir())


ALL = [b"a0", b"a1", b"a2", b"b0", b"c0", b"c1"]


def test_names_of_every_kind(files: list[Path]) -> None:
    text = [str(file) for file in files]
    for names in (
        files,
        text,
        tuple(text),
        [text],
        np.array(text),
        Dataset.from_tensor_slices(text),
    ):
        assert list(TextLineDataset(names)) == ALL
    assert list(TextLineDataset(files[1])) == [b"b0"]
    assert list(TextLineDataset([])) == []


def test_files_in_turn(files: list[Path]) -> None:
    turns = [b"a0", b"b0", b"a1", b"a2", b"c0", b"c1"]
    assert list(TextLineDataset(files, num_parallel_reads=1)) == ALL
    for parallel in (2, AUTOTUNE):
        lines = list(TextLineDataset(files, num_parallel_reads=parallel))
        assert sorted(lines) == ALL
        assert lines[:3] == turns[:3]


def test_a_missing_file_is_an_error_when_it_is_reached(files: list[Path]) -> None:
    iterator = iter(TextLineDataset([files[1], "nowhere"]))
    assert next(iterator) == b"b0"
    with pytest.raises(NotFoundError, match="'nowhere' does not exist"):
        next(iterator)


def test_a_wrong_option_is_an_error_when_a_file_is_opened(files: list[Path]) -> None:
    with pytest.raises(InvalidArgumentError, match="compression_type must be"):
        list(TextLineDataset(files, "XX"))
    with pytest.raises(InvalidArgumentError, match="record_bytes must be at least 1, got 0"):
        list(FixedLengthRecordDataset(files, 0))


def test_compressed_records(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with TFRecordWriter(str(path), TFRecordOptions("GZIP")) as writer:
        writer.write(b"payload")
    assert list(TFRecordDataset(path, "GZIP", num_parallel_reads=2)) == [b"payload"]
    path.write_bytes(gzip.compress(b"HHabcdF"))
    fixed = FixedLengthRecordDataset(path, 2, 2, 1, compression_type="GZIP")
    assert list(fixed) == [b"ab", b"cd"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("i,f,s,n\n1,2.5,a,\n3000000000,,b,\n")
    return path


def rows(dataset: Dataset) -> list[Any]:
    return [tuple(np.asarray(value).item() for value in row) for row in dataset]


def test_csv_columns(table: Path) -> None:
    defaults = [np.int64(0), [9.0], [""]]
    assert rows(CsvDataset(table, defaults, header=True, exclude_cols=[3])) == [
        (1, 2.5, b"a"),
        (3000000000, 9.0, b"b"),
    ]
    picked = CsvDataset(table, [np.int64, str], header=True, select_cols=[0, 2])
    assert rows(picked) == [(1, b"a"), (3000000000, b"b")]


def test_a_csv_row_whose_fields_are_all_excluded_is_an_error(table: Path) -> None:
    table.write_text("14\n")
    with pytest.raises(InvalidArgumentError, match="the row has 0 selected fields, but"):
        rows(CsvDataset(table, [np.int64], exclude_cols=[0]))


def test_a_header_that_is_read_as_a_row_says_how_to_leave_it_out(table: Path) -> None:
    header = "is not a valid int64: 'i'; if the first line .* pass header=True"
    with pytest.raises(InvalidArgumentError, match=header):
        rows(CsvDataset(table, [np.int64, str], select_cols=[0, 2]))
    wrong = CsvDataset(table, [np.int64, np.int64], select_cols=[0, 2], header=True)
    with pytest.raises(InvalidArgumentError, match="int64") as raised:
        rows(wrong)
    assert "header=True" not in str(raised.value)


def test_csv_types_are_found(table: Path) -> None:
    (batch,) = make_csv_dataset(str(table), 2, num_epochs=1, shuffle=False)
    kinds = {name: column.dtype for name, column in batch.items()}
    assert kinds == {"i": np.int64, "f": np.float32, "s": object, "n": object}


def test_csv_types_are_found_in_the_first_rows_only(table: Path) -> None:
    dataset = make_csv_dataset(
        str(table), 1, num_epochs=1, shuffle=False, num_rows_for_inference=1, ignore_errors=True
    )
    assert [batch["i"].tolist() for batch in dataset] == [[1]]


def test_csv_batches(table: Path) -> None:
    endless = make_csv_dataset(str(table), 2, label_name="s", shuffle_seed=1, num_parallel_reads=1)
    features, label = next(iter(endless))
    assert sorted(label) == [b"a", b"b"]
    assert list(features) == ["i", "f", "n"]
    chosen = make_csv_dataset(
        str(table),
        2,
        column_names=["p", "q", "r", "s"],
        column_defaults=[np.int64(0)],
        select_columns=["p"],
        num_epochs=2,
        shuffle=False,
    )
    assert [batch["p"].tolist() for batch in chosen] == [[1, 3000000000]] * 2


@pytest.mark.parametrize("around", [lambda ds: ds, lambda ds: ds.prefetch(2)])
def test_csv_continues_behind_a_row_that_cannot_be_read(tmp_path: Path, around: Any) -> None:
    files = [tmp_path / name for name in "ab"]
    files[0].write_text('1,2"3,4\ne,f,g\n')
    files[1].write_text('h,i,j\nk,"l\nm,n,o\n')
    dataset = around(CsvDataset(files, [""] * 3))
    expected = [(b"e", b"f", b"g"), (b"h", b"i", b"j"), (b"m", b"n", b"o")]
    assert list(dataset.ignore_errors()) == expected
    for count in range(6):
        iterator = iter(dataset)
        found = []
        for _ in range(count):
            with contextlib.suppress(InvalidArgumentError, StopIteration):
                found.append(next(iterator))
        state = iterator.state_dict()
        again = iter(dataset)
        again.load_state_dict(state)
        while True:
            try:
                found.append(next(again))
            except InvalidArgumentError:
                continue
            except StopIteration:
                break
        assert found == expected, count


@pytest.mark.parametrize("text", ["1,a\n2,b\nthree,c\n", "1,a\n2,b\n3\n"])
def test_a_csv_error_names_the_call_the_file_and_the_line(tmp_path: Path, text: str) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("1,a\n")
    bad.write_text(text)
    rows = iter(CsvDataset([str(good), str(bad)], [np.int32, b""]))
    assert [int(next(rows)[0]) for _ in range(3)] == [1, 1, 2]
    with pytest.raises(InvalidArgumentError, match=rf"^CsvDataset: '{bad}', line 3 \(byte 8\): "):
        next(rows)


def test_csv_defaults_are_single_values(table: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="record_defaults must hold dtypes or single"):
        CsvDataset(table, [[["1"]], ["2"]])
