"""Runs programs of the documentation and the examples, as their readers do."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = Path(__file__).with_name("program_template.py")
# Of torch, not of penstock: on a busy machine, the processes of a program may fail to connect.
LOST_CONNECTION = "Gloo connectFullMesh failed"


def run_program(words: list[str], folder: Path, **own: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words, again if the processes of torch could not connect."""
    environment = _environment() | {"KERAS_HOME": str(folder)} | own
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, env=environment
        )
        if LOST_CONNECTION not in result.stderr:
            break
    return result


def run_text(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, with warnings as errors."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    if "keras" in program:  # It reads its environment when it is imported.
        return run_program(["-W", "error", "program.py"], folder)
    printed, errors = folder / ".printed", folder / ".errors"
    for file in (printed, errors):
        file.touch()
    template = _start_template("penstock", *["torch"] * ("import torch" in program))
    assert template.stdin is not None
    assert template.stdout is not None
    request = ["program.py", str(folder), str(printed), str(errors)]
    template.stdin.write(json.dumps(request) + "\n")
    template.stdin.flush()
    status = int(template.stdout.readline())
    return subprocess.CompletedProcess(
        ["program.py"], status, printed.read_text(), errors.read_text()
    )


@functools.cache
def _start_template(*modules: str) -> subprocess.Popen[str]:
    """The template with these modules. It ends with this process, which holds the pipe."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(TEMPLATE), *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": paths}
