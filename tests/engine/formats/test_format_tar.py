"""Tar archives, beside what the `webdataset` package and Python's tarfile read and write."""

import bz2
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import tarfile
import threading

import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.engine.formats.tar import TarReader
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)
from penstock.io import TarWriter

GOLDEN = pathlib.Path(__file__).parent / "golden"
ANSWERS = json.loads((GOLDEN / "tar.json").read_text())


def plain(sample):
    return {
        name: value.decode() if name == "__key__" else value.decode("latin-1")
        for name, value in sample.items()
    }


def drain(reader, limit=1):
    samples = []
    while some := reader.read(limit):
        samples += some
    return samples


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("buffer_size", [None, 1, 700])
@pytest.mark.parametrize("name", ANSWERS)
def test_samples_are_those_of_webdataset(name, buffer_size, limit):
    # All samples have the same fields here if none are asked for: one read, one chunk.
    reader = TarReader(GOLDEN / name, buffer_size=buffer_size)
    limit = limit if name == "shard.tar" else 1
    assert [plain(sample) for sample in drain(reader, limit)] == ANSWERS[name]


def test_a_dataset_has_the_samples_of_all_archives():
    ds = Dataset.from_tar([GOLDEN / "shard.tar", GOLDEN / "shard.tar"])
    assert [plain(sample) for sample in ds] == ANSWERS["shard.tar"] * 2
    assert list(ds.element_spec) == ["__key__", "cls", "seg.png", "txt"]
    assert [plain(sample) for sample in Dataset.from_tar(str(GOLDEN / "sh*d.tar"))] == (
        ANSWERS["shard.tar"]
    )


def test_selected_fields_are_read():
    for name in ("gnu.tar", "pax.tar.gz"):
        ds = Dataset.from_tar(GOLDEN / name, columns=["txt"]).ignore_errors()
        expected = [
            {"__key__": sample["__key__"], "txt": sample["txt"]}
            for sample in ANSWERS[name]
            if "txt" in sample
        ]
        assert [plain(sample) for sample in ds] == expected


def write(path, samples):
    with TarWriter(path) as writer:
        for sample in samples:
            writer.write(sample)
    return str(path)


def number_samples(count, first=0):
    return [{"__key__": f"{n:03}", "txt": f"text {n}"} for n in range(first, first + count)]


SIZES = [0, 1, 511, 512, 3583, 3584, 4096, 16383, 16384, 16385, 100_000, 1 << 20, (1 << 20) + 1]
"""Around the sizes at which a reader reads members singly, and at which its window ends."""


def sized_samples():
    order = random.Random(0)
    sizes = [size for size in SIZES for _ in range(3)]
    order.shuffle(sizes)
    return [
        {"__key__": f"{number:03}", "a": order.randbytes(size), "b": order.randbytes(size // 3)}
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_members_of_all_sizes_are_read_from_every_sample_on(tmp_path, limit):
    samples = sized_samples()
    path = write(tmp_path / "sizes.tar", samples)
    expected = [sample | {"__key__": sample["__key__"].encode()} for sample in samples]
    reader, starts = TarReader(path), []
    while True:
        starts.append(reader.position)
        if not reader.read(1):
            break
    for number, start in enumerate(starts):
        assert drain(TarReader(path, position=start), limit) == expected[number:]
    selected = [{"__key__": sample["__key__"], "b": sample["b"]} for sample in expected]
    assert drain(TarReader(path, fields=("b",)), limit) == selected


def test_a_pipe_is_read_like_a_file(tmp_path):
    samples = sized_samples()
    path = write(tmp_path / "sizes.tar", samples)
    pipe = tmp_path / "pipe.tar"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(pathlib.Path(path).read_bytes()))
    writer.start()
    assert drain(TarReader(pipe), 9) == drain(TarReader(path), 9)
    writer.join()


def test_an_archive_that_is_cut_off_while_it_is_read_is_an_error(tmp_path):
    path = write(tmp_path / "shrinking.tar", sized_samples())
    reader = TarReader(path)
    assert reader.read(1)
    os.truncate(path, 1 << 20)
    with pytest.raises(DataLossError, match="cut off while it was read: it ends before byte"):
        drain(reader)


@pytest.fixture(params=["tar", "tar.gz", "tgz"])
def archives(request, tmp_path):
    return [write(tmp_path / f"{n}.{request.param}", number_samples(4, 4 * n)) for n in range(3)]


def test_every_element_can_be_resumed_from(archives):
    ds = Dataset.from_tar(archives).map(lambda sample: int(sample["__key__"]))
    iterator = iter(ds)
    for number in range(13):
        resumed = iter(ds)
        resumed.load_state_dict(iterator.state_dict())
        assert [int(value) for value in resumed] == list(range(number, 12))
        next(iterator, None)


def test_workers_divide_the_archives(archives):
    ds = Dataset.from_tar(archives).map(lambda sample: int(sample["__key__"]))
    ds = ds.apply(service.distribute("distributed_epoch", "local://2"))
    assert [int(value) for value in ds] == list(range(12))


def test_shards_have_all_samples_once(archives):
    ds = Dataset.from_tar(archives)
    keys = [int(sample["__key__"]) for n in range(3) for sample in ds.shard(3, n)]
    assert sorted(keys) == list(range(12))


def test_tarfile_reads_what_the_writer_wrote(tmp_path):
    long = "folder/" * 30 + "name"
    for name, mode in (("a.tar", "r:"), ("a.tar.gz", "r:gz")):
        path = write(tmp_path / name, [{"__key__": long, "bin": b"\0\xff", "txt": "ä"}])
        with tarfile.open(path, mode) as archive:
            found = {one.name: archive.extractfile(one).read() for one in archive}
        assert found == {f"{long}.bin": b"\0\xff", f"{long}.txt": "ä".encode()}


WHOLE = (GOLDEN / "shard.tar").read_bytes()
END = len(WHOLE.rstrip(b"\0")) + 511 & ~511
"""Where the end mark of the archive begins."""


@pytest.mark.parametrize("size", [1, 511, *range(512, END + 1, 512), *range(700, END, 900)])
def test_a_truncated_archive_is_an_error_after_the_samples_before(size, tmp_path):
    path = tmp_path / "cut.tar"
    path.write_bytes(WHOLE[:size])
    reader, samples = TarReader(path), []
    with pytest.raises(DataLossError, match="cut.tar' is damaged at byte .* it was cut off"):
        samples += drain(reader)
    assert [plain(sample) for sample in samples] == ANSWERS["shard.tar"][: len(samples)]


def test_a_compressed_archive_is_read_to_its_checksum(tmp_path):
    whole = pathlib.Path(write(tmp_path / "x.tar", number_samples(3))).read_bytes()
    packed = bytearray(gzip.compress(whole, compresslevel=0))
    packed[packed.find(b"text 1")] ^= 1
    (tmp_path / "x.tar.gz").write_bytes(packed)
    ds = Dataset.from_tar(tmp_path / "x.tar.gz")
    iterator = iter(ds)
    assert len([next(iterator) for _ in range(3)]) == 3
    with pytest.raises(DataLossError, match="x.tar.gz' is not a complete GZIP file"):
        next(iterator)
    resumed = iter(ds)
    resumed.load_state_dict(iterator.state_dict())
    assert list(resumed) == []
    assert len(list(ds.take(3))) == 3
    assert len(list(Dataset.from_tar(tmp_path / "x.tar.gz", on_error="skip"))) == 3


def test_filling_behind_a_compressed_archive_is_passed_over(tmp_path):
    whole = pathlib.Path(write(tmp_path / "x.tar", number_samples(3))).read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(whole) + bytes(512))
    assert len(list(Dataset.from_tar(tmp_path / "x.tar.gz"))) == 3


def test_a_checksum_of_signed_bytes_is_right_as_for_tarfile(tmp_path):
    path = tmp_path / "old.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo("größe.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"two"))
    octets = bytearray(path.read_bytes())
    header = octets[:148] + b" " * 8 + octets[156:512]
    signed = sum(octet - 256 * (octet > 127) for octet in header)
    assert signed != sum(header)
    octets[148:156] = b"%06o\0 " % signed
    path.write_bytes(octets)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["größe.txt"]
    assert list(Dataset.from_tar(path)) == [{"__key__": "größe".encode(), "txt": b"two"}]


@pytest.mark.parametrize("byte", [0, 124, 150, 156, 300])
def test_a_damaged_header_is_an_error_that_names_its_place(byte, tmp_path):
    with tarfile.open(GOLDEN / "shard.tar") as archive:
        header = archive.getmembers()[7].offset  # In the third sample.
    damaged = bytearray(WHOLE)
    damaged[header + byte] ^= 1
    (tmp_path / "bad.tar").write_bytes(damaged)
    iterator = iter(Dataset.from_tar(tmp_path / "bad.tar"))
    assert [plain(next(iterator)) for _ in range(2)] == ANSWERS["shard.tar"][:2]
    message = f"bad.tar' is damaged at byte {header}: the checksum of a header is wrong"
    with pytest.raises(DataLossError, match=message):
        next(iterator)


def tar_of(*names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


@pytest.mark.parametrize(
    ("names", "columns", "message"),
    [
        (["a.x", "b.x", "b.y", "c.x"], None, "sample 'b' at byte 512 of .* also has the field 'y'"),
        (["a.x", "b.y", "c.x"], ["x"], "sample 'b' at byte 512 of .* has no field 'x'; it has 'y'"),
        (["a.x", "b.x", "b.x", "c.x"], None, "sample 'b' .* has the field 'x' twice"),
    ],
)
def test_a_sample_that_does_not_fit_costs_only_itself(names, columns, message, tmp_path):
    path = tmp_path / "mixed.tar"
    path.write_bytes(tar_of(*names))
    ds = Dataset.from_tar(path, columns)
    with pytest.raises(InvalidArgumentError, match=message):
        list(ds)
    assert [sample["__key__"] for sample in ds.ignore_errors()] == [b"a", b"c"]


def header_with(**fields):
    """The header of a file with other bytes in some fields."""
    header = bytearray(tar_of("a.x")[:512])
    places = {"size": slice(124, 136), "kind": slice(156, 157)}
    for name, value in fields.items():
        header[places[name]] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def build_extended_header(text):
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w") as archive:
            one = tarfile.TarInfo("x")
            one.type, one.size = tarfile.XHDTYPE, len(text)
            archive.addfile(one, io.BytesIO(text))
        return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive" * 100, "damaged at byte 0: .*; is it a tar file"),
        (header_with(kind=b"S"), "sparse members are not supported; write .*sparse$"),
        (build_extended_header(b"22 GNU.sparse.major=1\n"), "sparse members are not supported"),
        (header_with(size=b"-0000001000\0"), "byte 0: a header states a negative size"),
        (build_extended_header(b"what is this"), "an extended header is malformed"),
        (b"", "the archive ends without its end mark"),
        (bz2.compress(b"archive"), "it is compressed by bzip2: unpack it, or name what gzip"),
        (lzma.compress(b"archive"), "it is compressed by xz: unpack it, or name what gzip"),
    ],
    ids=["text", "sparse", "sparse in pax", "negative", "extended", "empty", "bzip2", "xz"],
)
def test_other_files_are_refused(content, message, tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises(DataLossError, match=message):
        Dataset.from_tar(path)


@pytest.mark.parametrize("kind", [b"1", b"2", b"5"], ids=["hard link", "link", "folder"])
def test_nothing_follows_links_and_folders_whatever_size_they_state(kind, tmp_path):
    path = tmp_path / "x.tar"
    link = header_with(kind=kind, size=b"%011o\0" % 1024)
    path.write_bytes(link + tar_of("b.x", "c.x"))
    with tarfile.open(path) as archive:
        expected = [one.name for one in archive if one.isreg()]
    assert expected == ["b.x", "c.x"]
    assert [sample["__key__"] for sample in Dataset.from_tar(path)] == [b"b", b"c"]


def test_an_archive_without_samples_is_refused(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(tar_of("README"))
    with pytest.raises(
        InvalidArgumentError, match="x.tar' has no samples, which are files with an"
    ):
        Dataset.from_tar(path)
    assert list(Dataset.from_tar(path, columns=["txt"])) == []
    write(tmp_path / "y.tar", number_samples(1))
    for index in (False, str(tmp_path / "indexes")):
        both = Dataset.from_tar([path, tmp_path / "y.tar"], index=index)
        assert [sample["__key__"] for sample in both] == [b"000"]
    with pytest.raises(NotFoundError, match="does not exist"):
        Dataset.from_tar(tmp_path / "missing.tar")


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ({"txt": "a"}, InvalidTypeError, "field '__key__' must be bytes or text, got None"),
        (
            {"__key__": "a", "txt": 3},
            InvalidTypeError,
            "'txt' must be bytes or text, got 3; encode",
        ),
        ({"__key__": "a.b", "txt": ""}, InvalidArgumentError, "must be a new name without a dot"),
        ({"__key__": "last", "txt": ""}, InvalidArgumentError, "must be a new name without a dot"),
        ({"__key__": "a"}, InvalidArgumentError, "sample b'a' has no fields"),
    ],
)
def test_samples_that_cannot_be_written_are_refused(sample, error, message, tmp_path):
    with TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "last", "txt": "x"})
        with pytest.raises(error, match=message):
            writer.write(sample)
    with pytest.raises(FailedPreconditionError, match="x.tar' is closed; make a new writer"):
        writer.write(sample)
    writer.close()
    assert len(list(Dataset.from_tar(tmp_path / "x.tar"))) == 1
