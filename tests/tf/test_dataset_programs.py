"""Datasets answer as TensorFlow does: elements, specs, and kinds and moments of errors."""

import json
import pathlib

import pytest

import penstock.tf as tf
from tests.tf.dataset_programs import PROGRAMS, is_like
from tests.tf.service_programs import SERVICES
from tests.tf.strategy_programs import STRATEGIES

RECORDED = json.loads(
    (pathlib.Path(__file__).parent / "cases" / "datasets.json").read_text(encoding="utf-8")
)


ALL = PROGRAMS | SERVICES | STRATEGIES


@pytest.mark.parametrize("name", ALL)
def test_answers_are_those_of_tensorflow(name: str, tmp_path: pathlib.Path) -> None:
    found = ALL[name](tf, tmp_path)
    expected = RECORDED[name]
    if isinstance(expected, dict):
        differing = [key for key in expected if not is_like(found.get(key), expected[key])]
        assert [(key, found.get(key), expected[key]) for key in differing] == []
    assert is_like(found, expected)
