"""Random plans against the list model: elements, states, random access, lengths and specs."""

import itertools

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penstock.data.dataset import ENVIRONMENT, Dataset
from penstock.data.iterator import Iterator
from penstock.element.spec import fits
from penstock.errors import OpError
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from penstock.plan.nodes import INFINITE, UNKNOWN, Mix, Repeat
from penstock.plan.optimize import RULES, optimize
from tests.conformance.random_plans import add_prefetches, otherwise_parallel, plans
from tests.effort import examples
from tests.engine import example_plans as e
from tests.engine.driving import (
    MOST,
    drain_stream,
    model,
    open_stream,
    pulls,
    reload_state,
    take_elements,
)
from tests.engine.example_plans import fresh
from tests.engine.list_model import items
from tests.engine.list_values import plain

POSITIONS = 25

pytestmark = pytest.mark.filterwarnings("ignore:.*the same order as the one before")


rule_sets = st.sampled_from([(), *((rule,) for rule in RULES), RULES])
limits = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(plans(), rule_sets, limits)
@examples(500)
def test_elements_are_those_of_the_list_model(plan, rules, limits):
    stream = open_stream(optimize(plan, rules))
    found = []
    for limit in itertools.cycle(limits):
        pulled = next(pulls(stream, limit), [])
        found += pulled
        if not pulled or len(found) >= MOST:
            break
    stream.close()
    assert found[:MOST] == model(plan)


@given(plans())
@examples(150)
def test_iteration_resumes_exactly_from_every_position(plan):
    expected = model(plan)
    iterator = Iterator(fresh(plan), ENVIRONMENT)
    for count in range(min(len(expected), POSITIONS) + 1):
        state = reload_state(iterator.state_dict())
        again = Iterator(fresh(plan), ENVIRONMENT)
        again.load_state_dict(state)
        rest = take_elements(again, MOST - count)
        again.close()
        assert rest == expected[count:], f"saved after {count}: {state}"
        take_elements(iterator, 1)
    iterator.close()


@given(plans(), st.integers(0, 30), st.sampled_from([None, 1, 2, -1]), st.booleans())
@examples(200)
def test_states_fit_plans_that_prefetch_and_call_otherwise(plan, count, calls, ahead):
    expected = model(plan)[:MOST]
    iterator = Iterator(fresh(plan), ENVIRONMENT)
    given_before = take_elements(iterator, count)
    state = reload_state(iterator.state_dict())
    iterator.close()
    other = otherwise_parallel(fresh(plan), calls)
    again = Iterator(add_prefetches(other) if ahead else other, ENVIRONMENT)
    again.load_state_dict(state)
    rest = take_elements(again, MOST - len(given_before))
    again.close()
    assert [*given_before, *rest] == expected


@given(plans(depth=4).filter(lambda plan: plan.blocked is None))
@examples(150)
def test_random_access_agrees_with_iteration(plan):
    dataset, expected = Dataset(plan), model(plan)
    if plan.cardinality != INFINITE:
        assert len(dataset) == len(expected)
    for index, element in enumerate(expected[:40]):
        assert element_at(dataset, index) == element
        if plan.cardinality != INFINITE:
            assert element_at(dataset, index - len(expected)) == element
    for start, stop in itertools.product((0, 1, 3), (0, 2, 5, 100)):
        assert take_elements(iter(dataset[start:stop])) == expected[start:stop]
    assert take_elements(iter(dataset[1::3])) == expected[1::3]


def element_at(dataset, index):
    try:
        return plain(dataset[index])
    except OpError as error:
        return plain(error)


def repeats_nothing_for_ever(plan):
    """`repeat()` counts as endless even where the input turns out to be empty, as in TensorFlow.

    The same holds for a dataset that a mix repeats.
    """
    repeated = [plan.input] if isinstance(plan, Repeat) and plan.count < 0 else []
    if isinstance(plan, Mix):
        ends = zip(plan.parts, plan.on_end, strict=True)
        repeated = [part for part, on_end in ends if on_end == "repeat"]
    unsure = any(part.cardinality == UNKNOWN for part in repeated)
    return unsure or any(map(repeats_nothing_for_ever, plan.inputs))


@given(plans().filter(lambda plan: not repeats_nothing_for_ever(plan)))
@examples(200)
def test_cardinality_is_how_many_elements_there_are(plan):
    if plan.cardinality == INFINITE:
        assert len(model(plan)) == MOST
    elif plan.cardinality != UNKNOWN:
        assert len(list(itertools.islice(items(plan), 10_000))) == plan.cardinality


@given(plans(depth=5))
@examples(150)
def test_elements_fit_their_spec(plan):
    dataset = Dataset(plan)
    try:
        spec = dataset.element_spec
    except OpError:  # The functions fail on all samples.
        reject()
    iterator = iter(dataset)
    for _ in range(30):
        try:
            element = next(iterator)
        except StopIteration:
            break
        except OpError:
            continue
        assert fits(spec, element), f"{element!r} does not fit {spec}"
    iterator.close()


def test_numbers_that_an_operator_draws_by_end_there():
    """`unique` numbers its elements itself; datasets made from them have these numbers."""
    source = n.FlatMap(e.filter_plan(e.numbers(4)), Function(e.some))
    unique = n.Unique(e.map_plan(source, e.noisy, random=3))
    plan = n.FlatMap(unique, Function(e.shuffled_some))
    assert drain_stream(open_stream(plan), 3) == model(plan)


def test_the_random_plans_are_not_trivial():
    """Many plans give elements, some fail, and both random access and streams occur."""
    drawn = []

    @given(plans())
    @settings(max_examples=300, database=None, derandomize=True)
    def draw(plan):
        drawn.append(plan)

    draw()
    found = [model(plan) for plan in drawn]
    assert sum(map(bool, found)) > 100
    assert sum("FAULT" in elements for elements in found) > 15
    assert 30 < sum(plan.blocked is None for plan in drawn) < 270
