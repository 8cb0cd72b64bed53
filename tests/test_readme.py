"""README.md and docs: programs print what the page shows, links exist, lines are short."""

import re
from pathlib import Path

import pytest

from tests.programs import ROOT, run_text

PAGES = {
    file.name: (file, file.read_text(encoding="utf-8"))
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if file.parent.name != "decisions"
}
# A block of Python and, where one follows directly, the block of text that it prints.
PROGRAM = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
PROGRAMS = [
    pytest.param(*match.groups(default=""), id=f"{name}-{number}")
    for name, (file, page) in PAGES.items()
    if file.parent.name != "recipes"  # tests/test_recipes.py runs those.
    for number, match in enumerate(PROGRAM.finditer(page))
]
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
LINKS = [
    pytest.param(file.parent / link, id=f"{name}-{link}")
    for name, (file, page) in PAGES.items()
    for link in dict.fromkeys(LINK.findall(page))
]


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_program_runs_and_prints_what_is_shown(program: str, printed: str, tmp_path: Path) -> None:
    result = run_text(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert not printed or result.stdout == printed


def test_readme_is_short() -> None:
    assert len(PAGES["README.md"][1].splitlines()) <= 150


def test_the_first_program_has_twelve_lines() -> None:
    first = PROGRAM.findall(PAGES["README.md"][1])[0][0]
    assert len([line for line in first.splitlines() if line]) == 12


@pytest.mark.parametrize("target", LINKS)
def test_link_leads_somewhere(target: Path) -> None:
    assert target.exists()


def lines_of_prose(name: str) -> list[str]:
    """Without what programs write or read: measurements, the rows of deviations and messages."""
    page = PAGES[name][1]
    if name == "benchmarks.md":
        page = page.partition("## Pipelines")[0]
    if name in ("deviations.md", "operations.md", "from-tensorflow.md"):
        page = re.sub(r"^\|.*", "", page, flags=re.MULTILINE)
    return page.splitlines()


@pytest.mark.parametrize("name", PAGES)
def test_lines_are_shorter_than_100_characters(name: str) -> None:
    assert [line for line in lines_of_prose(name) if len(line) >= 100] == []
