"""Results of functions belong to the engine, and arrays that the engine shares are safe."""

from __future__ import annotations

import os
import threading
import warnings

import numpy as np
import pytest

from penstock import TensorSpec, int64
from penstock.data import Dataset, Options
from penstock.data.experimental.service import distribute
from penstock.element.ragged import Ragged
from penstock.engine.copies import copy_unowned, is_fixed, owners
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError

LENGTH = 50


def refill_buffer(buffer):
    def fill(x):
        buffer[:] = x
        return buffer

    return fill


@pytest.mark.parametrize("calls", [None, 1], ids=["sequential", "in a thread"])
@pytest.mark.parametrize("size", [1, 7])
def test_a_function_may_reuse_its_buffer(calls, size):
    ds = Dataset.range(LENGTH).map(refill_buffer(np.zeros(2, np.int64)), num_parallel_calls=calls)
    rows = np.concatenate(list(ds.batch(size).prefetch(2)))
    assert rows.tolist() == [[x, x] for x in range(LENGTH)]


def test_a_function_may_return_a_part_of_its_buffer_in_a_structure():
    buffer = np.zeros(4, np.int64)

    def fill(x):
        buffer[:] = x
        return {"part": buffer[:2], "pair": (buffer[2:], x)}

    found = list(Dataset.range(LENGTH).map(fill))
    assert [e["part"].tolist() for e in found] == [[x, x] for x in range(LENGTH)]
    assert [e["pair"][0].tolist() for e in found] == [[x, x] for x in range(LENGTH)]


def test_a_vectorized_function_may_reuse_its_buffer():
    buffer = np.zeros(10_000, np.int64)

    def fill(rows):
        buffer[: len(rows)] = rows
        return buffer[: len(rows)]

    found = list(Dataset.range(LENGTH).map(fill, vectorized=True))
    assert found == list(range(LENGTH))


def test_a_list_instead_of_a_generator_is_not_copied_at_once():
    rows = [np.zeros(2), np.zeros(2)]
    spec = TensorSpec((2,), np.float64)
    iterator = iter(Dataset.from_generator(lambda: rows, output_signature=spec))
    first = next(iterator)
    for row in rows:
        row[:] = 7
    assert (first.tolist(), next(iterator).tolist()) == ([0, 0], [7, 7])


def test_a_generator_may_reuse_its_buffer():
    def numbers():
        buffer = np.zeros(1, np.int64)
        for x in range(LENGTH):
            buffer[0] = x
            yield buffer

    ds = Dataset.from_generator(numbers, output_signature=TensorSpec((1,), int64))
    assert [int(x[0]) for x in ds] == list(range(LENGTH))
    assert np.concatenate(list(ds.batch(6))).ravel().tolist() == list(range(LENGTH))


def test_a_scan_may_write_to_its_state():
    def total(state, x):
        state += x
        return state, state

    given = np.zeros(2, np.int64)
    ds = Dataset.range(LENGTH).scan(given, total)
    expected = np.cumsum(range(LENGTH)).tolist()
    assert [int(x[0]) for x in ds] == expected
    assert [int(x[0]) for x in ds] == expected
    assert given.tolist() == [0, 0]
    iterator = iter(ds)
    states = []
    for _ in range(10):
        states.append(iterator.state_dict())
        next(iterator)
    for number, state in enumerate(states):
        other = iter(ds)
        other.load_state_dict(state)
        assert [int(x[0]) for x in other] == expected[number:]


def test_a_reduction_may_write_to_its_state():
    given = np.zeros(1, np.int64)
    result = Dataset.range(5).reduce(given, lambda state, x: state.__iadd__(x))
    assert (result.tolist(), given.tolist()) == ([10], [0])


def test_what_was_given_is_not_copied():
    given = np.arange(6)
    assert copy_unowned(given, owners(given)) is given
    assert np.shares_memory(copy_unowned(given[:3], owners((given, 1)))[:1], given)
    assert np.shares_memory(copy_unowned(given[:3], owners({"a": given})), given)
    assert not np.shares_memory(copy_unowned(given), given)
    assert not np.shares_memory(copy_unowned(Ragged.from_rows([given])).values, given)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        ((np.int64(1), b"a", None), True),
        ({"a": [1.5, "b"]}, True),
        (np.zeros(1), False),
        ((1, {"a": np.zeros(1)}), False),
    ],
)
def test_numbers_and_strings_are_fixed(value, expected):
    assert is_fixed(value) is expected


def test_datasets_of_a_flat_map_must_agree():
    ds = Dataset.range(4).flat_map(
        lambda x: Dataset.range(2) if x < 2 else Dataset.from_tensors("a")
    )
    iterator = iter(ds)
    assert [next(iterator) for _ in range(4)] == [0, 1, 0, 1]
    with pytest.raises(InvalidTypeError, match="Dataset.flat_map: .*got int64 and string"):
        next(iterator)


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(lambda x: x),
        lambda ds: ds.map(lambda x: x, num_parallel_calls=2),
        lambda ds: ds.map(lambda x: x).prefetch(4),
    ],
    ids=["map", "parallel map", "prefetch"],
)
def test_threads_may_share_an_iterator(make):
    iterator = iter(make(Dataset.range(3000)))
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: [found.append(int(x)) for x in iterator]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(3000))


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.map(lambda x: x).prefetch(2),
        lambda d: d.map(lambda x: x, num_parallel_calls=2),
        lambda d: d.map(lambda x: x, num_parallel_calls=2).with_options(
            Options(executor="processes")
        ),
        lambda d: d.apply(distribute("distributed_epoch", "local://1")),
    ],
    ids=["prefetch", "threads", "processes", "service"],
)
def test_a_forked_child_cannot_continue_the_iterator_of_its_parent(make):
    iterator = iter(make(Dataset.range(3000)))
    assert next(iterator) == 0
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and JAX warn about this fork.
        child = os.fork()
    if child == 0:
        try:
            for _ in range(2999):
                next(iterator)
        except FailedPreconditionError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert b"started in another process" in answer.read()
    os.waitpid(child, 0)
    assert list(iterator) == list(range(1, 3000))


@pytest.mark.parametrize(
    "other",
    [
        lambda: Dataset.range(10).batch(4),
        lambda: Dataset.range(11).batch(3),
        lambda: Dataset.range(10).batch(3, drop_remainder=True),
        lambda: Dataset.range(10).take(9).batch(3),
    ],
    ids=["size", "source", "remainder", "count"],
)
def test_a_state_fits_only_its_own_pipeline(other):
    iterator = iter(Dataset.range(10).batch(3))
    next(iterator)
    with pytest.raises(InvalidArgumentError, match="the state was saved by another pipeline"):
        iter(other()).load_state_dict(iterator.state_dict())


def test_a_window_that_is_handed_out_twice_cannot_be_written_to():
    rows = Dataset.range(4).map(lambda x: np.full(3, x))
    twice = rows.group_by_window(lambda v: v[0] % 2, lambda _, w: w.concatenate(w), window_size=2)
    seen = []
    for element in twice:
        seen.append(element.tolist())
        if element.flags.writeable:
            element[:] = -1
    assert seen == [[x] * 3 for x in (0, 2, 0, 2, 1, 3, 1, 3)]
