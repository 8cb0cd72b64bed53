"""Datasets of ported code answer as TensorFlow did: elements, specs, cardinalities, errors."""

import json
import pathlib

import pytest

import penstock.tf as tf
from tests.tf.semantics_cases import answer, is_same, names_for

CASES = json.loads((pathlib.Path(__file__).parent / "cases" / "semantics.json").read_text())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_dataset_answers_as_in_tensorflow(case):
    found = answer(case, names_for(tf))
    assert is_same(found, CASES[case]), f"{found}\n   {CASES[case]}"
