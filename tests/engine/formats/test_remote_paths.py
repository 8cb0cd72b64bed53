"""Every reader of files, over HTTP, S3 and `memory://`: the elements of the local files."""

import gzip
import importlib
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import huggingface_hub
import numpy as np
import pytest
from PIL import Image

from penstock.data import (
    Dataset,
    FixedLengthRecordDataset,
    Options,
    TextLineDataset,
    TFRecordDataset,
)
from penstock.data.experimental import CsvDataset
from penstock.engine.formats.remote_files import connect
from penstock.errors import (
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
)
from penstock.io import TFRecordWriter, list_classes, read_file
from tests.engine.formats.remote_places import serve_http, serve_s3, upload
from tests.engine.formats.table_samples import GOLDEN, plain

Make = Callable[[str], Dataset]


@dataclass(frozen=True)
class Reader:
    """How to read files, and the names of two files of one kind."""

    make: Callable[[Any], Dataset]
    names: tuple[str, str]


def csv(path: Any) -> Dataset:
    return CsvDataset(path, ["int64", "string"])


def read_fixed(path: Any) -> Dataset:
    return FixedLengthRecordDataset(path, 7, header_bytes=2)


def indexed_records(path: Any) -> Dataset:
    return TFRecordDataset(path, index=True)


def indexed_tar(path: Any) -> Dataset:
    return Dataset.from_tar(path, index=True)


READERS = {
    "text": Reader(TextLineDataset, ("lines-0.txt", "lines-1.txt")),
    "tfrecord": Reader(TFRecordDataset, ("records-0.tfrecord", "records-1.tfrecord")),
    "tfrecord-index": Reader(indexed_records, ("records-0.tfrecord", "records-1.tfrecord")),
    "csv": Reader(csv, ("rows-0.csv", "rows-1.csv")),
    "fixed": Reader(read_fixed, ("fixed-0.bin", "fixed-1.bin")),
    "parquet": Reader(Dataset.from_parquet, ("table-0.parquet", "table-1.parquet")),
    "arrow": Reader(Dataset.from_arrow, ("table-0.arrow", "table-1.arrow")),
    "arrow-stream": Reader(Dataset.from_arrow, ("table-0.stream", "table-1.stream")),
    "npy": Reader(Dataset.from_numpy, ("array-0.npy", "array-1.npy")),
    "npz": Reader(Dataset.from_numpy, ("arrays-0.npz", "arrays-1.npz")),
    "json-lines": Reader(Dataset.from_json_lines, ("people-0.jsonl", "people-1.jsonl")),
    "json-lines-zstd": Reader(Dataset.from_json_lines, ("p-0.jsonl.zst", "p-1.jsonl.zst")),
    "tar": Reader(Dataset.from_tar, ("shard-0.tar", "shard-1.tar")),
    "tar-index": Reader(indexed_tar, ("shard-0.tar", "shard-1.tar")),
    "mds": Reader(Dataset.from_mds, ("shard-0.mds", "shard-1.mds")),
    "mds-zstd": Reader(Dataset.from_mds, ("shard-0.mds.zstd", "shard-1.mds.zstd")),
    "tar-gzip": Reader(Dataset.from_tar, ("shard-0.tar.gz", "shard-1.tar.gz")),
}
COPIES = {
    "table-{}.parquet": "people.parquet",
    "table-{}.arrow": "people.arrow",
    "table-{}.stream": "plain.stream.arrow",
    "array-{}.npy": "grid.npy",
    "arrays-{}.npz": "arrays.npz",
    "people-{}.jsonl": "people.jsonl",
    "p-{}.jsonl.zst": "people.jsonl.zst",
    "shard-{}.tar": "shard.tar",
    "shard-{}.mds": "mds/shard.00000.mds",
    "shard-{}.mds.zstd": "mds-zstd/shard.00000.mds.zstd",
}


def fill(folder: Path) -> None:
    """Two files of each kind, and a folder of images."""
    for number in range(2):
        for pattern, name in COPIES.items():
            shutil.copy(GOLDEN / name, folder / pattern.format(number))
        (folder / f"shard-{number}.tar.gz").write_bytes(
            gzip.compress(read_file(GOLDEN / "shard.tar"))
        )
        lines = [f"line {number} {i}" for i in range(40)]
        (folder / f"lines-{number}.txt").write_text("\n".join(lines))
        (folder / f"rows-{number}.csv").write_text(
            "".join(f"{i},{t}\n" for i, t in enumerate(lines))
        )
        (folder / f"fixed-{number}.bin").write_bytes(b"HH" + bytes(range(70)))
        with TFRecordWriter(str(folder / f"records-{number}.tfrecord")) as writer:
            for line in lines:
                writer.write(line.encode())
    for name in ("dog/b.png", "dog/a.png", "cat/deep/1.bmp"):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, len(name), 3), len(name), np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    fill(made)
    return made


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[str]:
    with serve_http(folder) as url:
        yield url


@pytest.fixture(scope="module")
def s3(folder: Path) -> Iterator[str]:
    with serve_s3(folder) as url:
        yield url


@pytest.fixture(scope="module")
def memory(folder: Path) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    upload(system, folder, "/remote-paths")
    yield "memory://remote-paths"
    system.rm("/remote-paths", recursive=True)


@pytest.fixture(params=["http", "s3", "memory"])
def place(request: pytest.FixtureRequest) -> str:
    """A URL with the files of the folder below."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


def elements(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset]


def paths(reader: Reader, place: Any) -> list[str]:
    return [f"{place}/{name}" for name in reader.names]


def test_elements_are_those_of_local_files(reader: Reader, place: str, folder: Path) -> None:
    expected = elements(reader.make(paths(reader, folder)))
    dataset = reader.make(paths(reader, place))
    iterator = iter(dataset)
    found = [plain(next(iterator)) for _ in range(len(expected) * 2 // 3)]
    state = iterator.state_dict()
    assert found + elements(iterator) == expected
    resumed = iter(dataset)
    resumed.load_state_dict(state)
    assert found + elements(resumed) == expected


@pytest.mark.parametrize("name", ["parquet", "npy", "tar"])
def test_patterns_and_braces(name: str, place: str, folder: Path) -> None:
    reader = READERS[name]
    expected = elements(reader.make(paths(reader, folder)))
    for part in ("*", "{0..1}", "[01]"):
        assert elements(reader.make(f"{place}/{reader.names[0].replace('0', part)}")) == expected


def test_lists_of_files(place: str) -> None:
    listed = Dataset.list_files(f"{place}/lines-*.txt", shuffle=False)
    assert elements(listed) == [f"{place}/lines-{number}.txt".encode() for number in range(2)]


def test_folders_of_images(place: str, folder: Path) -> None:
    local = Dataset.from_image_folder(folder / "images")
    found = Dataset.from_image_folder(f"{place}/images")
    assert list_classes(f"{place}/images") == ("cat", "dog")
    assert len(found) == 3
    for index, expected in enumerate(local):
        name = expected["path"].decode().removeprefix(str(folder))
        assert found[index]["path"].decode() == place + name
        assert found[index]["label"] == expected["label"]
        np.testing.assert_array_equal(found[index]["image"], expected["image"])


def test_whole_files(place: str, folder: Path) -> None:
    assert read_file(f"{place}/lines-0.txt") == (folder / "lines-0.txt").read_bytes()


@pytest.mark.parametrize("name", ["text", "parquet", "npy"])
def test_a_missing_file_is_named(name: str, place: str) -> None:
    missing = f"{place}/missing"
    with pytest.raises(NotFoundError, match=f"{missing}.* does not exist"):
        elements(READERS[name].make([missing]))


def test_a_query_of_a_url_is_no_pattern(http: str, folder: Path) -> None:
    found = Dataset.from_parquet(f"{http}/table-0.parquet?signature=a[1]")
    assert elements(found) == elements(Dataset.from_parquet(folder / "table-0.parquet"))


@pytest.fixture
def large(s3: str) -> tuple[str, bytes]:
    """A file of S3 that is fetched in several pieces."""
    content = random.Random(2).randbytes(3 << 20)
    fsspec.filesystem("s3").pipe_file(f"{s3}/large", content)
    return f"{s3}/large", content


def test_a_large_file_of_s3_is_fetched_by_pieces_and_kept(
    large: tuple[str, bytes], tmp_path: Path
) -> None:
    url, content = large
    options = Options(cache_dir=str(tmp_path))
    for _ in range(2):
        records = FixedLengthRecordDataset(url, 1 << 16).with_options(options)
        assert b"".join(records) == content
    assert len(list(tmp_path.glob("*.piece"))) > 2


def test_a_file_of_s3_that_changes_while_it_is_read_is_named(large: tuple[str, bytes]) -> None:
    url, content = large
    iterator = iter(FixedLengthRecordDataset(url, 1 << 14))
    next(iterator)
    fsspec.filesystem("s3").pipe_file(url, bytes(len(content)))
    with pytest.raises(FailedPreconditionError, match="large' has changed while it was read"):
        list(iterator)


@pytest.mark.parametrize(
    ("url", "package"),
    [("s3://a/b", "s3fs"), ("http://a/b", "aiohttp"), ("gs://a/b", "gcsfs")],
)
def test_a_missing_package_is_named(
    url: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = url.partition(":")[0]
    opened = importlib.import_module("fsspec.registry")._registry
    monkeypatch.delitem(opened, protocol, raising=False)
    for name in (package, "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, name, None)
    message = f"{package}.*pip install .penstock.remote."
    with pytest.raises(UnimplementedError, match=message):
        read_file(url)
    with pytest.raises(UnimplementedError, match=message):
        Dataset.from_parquet(url)


def test_hugging_face_urls_reach_its_file_system() -> None:
    system, path = connect("hf://datasets/user/name/train.parquet")
    assert type(system) is huggingface_hub.HfFileSystem
    assert path == "datasets/user/name/train.parquet"


def test_hugging_face_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise http_error()("Name or service not known")

    for method in ("cat_file", "info", "invalidate_cache", "open"):
        monkeypatch.setattr(huggingface_hub.HfFileSystem, method, fail)
    url = "hf://datasets/user/name/train.parquet"
    message = f"'{url}' cannot be reached \\(Name or service not known\\)"
    with pytest.raises(UnavailableError, match=f"io.read_file: {message}"):
        read_file(url)
    with pytest.raises(UnavailableError, match=f"Dataset.from_parquet: {message}"):
        Dataset.from_parquet(url)


def http_error() -> type[Exception]:
    """What huggingface_hub raises if a server cannot be reached."""
    bases = importlib.import_module("huggingface_hub.errors").HfHubHTTPError.__mro__
    names = {base.__module__.partition(".")[0] for base in bases} & {"httpx", "httpx2"}
    error: type[Exception] = importlib.import_module(names.pop()).ConnectError
    return error
