"""The pages keep their word: their programs print what they say, the links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVICE = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
# A block of Python and, where one follows directly, the block of text that it prints.
PROGRAM = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
PROGRAMS = PROGRAM.findall(README)
LINKS = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(("program", "printed"), PROGRAMS + PROGRAM.findall(SERVICE))
def test_program_runs_and_prints_what_is_shown(program: str, printed: str, tmp_path: Path) -> None:
    result = run(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert not printed or result.stdout == printed


def test_the_first_program_has_twelve_lines() -> None:
    first, _ = PROGRAMS[0]
    assert len([line for line in first.splitlines() if line]) == 12


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
