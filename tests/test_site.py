"""The site of the documentation: its menu is complete, and its check finds faults.

`scripts/docs` builds the site itself, with packages that the tests do not need.
"""

import re
from pathlib import Path

import pytest

from scripts.site.check import problems
from scripts.site.fences import fence_examples

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
MENU = re.findall(r"^ +- (?:[^:]+: )?(\S+\.md)$", CONFIGURATION, re.MULTILINE)


def test_the_menu_names_pages_that_exist_and_each_once() -> None:
    """Hooks add the pages that it does not name, and those that are made of other files."""
    pages = [page for page in MENU if not page.startswith(("project/", "reference/", "index.md"))]
    assert [page for page in pages if not (ROOT / "docs" / page).is_file()] == []
    assert len(MENU) == len(set(MENU)) > 40


def write(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


def test_a_whole_site_has_no_problems(tmp_path: Path) -> None:
    index = '<a href="other.html#below">x</a><a href="https://example.org/">y</a><a href="#a">z</a>'
    folder = write(tmp_path, index=f'<h1 id="a"></h1>{index}', other='<h2 id="below"></h2>')
    assert list(problems(folder)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="missing.html">x</a>', "index.html: missing.html: there is no such file"),
        ('<a href="#below">x</a>', "index.html: #below: there is no such anchor"),
        ('<img src="missing.svg">', "index.html: missing.svg: there is no such file"),
        (
            '<script src="https://example.org/x.js"></script>',
            "index.html: loads https://example.org/x.js from another server",
        ),
    ],
)
def test_a_problem_of_a_site_is_found(text: str, problem: str, tmp_path: Path) -> None:
    assert list(problems(write(tmp_path, index=text))) == [problem]


def test_a_style_that_loads_a_font_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url(//fonts.example.org/a.woff2) }")
    assert list(problems(tmp_path)) == [
        "a.css: loads //fonts.example.org/a.woff2 from another server"
    ]


def test_examples_in_docstrings_become_blocks_of_code() -> None:
    text = "A sum:\n\n>>> 1 + 1  # doctest: +SKIP\n2\n<BLANKLINE>\n\nDone."
    fenced = "A sum:\n\n```pycon\n>>> 1 + 1\n2\n\n```\n\nDone."
    assert fence_examples(text) == fenced
