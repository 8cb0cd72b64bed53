"""When users' functions are called: once per element, in order, never before the consumer asks.

Functions here record their arguments. The functions themselves advance the clock, so
that a slow function is slow on every machine.
"""

import threading
from queue import Queue

import numpy as np
import pytest

from penstock.data.dataset import ENVIRONMENT, Dataset
from penstock.data.iterator import Iterator
from penstock.errors import InvalidArgumentError
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from tests.engine.example_plans import NUMBER, filter_plan, map_plan, numbers, scan_plan

BOUND = 30.0
LENGTH = 200


class Calls:
    """A function that records its arguments, and fails where the test says so."""

    def __init__(self, failing=(), answer=lambda x: x):
        self.made = []
        self.failing = failing
        self.answer = answer

    def __call__(self, x):
        self.made.append(int(x))
        if x in self.failing:
            raise ValueError(f"{x} is not wanted")
        return self.answer(x)


def one(x):
    return Dataset(map_plan(numbers(1), lambda _: x))


OPERATORS = {
    "map": (lambda s, f: map_plan(s, f), lambda x: x),
    "filter": (filter_plan, lambda x: x % 2 == 0),
    "take_while": (lambda s, f: n.TakeWhile(s, Function(f)), lambda x: True),
    "flat_map": (lambda s, f: n.FlatMap(s, Function(f)), one),
    "interleave": (lambda s, f: n.Interleave(s, Function(f), 3, 2), one),
    "scan": (lambda s, f: scan_plan(s, lambda state, x: (state, f(x))), lambda x: x),
    "group_by_window": (
        lambda s, f: n.GroupByWindow(s, Function(f), Function(lambda key, window: window), 3),
        lambda x: x % 4,
    ),
    "group_by_reducer": (
        lambda s, f: n.GroupByReducer(
            s, Function(f), *map(Function, (lambda key: key, lambda _, x: x, lambda state: state))
        ),
        lambda x: x % 4,
    ),
    "batch of map": (lambda s, f: n.Batch(map_plan(s, f), 7), lambda x: x),
    "shuffle of map": (lambda s, f: map_plan(n.Shuffle(s, 1, 1), f), lambda x: x),
    "generator": (lambda s, f: generate_elements(s, f), lambda x: x),
}
SOURCES = {"access": numbers(LENGTH), "stream": filter_plan(numbers(LENGTH))}
each_operator = pytest.mark.parametrize("name", OPERATORS)
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def generate_elements(source, call):
    values = list(Iterator(source, ENVIRONMENT))
    return n.Generator(Function(lambda: map(call, values)), (), NUMBER)


def build_plan(name, source, failing=()):
    """A plan whose operator calls the function that is returned with it."""
    make, answer = OPERATORS[name]
    calls = Calls(failing, answer)
    return make(source, calls), calls


def drain_iterator(iterator):
    found = []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except InvalidArgumentError:
            found.append(None)


@each_source
@each_operator
def test_functions_are_called_once_per_element_and_in_order(name, source):
    plan, calls = build_plan(name, source)
    drain_iterator(Iterator(plan, ENVIRONMENT))
    assert calls.made == list(range(LENGTH))


@each_source
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "generator"])
def test_failing_calls_are_made_once_too(name, source):
    plan, calls = build_plan(name, source, failing=(0, 5, 6, 31, LENGTH - 1))
    drain_iterator(Iterator(plan, ENVIRONMENT))
    assert calls.made == list(range(LENGTH))


@each_source
@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_nothing_is_called_for_elements_that_are_not_taken(source, count):
    plan, calls = build_plan("map", source)
    drain_iterator(Iterator(n.Take(plan, count), ENVIRONMENT))
    assert calls.made == list(range(count))


@each_operator
def test_nothing_is_called_before_the_first_element(name):
    plan, calls = build_plan(name, SOURCES["access"])
    calls.made.clear()
    iterator = Iterator(plan, ENVIRONMENT)
    state = iterator.state_dict()
    other = Iterator(plan, ENVIRONMENT)
    other.load_state_dict(state)
    iterator.close()
    other.close()
    assert calls.made == []


@pytest.mark.parametrize("size", [-1, 0, 2])
def test_prefetching_calls_nothing_before_the_first_element(size):
    plan, calls = build_plan("map", SOURCES["access"])
    iterator = Iterator(n.Prefetch(plan, size), ENVIRONMENT)
    iterator.state_dict()
    iterator.close()
    assert calls.made == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, LENGTH])
def test_on_random_access_nothing_is_called_again_after_resuming(count):
    plan, calls = build_plan("map", SOURCES["access"], failing=(2,))
    iterator = Iterator(plan, ENVIRONMENT)
    for _ in range(count):
        next_or_none(iterator)
    state = iterator.state_dict()
    calls.made.clear()
    again = Iterator(plan, ENVIRONMENT)
    again.load_state_dict(state)
    drain_iterator(again)
    assert calls.made == list(range(count, LENGTH))


def next_or_none(iterator):
    try:
        return next(iterator)
    except InvalidArgumentError:
        return None


@each_source
def test_parallel_calls_are_made_once_per_element(source):
    calls = Calls(failing=(3, 50))
    drain_iterator(Iterator(map_plan(source, calls, parallel=4), ENVIRONMENT))
    assert sorted(calls.made) == list(range(LENGTH))


def test_vectorized_functions_get_every_row_once_and_in_order():
    seen = []

    def keep(rows):
        seen.extend(rows.tolist())
        return rows

    drain_iterator(Iterator(map_plan(numbers(LENGTH), keep, vectorized=True), ENVIRONMENT))
    assert seen == list(range(LENGTH))


class Clock:
    """A clock that only functions advance."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of the whole engine."""
    made = Clock()
    monkeypatch.setattr("time.perf_counter", made)
    return made


@pytest.mark.parametrize("name", ["map", "filter", "scan", "flat_map", "generator"])
def test_a_slow_function_is_called_for_the_next_element_only(name, clock):
    """A chunk never waits: slow elements are handed on one by one."""

    def slow(x):
        clock.now += 0.01
        if name == "filter":
            return True
        return one(x) if name == "flat_map" else x

    calls = Calls(answer=slow)
    iterator = Iterator(OPERATORS[name][0](numbers(30), calls), ENVIRONMENT)
    calls.made.clear()
    for number in range(30):
        assert next(iterator) == number
        assert calls.made == list(range(number + 1))


@pytest.mark.parametrize("slow_from", [3, 10, 100])
def test_a_function_that_gets_slow_is_called_for_one_block_at_most(slow_from, clock):
    """The engine checks the clock after every block of calls; slow elements come one by one."""

    def slow(x):
        clock.now += 0.01 if x >= slow_from else 1e-6
        return x

    calls = Calls(answer=slow)
    iterator = Iterator(map_plan(numbers(300), calls), ENVIRONMENT)
    ahead = []
    for number in range(300):
        assert next(iterator) == number
        ahead.append(calls.made[-1] - number)
    assert max(ahead[slow_from:]) < 64
    assert set(ahead[slow_from + 64 :]) == {0}


def test_a_generator_may_wait_for_its_consumer():
    """The consumer acts on each element before the function computes the next one."""
    answers: Queue[int] = Queue()

    def conversation():
        yield 0
        while (answer := answers.get(timeout=BOUND)) < 50:
            yield answer

    found = []
    for element in Iterator(n.Generator(Function(conversation), (), NUMBER), ENVIRONMENT):
        found.append(int(element))
        answers.put(found[-1] + 1)
    assert found == list(range(50))


@pytest.mark.parametrize("name", ["map", "filter", "scan", "parallel map", "prefetch"])
@pytest.mark.parametrize("stuck", [2, 5, 14])
def test_an_element_does_not_wait_for_the_call_of_a_later_one(name, stuck):
    """While a function is new, a blocked call does not delay the elements before it."""
    go_on, got = threading.Event(), Queue()

    def stick(x):
        if x == stuck:
            go_on.wait(BOUND)
        return True if name == "filter" else x

    plan = {
        "parallel map": lambda: map_plan(numbers(30), stick, parallel=2),
        "prefetch": lambda: n.Prefetch(map_plan(numbers(30), stick), 4),
    }.get(name, lambda: OPERATORS[name][0](numbers(30), stick))()
    consumer = threading.Thread(target=lambda: [*map(got.put, Iterator(plan, ENVIRONMENT))])
    consumer.start()
    try:
        before = [got.get(timeout=1.0) for _ in range(stuck)]
    finally:
        go_on.set()
        consumer.join(BOUND)
    assert before == list(range(stuck))
    assert [got.get_nowait() for _ in range(30 - stuck)] == list(np.arange(stuck, 30))
