"""Interleaving in whole rounds: the same elements, states and failures as one block at a time."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data import TextLineDataset
from penstock.data.dataset import Dataset
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.engine import prefetch, tuning
from penstock.engine.pool import Pool
from penstock.engine.streams.interleaving import InterleaveStream, Slot
from penstock.engine.streams.sources import AccessStream
from tests.engine.driving import drain_stream, model, open_stream, pulls, saves

LENGTHS = [9, 3, 12, 0, 7, 1]


def numbers(first: int, length: int) -> Dataset:
    return Dataset.range(100 * first, 100 * first + length)


def interleave_numbers(lengths: list[int], cycle: int, block: int, **options: Any) -> Dataset:
    source = Dataset.from_tensor_slices((np.arange(len(lengths)), np.array(lengths)))
    return source.interleave(
        lambda first, length: numbers(int(first), int(length)), cycle, block, **options
    )


def fails_at(bad: int) -> Any:
    def check(x: Any) -> Any:
        if x == bad:
            raise ValueError(f"{bad} is lost")
        return x

    return check


def test_whole_rounds_are_woven(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open_stream(interleave_numbers([2000] * 4, cycle=4, block=1)._plan)
    drained_first = [stream.pull(1).elements()[0] for _ in range(8)]
    assert drained_first == [0, 100, 200, 300, 1, 101, 201, 301]
    join, longest = Chunk.join, [0]

    def counting(chunks: list[Chunk]) -> Chunk:
        longest[0] = max(longest[0], len(chunks))
        return join(chunks)

    monkeypatch.setattr(Chunk, "join", counting)
    count = sum(len(elements) for elements in pulls(stream, 1000))
    assert count == 4 * 2000 - 8
    assert longest[0] < 100


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize("cycle", [2, 3, 20])
def test_rounds_equal_the_list_model_and_resume_from_every_state(cycle: int, block: int) -> None:
    plan = interleave_numbers(LENGTHS, cycle, block)._plan
    whole = model(plan)
    for limit in (4, 9, 100):
        assert drain_stream(open_stream(plan), limit) == whole
        for count, state in saves(plan, limit):
            assert drain_stream(open_stream(plan, state), 100) == whole[count:]


@pytest.mark.parametrize("bad", [0, 102, 211, 406])
def test_a_failure_keeps_its_turn(bad: int) -> None:
    source = Dataset.from_tensor_slices((np.arange(len(LENGTHS)), np.array(LENGTHS)))
    plan = source.interleave(
        lambda first, length: numbers(int(first), int(length)).map(fails_at(bad)), 3
    )._plan
    single = drain_stream(open_stream(plan), 1)
    assert len(single) == sum(LENGTHS)
    for limit in (7, 100):
        assert drain_stream(open_stream(plan), limit) == single
        for count, state in saves(plan, limit):
            assert drain_stream(open_stream(plan, state), limit) == single[count:]


def test_rounds_of_ragged_rows_and_of_unequal_arrays() -> None:
    rows = Ragged.from_rows([[1], [2, 3], [], [4, 5, 6], [7], [8]])
    ragged = Dataset.from_tensor_slices(rows)
    unequal = Dataset.range(6).map(lambda i: np.full(i % 3, i))
    for inner in (ragged, unequal):
        plan = Dataset.range(3).interleave(lambda _, inner=inner: inner, 3, 2)._plan
        whole = drain_stream(open_stream(plan), 1)
        assert len(whole) == 18
        assert drain_stream(open_stream(plan), 100) == whole


def test_other_dtypes_are_refused_at_their_turn() -> None:
    inner = [Dataset.range(50), Dataset.from_tensor_slices(np.zeros(50, np.float32))]
    stream = open_stream(Dataset.range(2).interleave(lambda i: inner[int(i)], 2)._plan)
    assert stream.pull(1).elements() == [0]
    with pytest.raises(TypeError, match="got int64 and float32"):
        list(itertools.islice(iter(lambda: stream.pull(1), None), 9))


def mix_dtypes(x: Any) -> Dataset:
    """The third dataset has another dtype than the others."""
    return Dataset.from_tensor_slices(np.arange(4).astype(np.float32 if x == 2 else np.int64))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("cycle", "block"), [(1, 1), (2, 1), (3, 1), (4, 3)])
def test_elements_of_another_dtype_fail_alone(cycle: int, block: int, ordered: bool) -> None:
    dataset = Dataset.range(4).interleave(mix_dtypes, cycle, block, deterministic=ordered)
    assert dataset.element_spec.dtype == "int64"  # Now a stream that continues knows it, too.
    plan = dataset._plan
    whole = drain_stream(open_stream(plan), 1)
    values = [item[2] for item in whole if item != "FAULT"]
    assert sorted(values) == sorted([*range(4)] * 3)
    assert len(whole) == 16
    for limit in (2, 3, 100):
        assert drain_stream(open_stream(plan), limit) == whole
        for count, state in saves(plan, limit):
            assert drain_stream(open_stream(plan, state), limit) == whole[count:]


def set_handover(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(tuning, "HANDOVER", seconds)
    monkeypatch.setattr(prefetch, "HANDOVER", seconds)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    """Receives the pool of every thread that is started."""
    started: list[Pool] = []
    start = Pool._start
    monkeypatch.setattr(Pool, "_start", lambda pool: (started.append(pool), start(pool))[1])
    return started


@pytest.mark.parametrize("ordered", [True, False])
def test_small_files_are_read_without_a_thread_for_each(
    ordered: bool, tmp_path: Path, threads: list[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_handover(monkeypatch, 1e3)
    for name in range(100):
        (tmp_path / f"{name:02}").write_text(f"{name}\n{name}\n")
    files = Dataset.list_files(f"{tmp_path}/*", shuffle=False)
    dataset = files.interleave(
        TextLineDataset, 2, num_parallel_calls=4, deterministic=ordered
    ).prefetch(0)
    lines = [int(line) for line in dataset]
    assert sorted(lines) == sorted([*range(100)] * 2)
    if ordered:
        assert lines[:8] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert 1 <= len(threads) <= 12
    assert len(list(TextLineDataset(files, num_parallel_reads=4))) == 200


def test_datasets_that_call_functions_get_a_thread_for_each(
    threads: list[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_handover(monkeypatch, 1e3)
    dataset = Dataset.range(20).interleave(
        lambda x: Dataset.range(x, x + 2).map(lambda y: y), 2, num_parallel_calls=2
    )
    assert len(list(dataset)) == 40
    assert len(threads) >= 20


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("handover", [1e3, 0.0, -1.0])
def test_short_datasets_give_the_same_elements_from_every_state(
    handover: float, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow and fast ones: the caller reads them, or threads after their first elements."""
    set_handover(monkeypatch, handover)
    monkeypatch.setattr(tuning.Brevity, "expect", lambda self: True)
    plan = interleave_numbers(LENGTHS, 3, 2, num_parallel_calls=3, deterministic=ordered)._plan
    whole = model(interleave_numbers(LENGTHS, 3, 2)._plan)
    for limit in (1, 4, 100):
        found = drain_stream(open_stream(plan), limit)
        assert (found if ordered else sorted(found)) == (whole if ordered else sorted(whole))
        for count, state in saves(plan, limit):
            rest = drain_stream(open_stream(plan, state), limit)
            assert len(rest) == len(whole) - count
            assert not ordered or rest == whole[count:]


def test_a_failed_trial_starts_the_threads_of_all_open_datasets(threads: list[Pool]) -> None:
    plan = interleave_numbers([100] * 12, 4, 1, num_parallel_calls=4)._plan
    stream = open_stream(plan)._stream
    stream._brevity._is_brief = True
    stream.pull(4)
    assert not threads
    stream._brevity.note_here(60.0)
    stream.pull(4)
    assert len(threads) >= 4
    stream.close()


def test_datasets_that_were_read_to_their_end_make_room_for_the_next() -> None:
    opened_for: list[int] = []

    def open_dataset(number: Any) -> Dataset:
        opened_for.append(int(number))
        return numbers(number, 2).map(lambda x: x)  # A function is called by threads only.

    plan = Dataset.range(9).interleave(open_dataset, 2, num_parallel_calls=2)._plan
    opened_for.clear()  # The spec needed a call.
    stream = open_stream(plan)
    assert [stream.pull(1).elements() for _ in range(2)] == [[0], [100]]
    for slot in stream._stream._slots:
        with slot.stream._ahead.changed:
            slot.stream._ahead.changed.wait_for(lambda slot=slot: slot.stream.has_read_all)
    stream.pull(1)
    assert opened_for == [0, 1, 2, 3, 4]
    stream.close()


def test_a_pull_opens_no_datasets_while_another_thread_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened_for: list[int] = []
    has_opened, is_closing = threading.Event(), threading.Event()
    stop = Pool.stop
    monkeypatch.setattr(Pool, "stop", lambda *a, **rest: (is_closing.set(), stop(*a, **rest)))

    def open_dataset(number: Any) -> Dataset:
        opened_for.append(int(number))
        if len(opened_for) == 3:
            has_opened.set()
        return numbers(number, 2).map(lambda x: is_closing.wait() * x)

    plan = Dataset.range(9).interleave(open_dataset, 2, num_parallel_calls=2)._plan
    opened_for.clear()  # The spec needed a call.
    stream = open_stream(plan)
    with ThreadPoolExecutor(1) as executor:
        pulling = executor.submit(drain_stream, stream, 1)
        has_opened.wait()
        stream.close()
        pulling.result()
    assert opened_for == [0, 1, 2]


def test_a_caller_that_reads_starts_no_thread_while_another_thread_closes(
    threads: list[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_handover(monkeypatch, -1.0)
    monkeypatch.setattr(tuning.Brevity, "expect", lambda self: True)
    stream = open_stream(interleave_numbers([5] * 3, 1, 1, num_parallel_calls=1)._plan)
    pull = AccessStream.pull

    def pull_and_close(source: AccessStream, limit: int) -> Chunk:
        chunk = pull(source, limit)
        if chunk.elements()[0] == 0 and chunk.size > 1:  # Not the outer element.
            stream.close()
        return chunk

    monkeypatch.setattr(AccessStream, "pull", pull_and_close)
    stream.pull(1)
    assert not threads


def test_long_datasets_are_woven_without_order_too(monkeypatch: pytest.MonkeyPatch) -> None:
    single: list[int] = []
    pull_from = InterleaveStream._pull_from

    def count(stream: InterleaveStream, slot: Slot, limit: int) -> Chunk | None:
        chunk = pull_from(stream, slot, limit)
        single.append(0 if chunk is None else len(chunk))
        return chunk

    monkeypatch.setattr(InterleaveStream, "_pull_from", count)
    lengths = [3000, 5000, 4000]
    dataset = interleave_numbers(lengths, 3, 1, num_parallel_calls=3, deterministic=False)
    found = [int(x) for x in dataset]
    assert sorted(found) == sorted(int(x) for x in interleave_numbers(lengths, 3, 1))
    assert sum(single) < len(found) / 4
