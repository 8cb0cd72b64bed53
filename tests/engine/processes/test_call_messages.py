"""Functions, structures and errors arrive unchanged in another process."""

import collections
import dataclasses
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.processes.call_messages import (
    Trees,
    pack_chunk,
    pack_error,
    read_function,
    unpack_chunk,
    unpack_error,
    write_function,
)
from penstock.errors import InvalidArgumentError, UnknownError

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Box:
    content: Any


def send_value(value: Any) -> Any:
    file = write_function(value)
    try:
        return read_function(file)
    finally:
        os.close(file)


def test_a_function_travels_with_the_arrays_that_it_captures() -> None:
    table, offset = np.arange(10_000.0), np.arange(3)

    def look_up(x: int) -> Any:
        return table[x] + offset[1]

    there = send_value(look_up)
    assert there(5) == look_up(5) == 6.0


def test_captured_arrays_may_be_written_to_and_belong_to_the_process() -> None:
    scratch = np.zeros(1000)

    def write(x: int) -> float:
        scratch[0] = x
        return float(scratch[0])

    assert send_value(write)(3) == 3.0
    assert scratch[0] == 0.0


def test_a_lock_does_not_travel() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot pickle"):
        write_function(lambda: lock)


@pytest.mark.parametrize(
    "element",
    [
        np.int64(3),
        b"text",
        (np.int64(3), b"text"),
        {"a": np.zeros(3), "b": (np.float32(1), None)},
        Pair(np.int64(1), np.ones(2)),
        Box(np.int64(2)),
    ],
    ids=str,
)
def test_elements_of_any_structure_travel(element: Any) -> None:
    chunk = Chunk.of([element, element, element])
    sent, given = Trees(), Trees()
    for _ in range(2):
        elements, parts = pack_chunk(chunk, sent)
        there = unpack_chunk(pickle.loads(pickle.dumps(elements)), b"".join(parts), given)
        assert there.tree == chunk.tree
        assert len(there) == 3
        assert repr(nest.flatten(there.elements()[2])[0]) == repr(nest.flatten(element)[0])
    assert elements.skeleton == b"", "an equal structure is sent once"


def test_arrays_that_must_not_be_written_to_stay_so() -> None:
    chunk = Chunk.of([(np.zeros(2), np.ones(2))] * 2)
    fixed = Chunk(chunk.tree, [chunk.columns[0], chunk.as_read_only().columns[1]], 2)
    elements, parts = pack_chunk(fixed, Trees())
    there = unpack_chunk(elements, memoryview(bytearray(b"".join(parts))), Trees())
    assert [column.flags.writeable for column in there.columns] == [True, False]


class Stubborn(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def build_error(cause: Exception) -> Exception:
    try:
        try:
            raise cause
        except Exception as error:
            raise InvalidArgumentError("Dataset.map: f failed") from error
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (ValueError("bad"), "ValueError('bad')"),
        (Stubborn(1, 2), "UnknownError('Stubborn: 1 and 2')"),
        (RuntimeError(threading.Lock()), "UnknownError('RuntimeError: <unlocked"),
    ],
    ids=["pickled", "not made again", "not pickled"],
)
def test_errors_arrive_with_their_cause_and_the_line(cause: Exception, expected: str) -> None:
    error = unpack_error(pack_error(build_error(cause)))
    assert type(error) is InvalidArgumentError
    assert error.message == "Dataset.map: f failed"
    assert repr(error.__cause__).startswith(expected)
    [note] = error.__cause__.__notes__
    assert "raise cause" in note
    assert "test_call_messages.py" in note


def test_an_exception_without_a_cause() -> None:
    error = unpack_error(pack_error(SystemExit(3)))
    assert type(error) is SystemExit
    assert error.code == 3
    assert not isinstance(error, UnknownError)
