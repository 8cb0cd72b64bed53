"""The examples print what their docstrings show, and are short."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.effort import EFFORT

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"
# scripts/demo runs these: tests/test_scripts.py.
OF_THE_DEMO = {"demo.py", "demo_trainer.py", "pipeline.py"}
EXAMPLES = [file for file in sorted(FOLDER.glob("*.py")) if file.name not in OF_THE_DEMO]
USUAL = sorted((FOLDER / "dataloader").glob("*.py"))
# These mostly import frameworks; `scripts/search` runs them.
SLOW = {
    "huggingface_trainer.py",
    "jax_sharded.py",
    "keras_fit.py",
    "lightning_fit.py",
    "torch_ddp.py",
}
RUN_USUAL = [file for file in USUAL if EFFORT > 1 or file.name not in SLOW]
# The default of the example comes first.
BACKENDS = {"keras_fit.py": ["jax", "torch"]}
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
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "KERAS_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    for name in backend:
        environment["KERAS_BACKEND"] = name
    result = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
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
