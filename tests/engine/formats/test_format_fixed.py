"""Fixed-length records: the frame around them, and files that do not fit it."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.formats.fixed import FixedReader
from penstock.errors import DataLossError, InvalidArgumentError


def records(reader: FixedReader, limit: int = 100) -> list[bytes]:
    found: list[bytes] = []
    while part := reader.read(limit):
        found += part
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fixed") / "file"


@given(
    header=st.binary(max_size=9),
    body=st.lists(st.binary(min_size=3, max_size=3)),
    footer=st.binary(max_size=9),
    compressed=st.booleans(),
    buffer_size=st.integers(0, 9),
    limit=st.integers(1, 5),
)
def test_equals_what_was_written(
    file: Path,
    header: bytes,
    body: list[bytes],
    footer: bytes,
    compressed: bool,
    buffer_size: int,
    limit: int,
) -> None:
    content = header + b"".join(body) + footer
    file.write_bytes(gzip.compress(content) if compressed else content)
    compression = "GZIP" if compressed else None
    reader = FixedReader(file, 3, len(header), len(footer), compression, buffer_size)
    assert records(reader, limit) == body


@pytest.mark.parametrize(("size", "expected"), [(2, [b"ab", b"cd", b"ef"]), (3, [b"abc", b"def"])])
def test_header_and_footer_are_left_out(tmp_path: Path, size: int, expected: list[bytes]) -> None:
    (tmp_path / "file").write_bytes(b"HHabcdefFF")
    assert records(FixedReader(tmp_path / "file", size, 2, 2)) == expected


@pytest.mark.parametrize("content", [b"HHabcdefFF", b"HHF", b"", b"HHabcdeFF"])
def test_a_file_that_does_not_fit_is_refused_before_its_first_record(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    reader = FixedReader(tmp_path / "file", 4, 2, 2)
    problem = (
        f"has {len(content)} bytes, which is not a header of 2, records of 4 and a footer of 2"
    )
    with pytest.raises(InvalidArgumentError, match=problem):
        reader.read(1)
    assert reader.read(1) == []


@pytest.mark.parametrize(("content", "whole"), [(b"HHabcdefFF", [b"abcd"]), (b"HHF", [])])
@pytest.mark.parametrize("buffer_size", [0, 1])
def test_a_compressed_file_shows_it_at_its_end(
    tmp_path: Path, content: bytes, whole: list[bytes], buffer_size: int
) -> None:
    (tmp_path / "file").write_bytes(gzip.compress(content))
    reader = FixedReader(tmp_path / "file", 4, 2, 2, "GZIP", buffer_size)
    if whole:
        assert reader.read(9) == whole
    with pytest.raises(DataLossError, match=f"has {len(content)} bytes, which is not a header"):
        reader.read(9)
    assert reader.read(9) == []


def test_a_compressed_file_without_its_header(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(gzip.compress(b"H"))
    with pytest.raises(DataLossError, match="ends 3 bytes before position 4"):
        FixedReader(tmp_path / "file", 1, 4, 0, "GZIP").read(1)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((0, 0, 0), "record_bytes must be at least 1, got 0"),
        ((-1, 0, 0), "record_bytes must be at least 1, got -1"),
        ((1, -1, 0), "header_bytes must be at least 0, got -1"),
        ((1, 0, -7), "footer_bytes must be at least 0, got -7"),
    ],
)
def test_wrong_sizes(sizes: tuple[int, int, int], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"FixedLengthRecordDataset: {problem}"):
        FixedReader("x", *sizes)


@given(st.integers(0, 20), st.integers(1, 7), st.integers(1, 8), st.integers(1, 3))
def test_parts_are_the_file(
    file: Path, count: int, parts: int, buffer_size: int, limit: int
) -> None:
    file.write_bytes(b"HH" + bytes(range(3 * count)) + b"F")
    found: list[bytes] = []
    for index in range(parts):
        size = 1 + 3 * count // parts
        part = (index * size, None if index == parts - 1 else (index + 1) * size)
        reader = FixedReader(file, 3, 2, 1, buffer_size=buffer_size, part=part)
        while block := reader.read(limit):
            found += block
            reader.close()
            reader = FixedReader(file, 3, 2, 1, None, buffer_size, reader.position, part)
        reader.close()
    assert found == records(FixedReader(file, 3, 2, 1))


def test_a_file_that_does_not_fit_is_refused_once(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"12345")
    with pytest.raises(InvalidArgumentError, match="has 5 bytes, which is not a header"):
        FixedReader(path, 3, part=(0, 2)).read(1)
    assert records(FixedReader(path, 3, part=(2, None))) == []


def test_what_has_no_size_has_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "records.gz"
    path.write_bytes(gzip.compress(b"123456"))
    with pytest.raises(InvalidArgumentError, match="cannot be read by parts, for its size"):
        FixedReader(path, 3, compression="GZIP", part=(0, 2)).read(1)
