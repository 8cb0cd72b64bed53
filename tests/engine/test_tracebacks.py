"""Tracebacks show the frames of users' functions, and where users call penstock."""

import bdb
import contextlib
import io
import linecache
import pdb
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Dataset
from penstock.data import Options
from penstock.engine.tracebacks import fold
from penstock.errors import InternalError, InvalidArgumentError

NUMBERS = Dataset.range(10)
OWN = str(Path(penstock.__file__).parent)


def parse(text: str) -> int:
    return int(text)


def refuse_5(x: Any) -> int:
    return parse("five" if x == 5 else "0")


def refuse_all(x: Any) -> int:
    return parse("five")


def generate() -> Any:
    for x in range(10):
        yield refuse_5(x)


def in_processes() -> Dataset:
    return NUMBERS.map(refuse_5, num_parallel_calls=2).with_options(Options(executor="processes"))


def on_replicas() -> Any:
    strategy = penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return strategy.experimental_distribute_dataset(NUMBERS.map(refuse_5).batch(2))


READING: dict[str, Any] = {
    "map": lambda: list(NUMBERS.map(refuse_5)),
    "filter": lambda: list(NUMBERS.filter(lambda x: refuse_5(x) == 0)),
    "threads": lambda: list(NUMBERS.map(refuse_5, num_parallel_calls=2).batch(2).prefetch(2)),
    "processes": lambda: list(in_processes()),
    "interleave": lambda: list(NUMBERS.interleave(lambda x: Dataset.range(x, x + 1).map(refuse_5))),
    "vectorized": lambda: list(NUMBERS.map(refuse_all, vectorized=True)),
    "generator": lambda: list(Dataset.from_generator(generate, output_types=int).batch(2)),
    "reduce": lambda: NUMBERS.map(refuse_5).reduce(0, lambda state, x: state),
    "reduce function": lambda: NUMBERS.reduce(0, lambda state, x: refuse_5(x)),
    "index": lambda: NUMBERS.map(refuse_5)[5],
    "spec": lambda: NUMBERS.map(refuse_all).batch(2).element_spec,
    "NumPy": lambda: list(NUMBERS.map(refuse_5).as_numpy_iterator()),
    "torch": lambda: list(NUMBERS.map(refuse_5).batch(2).as_torch()),
    "JAX": lambda: list(NUMBERS.map(refuse_5).batch(2).as_jax()),
    "replicas": lambda: list(on_replicas()),
}


def error_of(case: str) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError, match="ValueError: invalid literal") as caught:
        READING[case]()
    return caught.value


@pytest.mark.parametrize("case", READING)
def test_a_traceback_has_the_frames_of_the_user_first(case: str) -> None:
    error = error_of(case)
    assert type(error.__cause__) is ValueError
    lines = "".join(traceback.format_exception(error)).splitlines()
    files = [line for line in lines if line.startswith("  File ")]
    assert "test_tracebacks.py" in files[0]
    assert any("in parse" in file for file in files[:4])
    assert sum(OWN in file for file in files) <= 2
    assert len(lines) <= 26, "\n".join(lines)


def test_all_frames_are_shown_if_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    short = "".join(traceback.format_exception(error_of("threads")))
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "full")
    full = "".join(traceback.format_exception(error_of("threads")))
    assert 'unless="PENSTOCK_TRACEBACK=full"' in short
    assert "user_calls.py" not in short
    assert "user_calls.py" in full
    assert len(full.splitlines()) > 3 * len(short.splitlines())


def test_a_debugger_finds_the_arguments_of_the_function() -> None:
    error = error_of("threads")
    assert error.__cause__ is not None
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p text\nup\np int(x)\nq\n"), stdout=out, readrc=False)
    debugger.reset()
    with contextlib.suppress(bdb.BdbQuit):
        debugger.interaction(None, error.__cause__.__traceback__)
    assert "'five'" in out.getvalue()
    assert "(Pdb) 5\n" in out.getvalue()


def test_the_method_that_a_function_calls_is_shown() -> None:
    mapped = NUMBERS.map(lambda x: Dataset.range(3).batch(int(x)))
    with pytest.raises(InvalidArgumentError, match="batch_size must be at least 1") as caught:
        list(mapped)
    assert caught.value.__cause__ is not None
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert [frame.name for frame in frames] == ["<lambda>", "batch"]


def test_a_fault_of_penstock_keeps_its_frames() -> None:
    def fail() -> None:
        raise InternalError("a fault")

    with pytest.raises(InternalError, match="a fault") as caught:
        fail()
    trace = caught.value.__traceback__
    assert fold(caught.value).__traceback__ is trace


PROGRAM = """
from penstock import Dataset

def decode(name):
    raise ValueError("no image")

for x in Dataset.range(10).map(decode, num_parallel_calls=2).batch(2).prefetch(2):
    pass
"""


def test_a_program_prints_less_than_20_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "train.py"]
    lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr.split("\n")
    assert len(lines) < 20
    assert lines[1].endswith('train.py", line 5, in decode')


CELLS = [
    "from penstock import Dataset",
    "def decode(name):\n    raise ValueError('no image')",
    "for x in Dataset.range(10).map(decode, num_parallel_calls=2).batch(2).prefetch(2):\n    pass",
]


def run_cells() -> None:
    names: dict[str, Any] = {}
    for number, cell in enumerate(CELLS):
        name = f"<ipython-input-{number}-dfb4923955a6>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        exec(compile(cell, name, "exec"), names)


def test_a_notebook_shows_the_cells_of_the_user() -> None:
    """IPython renders the frames of the error that a cell raises, and those of its causes.

    It compiles each cell under a name that is no file, and keeps the text in `linecache`.
    """
    with pytest.raises(InvalidArgumentError, match="ValueError: no image") as caught:
        run_cells()
    error = caught.value
    assert error.__cause__ is not None
    [call] = traceback.extract_tb(error.__cause__.__traceback__)
    assert (call.name, call.line) == ("decode", "raise ValueError('no image')")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(OWN)]
    assert [frame.name for frame in own] == ["__next__"]
    assert frames[-2].filename == "<ipython-input-2-dfb4923955a6>"
    assert "decode at <ipython-input-1-dfb4923955a6>:1 failed" in str(error)
    assert not hasattr(error, "_render_traceback_")  # IPython would show its text.
