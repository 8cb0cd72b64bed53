"""The pages of docs/recipes keep their word: their programs print what they say."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A block of Python, then the command that runs it and what it prints, where these follow directly.
PROGRAM = re.compile(
    r"^```python\n(.*?)^```$"
    r"(?:\n\n^```console\n\$ (.*?)\n^```$)?"
    r"(?:\n\n^```text\n(.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
PROGRAMS = [
    pytest.param(*match.groups(), id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs" / "recipes").glob("*.md"))
    for number, match in enumerate(PROGRAM.finditer(page.read_text(encoding="utf-8")))
]
MODULES = {"torchrun": "torch.distributed.run"}


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "KERAS_HOME": str(folder)} | environment
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 7


@pytest.mark.parametrize(("program", "command", "printed"), PROGRAMS)
def test_program_runs_and_prints_what_is_shown(
    program: str, command: str | None, printed: str | None, tmp_path: Path
) -> None:
    words = ["-W", "error", "program.py"]
    if command is not None:
        launcher, *words = shlex.split(command)
        words = ["-m", MODULES[launcher], *words]
    (tmp_path / words[-1]).write_text(program, encoding="utf-8")
    result = run([sys.executable, *words], tmp_path)
    assert result.returncode == 0, result.stderr
    assert not printed or result.stdout == printed
