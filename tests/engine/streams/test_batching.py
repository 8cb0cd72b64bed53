"""Rows cut anew: `unbatch` and `batch` move chunks, and take no more than they need."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.data.experimental.transformations import assert_cardinality
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.element.spec import TensorSpec
from penstock.engine.streams import sources
from penstock.engine.streams.sources import GeneratorStream
from penstock.errors import InvalidArgumentError, InvalidTypeError
from tests.engine.driving import drain_stream, model, open_stream, pulls, saves

LENGTHS = [3, 0, 5, 1, 9, 2, 2, 7] * 8
DOCUMENTS = Ragged.from_rows([np.arange(length) for length in LENGTHS])
TOKENS = TensorSpec((None,), np.int64)


def batch_tokens(documents: Dataset, drop_remainder: bool = False) -> Any:
    return documents.unbatch().batch(4, drop_remainder)._plan


@pytest.mark.parametrize(
    "documents",
    [
        Dataset.from_tensor_slices(DOCUMENTS),
        Dataset.range(len(LENGTHS)).map(lambda i: DOCUMENTS[int(i)]),
    ],
    ids=["ragged", "map"],
)
def test_a_pull_behind_a_remainder_gives_many_batches(documents: Dataset) -> None:
    list(documents)  # Until a function's speed is known, its results are handed on singly.
    stream = open_stream(batch_tokens(documents))
    counts = [len(batches) for batches in pulls(stream, 16)]
    assert sum(counts) == -(-sum(LENGTHS) // 4)
    assert len(counts) < 16


def generate_values(values: list[Any], spec: TensorSpec, log: list[int]) -> Dataset:
    """A dataset of a generator, which raises the exceptions in `values` and logs its progress."""

    def generate() -> Iterator[Any]:
        for number, value in enumerate(values):
            log.append(number)
            if isinstance(value, Exception):
                raise value
            yield value

    return Dataset.from_generator(generate, output_signature=spec)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no generator count as slow, even if the machine is busy."""
    monkeypatch.setattr(sources, "BUDGET", 600.0)


def test_a_batch_takes_what_it_needs_from_a_generator_and_no_more() -> None:
    log: list[int] = []
    stream = open_stream(
        generate_values(list(range(20)), TensorSpec((), np.int64), log).batch(4)._plan
    )
    for taken in (4, 8, 12):
        assert len(stream.pull(100)) == 1
        assert len(log) == taken
    stream.close()


ONE_BY_ONE: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda d: d.map(lambda x: x),
    "vectorized map": lambda d: d.map(lambda x: x, vectorized=True),
    "filter": lambda d: d.filter(lambda x: x >= 0),
    "take_while": lambda d: d.take_while(lambda x: x >= 0),
    "scan": lambda d: d.scan(np.int64(0), lambda total, x: (total + x, x)),
    "ignore_errors": lambda d: d.ignore_errors(),
    "take": lambda d: d.take(100),
    "skip": lambda d: d.skip(0),
    "enumerate": lambda d: d.enumerate(),
    "unique": lambda d: d.unique(),
    "assert_cardinality": lambda d: d.apply(assert_cardinality(20)),
    "repeat": lambda d: d.repeat(1).repeat(2),
    "zip": lambda d: Dataset.zip(d, Dataset.range(50).filter(lambda x: True)),
    "concatenate": lambda d: d.concatenate(Dataset.range(3)),
}


@pytest.fixture
def needed_counts(fast: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that receives how many elements each pull from a generator needs."""
    found: list[int] = []
    pull = GeneratorStream.pull_needed

    def count(stream: GeneratorStream, needed: int, limit: int, rows: int = 0) -> Chunk:
        found.append(needed)
        return pull(stream, needed, limit, rows)

    monkeypatch.setattr(GeneratorStream, "pull_needed", count)
    return found


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_operators_ask_a_generator_at_once_for_what_a_batch_needs(
    name: str, needed_counts: list[int]
) -> None:
    log: list[int] = []
    numbers = generate_values(list(range(20)), TensorSpec((), np.int64), log)
    dataset = ONE_BY_ONE[name](numbers).batch(5)
    assert len(list(dataset)) >= 4  # Until a function's speed is known, it gets single elements.
    log.clear()
    needed_counts.clear()
    stream = open_stream(dataset._plan)
    assert len(stream.pull(100)) == 1
    assert len(log) == 5
    assert max(needed_counts) > 3
    assert len(needed_counts) <= 3
    stream.close()


def test_a_cache_asks_a_generator_at_once_for_what_a_batch_needs(needed_counts: list[int]) -> None:
    log: list[int] = []
    numbers = generate_values(list(range(20)), TensorSpec((), np.int64), log)
    stream = open_stream(numbers.cache().batch(5)._plan)
    assert len(stream.pull(100)) == 1
    assert len(log) == 5
    assert needed_counts == [5]
    stream.close()


def test_a_shuffle_asks_a_generator_at_once_for_what_it_holds(fast: None) -> None:
    log: list[int] = []
    numbers = generate_values(list(range(20)), TensorSpec((), np.int64), log)
    stream = open_stream(numbers.shuffle(6, seed=1).batch(4)._plan)
    assert len(stream.pull(100)) == 1
    assert len(log) == 6 + 3
    stream.close()


def test_of_a_slow_generator_others_get_each_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BUDGET", -1.0)
    log: list[int] = []
    plan = (
        generate_values(list(range(20)), TensorSpec((), np.int64), log)
        .map(lambda x: x)
        .batch(8)
        ._plan
    )
    assert drain_stream(open_stream(plan), 100) == model(plan)
    stream = open_stream(plan.inputs[0])
    log.clear()
    assert len(stream.pull_needed(8, 8)) == len(log) == 1
    stream.close()


def test_packing_takes_what_it_needs_from_a_generator_and_no_more() -> None:
    log: list[int] = []
    documents = generate_values([np.arange(length) for length in LENGTHS], TOKENS, log)
    stream = open_stream(batch_tokens(documents))
    rows = np.cumsum(LENGTHS)
    given = 0
    while given < 40:
        given += 4 * len(stream.pull(100))
        assert len(log) == np.searchsorted(rows, given) + 1
    stream.close()


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [np.arange(length) for length in LENGTHS[:8]],
        [np.arange(3), np.arange(3), ValueError("lost"), np.arange(9)],
        [np.arange(3), np.arange(3), "no array", np.arange(9), np.arange(2)],
        [ValueError("lost"), np.arange(9)],
    ],
    ids=["all", "ends in a failure", "continues behind a failure", "fails at once"],
)
def test_packing_a_generator_resumes_exactly_from_every_state(
    values: list[Any], drop_remainder: bool
) -> None:
    plan = batch_tokens(generate_values(values, TOKENS, []), drop_remainder)
    whole = drain_stream(open_stream(plan), 100)
    for limit in (1, 3, 100):
        for count, state in saves(plan, limit):
            assert drain_stream(open_stream(plan, state), limit) == whole[count:]


def test_elements_of_a_generator_come_before_the_failure_that_follows_them(fast: None) -> None:
    values = [1, 2, ValueError("lost")]
    plan = generate_values(values, TensorSpec((), np.int64), []).batch(8)._plan.inputs[0]
    stream = open_stream(plan)
    assert stream.pull_needed(8, 8).elements() == [1, 2]
    state = stream.save()
    for other in (stream, open_stream(plan, state)):
        with pytest.raises(ValueError, match="failed for element 2: ValueError: lost"):
            other.pull(8)
        with pytest.raises(StopIteration):
            other.pull(8)


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        (np.arange(3), TOKENS),
        ((np.arange(3), np.int64(1)), (TOKENS, TensorSpec((), np.int64))),
        ({"a": (np.arange(3),)}, {"a": (TOKENS,)}),
    ],
)
@pytest.mark.parametrize(
    ("rows", "limit", "expected"), [(6, 9, 2), (7, 9, 3), (7, 2, 2), (0, 9, 1)]
)
def test_a_generator_is_asked_for_the_rows_that_are_needed_at_once(
    value: Any, spec: Any, rows: int, limit: int, expected: int, fast: None
) -> None:
    taken: list[Any] = []
    stream = open_stream(generate_values([value] * 9, spec, taken)._plan)
    assert len(stream.pull_needed(1, limit, rows)) == expected
    assert len(taken) == expected


def test_unbatch_hands_on_the_rows_before_an_uneven_element() -> None:
    values = [(np.arange(2), np.arange(2)), (np.arange(3), np.arange(1)), (np.arange(2),) * 2]

    def generate() -> Iterator[Any]:
        yield from values

    dataset = Dataset.from_generator(generate, output_signature=(TOKENS, TOKENS)).unbatch()
    stream = open_stream(dataset._plan)
    assert len(stream.pull_needed(8, 8)) == 2
    state = stream.save()
    for other in (stream, open_stream(dataset._plan, state)):
        with pytest.raises(ValueError, match=r"have \[1, 3\] rows"):
            other.pull_needed(8, 8)
        assert len(other.pull_needed(8, 8)) == 2


def test_a_large_batch_is_in_memory_once() -> None:
    """There is no second copy as the function's results, and no third as its arguments."""
    rows = np.arange(600)[:, None] + np.zeros((1, 12_800), np.int64)
    batches = iter(Dataset.from_tensor_slices(rows).map(lambda row: row[::-1]).batch(200))
    size = next(batches).nbytes
    tracemalloc.start()
    try:
        batch = next(batches)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(batch, rows[200:400])
    assert batch.flags.writeable
    assert size < peak < 1.8 * size


@pytest.mark.parametrize("length", [64, 65, 100, 128, 129])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_large_batches_have_every_row_once(length: int, drop_remainder: bool) -> None:
    rows = Dataset.range(length).enumerate().map(lambda i, x: {"a": np.full(5_000, i), "b": x})
    found = list(rows.batch(64, drop_remainder))
    kept = length - length % 64 if drop_remainder else length
    assert [x for batch in found for x in batch["b"]] == list(range(kept))
    assert [x for batch in found for x in batch["a"][:, -1]] == list(range(kept))


def test_large_rows_of_other_shapes_fail_as_small_ones_do() -> None:
    rows = Dataset.range(100).map(lambda x: np.zeros(30_000 + (x == 70)))
    batches = iter(rows.batch(50))
    assert next(batches).shape == (50, 30_000)
    with pytest.raises(InvalidArgumentError, match="30001"):
        next(batches)


@pytest.mark.parametrize(
    ("sizes", "drop_remainder", "expected"),
    [
        ([1, 1, 2, 0], False, [[0], [1], [2, 3], [], [4], [5], [6, 7], []]),
        ([0, 4], False, [[], [0, 1, 2, 3], [], [4, 5, 6, 7], []]),
        ([4, 0], True, [[0, 1, 2, 3], [], [4, 5, 6, 7], []]),
        ([0, 0, 3], True, [[], [], [0, 1, 2], [], [], [3, 4, 5], [], []]),
        ([3, 0], False, [[0, 1, 2], [], [3, 4, 5], [], [6, 7]]),
    ],
)
def test_an_empty_batch_needs_no_row_behind_it(
    sizes: list[int], drop_remainder: bool, expected: list[list[int]]
) -> None:
    rows = Dataset.range(8).map(lambda x: x).batch(4)
    batches = rows.rebatch(sizes, drop_remainder)
    assert [batch.tolist() for batch in batches] == expected
    assert all(batch.dtype == np.int64 for batch in batches)


def test_empty_batches_at_the_end_are_resumed() -> None:
    batches = Dataset.range(3).map(lambda x: (x, b"a")).batch(3).rebatch([3, 0, 0])
    iterator = iter(batches)
    next(iterator), next(iterator)
    resumed = iter(batches)
    resumed.load_state_dict(iterator.state_dict())
    (numbers, texts) = next(resumed)
    assert (numbers.shape, numbers.dtype) == ((0,), np.int64)
    assert (texts.shape, texts.dtype) == ((0,), np.dtype(object))
    assert list(resumed) == []


RAGGED_ROWS = Ragged.from_rows([np.array([1]), np.array([2, 3])])


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (lambda i: Dataset.range(int(i)), r"got <Dataset .*; flat_map them first"),
        (lambda i: None, "got None; use ragged_batch"),
        (lambda i: RAGGED_ROWS, r"got <Ragged \[\[1\], \[2, 3\]\]>; use ragged_batch"),
    ],
    ids=["dataset", "none", "ragged"],
)
def test_what_a_function_returns_must_be_arrays_to_be_padded(
    returned: Callable[[Any], Any], text: str
) -> None:
    padded = Dataset.range(4).map(returned).padded_batch(2)
    with pytest.raises(InvalidTypeError, match=f"Dataset.padded_batch: elements must be .*{text}"):
        next(iter(padded))


@pytest.mark.parametrize("returned", [lambda i: Dataset.range(int(i)), lambda i: None])
def test_the_spec_of_padded_batches_of_no_arrays_is_an_error(
    returned: Callable[[Any], Any],
) -> None:
    padded = Dataset.range(4).map(returned).padded_batch(2)
    with pytest.raises(InvalidTypeError, match="Dataset.padded_batch: elements must be arrays"):
        _ = padded.element_spec


def test_padding_needs_elements_of_one_rank() -> None:
    rows = Dataset.range(6).map(lambda i: np.ones((2,) * (1 + int(i) // 3)))
    iterator = iter(rows.padded_batch(2))
    assert next(iterator).shape == (2, 2)
    with pytest.raises(InvalidArgumentError, match=r"here 1, got one of the shape \(2, 2\); resh"):
        next(iterator)
    assert next(iterator).shape == (2, 2, 2)
    some = Dataset.from_generator(lambda: iter(rows), output_signature=TensorSpec(None, np.float64))
    with pytest.raises(InvalidArgumentError, match=r"here 2, got one of the shape \(2,\)"):
        next(iter(some.padded_batch(2, padded_shapes=[3, 3])))
