"""Functions that use variables which change before the elements are computed."""

# ruff: noqa: B023 (loops rebind variables on purpose)

import warnings

import pytest

from penstock.data import Dataset


def test_the_variable_of_a_loop_warns() -> None:
    made = [Dataset.range(6).filter(lambda x: x % 3 == rest) for rest in range(3)]
    with pytest.warns(UserWarning, match="reads 'rest', which was 0 when .* and is 2 now") as found:
        assert [int(x) for x in made[0]] == [2, 5]
    assert found[0].filename == __file__
    assert [int(x) for x in made[2]] == [2, 5]


def test_it_warns_once() -> None:
    number = 1
    dataset = Dataset.range(2).map(lambda x: x + number)
    number = 5
    with pytest.warns(UserWarning, match=r"lambda x, number=number: \.\.\."):
        assert list(dataset) == [5, 6]
    assert list(dataset) == [5, 6]


def test_values_that_are_kept_and_variables_of_the_function_do_not_warn() -> None:
    calls = 0

    def count(x: int) -> int:
        nonlocal calls
        calls += 1
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = [Dataset.range(2).map(lambda x, number=number: x + number) for number in range(2)]
        assert [list(dataset) for dataset in made] == [[0, 1], [1, 2]]
        for _ in range(2):
            list(Dataset.range(2).map(count))
    assert calls >= 4
