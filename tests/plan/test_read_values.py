"""Functions that keep the values that their variables had when they were given to a dataset."""

# ruff: noqa: B023 (loops rebind variables on purpose)

import pickle

import cloudpickle

from penstock.plan.read_values import keep_values

NUMBER = 5


def test_a_lambda_keeps_a_variable_of_the_function_around_it() -> None:
    made = [keep_values(lambda x: x + number) for number in range(3)]
    number = 7
    assert [call(number) for call in made] == [7, 8, 9]


def test_a_lambda_keeps_a_variable_of_its_module() -> None:
    kept = keep_values(lambda x: [x + NUMBER for _ in range(2)])
    globals()["NUMBER"] = 6
    try:
        assert kept(1) == [6, 6]
        assert pickle.loads(cloudpickle.dumps(kept))(1) == [6, 6]
    finally:
        globals()["NUMBER"] = 5


def test_defaults_and_names_stay() -> None:
    def add(x: int, y: int = 2, *, z: int = 3) -> int:
        """Adds."""
        return x + y + z + NUMBER

    kept = keep_values(add)
    assert kept(1) == 11
    assert (kept.__name__, kept.__qualname__) == (add.__name__, add.__qualname__)
    assert (kept.__doc__, kept.__module__, kept.__annotations__) == (
        add.__doc__,
        add.__module__,
        add.__annotations__,
    )


def test_a_variable_that_a_function_assigns_to_is_shared() -> None:
    count = 0

    def increase() -> int:
        nonlocal count
        count += 1
        return count

    kept = keep_values(increase)
    assert [kept(), increase(), kept()] == [1, 2, 3]
    assert count == 3


def test_objects_are_shared() -> None:
    seen: list[int] = []
    keep_values(lambda: seen.append(1))()
    assert seen == [1]


def test_a_function_may_call_itself_and_what_is_defined_later() -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert keep_values(factorial)(4) == 24
    kept = keep_values(lambda: defined_later())  # type: ignore[name-defined]  # noqa: F821
    globals()["defined_later"] = lambda: 3
    try:
        assert kept() == 3
    finally:
        del globals()["defined_later"]


def test_functions_of_modules_and_other_callables_stay_as_they_are() -> None:
    assert keep_values(keep_values) is keep_values
    assert keep_values(len) is len
    assert keep_values(int) is int
