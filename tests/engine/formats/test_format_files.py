"""Opening and finding local files and files of fsspec, and the errors when that fails."""

import errno
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.formats.files import expand, open_bytes
from penstock.engine.formats.records import RecordReader
from penstock.engine.formats.text import TextReader
from penstock.engine.formats.tfrecord import TFRecordWriter
from penstock.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)


class FaultyFile(io.RawIOBase):
    """A file that reads or writes 3 bytes, then raises; it claims that it can seek."""

    def __init__(self, error: Exception) -> None:
        self.error, self.left = error, 1

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        raise ValueError("cannot seek a stream")

    def read(self, size: int = -1) -> bytes:
        return b"a\nb" if self.spend() else b""

    def write(self, data: Any) -> int:
        self.spend()
        return len(data)

    def flush(self) -> None:
        pass

    def spend(self) -> bool:
        if not self.left:
            raise self.error
        self.left -= 1
        return True


class FaultySystem(AbstractFileSystem):  # type: ignore[misc]
    """`faulty://open` fails at opening; every other path gives a FaultyFile."""

    protocol = "faulty"
    cachable = False
    error: Exception = OSError()

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if path == "open":
            raise self.error
        return FaultyFile(self.error)

    def glob(self, path: str, **options: Any) -> list[str]:
        raise self.error


@pytest.fixture
def faulty() -> Iterator[type[FaultySystem]]:
    fsspec.register_implementation("faulty", FaultySystem, clobber=True)
    yield FaultySystem
    FaultySystem.error = OSError()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty folder."""
    yield f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


FAULTS: list[tuple[Exception, type[OpError], str]] = [
    (FileNotFoundError(), NotFoundError, "does not exist"),
    (FileExistsError(), FailedPreconditionError, "exists already; delete it, or name another path"),
    (IsADirectoryError(), FailedPreconditionError, "is a directory; name the files in it"),
    (NotADirectoryError(), FailedPreconditionError, "leads through a file"),
    (PermissionError(), PermissionDeniedError, "may not be opened by this user"),
    (TimeoutError("30 s"), DeadlineExceededError, r"took too long to answer \(30 s\)"),
    (ConnectionError("refused"), UnavailableError, r"cannot be reached \(refused\)"),
    (OSError(errno.ENOSPC, "full"), ResourceExhaustedError, "no space is left for "),
    (OSError(errno.EIO, "broken"), UnknownError, "failed: .*broken"),
    (ValueError("odd"), InvalidArgumentError, "cannot be opened: odd"),
    (ImportError("get odd"), UnimplementedError, r"needs another package \(get odd\)"),
    (DataLossError("ours"), DataLossError, "ours"),
]


@pytest.mark.parametrize(("error", "kind", "message"), FAULTS)
def test_faults_while_opening(
    faulty: type[FaultySystem], error: Exception, kind: type[OpError], message: str
) -> None:
    faulty.error = error
    with pytest.raises(kind, match=message) as caught:
        open_bytes("faulty://open", None, None)
    assert caught.value is error or caught.value.__cause__ is error
    with pytest.raises(kind, match=message):
        expand(["faulty://*"])


@pytest.mark.parametrize(("error", "kind", "message"), FAULTS)
def test_faults_while_reading_come_after_the_records_before_them(
    faulty: type[FaultySystem], error: Exception, kind: type[OpError], message: str
) -> None:
    faulty.error = error
    reader = TextReader("faulty://file")
    assert reader.read(9) == [b"a"]
    with pytest.raises(kind, match=message):
        reader.read(9)
    assert reader.read(9) == []


def test_a_stream_that_cannot_seek_is_skipped_by_reading(faulty: type[FaultySystem]) -> None:
    faulty.error = OSError(errno.EIO, "broken")
    reader = TextReader("faulty://file", position=2)
    with pytest.raises(UnknownError, match="TextLineDataset: 'faulty://file' failed: .*broken"):
        reader.read(9)


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_faults_while_writing(faulty: type[FaultySystem], method: str) -> None:
    faulty.error = OSError(errno.ENOSPC, "full")
    writer = TFRecordWriter("faulty://file", "GZIP" if method == "close" else "")
    writer._file.left = 0  # type: ignore[attr-defined]
    if method == "flush":
        writer._file.flush = writer._file.spend  # type: ignore[attr-defined, method-assign]
    with pytest.raises(ResourceExhaustedError, match=f"TFRecordWriter.{method}: no space is left"):
        writer.write(b"x") if method == "write" else getattr(writer, method)()
    if method == "close":
        writer.close()
    writer._file.left = 9  # type: ignore[attr-defined]  # For the garbage collector.


def test_local_faults(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFoundError, match="'~/none' does not exist; write out the home folder"):
        open_bytes("~/none")
    with pytest.raises(NotFoundError, match="'none-.*' does not exist; it looks like a pattern"):
        open_bytes("none-*")
    for name in ("none-{0..9}", "none-{a,b}-*", "memory://none-{a,b}"):
        with pytest.raises(NotFoundError, match="' does not exist; its braces are taken literally"):
            open_bytes(name)
    for name in ("none-{a}", "none-{a,b"):
        with pytest.raises(NotFoundError, match="' does not exist$"):
            open_bytes(name)
    (tmp_path / "odd-{a,b}").write_bytes(b"x")
    with open_bytes(tmp_path / "odd-{a,b}") as opened:
        assert opened.read() == b"x"
    with pytest.raises(NotFoundError, match="open_bytes: '.*/none' does not exist$"):
        open_bytes(tmp_path / "none", None, None)
    with pytest.raises(FailedPreconditionError, match="is a directory"):
        open_bytes(tmp_path, None, None)
    with pytest.raises(FailedPreconditionError, match="leads through a file"):
        open_bytes(tmp_path / "file" / "below", None, None)
    with pytest.raises(InvalidArgumentError, match="cannot be opened: embedded null"):
        open_bytes("a\0b", None, None)
    with pytest.raises(InvalidArgumentError, match='must be "GZIP", "ZLIB", "" or None, got'):
        open_bytes(tmp_path / "file", "gzip", None)


def test_an_unknown_protocol() -> None:
    with pytest.raises(InvalidArgumentError, match="'nosuch://x' cannot be opened: Protocol not"):
        open_bytes("nosuch://x", None, None)


def test_a_failed_resume_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"short")
    opened: list[Any] = []

    def remember(self: Any, file: Any, position: int) -> None:
        opened.append(file)
        original(self, file, position)

    original = RecordReader._go_to
    monkeypatch.setattr(RecordReader, "_go_to", remember)
    with pytest.raises(DataLossError, match="ends 95 bytes before position 100"):
        TextReader(tmp_path / "file", position=100).read(1)
    assert [file.closed for file in opened] == [True]


COMPRESS = {"GZIP": gzip.compress, "ZLIB": zlib.compress}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "file"


@given(
    parts=st.lists(st.binary(max_size=300), max_size=4),
    compression=st.sampled_from(["GZIP", "ZLIB"]),
    buffer_size=st.integers(1, 20),
    size=st.integers(1, 40),
)
def test_streams_in_a_row_are_one(
    file: Path, parts: list[bytes], compression: str, buffer_size: int, size: int
) -> None:
    file.write_bytes(b"".join(map(COMPRESS[compression], parts)))
    with open_bytes(file, compression, buffer_size) as opened:
        assert b"".join(iter(lambda: opened.read(size), b"")) == b"".join(parts)
        assert opened.read(size) == b""


@pytest.mark.parametrize("buffer_size", [1, 7, None])
def test_zeros_behind_a_stream_are_filling_as_for_gunzip(
    tmp_path: Path, buffer_size: int | None
) -> None:
    parts = [gzip.compress(b"one "), bytes(9), gzip.compress(b"two"), bytes(500)]
    (tmp_path / "file").write_bytes(b"".join(parts))
    with open_bytes(tmp_path / "file", "GZIP", buffer_size) as opened:
        assert opened.read() == gzip.decompress(b"".join(parts)) == b"one two"
    (tmp_path / "file").write_bytes(bytes(9) + parts[0])
    with (
        open_bytes(tmp_path / "file", "GZIP", buffer_size) as opened,
        pytest.raises(DataLossError, match="is not a complete GZIP file"),
    ):
        opened.read()


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_compressed_file_is_a_file(tmp_path: Path, compression: str) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(COMPRESS[compression](content))
    with open_bytes(tmp_path / "file", compression, None) as opened:
        assert opened.read(0) == b""
        assert opened.read() == content
    with open_bytes(tmp_path / "file", compression, None) as opened:
        assert io.BufferedReader(opened).read(1000) == content[:1000]  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("buffer_size", [1, 50, 1000])
def test_what_precedes_damage_is_given_before_the_error(
    tmp_path: Path, compression: str, buffer_size: int
) -> None:
    content = os.urandom(400)
    packed = COMPRESS[compression](content)
    for damaged in (packed[:-1] + bytes([packed[-1] ^ 1]), packed + b"garbage", packed[:-1]):
        (tmp_path / "file").write_bytes(damaged)
        with open_bytes(tmp_path / "file", compression, buffer_size) as opened:
            found = b""
            while len(found) < len(content):
                found += opened.read(64)
            assert found == content
            with pytest.raises(DataLossError, match=f"is not a complete {compression} file; it is"):
                opened.read(64)
            with pytest.raises(DataLossError, match="damaged, cut short, or compressed in another"):
                opened.read(1)


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_plain_file_is_not_compressed(tmp_path: Path, compression: str) -> None:
    (tmp_path / "file").write_bytes(b"x\ny")
    with (
        open_bytes(tmp_path / "file", compression, None) as opened,
        pytest.raises(DataLossError, match=f"open_bytes: '.*file' is not a complete {compression}"),
    ):
        opened.read(10)


def test_remote_files(memory: str) -> None:
    with TFRecordWriter(f"{memory}/a") as writer:
        writer.write(b"x")
    with open_bytes(f"{memory}/a", None, None) as opened:
        assert len(opened.read(100)) == 17
    with pytest.raises(NotFoundError, match="'memory://.*/b' does not exist"):
        open_bytes(f"{memory}/b", None, None)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "b.txt",
        "a.txt",
        ".hidden.txt",
        "c.csv",
        "x/1.txt",
        "x/.2.txt",
        "y/1.txt",
        "[z]*",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["b.txt", "a.txt"], ["a.txt", "b.txt"]),
        ("b.txt", ["b.txt"]),
        (b"b.txt", ["b.txt"]),
        (Path("x/1.txt"), ["x/1.txt"]),
        (["a.txt", "a.txt"], ["a.txt", "a.txt"]),
        (["a.txt", "none"], ["a.txt"]),
        (["*.txt"], ["./.hidden.txt", "./a.txt", "./b.txt"]),
        (["./?.txt"], ["./a.txt", "./b.txt"]),
        (["[!a].txt"], ["./b.txt"]),
        (["[^a].txt"], ["./b.txt"]),
        (["x/*"], ["x/.2.txt", "x/1.txt"]),
        (["?/1.txt"], ["./x/1.txt", "./y/1.txt"]),
        (["**/1.txt"], ["./x/1.txt", "./y/1.txt"]),
        (["?/"], ["./x", "./y"]),
        (["\\[z\\]\\*"], ["./[z]*"]),
        (["x"], ["x"]),
    ],
)
def test_expand(tree: Path, patterns: Any, expected: list[str]) -> None:
    assert expand(patterns) == expected


def test_expand_sorts_over_all_patterns(tree: Path) -> None:
    patterns = [f"{tree}/y/*", f"{tree}/*.txt", f"{tree}/x/1.txt"]
    names = (".hidden.txt", "a.txt", "b.txt", "x/1.txt", "y/1.txt")
    assert expand(patterns) == [f"{tree}/{name}" for name in names]


@pytest.mark.parametrize("patterns", ["none", "*.none", ["none", "also/*.none"], "", "a.txt/x"])
def test_nothing_matches(tree: Path, patterns: Any) -> None:
    wanted = re.escape(repr(patterns).strip("[]"))
    with pytest.raises(InvalidArgumentError, match=f"list_files: no file matches {wanted}; check"):
        expand(patterns)


def test_braces_match_nothing(tree: Path) -> None:
    message = "no file matches .*; braces are taken literally: write a list of patterns"
    for pattern in ("{a,b}.txt", "x/{1..2}*"):
        with pytest.raises(InvalidArgumentError, match=message):
            expand(f"{tree}/{pattern}")


def test_no_patterns() -> None:
    with pytest.raises(InvalidArgumentError, match="no file matches an empty list of patterns"):
        expand([])
    with pytest.raises(InvalidTypeError, match="a path must be str, bytes or os.PathLike, got 5"):
        expand([5])  # type: ignore[list-item]


def test_expand_remote(memory: str) -> None:
    system = fsspec.filesystem("memory")
    for name in ("b.txt", "a.txt", "c.csv"):
        system.pipe(f"{memory}/{name}", b"")
    assert expand([f"{memory}/*.txt"]) == [f"{memory}/a.txt", f"{memory}/b.txt"]
    assert expand([f"{memory}/c.csv"]) == [f"{memory}/c.csv"]
    slashed = memory.replace("://", ":///")
    assert expand([f"{slashed}/?.txt"]) == [f"{slashed}/a.txt", f"{slashed}/b.txt"]
    with pytest.raises(InvalidArgumentError, match="no file matches 'memory://.*none"):
        expand([f"{memory}/*.none"])
    for path in expand([f"{memory}/*"]):
        open_bytes(path, None, None).close()


def test_expand_inside_an_archive(memory: str) -> None:
    url = f"{memory}/archive.zip"
    fsspec.filesystem("memory").pipe(url, b"")
    with fsspec.open(url, "wb") as target:
        archive = fsspec.filesystem("zip", fo=target, mode="w")
        archive.pipe("a.txt", b"inside\n")
        archive.close()
    (path,) = expand([f"zip://*.txt::{url}"])
    assert path == f"zip://a.txt::{url}"
    assert TextReader(path).read(1) == [b"inside"]


def test_expand_a_url_that_fsspec_spells_otherwise(tree: Path) -> None:
    (path,) = expand(["file://a.*"])
    assert path == f"file://{tree}/a.txt"
