"""Saved datasets, file caches and snapshots at work: filling, reading, continuing, closing."""

import errno
import gc
import io
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.element.spec import TensorSpec
from penstock.engine.formats import chunks as chunk_files
from penstock.engine.formats import files as format_files
from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    InvalidArgumentError,
    InvalidTypeError,
    NotADatasetError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)
from penstock.plan.seeds import set_seed
from tests.engine.driving import reload_state

NUMBER = TensorSpec((), np.int64)
Make = Callable[[Dataset], Dataset]


class Source:
    """Numbers from 0 on that are counted when they are made; one may fail."""

    def __init__(self, size: int = 6, failing: int = -1) -> None:
        self.made: list[int] = []
        self.failing = failing
        self.dataset = Dataset.range(size).map(self.number, output_signature=NUMBER)

    def number(self, x: Any) -> Any:
        self.made.append(int(x))
        if x == self.failing:
            raise KeyError("this one")
        return x


def rest(iterator: Any) -> list[int]:
    return [int(element) for element in iterator]


def read(dataset: Dataset, count: int) -> Any:
    iterator = iter(dataset)
    for _ in range(count):
        next(iterator)
    return iterator


def resume_reading(dataset: Dataset, state: Any) -> Any:
    iterator = iter(dataset)
    iterator.load_state_dict(reload_state(state))
    return iterator


@pytest.fixture(params=["cache", "snapshot"])
def keep_elements(request: Any, tmp_path: Path) -> Make:
    """A dataset that keeps its elements in `tmp_path`."""
    if request.param == "cache":
        return lambda dataset: dataset.cache(tmp_path / "c")
    return lambda dataset: dataset.snapshot(tmp_path)


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.rglob("*") if file.is_file())


# What caches and snapshots have in common


def test_a_complete_pass_fills(keep_elements: Make) -> None:
    source = Source()
    dataset = keep_elements(source.dataset)
    for _ in range(3):
        assert rest(iter(dataset)) == [0, 1, 2, 3, 4, 5]
    assert source.made == [0, 1, 2, 3, 4, 5]
    assert rest(iter(keep_elements(source.dataset).repeat(2))) == 2 * [0, 1, 2, 3, 4, 5]
    assert source.made == [0, 1, 2, 3, 4, 5]


def test_one_pass_of_a_repeat_fills_for_the_next(keep_elements: Make) -> None:
    source = Source(3)
    assert rest(iter(keep_elements(source.dataset).repeat(3))) == 3 * [0, 1, 2]
    assert source.made == [0, 1, 2]


def test_nothing_is_kept_as_well(keep_elements: Make) -> None:
    dataset = keep_elements(Source(0).dataset)
    assert rest(iter(dataset)) == rest(iter(dataset)) == []


def test_a_part_of_a_pass_is_forgotten(keep_elements: Make, tmp_path: Path) -> None:
    source = Source()
    dataset = keep_elements(source.dataset)
    for _ in range(2):
        iterator = read(dataset, 2)
        assert files(tmp_path) != []
        iterator.close()
        iterator.close()
        assert files(tmp_path) == []
    assert rest(iter(dataset)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_forgotten_iterator_lets_go(keep_elements: Make, ahead: int, tmp_path: Path) -> None:
    source = Source()
    dataset = keep_elements(source.dataset)
    iterator = read(dataset.prefetch(ahead) if ahead else dataset, 2)
    del iterator
    assert rest(iter(dataset)) == [0, 1, 2, 3, 4, 5]
    source.made.clear()
    assert rest(iter(dataset)) == [0, 1, 2, 3, 4, 5]
    assert source.made == []
    assert not [name for name in files(tmp_path) if "lockfile" in name]


def test_an_iterator_in_a_cycle_lets_go(keep_elements: Make, tmp_path: Path) -> None:
    gc.disable()
    try:
        cycle: list[Any] = [read(keep_elements(Source().dataset), 2)]
        cycle.append(cycle)
        del cycle
        assert rest(iter(keep_elements(Source().dataset))) == [0, 1, 2, 3, 4, 5]
    finally:
        gc.enable()


@pytest.mark.parametrize("failing", [0, 2, 5])
def test_a_failing_element_ends_the_filling(
    keep_elements: Make, failing: int, tmp_path: Path
) -> None:
    source = Source(failing=failing)
    iterator = iter(keep_elements(source.dataset))
    assert [int(next(iterator)) for _ in range(failing)] == list(range(failing))
    with pytest.raises(UnknownError, match=f"failed for element {failing} .*: KeyError"):
        next(iterator)
    assert rest(iterator) == list(range(failing + 1, 6))
    assert files(tmp_path) == []
    assert rest(keep_elements(Source(failing=failing).dataset).ignore_errors()) == [
        n for n in range(6) if n != failing
    ]
    assert files(tmp_path) == []


@pytest.mark.parametrize("position", range(7))
def test_going_on_within_the_filling_pass(
    keep_elements: Make, position: int, tmp_path: Path
) -> None:
    source = Source()
    iterator = read(keep_elements(source.dataset), position)
    state = iterator.state_dict()
    expected = list(range(position, 6))
    # While the first pass runs, too: a resumed pass does not fill.
    assert rest(resume_reading(keep_elements(source.dataset), state)) == expected
    assert rest(iterator) == expected
    assert rest(resume_reading(keep_elements(source.dataset), state)) == expected
    assert rest(resume_reading(keep_elements(source.dataset), iterator.state_dict())) == []


@pytest.mark.parametrize("position", range(7))
def test_going_on_in_a_new_process_does_not_fill(
    keep_elements: Make, position: int, tmp_path: Path
) -> None:
    iterator = read(keep_elements(Source().dataset), position)
    state = iterator.state_dict()
    iterator.close()
    again = resume_reading(keep_elements(Source().dataset), state)
    assert rest(again) == list(range(position, 6))
    if position in range(1, 6):  # After the last element it is filled.
        assert files(tmp_path) == []


@pytest.mark.parametrize("position", range(7))
def test_going_on_within_a_reading_pass(keep_elements: Make, position: int, tmp_path: Path) -> None:
    source = Source()
    assert len(rest(iter(keep_elements(source.dataset)))) == 6
    iterator = read(keep_elements(source.dataset), position)
    state = iterator.state_dict()
    assert (
        rest(iterator)
        == rest(resume_reading(keep_elements(source.dataset), state))
        == list(range(position, 6))
    )
    assert len(source.made) == 6


@pytest.mark.parametrize("keep", ["memory", "cache", "snapshot"])
@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("position", [0, 1, 5, 9])
def test_every_pass_behind_a_shuffle_has_the_order_of_the_first(
    keep: str, epoch: int, position: int, tmp_path: Path
) -> None:
    """This includes a new process that finds no files, resumes a later pass and fills again."""

    def make() -> Dataset:
        shuffled = Dataset.range(10).shuffle(10, seed=1)
        if keep == "snapshot":
            return shuffled.snapshot(tmp_path)
        return shuffled.cache("" if keep == "memory" else tmp_path / "c")

    dataset = make()
    order = rest(iter(Dataset.range(10).shuffle(10, seed=1)))
    assert all(rest(iter(dataset)) == order for _ in range(epoch))
    iterator = read(dataset, position)
    state = iterator.state_dict()
    iterator.close()
    for file in [path for path in tmp_path.rglob("*") if path.is_file()]:
        file.unlink()
    again = make()
    assert rest(resume_reading(again, state)) == order[position:]
    assert all(rest(iter(again)) == order for _ in range(2))


@pytest.mark.parametrize("position", range(1, 7))
def test_what_was_read_is_gone(keep_elements: Make, position: int, tmp_path: Path) -> None:
    """The state of a reading pass resumes without the files, and fills them again."""
    source = Source()
    assert len(rest(iter(keep_elements(source.dataset)))) == 6
    state = read(keep_elements(source.dataset), position).state_dict()
    for file in [path for path in tmp_path.rglob("*") if path.is_file()]:
        file.unlink()
    assert rest(resume_reading(keep_elements(source.dataset), state)) == list(range(position, 6))
    assert len(source.made) == 12
    assert rest(iter(keep_elements(source.dataset))) == list(range(6))
    assert len(source.made) == 12


def test_shuffled_input_resumes_in_its_own_order(keep_elements: Make) -> None:
    shuffled = Dataset.range(20).shuffle(20, seed=3)
    first = iter(keep_elements(shuffled))
    begun = [int(next(first)) for _ in range(7)]
    state = first.state_dict()
    first.close()
    # The files keep another pass, in another order.
    whole = rest(iter(keep_elements(shuffled)))
    assert sorted(whole) == list(range(20))
    assert sorted(begun + rest(resume_reading(keep_elements(shuffled), state))) == list(range(20))


class FullDisk(io.FileIO):
    """A file on a disk that has room for a few bytes."""

    room = 200

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_full_disk(
    keep_elements: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(chunk_files, "create_bytes", lambda path, call: FullDisk(path, "w"))
    monkeypatch.setattr("penstock.engine.formats.chunks.BLOCK_BYTES", 64)
    dataset = keep_elements(Dataset.range(50))
    iterator = read(dataset, 40)
    # The reader learns of the failure at once; elements and states are still right.
    assert "no space is left for" in caplog.text
    assert files(tmp_path) == []
    assert rest(resume_reading(dataset, iterator.state_dict())) == list(range(40, 50))
    assert rest(itertools.islice(iterator, 10)) == list(range(40, 50))
    with pytest.raises(ResourceExhaustedError, match="no space is left for .*; free some, or name"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_disk_that_is_full_at_the_end(
    keep_elements: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_files, "create_bytes", lambda path, call: FullDisk(path, "w"))
    monkeypatch.setattr(FullDisk, "room", 32)
    iterator = iter(keep_elements(Dataset.range(3)))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ResourceExhaustedError, match="no space is left for"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert files(tmp_path) == []


def test_going_on_with_a_full_disk(
    keep_elements: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = keep_elements(Dataset.range(50))
    assert len(rest(iter(dataset))) == 50
    state = read(dataset, 40).state_dict()
    for file in [path for path in tmp_path.rglob("*") if path.is_file()]:
        file.unlink()
    monkeypatch.setattr(chunk_files, "create_bytes", lambda path, call: FullDisk(path, "w"))
    monkeypatch.setattr("penstock.engine.formats.chunks.BLOCK_BYTES", 64)
    iterator = resume_reading(dataset, state)
    assert rest(itertools.islice(iterator, 10)) == list(range(40, 50))
    with pytest.raises(ResourceExhaustedError, match="no space is left for"):
        next(iterator)


def test_structures(keep_elements: Make) -> None:
    dataset = keep_elements(Dataset.from_tensor_slices({"b": [b"x", b"yy"], "a": [1, 2]}).batch(2))
    first, second = list(dataset), list(dataset)
    assert repr(first) == repr(second)


def test_what_cannot_be_written(keep_elements: Make, tmp_path: Path) -> None:
    iterator = iter(keep_elements(Dataset.range(4).window(2)))
    assert [rest(next(iterator)), rest(next(iterator))] == [[0, 1], [2, 3]]
    with pytest.raises(InvalidArgumentError, match="a Dataset inside an element cannot be written"):
        next(iterator)
    assert files(tmp_path) == []


FORKER = """
import os, sys
from penstock.data.dataset import Dataset

dataset = getattr(Dataset.range(2000), sys.argv[1])(sys.argv[2])
iterator = iter(dataset)
taken = [next(iterator)]
child = os.fork()
if not child:
    taken += iterator
    assert len(taken) == 2000
    del iterator
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
taken += iterator
assert [int(x) for x in taken] == [int(x) for x in dataset] == list(range(2000))
"""


@pytest.mark.parametrize("method", ["cache", "snapshot"])
def test_a_forked_child_harms_nothing(method: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKER, method, str(tmp_path / "c")], check=True)
    assert not [name for name in files(tmp_path) if "lockfile" in name]


HOLDER = """
import sys
from penstock.data.dataset import Dataset

iterator = iter(getattr(Dataset.range(5), sys.argv[1])(sys.argv[2]))
next(iterator)
print("ready", flush=True)
sys.stdin.read()
"""


def holder(method: str, path: Path) -> subprocess.Popen[bytes]:
    """Starts a process that fills, and waits in the middle of the pass."""
    command = [sys.executable, "-c", HOLDER, method, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("method", ["cache", "snapshot"])
def test_a_killed_process_blocks_no_other(method: str, tmp_path: Path) -> None:
    with holder(method, tmp_path / "c") as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert [name for name in files(tmp_path) if "lockfile" in name]
    dataset = getattr(Dataset.range(5), method)(tmp_path / "c")
    assert rest(dataset) == [0, 1, 2, 3, 4]
    left = files(tmp_path)
    assert rest(dataset) == [0, 1, 2, 3, 4]
    fresh = getattr(Dataset.range(5), method)(tmp_path / "fresh" / "c")
    (tmp_path / "fresh").mkdir()
    assert rest(fresh) == [0, 1, 2, 3, 4]
    assert left == files(tmp_path / "fresh")


@pytest.mark.parametrize("method", ["cache", "snapshot"])
def test_a_process_that_ends_lets_go(method: str, tmp_path: Path) -> None:
    with holder(method, tmp_path / "c") as process:
        process.communicate()
    assert process.returncode == 0
    assert files(tmp_path) == []


# Caches


def test_the_files_of_a_cache(tmp_path: Path) -> None:
    iterator = read(Dataset.range(3).cache(tmp_path / "c"), 1)
    assert "c_0.lockfile" in files(tmp_path)
    assert rest(iterator) == [1, 2]
    assert files(tmp_path) == ["c.data-00000-of-00001", "c.index"]


def test_two_iterators_of_a_cache(tmp_path: Path) -> None:
    dataset = Dataset.range(3).cache(tmp_path / "c")
    first, second = read(dataset, 1), iter(dataset)
    for _ in range(2):
        with pytest.raises(
            AlreadyExistsError, match="Dataset.cache: '.*' is being written by another"
        ):
            next(second)
    assert rest(first) == [1, 2]
    assert rest(second) == [0, 1, 2]


def test_another_process_is_filling(tmp_path: Path) -> None:
    dataset = Dataset.range(5).cache(tmp_path / "c")
    with holder("cache", tmp_path / "c") as process:
        with pytest.raises(AlreadyExistsError, match=f"written by process {process.pid} on"):
            next(iter(dataset))
        process.communicate()
    assert rest(dataset) == [0, 1, 2, 3, 4]


def test_a_complete_file_is_believed(tmp_path: Path) -> None:
    assert rest(Dataset.range(3).cache(tmp_path / "c")) == [0, 1, 2]
    assert rest(Dataset.range(9).cache(tmp_path / "c")) == [0, 1, 2]


@pytest.mark.parametrize("lost", ["c.index", "c.data-00000-of-00001"])
def test_half_a_cache_is_filled_again(lost: str, tmp_path: Path) -> None:
    assert rest(Dataset.range(3).cache(tmp_path / "c")) == [0, 1, 2]
    (tmp_path / lost).unlink()
    assert rest(Dataset.range(4).cache(tmp_path / "c")) == [0, 1, 2, 3]
    assert rest(Dataset.range(5).cache(tmp_path / "c")) == [0, 1, 2, 3]


def test_a_damaged_cache(tmp_path: Path) -> None:
    dataset = Dataset.range(3).cache(tmp_path / "c")
    assert rest(dataset) == [0, 1, 2]
    file = tmp_path / "c.data-00000-of-00001"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataLossError, match="Dataset.cache: '.*' is damaged at byte .*; delete it"):
        list(dataset)
    assert rest(dataset.ignore_errors()) == [0, 1, 2]


def test_places_where_no_cache_can_be(tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match="Dataset.cache: the folder '.*' does not exist; make it"
    ):
        next(iter(Dataset.range(3).cache(tmp_path / "no" / "c")))
    with pytest.raises(UnimplementedError, match="Dataset.cache: a cache needs a local file, got"):
        next(iter(Dataset.range(3).cache("memory://c")))


def test_an_input_that_cannot_be_opened(tmp_path: Path) -> None:
    inner = Dataset.range(3).cache(tmp_path / "no" / "c")
    with pytest.raises(NotFoundError, match="the folder '.*' does not exist"):
        next(iter(inner.cache(tmp_path / "c")))
    assert files(tmp_path) == []


def test_a_cache_file_that_cannot_be_made(tmp_path: Path) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format_files, "open", fail, raising=False)
        with pytest.raises(ResourceExhaustedError, match="no space is left for"):
            next(iter(Dataset.range(3).cache(tmp_path / "c")))
    assert files(tmp_path) == []


def test_whose_lock_was_taken_does_not_fill(tmp_path: Path) -> None:
    dataset = Dataset.range(3).cache(tmp_path / "c")
    slow = read(dataset, 1)
    (tmp_path / "c_0.lockfile").unlink()
    quick = read(Dataset.range(5).cache(tmp_path / "c"), 1)
    assert rest(slow) == [1, 2]
    assert files(tmp_path)[0].startswith("c_0.")
    assert rest(quick) == [1, 2, 3, 4]
    assert rest(dataset) == [0, 1, 2, 3, 4]


def test_a_lock_of_another_machine(tmp_path: Path) -> None:
    lock = {"host": platform.node() + "x", "pid": os.getpid(), "started": "0", "token": "0" * 19}
    (tmp_path / "c_0.lockfile").write_text(json.dumps(lock))
    with pytest.raises(
        AlreadyExistsError, match="or delete '.*c_0.lockfile' if that process is gone"
    ):
        next(iter(Dataset.range(3).cache(tmp_path / "c")))


# Snapshots


def test_a_snapshot_belongs_to_its_pipeline(tmp_path: Path) -> None:
    for size in (3, 4, 3):
        assert rest(Dataset.range(size).snapshot(tmp_path)) == list(range(size))
    assert len(list(tmp_path.iterdir())) == 2


def test_two_iterators_of_a_snapshot(tmp_path: Path) -> None:
    source = Source(4)
    dataset = source.dataset.snapshot(tmp_path)
    first = read(dataset, 1)
    assert rest(dataset) == [0, 1, 2, 3]
    assert rest(first) == [1, 2, 3]
    source.made.clear()
    assert rest(dataset) == [0, 1, 2, 3]
    assert source.made == []


def by_parity(dataset: Dataset, path: Path, **options: Any) -> Dataset:
    return dataset.snapshot(path, shard_func=lambda x: x % 2, **options)


def one_by_one(shards: Dataset) -> Dataset:
    return shards.interleave(lambda shard: shard, cycle_length=2)


def test_shards_and_their_reader(tmp_path: Path) -> None:
    dataset = by_parity(Dataset.range(6), tmp_path, reader_func=one_by_one, compression="GZIP")
    assert rest(dataset) == rest(dataset) == [0, 1, 2, 3, 4, 5]
    # Another compression is for writing only; without a reader one shard follows the other.
    assert rest(by_parity(Dataset.range(6), tmp_path, compression=None)) == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("position", range(7))
def test_going_on_behind_a_reader(position: int, tmp_path: Path) -> None:
    def shuffle_shards(shards: Dataset) -> Dataset:
        return one_by_one(shards).shuffle(4)

    dataset = by_parity(Dataset.range(6), tmp_path, reader_func=shuffle_shards)
    assert rest(dataset) == [0, 1, 2, 3, 4, 5]
    iterator = read(dataset, position)
    state = iterator.state_dict()
    assert rest(iterator) == rest(resume_reading(dataset, state))


def test_a_reader_that_makes_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(NotADatasetError, match="Dataset.snapshot: .* must return a Dataset, got 3"):
        Dataset.range(3).snapshot(tmp_path, reader_func=lambda shards: 3)
    with pytest.raises(TypeError, match="unsupported operand"):
        Dataset.range(3).snapshot(tmp_path, reader_func=lambda shards: shards + 1)
    with pytest.raises(InvalidTypeError, match="1 argument .a dataset of datasets, one for each"):
        Dataset.range(3).snapshot(tmp_path, reader_func=lambda: None)


def test_a_reader_that_makes_a_dataset_only_once(tmp_path: Path) -> None:
    made = [one_by_one]
    dataset = Dataset.range(3).snapshot(
        tmp_path, reader_func=lambda shards: made.pop()(shards) if made else 3
    )
    assert rest(dataset) == [0, 1, 2]
    with pytest.raises(InvalidTypeError, match="Dataset.snapshot: .* returned int; it must return"):
        next(iter(dataset))


def test_trying_a_reader_uses_up_no_seeds(tmp_path: Path) -> None:
    orders = []
    for reader in (None, lambda shards: one_by_one(shards).shuffle(4)):
        set_seed(5)
        try:
            Dataset.range(3).snapshot(tmp_path, reader_func=reader)
            orders.append(rest(Dataset.range(20).shuffle(20)))
        finally:
            set_seed(None)
    assert orders[0] == orders[1]


def test_a_shard_function_that_fails(tmp_path: Path) -> None:
    iterator = iter(Dataset.range(6).snapshot(tmp_path, shard_func=lambda x: 1 // int(2 - x)))
    assert rest(itertools.islice(iterator, 6)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UnknownError, match="Dataset.snapshot: .* failed for element 2"):
        next(iterator)
    assert files(tmp_path) == []


def test_a_snapshot_elsewhere() -> None:
    source = Source(4)
    dataset = source.dataset.snapshot("memory://snapshots")
    assert rest(dataset) == rest(dataset) == [0, 1, 2, 3]
    assert source.made == [0, 1, 2, 3]


def test_a_damaged_snapshot(tmp_path: Path) -> None:
    dataset = Dataset.range(3).snapshot(tmp_path)
    assert rest(dataset) == [0, 1, 2]
    (file,) = tmp_path.rglob("snapshot.metadata")
    file.write_bytes(b"nonsense")
    with pytest.raises(DataLossError, match="Dataset.snapshot: .* is damaged, or no file of"):
        next(iter(dataset))


# Saved datasets


@pytest.mark.parametrize("position", range(11))
def test_going_on_in_a_saved_dataset(position: int, tmp_path: Path) -> None:
    Dataset.range(10).save(tmp_path / "s", shard_func=lambda x: x % 3)
    dataset = Dataset.load(tmp_path / "s")
    state = read(dataset, position).state_dict()
    assert rest(resume_reading(dataset, state)) == rest(dataset)[position:]


def test_a_damaged_shard(tmp_path: Path) -> None:
    Dataset.range(4).batch(1).save(tmp_path / "s", shard_func=lambda x: int(x[0]))
    (file,) = (tmp_path / "s").glob("*/00000002.shard/*")
    file.write_bytes(file.read_bytes()[:-1])
    iterator = iter(Dataset.load(tmp_path / "s").unbatch())
    assert rest(itertools.islice(iterator, 3)) == [0, 1, 2]
    with pytest.raises(DataLossError, match="Dataset.load: '.*00000002.shard/.*' is damaged"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_snapshot_behind_a_shuffle_without_a_seed_is_read_by_the_next_program(
    tmp_path: Path,
) -> None:
    def program() -> list[int]:
        return rest(Dataset.range(30).shuffle(30).snapshot(tmp_path))

    first = program()
    assert [program(), program()] == [first, first]
    assert len(list(tmp_path.iterdir())) == 1
