"""Caches and snapshots are complete after their last element, also without a pull for the end."""

import itertools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import TensorSpec, int64
from penstock.data.dataset import Dataset
from penstock.data.experimental import assert_cardinality
from penstock.element.chunk import Chunk
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnknownError,
)
from penstock.plan.nodes import Store

COUNT = 5
NUMBER = TensorSpec((), int64)


def generate_numbers() -> Any:
    yield from range(COUNT)


MADE: list[int] = []


def note_element(x: Any) -> Any:
    MADE.append(int(x))
    return x


SOURCES: dict[str, Callable[[], Dataset]] = {
    "counted": lambda: Dataset.range(COUNT),
    "uncounted": lambda: Dataset.range(9).filter(lambda x: x < COUNT),
    "generated": lambda: Dataset.from_generator(generate_numbers, output_signature=NUMBER),
    "shuffled": lambda: Dataset.range(COUNT).shuffle(COUNT),
}
CONSUMERS: dict[str, Callable[[Dataset], list[Any]]] = {
    "list": list,
    "zip, first": lambda ds: list(Dataset.zip((ds, Dataset.range(COUNT)))),
    "zip, second": lambda ds: list(Dataset.zip((Dataset.range(COUNT), ds))),
    "take": lambda ds: list(ds.take(COUNT)),
    "prefetch and take": lambda ds: list(ds.prefetch(2).take(COUNT)),
    "batch": lambda ds: [x.tolist() for x in ds.batch(COUNT, drop_remainder=True).take(1)],
    "repeat": lambda ds: list(ds.take(COUNT).repeat(2))[:COUNT],
    "next": lambda ds: list(itertools.islice(iter(ds), COUNT)),
}


@pytest.fixture(params=["memory", "file", "snapshot"])
def keep_elements(request: Any, tmp_path: Path) -> Callable[[Dataset], Dataset]:
    methods = {
        "memory": lambda dataset: dataset.cache(),
        "file": lambda dataset: dataset.cache(tmp_path / "c"),
        "snapshot": lambda dataset: dataset.snapshot(tmp_path / "s"),
    }
    return methods[request.param]


@pytest.mark.parametrize(
    ("held", "read", "filled"),
    [(0, read, False) for read in range(1, COUNT + 1)]
    + [(COUNT, read, True) for read in range(1, COUNT + 1)]
    + [(2, 1, True), (2, 2, True)],
)
@pytest.mark.parametrize("source", ["counted", "uncounted", "generated"])
def test_a_resumed_pass_fills_a_cache_with_what_another_process_had_recorded(
    source: str, held: int, read: int, filled: bool
) -> None:
    first, resumed = (SOURCES[source]().map(note_element).cache() for _ in range(2))
    with iter(first) as iterator:
        found = [int(next(iterator)) for _ in range(read)]
        state = iterator.state_dict()
    if held:
        chunk = Chunk.of([np.int64(x) for x in range(held)])
        resumed.__plan__.store.add(0, chunk, is_full=False)
    with iter(resumed) as iterator:
        iterator.load_state_dict(state)
        found += map(int, iterator)
    assert found == list(range(COUNT))
    assert resumed.__plan__.store.moved == []
    MADE.clear()
    assert [int(x) for x in resumed] == found
    assert filled is (MADE == [])


def test_recorded_elements_that_no_pass_can_continue_are_dropped() -> None:
    store = Store()
    store.add(0, Chunk.of([np.int64(x) for x in range(3)]), is_full=False)
    assert [list(chunk.columns[0]) for chunk in store.begin_behind(2) or ()] == [[0, 1]]
    assert store.begin_behind(4) is None
    assert store.moved == []


COMPLETE = [
    (source, consumer)
    for source in SOURCES
    for consumer in CONSUMERS
    # A generator may wait for its consumer, so these consumers never learn that it has ended.
    if not (source == "generated" and consumer in ("next", "batch"))
]


@pytest.mark.parametrize(("source_name", "consumer"), COMPLETE)
def test_the_last_element_completes(keep_elements: Any, source_name: str, consumer: str) -> None:
    source, consume = SOURCES[source_name], CONSUMERS[consumer]
    MADE.clear()
    dataset = keep_elements(source().map(note_element, output_signature=NUMBER))
    first = consume(dataset)
    assert len(MADE) == COUNT
    assert [consume(dataset), consume(dataset)] == [first, first]
    assert len(MADE) == COUNT


def test_a_partial_pass_of_batches_completes_nothing(keep_elements: Any) -> None:
    dataset = keep_elements(Dataset.range(COUNT))
    assert [len(x) for x in dataset.batch(2, drop_remainder=True).take(2)] == [2, 2]
    assert list(dataset) == list(range(COUNT))


def test_a_generator_is_not_asked_before_its_consumer_has_what_came_before() -> None:
    """Looking would block: the consumer sets the event only after it has the element."""
    used = threading.Event()
    used.set()

    def in_turn() -> Any:
        for x in range(3):
            assert used.wait(30)
            used.clear()
            yield x

    found = []
    for x in Dataset.from_generator(in_turn, output_signature=NUMBER).cache():
        found.append(int(x))
        used.set()
    assert found == [0, 1, 2]


def test_an_asserted_cardinality_completes_nothing_before_it_is_checked() -> None:
    dataset = Dataset.range(4).apply(assert_cardinality(3)).cache()
    for _ in range(2):
        iterator = iter(dataset)
        assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(FailedPreconditionError, match="3"):
            next(iterator)


def test_of_two_passes_at_once_the_first_to_end_decides_the_order() -> None:
    dataset = Dataset.range(50).shuffle(50).cache()
    slow, quick = iter(dataset), iter(dataset)
    next(slow)
    first = list(quick)
    assert list(slow) != first
    assert list(dataset) == first


def test_states_are_exact_while_the_cache_looks_ahead(keep_elements: Any) -> None:
    dataset = keep_elements(SOURCES["uncounted"]())
    for count in range(COUNT + 1):
        iterator = iter(dataset)
        found = list(itertools.islice(iterator, count))
        state = iterator.state_dict()
        iterator.close()
        again = iter(dataset)
        again.load_state_dict(state)
        assert [*found, *again] == list(range(COUNT)), count


def test_a_failure_behind_the_last_element_taken_is_raised_when_it_is_asked_for() -> None:
    dataset = Dataset.range(4).filter(lambda x: 1 // (2 - int(x)) < 9).cache()
    iterator = iter(dataset)
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(UnknownError, match="ZeroDivisionError"):
        next(iterator)
    assert list(iterator) == [3]


def test_a_failure_behind_the_last_element_taken_leaves_the_recording_incomplete(
    keep_elements: Any,
) -> None:
    """This holds even if several operators look for the end: a failed generator seems to end."""

    def fail_at_last() -> Any:
        yield from range(COUNT)
        raise ValueError("the last one")

    ds = keep_elements(Dataset.from_generator(fail_at_last, output_signature=NUMBER))
    twice = ds.take(COUNT).concatenate(ds.take(COUNT))
    assert list(twice.concatenate(twice)) == 4 * [*range(COUNT)]
    with pytest.raises(InvalidArgumentError, match="the last one"):
        list(ds)


def test_a_failure_to_complete_takes_the_place_of_no_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any) -> bool:
        raise ResourceExhaustedError("the disk is full")

    monkeypatch.setattr("penstock.engine.streams.buffering.CacheWriter.commit", full)
    iterator = iter(Dataset.range(2).cache(tmp_path / "c"))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(ResourceExhaustedError, match="full"):
        next(iterator)


@pytest.mark.parametrize("file", ["", "c"])
def test_passes_that_never_complete_are_logged_once(file: str, tmp_path: Path, caplog: Any) -> None:
    dataset = Dataset.range(9).cache(str(tmp_path / file) if file else "").take(3)
    told = []
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(4):
            assert list(dataset) == [0, 1, 2]
            told.append(len(caplog.records))
    assert told == [0, 1, 1, 1]
    assert "put take() before cache()" in caplog.text


def test_an_endless_input_is_not_kept() -> None:
    dataset = Dataset.range(3).repeat().cache()
    assert list(dataset.take(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert dataset.__plan__.store.chunks is None  # type: ignore[attr-defined]
    assert np.array_equal(list(dataset.take(2)), [0, 1])


def test_a_cache_refuses_elements_of_another_spec(tmp_path: Path) -> None:
    name = str(tmp_path / "kept")
    assert len(list(Dataset.range(3).cache(name))) == 3
    other = Dataset.from_tensor_slices(["a", "b"]).cache(name)
    with pytest.raises(InvalidArgumentError, match=r"kept' holds elements .*int64.* has elements "):
        list(other)
    os.unlink(f"{name}.index")
    assert list(other) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Dataset.range(3), Dataset.range(4)),
        (Dataset.range(3), Dataset.range(4).take(3)),
        (Dataset.range(3).map(lambda x: x + 1), Dataset.range(3).map(lambda x: x + 2)),
    ],
)
def test_a_cache_warns_of_a_file_that_another_pipeline_has_filled(
    first: Dataset, second: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = str(tmp_path / "kept")
    kept = list(first.cache(name))
    for _ in range(2):
        assert list(first.cache(name)) == kept
    assert not caplog.records
    other = second.cache(name)
    assert list(other) == list(other) == kept
    (record,) = caplog.records
    assert "another pipeline has filled" in record.getMessage()


@pytest.mark.parametrize("content", [b"", b"3\n\xff\xfe", b"\0\0\1\n", b"range:1\n"])
def test_a_damaged_index_of_a_cache_is_an_error(content: bytes, tmp_path: Path) -> None:
    name = str(tmp_path / "kept")
    kept = Dataset.range(3).cache(name)
    list(kept)
    index = tmp_path / "kept.index"
    index.write_bytes(content)
    with pytest.raises(DataLossError, match="kept.index' is damaged, .* or delete '.*kept.index'"):
        list(kept)
    index.unlink()
    assert list(kept) == [0, 1, 2]


def test_an_index_without_a_plan_is_read(tmp_path: Path) -> None:
    name = str(tmp_path / "kept")
    kept = list(Dataset.range(3).cache(name))
    (tmp_path / "kept.index").write_text("3\n")
    assert list(Dataset.range(4).cache(name)) == kept
