"""The pages agree with the repository: links lead somewhere, the index is complete."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DECISIONS = ROOT / "docs" / "decisions"
# tests/test_readme.py checks the links of the other pages.
PAGES = sorted([*ROOT.glob("*.md"), *DECISIONS.glob("*.md")])


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_every_decision_by_its_title() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    titles = [page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in pages]
    assert listed == list(zip(titles, [page.name for page in pages], strict=True))


def test_decisions_are_numbered_in_a_row() -> None:
    numbers = [int(page.name[:4]) for page in sorted(DECISIONS.glob("[0-9]*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_glossary_is_short_and_sorted() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = re.search(r"## Glossary\n(.*?)\n## ", page, re.DOTALL)
    assert section is not None
    words = re.findall(r"^\| (\w+) \| .+ \|$", section[1], re.MULTILINE)[1:]
    assert 20 <= len(words) <= 40
    assert words == sorted(set(words))


def test_only_the_tests_that_the_page_names_may_be_skipped() -> None:
    skipping = re.compile(r"\bmark\.skip|\bpytest\.skip\(|\bimportorskip\(|\bmark\.xfail")
    files = [
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "tests").rglob("*.py")
        if skipping.search(file.read_text(encoding="utf-8")) and file.name != "test_pages.py"
    ]
    named = re.findall(
        r"\(`(tests/.+?\.py)`\)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    )
    assert sorted(files) == sorted(named)
