"""TFRecord: TensorFlow's bytes, every truncation and every flipped bit found, the writer."""

import gzip
import os
import struct
import zlib
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.formats import tfrecord
from penstock.engine.formats.tfrecord import (
    TFRecordOptions,
    TFRecordReader,
    TFRecordWriter,
    masked_crc,
)
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)

# What TensorFlow writes for the records a0 and a1.
TENSORFLOWS = bytes.fromhex(
    "020000000000000078270b3461305190a7a8020000000000000078270b346131862ca6a2"
)
FRAME = 16


def write(path: Path, records: list[bytes], options: Any = None) -> bytes:
    with TFRecordWriter(path, options) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


def records_and_error(
    path: Path, limit: int = 100, compression: str = "", buffer_size: int = 0
) -> tuple[list[bytes], DataLossError | None]:
    reader = TFRecordReader(path, compression, buffer_size)
    records: list[bytes] = []
    try:
        while part := reader.read(limit):
            records += part
    except DataLossError as error:
        return records, error
    return records, None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tfrecord") / "file"


def test_writes_what_tensorflow_writes(tmp_path: Path) -> None:
    assert write(tmp_path / "file", [b"a0", b"a1"]) == TENSORFLOWS


def test_reads_what_tensorflow_wrote(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(TENSORFLOWS)
    assert records_and_error(tmp_path / "file") == ([b"a0", b"a1"], None)


@given(
    records=st.lists(st.binary(max_size=50)),
    compression=st.sampled_from(["", "GZIP", "ZLIB"]),
    buffer_size=st.integers(0, 30),
    limit=st.integers(1, 5),
)
def test_round_trip(
    file: Path, records: list[bytes], compression: str, buffer_size: int, limit: int
) -> None:
    write(file, records, compression)
    assert records_and_error(file, limit, compression, buffer_size) == (records, None)


@pytest.mark.parametrize("buffer_size", [0, 1, 13])
@pytest.mark.parametrize("limit", [1, 100])
def test_truncated_at_every_byte(tmp_path: Path, buffer_size: int, limit: int) -> None:
    path = tmp_path / "file"
    records = [b"first", b"", b"the third"]
    content = write(path, records)
    ends = [sum(len(record) + FRAME for record in records[:n]) for n in range(4)]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends[1:])
        found, error = records_and_error(path, limit, buffer_size=buffer_size)
        assert found == records[:whole]
        if length in ends:
            assert error is None
        else:
            assert (
                f"{str(path)!r} has a damaged record at byte {ends[whole]}: the file ends"
                in str(error)
            )


@pytest.mark.parametrize("buffer_size", [0, 1])
def test_every_flipped_bit_is_found_at_its_record(tmp_path: Path, buffer_size: int) -> None:
    path = tmp_path / "file"
    for index in range(len(TENSORFLOWS)):
        for bit in range(8):
            damaged = bytearray(TENSORFLOWS)
            damaged[index] ^= 1 << bit
            path.write_bytes(damaged)
            found, error = records_and_error(path, buffer_size=buffer_size)
            assert found == [b"a0", b"a1"][: index // 18]
            part = "its length is wrong" if index % 18 < 12 else "its data is wrong"
            assert f"at byte {index // 18 * 18}: the checksum of {part}" in str(error)


@pytest.mark.parametrize("limit", [1, 7, 16, 100])
@pytest.mark.parametrize("bad", [0, 1, 15, 16, 39])
def test_many_records_are_checked_at_once_and_each_is_found(
    tmp_path: Path, bad: int, limit: int
) -> None:
    path = tmp_path / "file"
    records = [bytes([i]) * i for i in range(40)]
    content = bytearray(write(path, records))
    start = sum(len(record) + FRAME for record in records[:bad])
    content[start + len(records[bad]) + FRAME - 1] ^= 1
    path.write_bytes(content)
    with closing(TFRecordReader(path)) as reader:
        found: list[bytes] = []
        while len(found) < bad:
            found += reader.read(limit)
        assert (found, reader.position) == (records[:bad], start)
        with pytest.raises(DataLossError, match=f"at byte {start}: the checksum of its data"):
            reader.read(limit)


def write_damaged(path: Path, records: list[bytes], numbers: list[int]) -> None:
    """Writes records, some of them with a wrong checksum of their data."""
    content = bytearray(write(path, records))
    for number in numbers:
        content[sum(len(record) + FRAME for record in records[: number + 1]) - 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("buffer_size", [1, 100, None])
@pytest.mark.parametrize("bad", [[0], [39], [3, 4, 5], [0, 17, 39]])
def test_a_reader_that_skips_continues_behind_a_record_with_damaged_data(
    tmp_path: Path, bad: list[int], buffer_size: int | None, limit: int
) -> None:
    records = [bytes([i]) * i for i in range(40)]
    write_damaged(tmp_path / "file", records, bad)
    with closing(
        TFRecordReader(tmp_path / "file", buffer_size=buffer_size, skips_damaged=True)
    ) as reader:
        found: list[bytes] = []
        places: list[int] = []
        while not reader.has_ended:
            try:
                found += reader.read(limit)
            except DataLossError as error:
                place, _, problem = str(error).partition(" at byte ")[2].partition(": ")
                places.append(int(place) if "checksum of its data" in problem else -1)
    assert found == [record for i, record in enumerate(records) if i not in bad]
    assert places == [sum(len(record) + FRAME for record in records[:number]) for number in bad]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_and_truncated_at_every_byte(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "file"
    records = [os.urandom(50) for _ in range(3)]
    content = write(path, records, compression)
    seen = set()
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        found, error = records_and_error(path, compression=compression)
        assert found == records[: len(found)]
        assert f"not a complete {compression} file" in str(error)
        seen.add(len(found))
    assert seen == {0, 1, 2, 3}


def test_no_memory_is_taken_for_a_length_that_the_file_does_not_have(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**62)
    (tmp_path / "file").write_bytes(length + masked_crc(length) + b"x" * 100)
    _, error = records_and_error(tmp_path / "file")
    assert "the file ends within it" in str(error)


def test_a_file_of_another_kind_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"just some lines of text\n")
    with pytest.raises(DataLossError, match="is it a TFRecord file, and is compression_type right"):
        TFRecordReader(tmp_path / "file").read(1)


def test_more_lengths_than_are_remembered(tmp_path: Path) -> None:
    records = [bytes(n) for n in range(4200)]
    write(tmp_path / "file", records)
    reader = TFRecordReader(tmp_path / "file")
    assert [record for _ in records for record in reader.read(1)] == records
    assert reader.read(1) == []
    assert 0 < len(reader._lengths) <= 4096


@pytest.mark.parametrize(
    ("options", "unpack"),
    [
        (None, bytes),
        ("", bytes),
        ("GZIP", gzip.decompress),
        ("ZLIB", zlib.decompress),
        (TFRecordOptions(), bytes),
        (TFRecordOptions("GZIP"), gzip.decompress),
        (TFRecordOptions(compression_type="ZLIB"), zlib.decompress),
        (SimpleNamespace(compression_type="GZIP"), gzip.decompress),
    ],
)
def test_writer_options(tmp_path: Path, options: Any, unpack: Any) -> None:
    assert unpack(write(tmp_path / "file", [b"a0", b"a1"], options)) == TENSORFLOWS


@pytest.mark.parametrize("wrong", ["gzip", 5, ["GZIP"], SimpleNamespace(compression_type="LZMA")])
def test_wrong_writer_options_make_no_file(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="TFRecordWriter: compression_type must be "):
        TFRecordWriter(tmp_path / "file", wrong)
    assert not (tmp_path / "file").exists()


def test_wrong_options() -> None:
    with pytest.raises(InvalidArgumentError, match="TFRecordOptions: .* or None, got 'SNAPPY'"):
        TFRecordOptions("SNAPPY")


def test_options_of_zlib(tmp_path: Path) -> None:
    def size_with(**options: Any) -> int:
        path = tmp_path / "file"
        with TFRecordWriter(str(path), TFRecordOptions(**options)) as writer:
            for _ in range(50):
                writer.write(b"hello world" * 10)
        reader = gzip.decompress if options["compression_type"] == "GZIP" else zlib.decompress
        assert len(reader(path.read_bytes())) == 6300
        return path.stat().st_size

    # TensorFlow's files have these sizes.
    assert size_with(compression_type="GZIP", compression_level=9) == 93
    assert size_with(compression_type="GZIP", compression_level=0) == 6323
    assert size_with(compression_type="GZIP", compression_level=1) == 119
    assert size_with(compression_type="ZLIB", compression_level=0) == 6311
    size_with(compression_type="GZIP", window_bits=9, mem_level=1, compression_method=8)
    size_with(compression_type="ZLIB", window_bits=9, flush_mode=2, compression_strategy=2)


@pytest.mark.parametrize(
    "wrong", [{"compression_level": 99}, {"window_bits": 40}, {"mem_level": "x"}]
)
def test_wrong_options_of_zlib(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="TFRecordOptions: zlib does not take"):
        TFRecordOptions("GZIP", **wrong)


def test_writer_takes_bytes_of_all_types(tmp_path: Path) -> None:
    write(tmp_path / "file", [b"a", bytearray(b"b"), memoryview(b"c"), "ü"])  # type: ignore[list-item]
    assert records_and_error(tmp_path / "file") == ([b"a", b"b", b"c", "ü".encode()], None)


@pytest.mark.parametrize("wrong", [5, None, [b"x"]])
def test_writer_refuses_what_is_not_bytes(tmp_path: Path, wrong: Any) -> None:
    with (
        TFRecordWriter(tmp_path / "file") as writer,
        pytest.raises(InvalidTypeError, match="a record must be bytes, got"),
    ):
        writer.write(wrong)
    assert (tmp_path / "file").read_bytes() == b""


def test_writer_after_close(tmp_path: Path) -> None:
    writer = TFRecordWriter(tmp_path / "file")
    writer.close()
    writer.close()
    with pytest.raises(FailedPreconditionError, match="TFRecordWriter.write: '.*' is closed"):
        writer.write(b"x")
    with pytest.raises(FailedPreconditionError, match="TFRecordWriter.flush: '.*' is closed"):
        writer.flush()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_flushed_records_can_be_read(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "file"
    with TFRecordWriter(path, compression) as writer:
        writer.write(b"early")
        writer.flush()
        with closing(TFRecordReader(path, compression)) as reader:
            assert reader.read(1) == [b"early"]
        writer.write(b"late")
    assert records_and_error(path, compression=compression) == ([b"early", b"late"], None)


def test_an_exception_closes_the_writer(tmp_path: Path) -> None:
    with suppress(KeyError), TFRecordWriter(tmp_path / "f", "GZIP") as writer:
        writer.write(b"x")
        raise KeyError
    assert records_and_error(tmp_path / "f", compression="GZIP") == ([b"x"], None)


def test_writer_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="TFRecordWriter: the folder of '.*nowhere.*' does"):
        TFRecordWriter(tmp_path / "nowhere" / "file")


def part_of(path: Path, part: tuple[int, int | None], begin: int | None, limit: int) -> Any:
    """The records of a part, where it began and where it ended."""
    reader = TFRecordReader(path, part=part, begin=begin, buffer_size=7)
    found: list[bytes] = []
    began: list[int | None] = []
    while block := reader.read(limit):
        found += block
        began.append(reader.began)
        reader.close()
        reader = TFRecordReader(path, part=part, begin=begin, position=reader.position)
    return found, [*began, reader.began][0], reader.position


def frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked_crc(length) + record + masked_crc(record)


plain = st.binary(max_size=40)
nested = st.lists(st.binary(max_size=20), max_size=3).map(lambda inner: b"".join(map(frame, inner)))


@given(
    records=st.lists(st.one_of(plain, nested, st.just(bytes(60))), max_size=12),
    size=st.integers(1, 90),
    limit=st.integers(1, 3),
    window=st.integers(1, 50),
)
def test_parts_are_the_file_if_each_begins_where_the_one_before_ended(
    file: Path, records: list[bytes], size: int, limit: int, window: int
) -> None:
    content = write(file, records)
    tfrecord._WINDOW, before = window, tfrecord._WINDOW
    found: list[bytes] = []
    reached = 0
    try:
        for start in range(0, max(1, len(content)), size):
            part = (start, start + size if start + size < len(content) else None)
            told, _, end = part_of(file, part, reached, limit)
            with suppress(DataLossError):  # A guess within a record may lead anywhere.
                guessed, began, ended = part_of(file, part, None, limit)
                right = began <= reached if began == ended else began == reached
                assert guessed == told or not right
            found += told
            reached = max(reached, end)
    finally:
        tfrecord._WINDOW = before
    assert found == records
    assert reached == len(content)


def test_a_guess_is_right_where_no_record_holds_records(tmp_path: Path) -> None:
    records = [os.urandom(100 + number) for number in range(60)] + [bytes(3000)]
    content = write(tmp_path / "file", records)
    starts = [sum(len(record) + FRAME for record in records[:n]) for n in range(len(records) + 1)]
    with open(tmp_path / "file", "rb") as opened:
        for start in range(1, len(content), 97):
            right = next(place for place in starts if place >= start)
            assert tfrecord.find_record(opened, start, len(content), len(content)) == right


def test_no_part_begins_behind_the_end_of_a_file(tmp_path: Path) -> None:
    content = write(tmp_path / "file", [b"a", b"b"])
    for part in ((5, None), (17, None), (99, None)):
        assert part_of(tmp_path / "file", part, 1 << 62, 1) == ([], 1 << 62, 1 << 62)
    with pytest.raises(DataLossError, match="ends 2 bytes before position"):
        TFRecordReader(tmp_path / "file", part=(5, None), position=len(content) + 2).read(1)
