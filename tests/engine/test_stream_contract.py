"""One contract for every operator, over every kind of source, with and without rewrite rules."""

import itertools
import json
from collections.abc import Iterator

import pytest

from penstock.data.dataset import ENVIRONMENT
from penstock.data.iterator import Iterator as PlanIterator
from penstock.engine.inlets import MarkedInput
from penstock.plan.nodes import Node
from penstock.plan.optimize import RULES, optimize
from tests.effort import spread
from tests.engine.driving import (
    drain_stream,
    is_json,
    model,
    open_stream,
    pulls,
    reload_state,
    saves,
    take_elements,
)
from tests.engine.example_plans import (
    for_every_operator,
    fresh,
    holds_data,
    plans_over_sources,
)

LIMITS = (1, 3, 7, 100)


def rewrite_plan(plan: Node) -> list[Node]:
    """The plan under no rule, under each rule alone and under all, every result once."""
    results = [plan]
    for rules in [*((rule,) for rule in RULES), RULES]:
        better = optimize(plan, rules)
        results += [] if better in results else [better]
    return results


def rewritten_plans(operator: str) -> Iterator[tuple[str, Node]]:
    for source, written in plans_over_sources(operator):
        for number, plan in enumerate(rewrite_plan(written)):
            yield f"{source}, form {number}", plan


every_plan = for_every_operator(rewritten_plans)


@pytest.fixture(params=["near", "far"])
def _marks(request, monkeypatch):
    """Places are counted from a mark just before them, or from the start of the stream."""
    monkeypatch.setattr(MarkedInput, "_is_due", lambda self: request.param == "near")


@every_plan
def test_gives_what_the_list_model_gives_for_every_chunk_size(plan):
    expected = model(plan)
    for limit in LIMITS:
        assert drain_stream(open_stream(fresh(plan)), limit) == expected, f"pulled by {limit}"


@every_plan
def test_time_changes_nothing(plan):
    """Between two looks at the clock passes no time, or more than a chunk may take."""
    for step in (0.0, 0.01):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.perf_counter", itertools.count(step=step).__next__)
            assert drain_stream(open_stream(fresh(plan)), 7) == model(plan), (
                f"{step} s for each look"
            )


@pytest.mark.usefixtures("_marks")
@every_plan
def test_resumes_exactly_from_saves(plan):
    expected = model(plan)
    for limit, tried in ((1, 2), (3, 2)):
        for count, state in spread(list(saves(fresh(plan), limit)), tried):
            rest = drain_stream(open_stream(fresh(plan), reload_state(state)), 7)
            assert rest == expected[count:], f"pulled by {limit}, saved after {count}: {state}"


@every_plan
def test_states_keep_their_shape(plan):
    states = [state for _, state in saves(fresh(plan), 1)]
    if plan.blocked is None:
        assert all(type(state) is int for state in states)
    assert all(map(well_formed, states))
    if not holds_data(plan):
        assert all(map(is_json, states))


def well_formed(state: object) -> bool:
    """A position; an operator's own part and its inputs' states; a cache; elements to skip."""
    match state:
        case None | int():
            return True
        case {"own": _, "inputs": list(inputs), **rest}:
            return not rest and all(map(well_formed, inputs))
        case {"count": int(), "input": source, **rest}:
            return not rest and well_formed(source)
        case {"from": source, "skip": int(skip), **rest}:
            return not rest and skip > 0 and "skip" not in source and well_formed(source)
    return False


@every_plan
def test_the_end_stays_the_end_and_closing_twice_is_fine(plan):
    stream = open_stream(fresh(plan))
    drain_stream(stream, 3)
    for _ in range(3):
        with pytest.raises(StopIteration):
            stream.pull(3)
    stream.close()
    stream.close()
    halfway = open_stream(fresh(plan))
    next(pulls(halfway, 2), None)
    halfway.close()
    halfway.close()


@for_every_operator()
def test_iterators_resume_exactly(plan):
    expected = model(plan)
    iterator = PlanIterator(fresh(plan), ENVIRONMENT)
    tried = spread(range(len(expected) + 1), 3)
    for count in range(len(expected) + 1):
        state = iterator.state_dict()
        if plan.blocked is None:
            assert len(json.dumps(state)) < 1024
        take_elements(iterator, 1)
        if count not in tried:
            continue
        again = PlanIterator(fresh(plan), ENVIRONMENT)
        again.load_state_dict(reload_state(state))
        assert take_elements(again) == expected[count:], f"saved after {count}: {state}"
        again.close()
    iterator.close()
