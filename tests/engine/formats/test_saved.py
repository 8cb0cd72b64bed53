"""Saved datasets: complete or not there, also if their writers fail or are killed."""

import dataclasses
import errno
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.data.dataset import Dataset
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.element.spec import NoneTensorSpec, RaggedTensorSpec, TensorSpec
from penstock.element.values import spec_of
from penstock.engine.formats import chunks as chunk_files
from penstock.engine.formats import saved
from penstock.engine.formats.extras import crc32c
from penstock.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)

INT = TensorSpec((), np.int64)

FILES = ["N/N.shard/N.snapshot", "dataset_spec.json", "snapshot.metadata"]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Row:
    number: Any
    text: Any


def tree(folder: Path) -> list[str]:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(re.sub("[0-9]{6,}", "N", name) for name in names)


def numbers(*values: int) -> Iterator[Chunk]:
    return iter([Chunk.of([np.int64(value)]) for value in values])


def load_numbers(path: Path, **options: Any) -> list[Any]:
    return [int(element) for element in Dataset.load(path, **options)]


def test_the_files(tmp_path: Path) -> None:
    Dataset.range(5).save(tmp_path / "s")
    assert tree(tmp_path / "s") == [
        "N/N.shard/N.snapshot",
        "dataset_spec.json",
        "snapshot.metadata",
    ]
    assert load_numbers(tmp_path / "s") == [0, 1, 2, 3, 4]
    assert len(Dataset.load(tmp_path / "s")) == 5
    assert Dataset.load(tmp_path / "s").element_spec == INT


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_all_kinds_of_elements(compression: str | None, tmp_path: Path) -> None:
    elements = [
        {"pair": Pair(np.int32(i), b"x" * i), "row": Row(np.arange(i), (None,)), "f": np.zeros(2)}
        for i in range(1, 4)
    ]
    spec = {
        "pair": Pair(TensorSpec((), np.int32), TensorSpec((), str)),
        "row": Row(TensorSpec((None,), np.int64), (NoneTensorSpec(),)),
        "f": TensorSpec((2,), np.float64),
    }
    path = str(tmp_path / "s")
    saved.save(path, iter([Chunk.of(elements)]), spec, compression, None)
    dataset = Dataset.load(path, compression=compression)
    assert dataset.element_spec == spec
    assert repr(list(dataset)) == repr(elements)
    assert list(dataset.element_spec) == ["pair", "row", "f"]


def test_ragged_elements(tmp_path: Path) -> None:
    ragged = Ragged.from_rows([[1], [2, 3], []])
    rows = Dataset.from_tensor_slices(ragged)
    rows.save(tmp_path / "rows")
    assert [row.tolist() for row in Dataset.load(tmp_path / "rows")] == [[1], [2, 3], []]
    assert Dataset.load(tmp_path / "rows").element_spec == rows.element_spec
    Dataset.from_tensors(ragged).repeat(3).save(tmp_path / "whole")
    assert list(Dataset.load(tmp_path / "whole")) == [ragged] * 3
    kept = rows.filter(lambda row: len(row) != 1)
    kept.save(tmp_path / "kept")
    assert [row.tolist() for row in Dataset.load(tmp_path / "kept")] == [[2, 3], []]


def test_nothing_saved_is_nothing_loaded(tmp_path: Path) -> None:
    Dataset.range(0).save(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == []
    assert len(Dataset.load(tmp_path / "s")) == 0
    assert (
        load_numbers(tmp_path / "s", reader_func=lambda shards: shards.flat_map(lambda x: x)) == []
    )


def test_what_is_not_saved_yet_may_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = itertools.count()

    def sleep(seconds: float) -> None:
        if next(looks) == 3:
            Dataset.range(2).save(tmp_path / "s")

    monkeypatch.setattr(saved.time, "sleep", sleep)
    monkeypatch.setattr(saved, "_WARN", -1.0)
    assert load_numbers(tmp_path / "s", wait=True) == [0, 1]
    assert next(looks) == 4
    assert "waiting for 0 s" in caplog.text
    with pytest.raises(NotFoundError, match="holds no saved dataset"):
        Dataset.load(tmp_path / "t", wait=False)


def test_named_tuples_of_another_program(tmp_path: Path) -> None:
    local = namedtuple("local", "a b")
    Dataset.from_tensors(local(1, 2)).save(tmp_path / "s")
    assert [(x.a, x.b) for x in Dataset.load(tmp_path / "s")] == [(1, 2)]
    spec = spec_of(local(np.int32(1), np.int32(2)))
    (found,) = Dataset.load(tmp_path / "s", element_spec=spec)
    assert type(found) is local


def test_a_dataclass_of_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Dataset.from_tensors(Row(1, "a")).save(tmp_path / "s")
    monkeypatch.setattr(sys.modules[__name__], "Row", None)
    with pytest.raises(
        FailedPreconditionError, match="Dataset.load: .* cannot be read: .* Row with"
    ):
        Dataset.load(tmp_path / "s")


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="Dataset.save: .*DatasetSpec cannot be written"):
        Dataset.range(3).window(2).save(tmp_path / "s")
    assert tree(tmp_path) == []


def test_elements_that_break_their_promise(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="Dataset.save: there are elements TensorSpec.*"):
        saved.save(str(tmp_path / "s"), numbers(1), TensorSpec((), np.int32), None, None)
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((), str),
        TensorSpec((1,), np.int64),
        (INT,),
        NoneTensorSpec(),
        RaggedTensorSpec((None,), np.int64, 0),
        RaggedTensorSpec((None, None), np.int64, 1),
    ],
)
def test_wrong_specs(spec: Any, tmp_path: Path) -> None:
    Dataset.range(2).save(tmp_path / "s")
    dataset = Dataset.load(tmp_path / "s", element_spec=spec)
    with pytest.raises(InvalidArgumentError, match="Dataset.load: '.*': there are elements .* fit"):
        next(iter(dataset))


def test_other_specs_that_fit(tmp_path: Path) -> None:
    elements = Dataset.range(4).map(lambda n: np.arange(n))
    elements.save(tmp_path / "s")
    for spec in (TensorSpec((None,), np.int64), TensorSpec(None, np.int64)):
        assert len(list(Dataset.load(tmp_path / "s", element_spec=spec))) == 4
    with pytest.raises(InvalidArgumentError, match=r"elements TensorSpec\(shape=\(None,\)"):
        list(Dataset.load(tmp_path / "s", element_spec=TensorSpec((3,), np.int64)))


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_a_spec_that_is_none_is_refused(tmp_path: Path, kind: type[Exception]) -> None:
    Dataset.range(2).save(tmp_path / "s")
    with pytest.raises(kind, match="Dataset.load: element_spec must hold specs .* got 'int64'"):
        Dataset.load(tmp_path / "s", element_spec="int64")


def test_wrong_compression_is_noticed_when_elements_are_read(tmp_path: Path) -> None:
    Dataset.range(2).save(tmp_path / "s", compression="GZIP")
    dataset = Dataset.load(tmp_path / "s", compression="NONE")
    with pytest.raises(DataLossError, match="Dataset.load: .* compression 'GZIP', not 'NONE'"):
        next(iter(dataset))
    with pytest.raises(InvalidArgumentError, match="Dataset.load: compression must be .* 'SNAPPY'"):
        saved.describe(str(tmp_path / "s"), "SNAPPY")


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "s", tmp_path):
        with pytest.raises(NotFoundError, match="Dataset.load: .* holds no saved dataset; write"):
            Dataset.load(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match="Dataset.load: .* leads through a file"):
        Dataset.load(tmp_path / "file")
    with pytest.raises(FailedPreconditionError, match="Dataset.save: .* leads through a file"):
        Dataset.range(1).save(tmp_path / "file" / "s")


def test_damaged_metadata(tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path / "s")
    file = tmp_path / "s" / "snapshot.metadata"
    data = file.read_bytes()
    for place in range(len(data)):
        for wrong in (data[:place], data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
            file.write_bytes(wrong)
            with pytest.raises(DataLossError, match="Dataset.load: .* is damaged, or no file of"):
                Dataset.load(tmp_path / "s")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 1}, "another version: format 1, not 3"),
        ({"run": "../.."}, "a run is a number"),
        ({"replaced": "a/b"}, "a run is a number"),
        ({"spec": 3}, "is damaged"),
        ({"more": 3}, "is damaged"),
        ({"spec": {"structure": "*", "leaves": [["what"]]}}, "is not a spec"),
    ],
)
def test_metadata_without_sense(change: Any, problem: str, tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path / "s")
    file = tmp_path / "s" / "snapshot.metadata"
    text = json.dumps(json.loads(file.read_bytes()[9:]) | change).encode()
    file.write_bytes(b"%08x %b" % (crc32c(text), text))
    with pytest.raises(DataLossError, match=problem):
        Dataset.load(tmp_path / "s")
    Dataset.range(4).save(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == [0, 1, 2, 3]


# Shards


def test_shards(tmp_path: Path) -> None:
    Dataset.range(6).save(tmp_path / "s", shard_func=lambda x: (x + 1) % 2)
    assert load_numbers(tmp_path / "s") == [1, 3, 5, 0, 2, 4]
    in_turn = load_numbers(
        tmp_path / "s", reader_func=lambda s: s.interleave(lambda x: x, cycle_length=2)
    )
    assert in_turn == [1, 0, 3, 2, 5, 4]
    names = ["00000000.shard", "00000001.shard"]
    assert sorted(path.name for path in (tmp_path / "s").rglob("*.shard")) == names


def test_more_shards_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "_OPEN_FILES", 2)
    Dataset.range(30).save(tmp_path / "s", shard_func=lambda x: x % 7)
    assert load_numbers(tmp_path / "s") == sorted(range(30), key=lambda x: (x % 7, x))


@pytest.mark.parametrize("number", [-1, None, "a", np.arange(2), 1 << 63])
def test_wrong_shard_numbers(number: Any, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match="Dataset.save: shard_func must return the number"
    ):
        saved.save(str(tmp_path / "s"), numbers(1), INT, None, lambda element: number)
    assert tree(tmp_path) == []


def test_a_shard_function_that_fails(tmp_path: Path) -> None:
    with pytest.raises(UnknownError, match="Dataset.save: <lambda> at .* failed for element 2"):
        Dataset.range(6).save(tmp_path / "s", shard_func=lambda x: 1 // int(2 - x))
    assert tree(tmp_path) == []


# Writing anew


def test_saving_again_replaces(tmp_path: Path) -> None:
    (tmp_path / "s" / "123456789").mkdir(parents=True)
    (tmp_path / "s" / "notes.txt").write_text("mine")
    Dataset.range(6).save(tmp_path / "s", shard_func=lambda x: x % 2)
    Dataset.range(7, 9).save(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == [7, 8]
    assert len(list((tmp_path / "s").rglob("*.snapshot"))) == 1
    # `save` removes no file of the user, even if its name looks like a run.
    assert (tmp_path / "s" / "123456789").is_dir()
    assert (tmp_path / "s" / "notes.txt").read_text() == "mine"


def test_a_dataset_may_replace_itself(tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path / "s")
    Dataset.load(tmp_path / "s").map(lambda x: x * 2).save(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == [0, 2, 4]


def test_a_dataset_that_was_loaded_before(tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path / "s")
    before = Dataset.load(tmp_path / "s")
    Dataset.range(4).save(tmp_path / "s")
    with pytest.raises(NotFoundError, match="Dataset.load: .* is gone; if the dataset was written"):
        next(iter(before))


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UnknownError, match="Dataset.map: .* failed for element 3"):
            Dataset.range(6).map(lambda x: 1 // int(x - 3)).save(tmp_path / "s")
        assert tree(tmp_path) == []
    Dataset.range(3).save(tmp_path / "s")
    before = sorted((tmp_path / "s").rglob("*"))
    with pytest.raises(UnknownError, match="Dataset.map: .* failed for element 3"):
        Dataset.range(6).map(lambda x: 1 // int(x - 3)).save(tmp_path / "s")
    assert sorted((tmp_path / "s").rglob("*")) == before
    assert load_numbers(tmp_path / "s") == [0, 1, 2]


def test_two_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    def chunks() -> Iterator[Chunk]:
        yield from numbers(1)
        with pytest.raises(AlreadyExistsError, match="Dataset.save: '.*s' is being written by"):
            saved.save(path, numbers(2), INT, None, None)
        yield from numbers(3)

    saved.save(path, chunks(), INT, None, None)
    assert load_numbers(tmp_path / "s") == [1, 3]


def test_whose_lock_was_taken_does_not_win(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    def chunks() -> Iterator[Chunk]:
        yield from numbers(1)
        os.unlink(os.path.join(path, "lockfile"))
        saved.save(path, numbers(2), INT, None, None)

    with pytest.raises(AbortedError, match="Dataset.save: another writer has begun to write"):
        saved.save(path, chunks(), INT, None, None)
    assert load_numbers(tmp_path / "s") == [2]
    assert tree(tmp_path / "s") == [
        "N/N.shard/N.snapshot",
        "dataset_spec.json",
        "snapshot.metadata",
    ]


class FullDisk(io.FileIO):
    """A file on a disk that has room for a few bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 200:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Dataset.range(3).save(tmp_path / "s")
    before = sorted((tmp_path / "s").rglob("*"))
    monkeypatch.setattr(chunk_files, "create_bytes", lambda path, call: FullDisk(path, "w"))
    with pytest.raises(ResourceExhaustedError, match="Dataset.save: no space is left for .*; free"):
        Dataset.range(1000).save(tmp_path / "s")
    assert sorted((tmp_path / "s").rglob("*")) == before
    assert load_numbers(tmp_path / "s") == [0, 1, 2]


def test_a_disk_that_is_full_at_the_very_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ResourceExhaustedError, match="no space is left for '.*snapshot.metadata'"):
        Dataset.range(3).save(tmp_path / "s")
    assert tree(tmp_path) == []


def test_a_folder_that_may_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "makedirs", fail)
    with pytest.raises(PermissionDeniedError, match="Dataset.save: .* may not be opened"):
        Dataset.range(3).save(tmp_path / "s")


SAVER = """
import sys
import numpy as np
from penstock.data.dataset import Dataset

def slow(x):
    if x == 5:
        print("ready", flush=True)
        sys.stdin.read()
    return x

Dataset.range(10).map(slow).batch(1).save(sys.argv[1], shard_func=lambda x: int(x[0]) % 3)
"""


def killed_while_saving(path: Path) -> None:
    command = [sys.executable, "-c", SAVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(AlreadyExistsError, match=f"written by process {process.pid} on"):
            Dataset.range(1).save(path)
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_killed_at_the_first_save(tmp_path: Path) -> None:
    killed_while_saving(tmp_path / "s")
    with pytest.raises(NotFoundError, match="holds no saved dataset"):
        Dataset.load(tmp_path / "s")
    Dataset.range(3).save(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == [0, 1, 2]
    assert tree(tmp_path / "s") == [
        "N/N.shard/N.snapshot",
        "dataset_spec.json",
        "snapshot.metadata",
    ]


def test_killed_at_a_later_save(tmp_path: Path) -> None:
    Dataset.range(2).save(tmp_path / "s")
    killed_while_saving(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == [0, 1]
    Dataset.range(3).save(tmp_path / "s")
    assert tree(tmp_path / "s") == [
        "N/N.shard/N.snapshot",
        "dataset_spec.json",
        "snapshot.metadata",
    ]


def test_killed_right_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock names a complete run, and the run before it is not deleted yet."""
    Dataset.range(2).save(tmp_path / "s")
    before = saved.describe(str(tmp_path / "s"))
    shutil.copytree(tmp_path / "s" / before.run, tmp_path / "kept")
    Dataset.range(3).save(tmp_path / "s")
    shutil.move(tmp_path / "kept", tmp_path / "s" / before.run)
    lock = {"host": os.uname().nodename, "pid": 1 << 30, "started": "0"}
    run = saved.describe(str(tmp_path / "s")).run
    (tmp_path / "s" / "lockfile").write_text(json.dumps(lock | {"token": run}))
    with pytest.raises(UnknownError, match="failed for element 0"):
        Dataset.range(2).map(lambda x: 1 // int(x)).save(tmp_path / "s")
    assert load_numbers(tmp_path / "s") == [0, 1, 2]
    assert tree(tmp_path / "s") == [
        "N/N.shard/N.snapshot",
        "dataset_spec.json",
        "snapshot.metadata",
    ]


# Elsewhere


def test_other_file_systems() -> None:
    path = "memory://saved/s"
    try:
        Dataset.range(6).save(path, shard_func=lambda x: x % 2, compression="GZIP")
        assert load_numbers(path, compression="GZIP") == [0, 2, 4, 1, 3, 5]  # type: ignore[arg-type]
        Dataset.range(3).save(path)
        assert load_numbers(path) == [0, 1, 2]  # type: ignore[arg-type]
        assert len(list(MemoryFileSystem().find("/saved/s"))) == 3
        with pytest.raises(UnknownError, match="failed for element 0"):
            Dataset.range(2).map(lambda x: 1 // int(x)).save(path)
        assert load_numbers(path) == [0, 1, 2]  # type: ignore[arg-type]
        assert len(list(MemoryFileSystem().find("/saved/s"))) == 3
    finally:
        MemoryFileSystem().rm("/saved", recursive=True)


def test_specs_of_another_kind_change_nothing(tmp_path: Path) -> None:
    """A dtype that changes between elements is found before the dataset is complete."""
    run = saved.RunWriter(str(tmp_path / "s"), None, None, "Dataset.snapshot")
    run.write(Chunk.of([np.int64(1)]))
    with pytest.raises(InvalidTypeError, match="Dataset.snapshot: elements must have the same"):
        run.write(Chunk.of([np.int32(1)]))
    run.abandon()
    assert tree(tmp_path) == []


def test_a_dataset_that_tensorflow_saved_is_named_and_not_called_damaged(tmp_path):
    (tmp_path / "snapshot.metadata").write_bytes(b"\x08\x01")
    (tmp_path / "dataset_spec.pb").write_bytes(b"\x08\x01")
    with pytest.raises(FailedPreconditionError, match="TensorFlow saved .* as TFRecord files"):
        Dataset.load(str(tmp_path))
