"""Damaged Arrow files: no row is lost without an error, and every error names the file."""

import contextlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from penstock.data import Dataset
from penstock.element import columns
from penstock.engine.formats import arrow_files
from penstock.engine.formats.arrow_files import ArrowReader, read_exactly
from penstock.engine.formats.tables import Selection
from penstock.errors import DataLossError, OpError

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


@pytest.mark.parametrize("write", [write_feather, write_stream])
def test_no_damaged_byte_loses_rows(write: Any, tmp_path: Path, checked_lengths: None) -> None:
    path = tmp_path / "x.arrow"
    write(path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        assert count_rows(path) in (ROWS, None), at


def count_rows(path: Path) -> int | None:
    """None if an error names the file."""
    selection = Selection("Dataset.from_arrow", str(path), ("x",))
    try:
        with contextlib.closing(ArrowReader(str(path), selection.call)) as reader:
            for number, rows in enumerate(reader.blocks):
                reader.read(number, 0, selection).rows(range(rows), columns.take)
            return sum(reader.blocks)
    except OpError as error:
        return None if str(path) in str(error) else -1


def test_a_footer_and_a_first_message_that_differ_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    pyarrow.feather.write_feather(pa.table({"column": [1]}), path, compression="uncompressed")
    path.write_bytes(path.read_bytes().replace(b"column", b"solumn", 1))
    with pytest.raises(DataLossError, match="has another schema than its first message"):
        list(Dataset.from_arrow(path))
