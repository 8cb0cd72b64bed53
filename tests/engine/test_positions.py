"""Positions become states: of an operator and of each of its inputs."""

from typing import Any

import pytest

from penstock.data.dataset import Dataset
from penstock.engine.positions import states_of

NUMBERS = Dataset.range(10)
CASES: dict[str, tuple[Dataset, Any, list[Any]]] = {
    "map": (NUMBERS.map(lambda x: x), 3, [3]),
    "batch": (NUMBERS.batch(2), None, [6]),
    "take": (NUMBERS.take(7), 4, [3]),
    "skip": (NUMBERS.skip(2), 0, [5]),
    "enumerate": (NUMBERS.enumerate(20), 23, [3]),
    "repeat": (NUMBERS.take(2).repeat(9), [1, True, False, []], [1]),
    "concatenate, first": (NUMBERS.concatenate(NUMBERS), [0, []], [3]),
    "concatenate, second": (NUMBERS.take(2).concatenate(NUMBERS), [1, []], [1]),
    "zip": (Dataset.zip(NUMBERS, NUMBERS), None, [3, 3]),
    "prefetch": (NUMBERS.prefetch(2), None, [3]),
}


@pytest.mark.parametrize("case", CASES)
def test_position_three(case: str) -> None:
    dataset, own, inputs = CASES[case]
    assert states_of(dataset.__plan__, 3) == (own, inputs)


def test_a_saved_state_is_taken_apart() -> None:
    plan = NUMBERS.filter(lambda x: True).take(4).__plan__
    assert states_of(plan, {"own": 2, "inputs": [{"own": 3}]}) == (2, [{"own": 3}])
    assert states_of(plan, None) == (None, [None])


def test_a_position_in_a_plan_without_random_access_is_an_error() -> None:
    plan = NUMBERS.filter(lambda x: True).__plan__
    with pytest.raises(AssertionError, match="filter has no random access"):
        states_of(plan, 3)
