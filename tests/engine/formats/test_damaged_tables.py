"""Damaged Arrow and Parquet files: no row is lost without an error, and errors name the file."""

import contextlib
import io
import itertools
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from penstock.data import Dataset
from penstock.element import columns
from penstock.engine.formats import arrow_files, parquet
from penstock.engine.formats.arrow_files import ArrowReader
from penstock.engine.formats.files import read_exactly
from penstock.engine.formats.parquet import ParquetReader
from penstock.engine.formats.tables import Selection
from penstock.errors import DataLossError, OpError, ResourceExhaustedError

ROWS = 8
TABLE = pa.table({"x": np.arange(ROWS)})


def write_feather(path: Path) -> None:
    pyarrow.feather.write_feather(TABLE, path, compression="uncompressed", chunksize=6)


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, 6)


@pytest.fixture
def checked_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a length in a damaged file is used before it is compared with the file's."""

    def read_checked(file: BinaryIO, start: int, count: int) -> bytes:
        assert count <= os.fstat(file.fileno()).st_size
        return read_exactly(file, start, count)

    monkeypatch.setattr(arrow_files, "read_exactly", read_checked)


@pytest.mark.parametrize(
    ("write", "reasons"),
    [
        (
            write_feather,
            [
                "its footer lists messages of another kind",
                "its footer has another schema than its first message",
                "the head of a message at byte .* has -?[0-9]+ bytes",
                "a record batch has 6 rows, but its first column has another number",
            ],
        ),
        (
            write_stream,
            [
                "a message is no record batch and no dictionary",
                "the file does not begin with a schema",
                "the body of a message at byte .* has -?[0-9]+ bytes",
            ],
        ),
    ],
)
def test_no_damaged_byte_loses_rows(
    write: Any, reasons: list[str], tmp_path: Path, checked_lengths: None
) -> None:
    path = tmp_path / "x.arrow"
    write(path)
    whole = path.read_bytes()
    errors = ""
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        try:
            assert count_rows(path) == ROWS, at
        except OpError as error:
            errors += f"{error}\n"
    assert all(str(path) in error for error in errors.splitlines())
    assert [reason for reason in reasons if not re.search(reason, errors)] == []


def test_row_counts_of_a_damaged_footer_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"x": np.arange(20)})
    pa.parquet.write_table(table, path, row_group_size=6, store_schema=False)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    errors = ""
    for at, bits in itertools.product(range(footer, len(whole)), (0x08, 0xFF)):
        damaged = bytearray(whole)
        damaged[at] ^= bits
        path.write_bytes(damaged)
        try:
            reader = ParquetReader(str(path), "Dataset.from_parquet")
        except DataLossError as error:
            errors += f"{error}\n"
        else:
            reader.close()
            assert reader.blocks == (6, 6, 6, 2), at
    assert re.search("20 rows, but its row groups have ", errors)


def count_rows(path: Path) -> int:
    selection = Selection("Dataset.from_arrow", str(path), ("x",))
    with contextlib.closing(ArrowReader(str(path), selection.call)) as reader:
        blocks = [reader.read(number, 0, selection) for number in range(len(reader.blocks))]
        rows = zip(blocks, map(range, reader.blocks), strict=True)
        return sum(len(block.rows(index, columns.take).columns[0]) for block, index in rows)


def test_a_row_count_that_is_damaged_is_noticed_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    write_feather(path)
    six, many = struct.pack("<q", 6), struct.pack("<q", 6 + (1 << 24))
    path.write_bytes(path.read_bytes().replace(six, many, 1))
    with pytest.raises(DataLossError, match="its first column has another number"):
        Dataset.from_arrow(path)


def test_a_row_group_has_the_rows_that_its_footer_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    pa.parquet.write_table(TABLE, path)
    monkeypatch.setattr(parquet, "_count_rows", lambda metadata: (ROWS + 1,))
    with pytest.raises(DataLossError, match="row group 0 cannot be read .it has 8 rows instead of"):
        list(Dataset.from_parquet(path))


def test_a_compressed_array_that_is_too_long_for_its_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = io.BytesIO()
    np.save(array, np.arange(10))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", array.getvalue().replace(b"(10,)", b"(99,)"))
    with pytest.raises(DataLossError, match="'a.npy' needs more bytes than it has in the archive"):
        Dataset.from_numpy(path)


def damage_first_row_group(path: Path) -> None:
    table = pa.table({"x": np.arange(200)})
    pa.parquet.write_table(table, path, row_group_size=150, use_dictionary=False)
    whole = bytearray(path.read_bytes())
    whole[4:40] = bytes(36)
    path.write_bytes(whole)


def test_an_error_of_a_block_does_not_grow_with_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    damage_first_row_group(path)
    iterator = iter(Dataset.from_parquet(path))
    depths = set()
    for _ in range(150):
        with pytest.raises(DataLossError, match="row group 0 cannot be read") as caught:
            next(iterator)
        depths.add(len(caught.traceback))
    assert len(depths) <= 2  # The first one comes out of a read of many rows.
    assert int(next(iterator)["x"]) == 150


def test_a_damaged_block_is_skipped_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    damage_first_row_group(path)
    rows = Dataset.from_parquet(path)
    for plan, left in (
        (rows, 50),
        (rows.skip(10), 50),
        (rows.take(160), 10),
        (rows.take(100), 0),
        (rows.shuffle(200, seed=1), 50),
        (rows.shard(2, 0), 25),
    ):
        iterator = iter(plan.ignore_errors())
        found = [int(row["x"]) for row in iterator]
        assert len(found) == left
        assert all(number >= 150 for number in found)
        assert iterator.profile().operators[-1].errors == plan.cardinality() - left


def test_an_iterator_resumes_behind_a_damaged_block(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    damage_first_row_group(path)
    rows = Dataset.from_parquet(path, on_error="skip")
    iterator = iter(rows)
    assert int(next(iterator)["x"]) == 150
    resumed = iter(rows)
    resumed.load_state_dict(iterator.state_dict())
    assert [int(row["x"]) for row in resumed] == list(range(151, 200))


def test_too_little_memory_is_no_damage_that_may_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(TABLE, path)
    dataset = Dataset.from_parquet(path, on_error="skip")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", fail)
    with pytest.raises(ResourceExhaustedError, match=r"row group 0 .* not enough memory"):
        list(dataset)
