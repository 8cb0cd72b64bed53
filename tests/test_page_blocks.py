"""Blocks of code in the pages: each is run, or checked, or says why it is not; anchors exist.

tests/test_readme.py and tests/test_recipes.py run the blocks of Python.
"""

import ast
import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.commands import _parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for file in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
RUN = {"python", "text"}  # Programs, and what they print.
SHOWN = {"yaml", "promql", "markdown"}  # Parts of the files of other programs.
COMMANDS = {"console", "sh"}
# A command in a block that is only indented.
INDENTED = re.compile(r"^    (?:\$ )?(penstock .*)", re.MULTILINE)
UNTESTED = re.compile(r"<!-- not run: .{10,} -->\n *```py\n")


def blocks(kinds: set[str]) -> list[tuple[str, str]]:
    return [
        (page, match[3])
        for page, text in PAGES.items()
        for match in BLOCK.finditer(text)
        if match[2] in kinds
    ]


def commands() -> list[tuple[str, str]]:
    """Every command line of a page, without what it prints."""
    found = [(page, line) for page, text in PAGES.items() for line in INDENTED.findall(text)]
    for page, text in blocks({"sh"}):
        found += [(page, line) for line in text.splitlines()]
    for page, text in blocks({"console"}):
        found += [(page, line.strip()[2:]) for line in text.splitlines() if "$ " in line[:6]]
    return found


def words_of(line: str) -> list[str]:
    """The words of a command, without variables before it and what the shell does behind it."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"\w+=", words[0]):
        words.pop(0)
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&", "2>&1")]
    return words[: ends[0]] if ends else words


CALLS = [(page, words_of(line)) for page, line in commands()]
OURS = [(page, words[1:]) for page, words in CALLS if words[:1] == ["penstock"]]
SCRIPTS = [(page, words[0]) for page, words in CALLS if words and words[0].startswith("scripts/")]


def test_every_block_is_of_a_known_kind() -> None:
    kinds = {match[2] for text in PAGES.values() for match in BLOCK.finditer(text)}
    assert kinds - RUN - SHOWN - COMMANDS - {"py"} == set()


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "```py\n" in text])
def test_a_program_that_is_not_run_says_why(page: str) -> None:
    assert len(UNTESTED.findall(PAGES[page])) == PAGES[page].count("```py\n")


def test_programs_that_are_not_run_are_python() -> None:
    for _, text in blocks({"py"}):
        ast.parse(text)


@pytest.mark.parametrize(("page", "words"), OURS)
def test_every_command_of_penstock_has_these_arguments(page: str, words: list[str]) -> None:
    assert callable(_parser().parse_args(words).command)


def test_there_are_commands() -> None:
    assert len(OURS) > 20


@pytest.mark.parametrize(("page", "script"), SCRIPTS)
def test_every_script_exists(page: str, script: str) -> None:
    assert (ROOT / script).is_file()


def slugs_of(text: str) -> set[str]:
    """The anchors of a page's headings, as viewers of Markdown and the site make them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


ANCHORS = {page: slugs_of(text) for page, text in PAGES.items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_anchor_leads_to_a_heading(page: str) -> None:
    folder = (ROOT / page).parent
    missing = []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", PAGES[page]):
        target = (folder / path).resolve().relative_to(ROOT).as_posix() if path else page
        if anchor not in ANCHORS[target]:
            missing.append(f"{path}#{anchor}")
    assert missing == []
