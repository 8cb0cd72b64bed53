"""Ordinary programs print what they print with TensorFlow; only their import is changed."""

import pathlib

import pytest

from tests.tf import programs

RECORDED = pathlib.Path(__file__).parent / "cases"


@pytest.mark.parametrize("name", programs.NAMES)
def test_a_program_prints_the_same(name: str, tmp_path: pathlib.Path) -> None:
    found = programs.run(name, "import penstock.tf as tf\n", tmp_path)
    assert found == (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
