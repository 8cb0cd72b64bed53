"""The programs of docs/recipes print what the pages show."""

import re
import shlex
from pathlib import Path

import pytest

from tests.programs import ROOT, run_program, run_text

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


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 7


@pytest.mark.parametrize(("program", "command", "printed"), PROGRAMS)
def test_program_runs_and_prints_what_is_shown(
    program: str, command: str | None, printed: str | None, tmp_path: Path
) -> None:
    if command is None:
        result = run_text(program, tmp_path)
    else:
        launcher, *words = shlex.split(command)
        (tmp_path / words[-1]).write_text(program, encoding="utf-8")
        result = run_program(["-m", MODULES[launcher], *words], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not printed or result.stdout == printed
