"""Every operation gives the values, dtypes, shapes and kinds of error that TensorFlow gives."""

import builtins
import json
import pathlib
from typing import Any

import pytest

import penstock.tf as tf
from tests.tf.describe import describe, is_close
from tests.tf.operation_cases import CASES, names_for

RECORDED = json.loads(
    (pathlib.Path(__file__).parent / "cases" / "operations.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return names_for(tf)


def is_error(expression: str) -> bool:
    return "error" in RECORDED[expression]


@pytest.mark.parametrize("expression", [case for case in CASES if not is_error(case)])
def test_values(expression: str, names: dict[str, Any]) -> None:
    assert is_close(describe(eval(expression, names)), RECORDED[expression])


@pytest.mark.parametrize("expression", [case for case in CASES if is_error(case)])
def test_kinds_of_error(expression: str, names: dict[str, Any]) -> None:
    kind = RECORDED[expression]["error"]
    with pytest.raises(getattr(tf.errors, kind, None) or getattr(builtins, kind)):
        eval(expression, names)


def test_shuffle_of_a_scalar_draws_nothing():
    def draw_after(values):
        tf.random.set_seed(3)
        try:
            for value in values:
                tf.random.shuffle(value)
            return tf.random.uniform([3]).numpy().tolist()
        finally:
            tf.random.set_seed(None)

    assert draw_after([5]) == draw_after([])
    assert draw_after([[5]]) != draw_after([])
