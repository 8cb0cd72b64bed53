"""The cache folder of remote files: reads, its size limit, crashes, and other processes."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.data import Dataset, FixedLengthRecordDataset, Options
from penstock.data.experimental.service import distribute
from penstock.engine.formats import file_cache
from penstock.engine.formats.file_cache import FileCache, open_cache
from penstock.errors import InvalidArgumentError
from penstock.io import read_file
from tests.engine.formats.http_files import FileServer

CONTENT = random.Random(0).randbytes(3 << 20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(CONTENT)
    server = FileServer(str(tmp_path / "served")).start()
    yield server
    server.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def records(server: FileServer, folder: Path, most: int | None = None) -> Dataset:
    options = Options(cache_dir=str(folder))
    if most is not None:
        options.cache_bytes = most
    return FixedLengthRecordDataset(f"{server.url}/file", 1 << 14).with_options(options)


def gets(server: FileServer) -> int:
    """How many requests for bytes there were since the last call."""
    count = sum(method == "GET" for method, _, _ in server.requests)
    server.requests.clear()
    return count


def pieces(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.piece"))


def size_of(folder: Path) -> int:
    """The bytes of the pieces; another process may remove some meanwhile."""
    total = 0
    for path in pieces(folder):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_bytes_are_fetched_once(server: FileServer, folder: Path) -> None:
    dataset = records(server, folder)
    assert b"".join(dataset) == CONTENT
    assert gets(server) > 1
    assert b"".join(dataset) == CONTENT
    assert gets(server) == 0
    assert b"".join(records(server, folder.parent / "other")) == CONTENT
    assert gets(server) > 1
    assert len(CONTENT) < size_of(folder) < len(CONTENT) + 1000


def test_tables_and_functions_use_the_folder(server: FileServer, folder: Path) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(100_000)})
    pa.parquet.write_table(table, Path(server.folder, "table"), row_group_size=20_000)
    options = Options(cache_dir=str(folder))
    for expected in (True, False):
        ds = Dataset.from_parquet(f"{server.url}/table").with_options(options)
        gets(server)
        assert [row["x"] for row in ds.skip(50_000).take(3)] == table["x"][
            50_000:50_003
        ].to_pylist()
        assert ds[7]["x"] == table["x"][7].as_py()
        names = Dataset.from_tensor_slices([f"{server.url}/file".encode()])
        found = names.map(read_file, num_parallel_calls=2).with_options(options)
        assert list(found) == [CONTENT]
        assert (gets(server) > 0) == expected


def test_workers_use_the_folder(server: FileServer, folder: Path) -> None:
    dataset = records(server, folder).apply(distribute("distributed_epoch", "local://1"))
    assert b"".join(dataset) == CONTENT
    assert gets(server) > 0
    assert b"".join(records(server, folder).take(1)) == CONTENT[: 1 << 14]
    assert len(pieces(folder)) > 1


def test_another_version_of_a_file_is_fetched(server: FileServer, folder: Path) -> None:
    assert b"".join(records(server, folder)) == CONTENT
    Path(server.folder, "file").write_bytes(bytes(1 << 20))
    assert b"".join(records(server, folder)) == bytes(1 << 20)


def test_a_file_without_a_version_is_not_kept(server: FileServer, folder: Path) -> None:
    server.has_versions = False
    assert b"".join(records(server, folder)) == CONTENT
    assert not folder.exists()


def test_damaged_pieces_are_fetched_again(server: FileServer, folder: Path) -> None:
    assert b"".join(records(server, folder)) == CONTENT
    gets(server)
    for number, path in enumerate(pieces(folder)):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data if number % 2 else data[: len(data) // 2])
    assert b"".join(records(server, folder)) == CONTENT
    assert gets(server) > 0
    assert b"".join(records(server, folder)) == CONTENT
    assert gets(server) == 0


def test_the_folder_stays_below_its_bound(folder: Path) -> None:
    cache = FileCache(str(folder), 10_000)
    for number in range(50):
        cache.keep(str(number), bytes(900))
        assert cache.find(str(number)) == bytes(900)
        assert size_of(folder) <= 10_000
    assert size_of(folder) > 7_000
    assert cache.find("0") is None
    cache.keep("large", bytes(20_000))
    assert cache.find("large") is None


def test_pieces_that_were_used_stay(folder: Path) -> None:
    cache = FileCache(str(folder), 10_000)
    for number in range(9):
        cache.keep(str(number), bytes(1000))
    for number, path in enumerate(pieces(folder)):
        os.utime(path, (number, number))
    assert cache.find("3") is not None
    cache.keep("new", bytes(2000))
    assert cache.find("3") is not None
    assert cache.find("new") is not None
    assert size_of(folder) <= 10_000


def test_a_dataset_larger_than_the_bound_is_read_right(server: FileServer, folder: Path) -> None:
    for _ in range(2):
        assert b"".join(records(server, folder, 2 << 20)) == CONTENT
        assert size_of(folder) <= 2 << 20


WRITER = """
import sys
from penstock.engine.formats.file_cache import FileCache
cache = FileCache(sys.argv[1], 200_000)
name, number = sys.argv[2], 0
while number < int(sys.argv[3]):
    cache.keep(f"{name} {number % 40}", f"{name} {number % 40} ".encode() * 500)
    number += 1
    if number == 20:
        print("writes", flush=True)
"""


def write_in_background(folder: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def check_pieces(cache: FileCache, names: str) -> int:
    """Counts the pieces in the folder; each must be whole."""
    found = 0
    for name in names:
        for number in range(40):
            data = cache.find(f"{name} {number}")
            assert data in (None, f"{name} {number} ".encode() * 500)
            found += data is not None
    return found


def test_a_killed_writer_leaves_nothing_half(folder: Path) -> None:
    cache = FileCache(str(folder), 200_000)
    for _ in range(2):
        with write_in_background(folder, "a", 10**9) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        assert check_pieces(cache, "a") > 10
    cache.keep("b 1", b"b 1 " * 500)
    assert cache.find("b 1") == b"b 1 " * 500


def test_two_processes_share_the_bound(folder: Path) -> None:
    cache = FileCache(str(folder), 200_000)
    with write_in_background(folder, "a", 150) as one, write_in_background(folder, "b", 150) as two:
        while one.poll() is None or two.poll() is None:
            check_pieces(cache, "ab")
            assert size_of(folder) <= 200_000
    assert one.returncode == two.returncode == 0
    assert check_pieces(cache, "ab") > 20


def test_threads_share_the_bound(folder: Path) -> None:
    cache = FileCache(str(folder), 100_000)
    threads = [
        threading.Thread(target=lambda n=n: [cache.keep(f"{n} {i}", bytes(999)) for i in range(60)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 50_000 < size_of(folder) <= 100_000


def test_what_a_dead_writer_left_is_removed(folder: Path) -> None:
    cache = FileCache(str(folder), 10_000)
    cache.keep("a", bytes(5000))
    old, new = folder / "x.piece.1.partial", folder / "y.piece.2.partial"
    for path in (old, new):
        path.write_bytes(bytes(100))
    os.utime(old, (0, 0))
    cache.keep("b", bytes(6000))
    assert not old.exists()
    assert new.exists()
    assert cache.find("b") is not None


@pytest.mark.parametrize("content", [b"", b"12", b"x" * 21])
def test_a_lost_total_is_counted_again(folder: Path, content: bytes) -> None:
    cache = FileCache(str(folder), 10_000)
    cache.keep("a", bytes(5000))
    (folder / file_cache._LOCK).write_bytes(content)
    for name in "bcd":
        cache.keep(name, bytes(3000))
        assert size_of(folder) <= 10_000


def test_files_have_the_mode_of_the_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    FileCache(str(folder), 10_000).keep("a", b"data")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666}


def test_a_folder_that_cannot_be_used_is_a_warning(
    server: FileServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file")
    assert b"".join(records(server, folder)) == CONTENT
    found = [record.getMessage() for record in caplog.records if "cache_dir" in record.getMessage()]
    assert len(found) == 1
    assert "so remote files are read without it" in found[0]


def test_wrong_arguments(folder: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match="Options.cache_bytes: must be at least 1, got 0"
    ):
        open_cache(str(folder), 0)
    with pytest.raises(InvalidArgumentError, match="cache_dir: must be a folder of this machine"):
        iter(Dataset.range(3).with_options(Options(cache_dir="s3://bucket/x")))
