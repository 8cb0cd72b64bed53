"""The contract of `RecordReader`, over every format, compression and kind of path."""

import gzip
import io
import itertools
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest

from penstock.engine.formats import READERS, open_reader
from penstock.engine.formats.records import RecordReader
from penstock.engine.formats.tfrecord import TFRecordWriter
from penstock.errors import DataLossError, InvalidArgumentError, InvalidTypeError, NotFoundError


def tfrecords(*records: bytes) -> bytes:
    with TFRecordWriter("memory://contract/made") as writer:
        for record in records:
            writer.write(record)
    return bytes(fsspec.filesystem("memory").cat("memory://contract/made"))


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@dataclass
class Sample:
    """A file's bytes and the records in them; `damaged` fails after `whole` records.

    If only one record is lost by the damage, `behind` is the record after it.
    """

    format: str
    content: bytes
    records: list[Any]
    damaged: bytes | None = None
    whole: int = 0
    behind: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


WORDS = [b"one", b"", b"three", b"x" * 40, b"\r\n\0", b"six"]
SAMPLES = {
    "text": Sample(
        "text", b"one\ntwo\r\n\nlonger line\nend", [b"one", b"two", b"", b"longer line", b"end"]
    ),
    "text-newline-at-end": Sample("text", b"\n\nz\n", [b"", b"", b"z"]),
    "text-empty": Sample("text", b"", []),
    "tfrecord": Sample("tfrecord", tfrecords(*WORDS), WORDS, tfrecords(*WORDS)[:-1], 5),
    "tfrecord-skipping": Sample(
        "tfrecord",
        tfrecords(*WORDS),
        WORDS,
        tfrecords(b"one", b"two", b"three", b"four").replace(b"three", b"thREE"),
        2,
        [b"four"],
        {"skips_damaged": True},
    ),
    "tfrecord-empty": Sample("tfrecord", b"", []),
    "fixed": Sample("fixed", b"abcdefghi", [b"abc", b"def", b"ghi"], options={"record_bytes": 3}),
    "fixed-framed": Sample(
        "fixed",
        b"HHHHabcdFF",
        [b"a", b"b", b"c", b"d"],
        options={"record_bytes": 1, "header_bytes": 4, "footer_bytes": 2},
    ),
    "csv": Sample(
        "csv",
        b'1,"a\nb",c\r\n2,"say ""x""",\n\n,\xff\r4,"",x',
        [["1", "a\nb", "c"], ["2", 'say "x"', ""], [""], ["", "\udcff"], ["4", "", "x"]],
        b'1,2\n3,4\n5"6,7\n8,9\n',
        2,
        [["8", "9"]],
    ),
    "csv-header": Sample(
        "csv", b'"a\nb",c\n1,2\n3,4\n', [["1", "2"], ["3", "4"]], options={"header": True}
    ),
}
SAMPLES["json_lines"] = Sample(
    "json_lines",
    b'{"x": 1}\n\n{"x": 2, "y": 0}\r\n  {"x": 33}',
    [b'{"x": 1}', b'{"x": 2, "y": 0}', b'{"x": 33}'],
    b'{"x": 1}\n{"x": 2}\n{"x": "a"}\n{"x": 4}\n',
    2,
    [b'{"x": 4}'],
    {
        "schema": pyarrow.schema([("x", pyarrow.int64())]).serialize().to_pybytes(),
        "columns": ("x",),
        "is_strict": False,
    },
)
SAMPLES["tar"] = Sample(
    "tar",
    tar_of({"a.x": b"1", "a.y": b"", "b.x": b"2" * 600, "b.y": b"3", "c.x": b"", "c.y": b"4"}),
    [
        {"__key__": b"a", "x": b"1", "y": b""},
        {"__key__": b"b", "x": b"2" * 600, "y": b"3"},
        {"__key__": b"c", "x": b"", "y": b"4"},
    ],
    tar_of({"a.x": b"1", "a.y": b"", "b.y": b"", "c.x": b"", "c.y": b"4"}),
    1,
    [{"__key__": b"c", "x": b"", "y": b"4"}],
    {"fields": ("x", "y")},
)
LINES = ("text", "csv", "json_lines")
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "GZIP": gzip.compress,
    "ZLIB": zlib.compress,
}


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[bytes], str]]:
    """Writes bytes to a file and returns its path."""
    if request.param == "local":
        path = str(tmp_path / "file")
    else:
        path = f"memory://{tmp_path.name}/file"

    def put(content: bytes) -> str:
        with fsspec.open(path, "wb") as file:
            file.write(content)
        return path

    yield put
    if request.param == "memory":
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]


def drain(reader: RecordReader[Any], limit: int) -> list[Any]:
    records = []
    while part := reader.read(limit):
        assert len(part) <= limit
        records += part
    assert reader.read(limit) == []
    return records


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_same_records_for_every_buffer_and_limit(
    sample: Sample, store: Callable[[bytes], str], compression: str
) -> None:
    path = store(COMPRESSORS[compression](sample.content))
    for size, limit in itertools.product((None, 1, 2, 7, 64), (1, 2, 1000)):
        options = {"compression": compression, "buffer_size": size, **sample.options}
        found = drain(open_reader(sample.format, path, options), limit)
        assert found == sample.records, f"buffer of {size}, read by {limit}"


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("buffer_size", [None, 1, 5])
def test_resumes_from_every_position(
    sample: Sample, store: Callable[[bytes], str], compression: str, buffer_size: int
) -> None:
    path = store(COMPRESSORS[compression](sample.content))
    options = {"compression": compression, "buffer_size": buffer_size, **sample.options}
    reader = open_reader(sample.format, path, options)
    for done in range(len(sample.records) + 1):
        position = json.loads(json.dumps(reader.position))
        rest = open_reader(sample.format, path, options, position)
        assert drain(rest, 1000) == sample.records[done:]
        reader.read(1)
    assert reader.read(1) == []


@pytest.mark.parametrize("limit", [1, 2, 1000])
@pytest.mark.parametrize("buffer_size", [None, 1])
@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.damaged])
def test_an_error_comes_after_the_records_before_it_and_once(
    name: str, store: Callable[[bytes], str], buffer_size: int, limit: int
) -> None:
    sample = SAMPLES[name]
    assert sample.damaged is not None
    path = store(sample.damaged)
    reader = open_reader(sample.format, path, {"buffer_size": buffer_size, **sample.options})
    before = 0
    while before < sample.whole:
        before += len(reader.read(limit))
    assert before == sample.whole
    with pytest.raises((DataLossError, InvalidArgumentError), match="byte "):
        reader.read(limit)
    assert reader.has_ended == (not sample.behind)
    assert reader.read(limit) == sample.behind
    assert reader.read(limit) == []
    assert reader.has_ended


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("buffer_size", [None, 1])
@pytest.mark.parametrize("kind", ["wrong", "cut"])
def test_the_checksum_of_a_compressed_file_is_checked_behind_its_records(
    sample: Sample, tmp_path: Path, compression: str, buffer_size: int | None, kind: str
) -> None:
    packed = COMPRESSORS[compression](sample.content)
    checksum = -8 if compression == "GZIP" else -1
    wrong = packed[checksum] ^ 1
    packed = packed[:checksum] + bytes([wrong]) + packed[len(packed) + checksum + 1 :]
    (tmp_path / "file").write_bytes(packed[:checksum] if kind == "cut" else packed)
    options = {"compression": compression, "buffer_size": buffer_size, **sample.options}
    reader = open_reader(sample.format, tmp_path / "file", options)
    # A last line without a line end may be cut short, so it is no record.
    is_unended = sample.format in LINES and not sample.content.endswith(b"\n")
    expected = sample.records[:-1] if is_unended else sample.records
    found: list[Any] = []
    while len(found) < len(expected):
        found += reader.read(1000)
    assert found == expected
    with pytest.raises(DataLossError, match=f"is not a complete {compression} file"):
        reader.read(1000)
    assert reader.has_ended


def test_close_ends_the_reader_and_may_be_called_twice(
    sample: Sample, store: Callable[[bytes], str]
) -> None:
    reader = open_reader(sample.format, store(sample.content), sample.options)
    reader.read(1)
    position = reader.position
    reader.close()
    reader.close()
    assert reader.read(1) == []
    assert reader.position == position


def test_close_before_the_first_read(sample: Sample) -> None:
    reader = open_reader(sample.format, "nowhere", sample.options)
    reader.close()
    assert reader.read(1) == []


def test_a_missing_file_is_an_error_only_when_it_is_read(sample: Sample) -> None:
    reader = open_reader(sample.format, "nowhere/at/all", sample.options)
    with pytest.raises(NotFoundError, match="Dataset.*: 'nowhere/at/all' does not exist"):
        reader.read(1)
    assert reader.read(1) == []


def test_an_unknown_compression_is_an_error_only_when_it_is_read(sample: Sample) -> None:
    reader = open_reader(sample.format, "nowhere", {"compression": "XX", **sample.options})
    with pytest.raises(InvalidArgumentError, match="compression_type must be .*, got 'XX'"):
        reader.read(1)


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_position_behind_the_end_is_of_another_file(
    sample: Sample, store: Callable[[bytes], str], compression: str
) -> None:
    path = store(COMPRESSORS[compression](sample.content))
    options = {"compression": compression, **sample.options}
    reader = open_reader(sample.format, path, options, len(sample.content) + 3)
    with pytest.raises(DataLossError, match="ends 3 bytes before position"):
        reader.read(1)


def test_paths_of_every_type(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(sample.content)
    for spelled in (path, str(path), os.fsencode(path)):
        assert drain(open_reader(sample.format, spelled, sample.options), 9) == sample.records


@pytest.mark.parametrize("format", READERS)
def test_wrong_arguments(format: str) -> None:
    options = next(s.options for s in SAMPLES.values() if s.format == format)
    with pytest.raises(InvalidTypeError, match="a path must be str, bytes or os.PathLike, got 5"):
        open_reader(format, 5, options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="position must be at least 0, got -1"):
        open_reader(format, "x", options, -1)
    with pytest.raises(InvalidArgumentError, match="buffer_size must be at least 0, got -2"):
        open_reader(format, "x", {"buffer_size": -2, **options})
    with pytest.raises(InvalidArgumentError, match="limit must be at least 1, got 0"):
        open_reader(format, "x", options).read(0)


def test_an_unknown_format() -> None:
    with pytest.raises(InvalidArgumentError, match="must be one of .*'tfrecord'.*, got 'docx'"):
        open_reader("docx", "x", {})
