"""Watched calls: a call that crashes processes is found and refused; no other element is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.engine import call_watch
from penstock.engine.call_watch import (
    RECORD_SIZE,
    SLOTS,
    CallWatch,
    RecordedCall,
    read_record,
    start_watch,
)
from penstock.errors import AbortedError, OpError
from penstock.service.logic.worker import Search


@pytest.fixture(autouse=True)
def stop_watch() -> Iterator[None]:
    yield
    start_watch(None)


class SimulatedCrash(BaseException):
    """Ends a simulated process."""


class Process:
    """Runs datasets as successive processes would, each with the notes on earlier crashes."""

    def __init__(self) -> None:
        self.search = Search()
        self.crashes = 0
        self.memory = bytearray(RECORD_SIZE)
        self.left: list[RecordedCall] = []

    def crash(self) -> None:
        """A function calls this to end its simulated process."""
        self.left = read_record(self.memory)
        raise SimulatedCrash

    def read(self, make: Callable[[], Dataset]) -> list[Any]:
        """The elements, and the class of the error in the place of each that failed.

        Every process reads the first epoch of a dataset that `make` returns.
        """
        while True:
            self.memory = bytearray(RECORD_SIZE)
            suspects, refused = tuple(self.search.suspects), dict.fromkeys(self.search.refused, "")
            start_watch(CallWatch(self.memory, 60, suspects, refused) if self.crashes else None)
            try:
                return read_all(make())
            except SimulatedCrash:
                self.search.add(self.left if self.crashes else None, -11)
                self.crashes += 1
                assert self.crashes < 20


def read_all(dataset: Dataset) -> list[Any]:
    found: list[Any] = []
    iterator = iter(dataset)
    while True:
        try:
            found.append(np.asarray(next(iterator)).tolist())
        except StopIteration:
            return found
        except OpError as error:
            found.append(type(error))


def failing(ordinals: tuple[int, ...], fail: Callable[[], Any]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        if np.any(np.isin(x, ordinals)):
            fail()
        return x

    return call


def abort() -> None:
    raise AbortedError("as if a process had crashed")


PLANS: dict[str, Callable[[Callable[[Any], Any]], Dataset]] = {
    "map": lambda f: Dataset.range(9).map(f),
    "map, filter": lambda f: Dataset.range(9).filter(lambda x: x % 2 < 2).map(f),
    "filter": lambda f: Dataset.range(9).filter(lambda x: f(x) >= 0),
    "flat_map": lambda f: Dataset.range(9).flat_map(lambda x: Dataset.range(f(x) % 3)),
    "inside flat_map": lambda f: Dataset.range(3).flat_map(
        lambda x: Dataset.range(3 * x, 3 * x + 3).map(f)
    ),
    "interleave": lambda f: Dataset.range(3).interleave(
        lambda x: Dataset.range(3 * x, 3 * x + 3).map(f), cycle_length=2
    ),
    "scan": lambda f: Dataset.range(9).scan(np.int64(0), lambda s, x: (s + f(x), s)),
    "batch": lambda f: Dataset.range(9).map(f).batch(2),
    "random": lambda f: Dataset.range(9).map(lambda x, r: f(x), random=True, seed=1),
    "vectorized": lambda f: Dataset.range(9).map(f, vectorized=True),
    "vectorized stream": lambda f: Dataset.range(9).filter(lambda x: True).map(f, vectorized=True),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ordinals", [(4,), (2, 7)])
def test_a_crash_costs_what_an_exception_costs(plan: str, ordinals: tuple[int, ...]) -> None:
    process = Process()
    expected = read_all(PLANS[plan](failing(ordinals, abort)))
    crashing = failing(ordinals, process.crash)
    assert process.read(lambda: PLANS[plan](crashing)) == expected
    assert expected.count(AbortedError) == len(ordinals)
    assert process.crashes <= 1 + 2 * len(ordinals)
    assert len(process.search.refused) == len(ordinals)


def test_the_same_element_under_other_random_numbers_is_another_call() -> None:
    process, draws = Process(), []

    def draw(x: Any, random: np.random.Generator) -> Any:
        draws.append(random.integers(1 << 40))
        if x == 1 and draws[-1] == first[1]:
            process.crash()
        return x

    first: dict[int, Any] = {}

    def make() -> Dataset:
        return Dataset.range(3).map(draw, random=True, seed=3).repeat(2)

    first[1] = None
    read_all(make())
    first[1] = draws[1]
    assert process.read(make) == [0, AbortedError, 2, 0, 1, 2]


def test_an_element_that_a_generator_crashes_on_is_never_found() -> None:
    """A generator must compute the element that crashes before all later ones."""
    process = Process()

    def numbers() -> Iterator[int]:
        yield 1
        process.crash()

    plan = Dataset.from_generator(numbers, output_signature=Dataset.range(1).element_spec)
    with pytest.raises(AssertionError, match="20"):
        process.read(lambda: plan)
    assert not process.search.refused
    [left] = process.left
    assert left.key == b""
    assert left.function.startswith("Dataset.from_generator: ")


def test_calls_that_differ_each_time_are_not_searched_for_without_end() -> None:
    search = Search()
    traced = [search.add([RecordedCall(bytes([n]), "f")], -9) for n in range(20)]
    assert traced[:4] == [True] * 4
    assert not any(traced[8:])


def test_of_calls_that_ran_together_each_is_tried_alone() -> None:
    search = Search()
    assert search.add(None, -9)
    assert search.add([RecordedCall(b"a", "f"), RecordedCall(b"b", "f")], -9)
    assert set(search.suspects) == {b"a", b"b"}
    assert not search.refused
    for _ in range(2):
        assert search.add([RecordedCall(b"b", "f")], -9)
    assert search.refused == {b"b": -9}


def test_a_suspect_runs_alone() -> None:
    memory = bytearray(RECORD_SIZE)
    key = call_watch._digest("f", max, (1, 2))
    watch = CallWatch(memory, 60, suspects=[key])
    entered, go = threading.Event(), threading.Event()

    def wait(*arguments: int) -> list[RecordedCall]:
        entered.set()
        go.wait()
        return read_record(memory)

    others = threading.Thread(target=lambda: watch.run("g", wait, (1,), True))
    others.start()
    entered.wait()
    seen: list[RecordedCall] = []
    suspect = threading.Thread(
        target=lambda: watch.run("f", lambda *_: seen.extend(read_record(memory)), (1, 2), True)
    )
    suspect.start()
    while not watch._alone:
        pass
    assert not seen
    go.set()
    others.join()
    suspect.join()
    assert seen == [RecordedCall(key, "f")]
    assert read_record(memory) == []


def test_more_calls_than_slots_and_long_names() -> None:
    memory = bytearray(RECORD_SIZE)
    watch = CallWatch(memory, 60)

    def dive(depth: int) -> None:
        if depth:
            watch.run("ä" * 300, dive, (depth - 1,), True)
        else:
            assert len(read_record(memory)) == SLOTS

    dive(SLOTS + 3)
    assert read_record(memory) == []


def test_a_watch_ends() -> None:
    watch = CallWatch(bytearray(RECORD_SIZE), 60)
    start_watch(watch)
    call = call_watch.watch_calls("f", abs)
    assert call is not abs
    watch._until = 0.0
    assert call(-1) == 1
    assert call_watch.watch_calls("f", abs) is abs
    call_watch.refuse_many(2)
