"""MDS datasets, beside what the `mosaicml-streaming` package reads of them."""

import bz2
import gzip
import json
import pathlib
import shutil
import struct

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.data import Dataset
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.io import decode_png

GOLDEN = pathlib.Path(__file__).parent / "golden"
ANSWERS = json.loads((GOLDEN / "mds.json").read_text())


def plain(row):
    """A row as the recorded answers have it."""
    found = {}
    for name, value in row.items():
        if name == "picture":
            value = decode_png(value)
        if name == "facts":
            value = json.loads(value)
        if isinstance(value, bytes):
            value = value.decode("latin-1" if name == "data" else "utf-8")
        found[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return found


@pytest.mark.parametrize("name", ["mds", "mds-zstd", "mds/index.json"])
def test_rows_are_those_of_the_package(name):
    dataset = Dataset.from_mds(GOLDEN / name)
    assert [plain(row) for row in dataset] == [
        {key: row[key] for key in sorted(row)} for row in ANSWERS
    ]
    assert plain(dataset[7]) == ANSWERS[7]
    assert len(dataset) == 9


def test_columns_and_shuffles():
    assert len(Dataset.from_mds(str(GOLDEN / "md*"), columns=["id"])) == 18
    dataset = Dataset.from_mds(str(GOLDEN / "mds{,-zstd}"), columns=["id"])
    dataset = dataset.map(lambda row: row["id"])
    assert [int(x) for x in dataset] == [*range(9), *range(9)]
    assert sorted(int(x) for x in dataset.shuffle(blocks=2, seed=1)) == sorted([*range(9)] * 2)


def test_arrays_of_one_dimension_are_ragged_in_a_batch():
    (batch,) = Dataset.from_mds(GOLDEN / "mds", columns=["ids"]).batch(9)
    assert batch["ids"].to_list() == [row["ids"] for row in ANSWERS]


def test_a_folder_at_a_url(tmp_path):
    url = f"memory://mds{tmp_path}"
    for file in (GOLDEN / "mds").iterdir():
        with fsspec.open(f"{url}/{file.name}", "wb") as copy:
            copy.write(file.read_bytes())
    assert [plain(row) for row in Dataset.from_mds(url)] == ANSWERS


def snappy(data):
    return pa.compress(data, "snappy", asbytes=True)


@pytest.mark.parametrize(
    ("end", "compress"),
    [
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("snappy", snappy),
        ("br", lambda data: pa.compress(data, "brotli", asbytes=True)),
    ],
)
def test_every_compression_is_read(end, compress, tmp_path):
    whole = (GOLDEN / "mds/shard.00000.mds").read_bytes()
    path = tmp_path / f"shard.00000.mds.{end}"
    path.write_bytes(compress(whole))
    assert [int(row["id"]) for row in Dataset.from_mds(path)] == list(range(7))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataLossError, match=f"mds.{end}' is not a complete MDS shard"):
        Dataset.from_mds(path)


@pytest.fixture
def folder(tmp_path):
    return pathlib.Path(shutil.copytree(GOLDEN / "mds", tmp_path / "mds"))


def change(folder, **changes):
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1].update(changes)
    (folder / "index.json").write_text(json.dumps(index))


def test_an_index_that_does_not_fit_is_an_error(folder):
    shard = folder / "shard.00001.mds"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(FailedPreconditionError, match=r"00001.mds' has 1405 bytes, .* says 1406"):
        Dataset.from_mds(folder)
    shard.unlink()
    with pytest.raises(NotFoundError, match=r"00001.mds' does not exist"):
        Dataset.from_mds(folder)
    shard.write_bytes(whole)
    change(folder, samples=1)
    with pytest.raises(FailedPreconditionError, match=r"00001.mds' has changed .* other rows"):
        list(Dataset.from_mds(folder))
    change(folder, column_names=["a"] * 15)
    with pytest.raises(InvalidArgumentError, match=r"00001.mds' has other columns or encodings"):
        Dataset.from_mds(folder)
    for count in (-1, 1.5, "9"):
        change(folder, samples=count)
        with pytest.raises(DataLossError, match=rf"index.json' is damaged: .*samples is .?{count}"):
            Dataset.from_mds(folder)
    change(folder, version=3)
    with pytest.raises(DataLossError, match=r"index.json' is damaged: .*version 3 of the format"):
        Dataset.from_mds(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shards": [{}]}', '{"shards": 3}'])
def test_a_damaged_index_is_an_error(text, folder):
    (folder / "index.json").write_text(text)
    with pytest.raises(DataLossError, match=r"index.json' is damaged"):
        Dataset.from_mds(folder)


def test_what_is_no_dataset_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match=r"index.json' does not exist"):
        Dataset.from_mds(tmp_path)
    (tmp_path / "index.json").write_text('{"shards": []}')
    with pytest.raises(InvalidArgumentError, match="lists no shards"):
        Dataset.from_mds(tmp_path)
    with pytest.raises(InvalidArgumentError, match="needs at least one path"):
        Dataset.from_mds([])


def write_shard(path, encoding, values, size=None):
    """A shard with one column, by hand."""
    entry = {"column_names": ["x"], "column_encodings": [encoding], "column_sizes": [size]}
    config = json.dumps(entry).encode()
    samples = [b"" if size else struct.pack("<I", len(value)) for value in values]
    samples = [head + value for head, value in zip(samples, values, strict=True)]
    first = 4 * (len(samples) + 2) + len(config)
    places = np.cumsum([first, *map(len, samples)]).astype("<u4")
    head = struct.pack("<I", len(samples)) + places.tobytes() + config
    path.write_bytes(head + b"".join(samples))
    return path


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [
        ("pkl", "its encoding is 'pkl', and a pickle may run any code"),
        ("list[jpeg]", "its encoding is 'list.jpeg.'"),
        ("ndarray:complex64:2", "its dtype is 'complex64'"),
    ],
)
def test_encodings_that_cannot_be_read_are_refused(encoding, reason, tmp_path):
    path = write_shard(tmp_path / "x.mds", encoding, [b"abc"])
    with pytest.raises(InvalidArgumentError, match=f"column 'x' of .*: {reason}; leave it out"):
        Dataset.from_mds(path)


@pytest.mark.parametrize(
    ("encoding", "values", "message"),
    [
        ("str_int", [b"3", b"9" * 30], "column 'x' cannot be read: .*int"),
        ("str_int", [b"3", b"what"], "column 'x' cannot be read: invalid literal"),
        ("ndarray:int8", [b"\4\1a", b"\4\7a"], "column 'x' cannot be read: cannot reshape"),
        ("ndarray", [b"\11\4\1a", b"\0\4\1a"], "no dtype has the number 0"),
        ("pil", [bytes(12), struct.pack("<3I", 1, 1, 1) + b"F1234"], "images of mode"),
    ],
)
def test_values_that_cannot_be_read_are_errors_with_their_place(
    encoding, values, message, tmp_path
):
    path = write_shard(tmp_path / "x.mds", encoding, values)
    with pytest.raises(
        DataLossError, match=rf"x.mds' has a damaged sample at byte \d+: .*{message}"
    ):
        list(Dataset.from_mds(path).skip(1))


def test_arrays_of_other_dtypes_and_broken_sizes_are_errors(tmp_path):
    path = write_shard(tmp_path / "x.mds", "ndarray", [b"\11\4\1a", b"\10\4\1a"])
    with pytest.raises(ValueError, match="its arrays have different dtypes or ranks"):
        list(Dataset.from_mds(path).batch(2))
    path = write_shard(tmp_path / "y.mds", "int8", [b"a", b"b"], size=1)
    assert [int(row["x"]) for row in Dataset.from_mds(path)] == [97, 98]
    path = write_shard(tmp_path / "z.mds", "int8", [b"ab"], size=2)
    with pytest.raises(DataLossError, match="values of int8 and shape .. have 2 bytes"):
        Dataset.from_mds(path)
    path = write_shard(tmp_path / "v.mds", "bytes", [b"abc"])
    data = bytearray(path.read_bytes())
    data[-7] = 2
    path.write_bytes(data)
    with pytest.raises(DataLossError, match="its columns do not have the sizes that it says"):
        list(Dataset.from_mds(path))
    path = write_shard(tmp_path / "w.mds", "ndarray", [])
    with pytest.raises(InvalidArgumentError, match="no sample shows its dtype"):
        Dataset.from_mds(path)
