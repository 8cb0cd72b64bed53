"""Elements sent ahead: in order, with failures; states count what the caller got."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from operator import length_hint
from typing import Any

import pytest

from penstock import TensorSpec, int64
from penstock.data import Dataset
from penstock.data.dataset import ENVIRONMENT
from penstock.data.delivered import DeliveredIterator, refuse_datasets
from penstock.delivery import Delivery
from penstock.delivery.moving import ColumnDelivery, own_rows
from penstock.element.chunk import Chunk
from penstock.engine.prefetch import PrefetchStream
from penstock.errors import InvalidTypeError, UnknownError

STREAM = Dataset.range(20).filter(lambda x: x % 2 == 0)
DATASETS = [
    Dataset.range(10),
    Dataset.range(10).shuffle(10, seed=1),
    Dataset.range(20).shuffle(4, seed=1).repeat(2).batch(3),
    STREAM,
    STREAM.shuffle(4, seed=1).prefetch(2),
]


class Noting(ColumnDelivery):
    """A delivery that records the chunks that it sends."""

    def __init__(self) -> None:
        super().__init__([None], None, own_rows)
        self.sent: list[Any] = []
        self.received: list[Any] = []
        self.closed = 0

    def send(self, chunk: Chunk) -> Chunk:
        self.sent += chunk.elements()
        return super().send(chunk)

    def receive(self, values: list[Any]) -> list[Any]:
        self.received += values
        return values

    def close(self) -> None:
        self.closed += 1


def open_iterator(
    dataset: Dataset, ahead: int = 2, open_delivery: Callable[[], Delivery] = Noting
) -> DeliveredIterator:
    return DeliveredIterator(
        dataset.__plan__,
        ENVIRONMENT,
        dataset._iterations,
        open_delivery=open_delivery,
        ahead=ahead,
        check=partial(refuse_datasets, "here"),
    )


def wait_for_the_thread(iterator: DeliveredIterator) -> None:
    """Waits until the prefetching thread has as many elements ready as allowed."""
    assert isinstance(iterator._stream, PrefetchStream)
    ahead = iterator._stream._ahead
    with ahead.changed:
        ahead.changed.wait_for(lambda: ahead.elements >= ahead.depth.elements and not ahead.pulling)


def texts(elements: Any) -> list[str]:
    return [str(element) for element in elements]


@pytest.mark.parametrize("ahead", [1, 3])
def test_as_many_are_sent_ahead_as_it_was_told(ahead: int) -> None:
    delivery = Noting()
    iterator = open_iterator(Dataset.range(16), ahead, lambda: delivery)
    for number in range(4):
        assert next(iterator) == number
        wait_for_the_thread(iterator)
        # Of small elements the iterator may take the next ones from the thread at once.
        taken = number + 1 + length_hint(iterator._rows)
        assert delivery.sent == list(range(taken + ahead))
        assert taken <= number + 1 + ahead
        assert delivery.received == list(range(number + 1))
    assert list(iterator) == list(range(4, 16))
    assert list(iterator) == []
    assert delivery.closed


def test_without_a_thread_elements_are_sent_when_they_are_asked_for() -> None:
    delivery = Noting()
    iterator = open_iterator(Dataset.range(10), 0, lambda: delivery)
    assert delivery.sent == []
    assert next(iterator) == 0
    assert delivery.sent == delivery.received == [0]
    assert list(iterator) == list(range(1, 10))


def test_an_element_does_not_wait_for_the_elements_ahead() -> None:
    """A generator may wait until its consumer has used the last element."""
    taken = threading.Semaphore(1)

    def one_at_a_time() -> Iterator[int]:
        for number in range(4):
            taken.acquire()
            yield number

    signature = TensorSpec([], int64)
    iterator = open_iterator(Dataset.from_generator(one_at_a_time, output_signature=signature))
    for number in range(4):
        assert next(iterator) == number
        taken.release()


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("ahead", [0, 2])
def test_every_state_gives_exactly_the_rest(dataset: Dataset, ahead: int) -> None:
    iterator = open_iterator(dataset, ahead)
    states, elements = [iterator.state_dict()], []
    for element in iterator:
        elements.append(element)
        states.append(iterator.state_dict())
    for number, state in enumerate(states):
        other = open_iterator(dataset, ahead)
        other.load_state_dict(state)
        assert texts(other) == texts(elements[number:])


def test_a_state_is_that_of_the_iterator_without_the_elements_ahead() -> None:
    dataset = Dataset.range(10).shuffle(10, seed=1)
    iterator, plain = open_iterator(dataset), iter(dataset)
    for _ in range(4):
        next(iterator), next(plain)
    assert json.loads(json.dumps(iterator.state_dict()))["at"] == plain.state_dict()["at"] == 4


def test_a_loaded_state_forgets_what_was_ahead() -> None:
    iterator = open_iterator(Dataset.range(10))
    beginning = iterator.state_dict()
    assert list(iterator) == list(range(10))
    iterator.load_state_dict(beginning)
    assert list(iterator) == list(range(10))


def test_closing_keeps_the_place() -> None:
    iterator = open_iterator(STREAM)
    with iterator:
        next(iterator), next(iterator)
    assert list(iterator) == []
    iterator.close()
    other = open_iterator(STREAM)
    other.load_state_dict(iterator.state_dict())
    assert list(other) == [4, 6, 8, 10, 12, 14, 16, 18]


def without_3(x: Any) -> Any:
    if x == 3:
        raise KeyError("3")
    return x


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_failure_comes_in_its_turn_and_the_rest_after_it(ahead: int) -> None:
    iterator = open_iterator(Dataset.range(6).map(without_3), ahead)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UnknownError, match="map: without_3 at .* element 3"):
        next(iterator)
    assert list(iterator) == [4, 5]


class Dividing(Noting):
    """A delivery that cannot move zeros."""

    def send(self, chunk: Chunk) -> Chunk:
        (column,) = chunk.columns
        assert all(column), "zero"
        return super().send(chunk)


@pytest.mark.parametrize("ahead", [0, 3])
def test_an_element_that_cannot_be_sent_fails_in_its_turn(ahead: int) -> None:
    zeros = {4, 5, 9}
    dataset = Dataset.range(12).map(lambda x: x * 0 if int(x) in zeros else x + 1)
    iterator, found = open_iterator(dataset, ahead, Dividing), []
    states = []
    for number in range(12):
        states.append(iterator.state_dict())
        if number in zeros:
            with pytest.raises(AssertionError, match="zero"):
                next(iterator)
        else:
            found.append(int(next(iterator)))
    assert found == [1, 2, 3, 4, 7, 8, 9, 11, 12]
    for number, state in enumerate(states):
        other = open_iterator(dataset, ahead, Dividing)
        other.load_state_dict(state)
        if number in zeros:
            with pytest.raises(AssertionError, match="zero"):
                next(other)
        else:
            assert next(other) == number + 1


def test_it_says_what_it_iterates_over() -> None:
    assert repr(open_iterator(Dataset.range(3))) == "<DeliveredIterator over range>"


def test_an_element_that_is_a_dataset_is_refused() -> None:
    iterator = open_iterator(Dataset.range(4).window(2))
    with pytest.raises(InvalidTypeError, match="^here: an element is a dataset; flatten it with"):
        next(iterator)


def test_elements_without_leaves_are_delivered() -> None:
    assert list(open_iterator(Dataset.range(3).map(lambda x: ()))) == [(), (), ()]


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_interrupted_iteration_continues_with_the_same_element(ahead: int) -> None:
    interrupted: list[int] = []

    def interrupt_once(x: Any) -> Any:
        if x == 3 and not interrupted:
            interrupted.append(3)
            raise KeyboardInterrupt
        return x

    iterator = open_iterator(Dataset.range(8).map(interrupt_once), ahead)
    found = [int(next(iterator)) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert found + list(map(int, iterator)) == list(range(8))


@pytest.mark.parametrize("ahead", [0, 2])
def test_several_threads_together_get_every_element_once(ahead: int) -> None:
    iterator = open_iterator(Dataset.range(400).batch(2), ahead)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: [found.extend(batch.tolist()) for batch in iterator])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(400))


def test_its_profile_names_the_operators() -> None:
    iterator = open_iterator(Dataset.range(8).map(lambda x: x + 1))
    assert list(map(int, iterator)) == list(range(1, 9))
    assert "map" in str(iterator.profile())
