"""The examples print what their docstrings show, and are short."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests.effort import EFFORT
from tests.programs import ROOT, run_program

FOLDER = ROOT / "examples"
# scripts/demo runs these: tests/test_scripts.py.
OF_THE_DEMO = {"demo.py", "demo_trainer.py", "pipeline.py"}
EXAMPLES = [file for file in sorted(FOLDER.glob("*.py")) if file.name not in OF_THE_DEMO]
USUAL = sorted((FOLDER / "dataloader").glob("*.py"))
# These use nothing of penstock; `scripts/search` runs them.
RUN_USUAL = USUAL if EFFORT > 1 else []
# The default of the example comes first; `scripts/search` tries the other one.
BACKENDS = {"keras_fit.py": ["jax", "torch"] if EFFORT > 1 else ["jax"]}
RUNS = [
    pytest.param(file, backend, id="-".join([file.relative_to(FOLDER).as_posix(), *backend]))
    for file in EXAMPLES + RUN_USUAL
    for backend in (
        [[name] for name in BACKENDS[file.name]]
        if file in EXAMPLES and file.name in BACKENDS
        else [[]]
    )
]


def shown_output(file: Path) -> str:
    """What the docstring says that the example prints."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert text is not None
    return textwrap.dedent(text.partition("It prints:\n\n")[2]) + "\n"


def test_each_example_has_a_usual_version() -> None:
    assert [file.name for file in EXAMPLES] == [file.name for file in USUAL]
    assert len(EXAMPLES) == 10


@pytest.mark.parametrize(("file", "backend"), RUNS)
def test_an_example_prints_what_it_shows(file: Path, backend: list[str], tmp_path: Path) -> None:
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for name in backend:
        environment["KERAS_BACKEND"] = name
    result = run_program([str(file)], tmp_path, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown_output(file)


@pytest.mark.parametrize(
    "file", EXAMPLES + USUAL, ids=lambda file: file.relative_to(FOLDER).as_posix()
)
def test_an_example_is_short(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 100
    assert all(len(line) < 100 for line in lines)


def test_the_page_lists_every_example() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for file in EXAMPLES:
        assert f"(../examples/{file.name})" in page
        assert f"(../examples/dataloader/{file.name})" in page
