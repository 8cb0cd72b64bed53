"""Indexes of TFRecord files and tar archives: when they are used, and when they are refused."""

import os
import threading
from pathlib import Path

import fsspec
import pytest

from penstock.data import Dataset, TFRecordDataset
from penstock.engine.formats import indexed, record_spans, tar
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    UnimplementedError,
)
from penstock.io import TarWriter, TFRecordWriter
from penstock.plan.codec import decode, encode


def write_records(path, records):
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def write_samples(path, texts):
    with TarWriter(path) as writer:
        for number, text in enumerate(texts):
            writer.write({"__key__": f"{number:03}", "txt": text})
    return str(path)


class Kind:
    """A format with an index: how to write and to read texts."""

    def __init__(self, name):
        self.name = name

    def write(self, path, texts):
        return (write_records if self.name == "tfrecord" else write_samples)(path, texts)

    def open(self, path, index):
        if self.name == "tfrecord":
            return TFRecordDataset(path, index=index)
        return Dataset.from_tar(path, index=index).map(lambda sample: sample["txt"])

    def forbid_scans(self, monkeypatch):
        def fail(*_):
            raise AssertionError("scanned")

        monkeypatch.setattr(indexed, "scan_tfrecords", fail)
        monkeypatch.setattr(tar, "scan_samples", fail)


@pytest.fixture(params=["tfrecord", "tar"])
def kind(request):
    return Kind(request.param)


TEXTS = [b"%d" % number * number for number in range(30)]


@pytest.fixture(params=["folder", "memory://indexes"])
def folder(request, tmp_path):
    return str(tmp_path / "indexes") if request.param == "folder" else f"{request.param}/{tmp_path}"


def test_a_file_is_scanned_once(kind, folder, tmp_path, monkeypatch):
    path = kind.write(tmp_path / "x", TEXTS)
    assert list(kind.open(path, folder)) == TEXTS
    kind.forbid_scans(monkeypatch)
    again = kind.open(path, folder)
    assert [again[i] for i in (29, 0, 7)] == [TEXTS[29], TEXTS[0], TEXTS[7]]
    assert list(again.shuffle(30, seed=1).take(30)) != TEXTS


def test_the_folder_of_the_user_is_used_without_another_one(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = kind.write(tmp_path / "x", TEXTS)
    assert len(kind.open(path, True)) == 30
    assert len(list((tmp_path / "cache/penstock/indexes").iterdir())) == 1
    assert sorted(os.listdir(tmp_path)) == ["cache", "x"]
    plan = kind.open(path, True).__plan__
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))
    kept = encode(plan)
    del plan
    assert list(Dataset(decode(kept))) == TEXTS
    assert len(list((tmp_path / "of another user/penstock/indexes").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/person")
    assert indexed.default_folder() == "/home/person/.cache/penstock/indexes"


def test_a_file_that_was_written_again_is_scanned_again(kind, folder, tmp_path):
    for texts in (TEXTS, TEXTS[::-1], TEXTS[:5]):
        path = kind.write(tmp_path / "x", texts)
        assert list(kind.open(path, folder)) == texts


def test_an_index_that_does_not_fit_is_an_error_even_if_size_and_time_are_equal(kind, tmp_path):
    path = kind.write(tmp_path / "x", [b"a" * 10, b"b" * 2000, b"c"])
    before = os.stat(path)
    assert len(kind.open(path, tmp_path / "indexes")) == 3
    kind.write(tmp_path / "x", [b"a" * 2000, b"b" * 10, b"c"])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.path.getsize(path) == before.st_size
    (index,) = (tmp_path / "indexes").iterdir()
    with pytest.raises(DataLossError, match=f"x' .*{index}' was written; delete that index"):
        list(kind.open(path, tmp_path / "indexes"))
    index.unlink()
    assert [len(text) for text in kind.open(path, tmp_path / "indexes")] == [2000, 10, 1]


@pytest.mark.parametrize("at", [0, 20, 40, 60, 200])
def test_a_damaged_index_is_replaced(at, tmp_path):
    path = write_records(tmp_path / "x", TEXTS)
    TFRecordDataset(path, index=tmp_path / "indexes")
    (index,) = (tmp_path / "indexes").iterdir()
    whole = index.read_bytes()
    for damaged in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
        index.write_bytes(damaged)
        assert list(TFRecordDataset(path, index=tmp_path / "indexes")) == TEXTS
        assert index.read_bytes() == whole


def test_the_index_of_another_path_is_not_used(tmp_path):
    first = write_records(tmp_path / "x", TEXTS)
    second = write_records(tmp_path / "y", TEXTS[::-1])
    TFRecordDataset([first, second], index=tmp_path / "indexes")
    one, other = sorted((tmp_path / "indexes").iterdir())
    other.write_bytes(one.read_bytes())
    assert list(TFRecordDataset(second, index=tmp_path / "indexes")) == TEXTS[::-1]


def test_a_folder_that_cannot_be_written_is_reported_once(kind, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_bytes(b"")
    paths = [kind.write(tmp_path / name, TEXTS) for name in "xy"]
    folder = str(tmp_path / "file" / "indexes")
    assert list(kind.open(paths, folder)) == TEXTS * 2
    (record,) = caplog.records
    assert "so every program scans its files again" in record.getMessage()
    kind.forbid_scans(monkeypatch)
    assert list(kind.open(paths, folder)) == TEXTS * 2


def test_many_programs_may_write_one_index(kind, tmp_path):
    path = kind.write(tmp_path / "x", TEXTS)
    found = []

    def read():
        found.append(list(kind.open(path, tmp_path / "indexes")))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [TEXTS] * 8
    assert len(os.listdir(tmp_path / "indexes")) == 1


def test_a_file_that_changes_while_it_is_scanned_is_an_error(tmp_path, monkeypatch):
    path = write_records(tmp_path / "x", TEXTS)
    scan = indexed.scan_tfrecords

    def scan_and_change(path, call):
        found = scan(path, call)
        write_records(path, TEXTS[:3])
        return found

    monkeypatch.setattr(indexed, "scan_tfrecords", scan_and_change)
    with pytest.raises(FailedPreconditionError, match="x' changed while it was scanned"):
        TFRecordDataset(path, index=tmp_path / "indexes")
    assert not os.path.exists(tmp_path / "indexes")


@pytest.mark.parametrize("url", ["", "memory://changed/"])
def test_a_file_that_changes_later_is_an_error(url, tmp_path):
    path = write_records(f"{url}{tmp_path}/x" if url else tmp_path / "x", TEXTS)
    dataset = TFRecordDataset(path, index=tmp_path / "indexes")
    write_records(path, TEXTS[:3])
    with pytest.raises(FailedPreconditionError, match="x' has changed since the dataset was made"):
        list(dataset)


def test_a_local_file_that_is_overwritten_in_place_is_an_error(tmp_path):
    path = write_records(tmp_path / "x", [b"a" * 5] * 4)
    local = record_spans.LocalBytes(path, "TFRecordDataset")
    write_records(path, [b"b" * 5] * 4)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FailedPreconditionError, match="x' has changed since"):
        local.read([(0, 10)])
    with pytest.raises(DataLossError, match="x' ends before byte 1000"):
        record_spans.LocalBytes(path, "TFRecordDataset").read([(0, 1000)])


def test_a_damaged_record_costs_only_itself(tmp_path):
    path = write_records(tmp_path / "x", TEXTS)
    data = bytearray(Path(path).read_bytes())
    place = data.index(TEXTS[7])
    data[place] ^= 1
    Path(path).write_bytes(data)
    dataset = TFRecordDataset(path, index=tmp_path / "indexes")
    message = f"TFRecordDataset: .*x' has a damaged record at byte {place - 12}: the checksum of"
    with pytest.raises(DataLossError, match=message):
        list(dataset)
    assert list(dataset.ignore_errors()) == TEXTS[:7] + TEXTS[8:]


def test_a_sample_that_does_not_fit_costs_only_itself(tmp_path):
    with TarWriter(tmp_path / "x.tar") as writer:
        for number in range(5):
            field = "txt" if number != 2 else "other"
            writer.write({"__key__": f"{number}", field: "text"})
    dataset = Dataset.from_tar(tmp_path / "x.tar", index=tmp_path / "indexes")
    with pytest.raises(InvalidArgumentError, match="sample '2' at byte 2048 of .* has no field"):
        list(dataset)
    keys = [sample["__key__"] for sample in dataset.ignore_errors()]
    assert keys == [b"0", b"1", b"3", b"4"]


def test_only_what_is_used_is_read(kind, tmp_path, monkeypatch):
    path = kind.write(tmp_path / "x", [b"%d" % number * 1000 for number in range(100)])
    dataset = kind.open(path, tmp_path / "indexes")
    places = []
    read = record_spans.LocalBytes.read

    def note_spans(self, spans):
        places.extend(stop - start for start, stop in spans)
        return read(self, spans)

    monkeypatch.setattr(record_spans.LocalBytes, "read", note_spans)
    assert len(list(dataset.shard(10, 3))) == 10
    assert sum(places) < os.path.getsize(path) / 9
    places.clear()
    assert len(list(dataset.skip(95))) == 5
    assert sum(places) < os.path.getsize(path) / 19


def test_a_scan_leaves_out_the_data_of_long_records(tmp_path, monkeypatch):
    path = write_records(tmp_path / "x", [bytes(300_000)] * 5 + TEXTS + [bytes(70_000)])
    sizes = []
    read = indexed.read_exactly

    def note_count(file, start, count):
        sizes.append(count)
        return read(file, start, count)

    monkeypatch.setattr(indexed, "read_exactly", note_count)
    starts = indexed.scan_tfrecords(path, "test")
    assert len(starts) == 37
    assert starts[-1] == os.path.getsize(path)
    assert sum(sizes) < 200_000


def test_more_files_than_may_be_open(tmp_path):
    paths = [write_records(tmp_path / f"{n:03}", [b"%d" % n] * 3) for n in range(80)]
    dataset = TFRecordDataset(paths, index=tmp_path / "indexes")
    expected = [b"%d" % n for n in range(80) for _ in range(3)]
    assert sorted(dataset.shuffle(240, seed=2)) == sorted(expected)
    assert list(dataset) == expected
    assert len(os.listdir("/proc/self/fd")) < 1000


def test_blocks_of_a_large_file_are_the_same_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(record_spans, "BLOCK_BYTES", 500)
    path = write_records(tmp_path / "x", TEXTS)
    url = f"memory://blocks/{tmp_path}/x"
    with fsspec.open(url, "wb") as file:
        file.write(Path(path).read_bytes())
    local = TFRecordDataset(path, index=tmp_path / "indexes")
    remote = TFRecordDataset(url, index=tmp_path / "indexes")
    assert local.__plan__.files[0].blocks == remote.__plan__.files[0].blocks == (18, 8, 4)
    order = [19, 0, 1, 2, 29, 20, 20, 5]
    assert [remote[i] for i in order] == [local[i] for i in order] == [TEXTS[i] for i in order]
    assert list(remote) == TEXTS


def test_files_without_an_index_say_that_there_is_one(tmp_path):
    records = TFRecordDataset(write_records(tmp_path / "x", TEXTS))
    for dataset in (records, Dataset.from_tar(write_samples(tmp_path / "y", TEXTS))):
        with pytest.raises(UnimplementedError, match="no random access .*; index=True counts them"):
            dataset[0]


def test_a_compressed_file_has_no_index(tmp_path):
    message = "x.gz' is compressed .GZIP., so no record can be read without all bytes before it"
    with pytest.raises(InvalidArgumentError, match=f"TFRecordDataset: .*{message}"):
        TFRecordDataset(str(tmp_path / "x.gz"), "GZIP", index=True)
    path = write_samples(tmp_path / "x.gz", ["a"])
    with pytest.raises(InvalidArgumentError, match=f"Dataset.from_tar: .*{message}.* leave out"):
        Dataset.from_tar(path, index=True)


def test_arguments_that_an_index_excludes_are_refused(tmp_path):
    path = write_records(tmp_path / "x", TEXTS)
    with pytest.raises(InvalidTypeError, match="filenames must be known when the dataset is made"):
        TFRecordDataset(Dataset.from_tensor_slices([path]), index=True)
    with pytest.raises(InvalidArgumentError, match="num_parallel_reads=2 takes records of several"):
        TFRecordDataset(path, num_parallel_reads=2, index=True)
    with pytest.raises(InvalidArgumentError, match="index needs at least one path"):
        TFRecordDataset([], index=True)
    with pytest.raises(InvalidTypeError, match="index must be a str, bytes or os.PathLike"):
        TFRecordDataset(path, index=3)
    with pytest.raises(InvalidArgumentError, match="index must be a path, got None"):
        Dataset.from_tar(path, columns=["txt"], index=None)
    with pytest.raises(NotFoundError, match="TFRecordDataset: .*missing' does not exist"):
        TFRecordDataset(tmp_path / "missing", index=True)


def test_a_file_of_unknown_size_has_no_index(tmp_path, monkeypatch):
    path = write_records(tmp_path / "x", TEXTS)
    monkeypatch.setattr(indexed, "size_of", lambda file: None)
    with pytest.raises(InvalidArgumentError, match="the size of .*x' is not known"):
        TFRecordDataset(path, index=tmp_path / "indexes")
