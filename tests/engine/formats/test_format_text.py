"""Lines: line ends, long lines, and the same answer as splitting the whole file."""

import bz2
import gzip
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.formats.text import TextReader
from penstock.errors import InvalidArgumentError


def lines(path: Path, limit: int = 100, **options: Any) -> list[bytes]:
    reader = TextReader(path, **options)  # type: ignore[arg-type]
    records: list[bytes] = []
    while part := reader.read(limit):
        records += part
    return records


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text") / "file"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"x\ny", [b"x", b"y"]),
        (b"p\r\nq\r\n", [b"p", b"q"]),
        (b"\n\nz\n", [b"", b"", b"z"]),
        (b"\r\n", [b""]),
        (b"a\rb\n", [b"a\rb"]),
        (b"a\r\r\n", [b"a\r"]),
        (b"end\r", [b"end"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_line_ends(tmp_path: Path, content: bytes, expected: list[bytes], buffer_size: int) -> None:
    (tmp_path / "file").write_bytes(content)
    assert lines(tmp_path / "file", buffer_size=buffer_size) == expected


def model(content: bytes) -> list[bytes]:
    parts = content.split(b"\n")
    if not parts[-1]:
        parts.pop()
    return [part.removesuffix(b"\r") for part in parts]


@given(
    pieces=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bcd", b"\x00\xff"])),
    buffer_size=st.integers(0, 9),
    limit=st.integers(1, 9),
)
def test_equals_the_model(file: Path, pieces: list[bytes], buffer_size: int, limit: int) -> None:
    content = b"".join(pieces)
    file.write_bytes(content)
    assert lines(file, limit, buffer_size=buffer_size) == model(content)


@given(pieces=st.lists(st.sampled_from([b"\n", b"\r\n", b"ab"])), limit=st.integers(1, 4))
def test_positions_are_byte_offsets(file: Path, pieces: list[bytes], limit: int) -> None:
    content = b"".join(pieces)
    file.write_bytes(content)
    reader = TextReader(file, buffer_size=3)
    done = 0
    while part := reader.read(limit):
        done += len(part)
        assert len(model(content[: reader.position])) == done
    assert reader.position == len(content)


def test_a_line_much_longer_than_the_buffer_takes_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"x" * 100_000 + b"\nshort"
    (tmp_path / "file").write_bytes(content)
    fills: list[int] = []
    fill = TextReader._fill
    monkeypatch.setattr(TextReader, "_fill", lambda self: (fills.append(1), fill(self)))
    assert lines(tmp_path / "file", buffer_size=1) == content.split(b"\n")
    assert len(fills) < 40


def test_one_read_gives_a_block_and_not_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"line\n" * 10_000)
    reader = TextReader(tmp_path / "file")
    assert len(reader.read(8_000)) == 8_000
    assert len(reader.read(8_000)) == 2_000
    assert reader.read(8_000) == []


def parts(path: Path, count: int, limit: int, **options: int) -> list[bytes]:
    """The lines of all parts, each reader replaced by a new reader at its position."""
    found: list[bytes] = []
    size = max(1, path.stat().st_size // count)
    for index in range(count):
        part = (index * size, None if index == count - 1 else (index + 1) * size)
        reader = TextReader(path, part=part, **options)
        while block := reader.read(limit):
            found += block
            reader.close()
            reader = TextReader(path, position=reader.position, part=part, **options)
        reader.close()
    return found


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"\r", b"\n", b"\n\n", b"long line"]), max_size=30),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_parts_are_the_file(
    file: Path, pieces: list[bytes], count: int, buffer_size: int, limit: int
) -> None:
    file.write_bytes(b"".join(pieces))
    assert parts(file, count, limit, buffer_size=buffer_size) == lines(file)


def test_a_line_belongs_to_the_part_that_it_begins_in(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"aaa\nbb\nc\n")
    found = [lines(path, part=part) for part in ((0, 3), (3, 6), (6, 9), (9, None), (99, None))]
    assert found == [[b"aaa"], [b"bb"], [b"c"], [], []]
    assert [lines(path, part=part) for part in ((0, 4), (4, None))] == [[b"aaa"], [b"bb", b"c"]]


def test_what_has_no_size_has_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(InvalidArgumentError, match="cannot be read by parts, for its size"):
        TextReader(path, "GZIP", part=(0, 2)).read(1)


def test_a_compressed_file_that_is_read_as_text_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, other, plain = (tmp_path / name for name in ("lines.gz", "lines.bz2", "lines.txt"))
    packed.write_bytes(gzip.compress(b"one\ntwo\n"))
    other.write_bytes(bz2.compress(b"one\n"))
    plain.write_bytes(b"BZhang\n")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert lines(packed, compression="GZIP") == [b"one", b"two"]
        assert lines(plain) == [b"BZhang"]
        assert not caplog.messages
        assert lines(packed) == lines(packed) != [b"one", b"two"]
        lines(other)
    assert caplog.messages == [
        f"TextLineDataset: '{packed}' is compressed by gzip, and its bytes are read as text; "
        'pass compression_type="GZIP"',
        f"TextLineDataset: '{other}' is compressed by bzip2, and its bytes are read as text; "
        "unpack it before",
    ]
