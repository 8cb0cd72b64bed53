"""Elements sent ahead: in order, failures too, and states that count what the caller got."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock import TensorSpec, int64
from penstock.data import Dataset
from penstock.data.adapters.adapted import AdaptedIterator
from penstock.data.adapters.leaves import convert, own_array
from penstock.errors import InvalidTypeError, UnknownError

STREAM = Dataset.range(20).filter(lambda x: x % 2 == 0)
DATASETS = [
    Dataset.range(10),
    Dataset.range(10).shuffle(10, seed=1),
    Dataset.range(20).shuffle(4, seed=1).repeat(2).batch(3),
    STREAM,
    STREAM.shuffle(4, seed=1).prefetch(2),
]


class Noting:
    """A transfer that notes what it is asked to move."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.sent: list[Any] = []
        self.received: list[Any] = []

    def send(self, element: Any) -> Any:
        self.sent.append(element)
        return element

    def receive(self, sent: Any) -> Any:
        self.received.append(sent)
        return sent


def adapted(dataset: Dataset, ahead: int = 2) -> AdaptedIterator:
    return AdaptedIterator(iter(dataset), Noting(ahead))


def texts(elements: Any) -> list[str]:
    return [str(element) for element in elements]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_as_many_are_sent_ahead_as_the_transfer_says(ahead: int) -> None:
    transfer = Noting(ahead)
    iterator = AdaptedIterator(iter(Dataset.range(10)), transfer)
    for number in range(4):
        assert next(iterator) == number
        if ahead:
            assert iterator._sending is not None
            iterator._sending.result()
        assert transfer.sent == list(range(number + ahead + 1))
        assert transfer.received == list(range(number + 1))
    assert list(iterator) == list(range(4, 10))
    assert list(iterator) == []


def test_an_element_does_not_wait_for_the_elements_ahead() -> None:
    """A generator may wait for what its consumer does with the last element."""
    taken = threading.Semaphore(1)

    def one_at_a_time() -> Iterator[int]:
        for number in range(4):
            taken.acquire()
            yield number

    signature = TensorSpec([], int64)
    iterator = adapted(Dataset.from_generator(one_at_a_time, output_signature=signature))
    for number in range(4):
        assert next(iterator) == number
        taken.release()


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("ahead", [0, 2])
def test_every_state_gives_exactly_the_rest(dataset: Dataset, ahead: int) -> None:
    iterator = adapted(dataset, ahead)
    states, elements = [iterator.state_dict()], []
    for element in iterator:
        elements.append(element)
        states.append(iterator.state_dict())
    for number, state in enumerate(states):
        other = adapted(dataset, ahead)
        other.load_state_dict(state)
        assert texts(other) == texts(elements[number:])


def test_a_state_is_that_of_the_iterator_without_the_elements_ahead() -> None:
    dataset = Dataset.range(10).shuffle(10, seed=1)
    iterator, plain = adapted(dataset), iter(dataset)
    for _ in range(4):
        next(iterator), next(plain)
    assert json.loads(json.dumps(iterator.state_dict()))["at"] == plain.state_dict()["at"] == 4


def test_a_loaded_state_forgets_what_was_ahead() -> None:
    iterator = adapted(Dataset.range(10))
    beginning = iterator.state_dict()
    assert list(iterator) == list(range(10))
    iterator.load_state_dict(beginning)
    assert list(iterator) == list(range(10))


def test_closing_keeps_the_place() -> None:
    iterator = adapted(STREAM)
    with iterator:
        next(iterator), next(iterator)
    assert list(iterator) == []
    iterator.close()
    other = adapted(STREAM)
    other.load_state_dict(iterator.state_dict())
    assert list(other) == [4, 6, 8, 10, 12, 14, 16, 18]


def without_3(x: Any) -> Any:
    if x == 3:
        raise KeyError("3")
    return x


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_failure_comes_in_its_turn_and_the_rest_after_it(ahead: int) -> None:
    iterator = adapted(Dataset.range(6).map(without_3), ahead)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UnknownError, match="map: without_3 at .* element 3"):
        next(iterator)
    assert list(iterator) == [4, 5]


def test_an_element_that_cannot_be_sent_fails_in_its_turn() -> None:
    transfer = Noting(2)
    transfer.send = lambda element: 6 // int(element)  # type: ignore[method-assign]
    iterator = AdaptedIterator(iter(Dataset.range(-1, 3)), transfer)
    assert next(iterator) == -6
    with pytest.raises(ZeroDivisionError, match="zero"):
        next(iterator)
    assert list(iterator) == [6, 3]


def test_it_says_what_it_iterates_over() -> None:
    assert repr(adapted(Dataset.range(3))) == "<AdaptedIterator of <Iterator over range>>"


def flags(element: Any) -> Any:
    """Which arrays of an element may be kept without a copy."""
    return convert("here", element, lambda array, alone: alone)


def test_leaves_that_share_memory_are_recognized() -> None:
    fresh, other = np.zeros(4), np.zeros(4)
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    assert flags((fresh, other)) == (True, True)
    assert flags((fresh, fresh)) == (True, False)
    assert flags({"a": fresh[:2], "b": fresh[2:]}) == {"a": True, "b": False}
    assert flags((fixed, np.float32(1), b"text", None)) == (False, True, b"text", None)


def test_owned_copies_only_what_it_must() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert own_array(array, True) is array
    for other in (array[:, ::-1], array.T, array.astype(">f8")):
        made = own_array(other, True)
        assert made.flags.carray
        assert made.dtype == np.float64
        assert np.array_equal(made, other)
        assert not np.shares_memory(made, array)
    assert not np.shares_memory(own_array(array, False), array)


def test_an_element_that_is_a_dataset_is_refused() -> None:
    element = next(iter(Dataset.range(4).window(2)))
    with pytest.raises(InvalidTypeError, match="^here: an element is a dataset; flatten it with"):
        flags(element)
