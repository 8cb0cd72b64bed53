#!/usr/bin/env python3
"""Writes the file map of ARCHITECTURE.md from the first sentences of the module docstrings.

Needs nothing but the standard library: it reads the sources and imports none of them.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- map: begin, written by scripts/architecture_map.py -->"
END = "<!-- map: end -->"


def first_sentence(source: str) -> str:
    """The first sentence of a module's docstring on one line; "" if it has none.

    >>> first_sentence('"Plans are data. And so on."')
    'Plans are data.'
    """
    paragraph = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
    words = " ".join(paragraph.split())
    sentence = re.match(r".+?[.!?](?= [A-Z`]|$)", words)
    return sentence[0] if sentence else words


def modules(package: Path) -> Iterator[Path]:
    """The package's files: a folder's door first, its files, then the folders in it."""
    files = sorted(package.glob("*.py"), key=lambda file: (file.name != "__init__.py", file.name))
    yield from files
    for folder in sorted(path for path in package.iterdir() if path.is_dir()):
        yield from modules(folder)


def draw(package: Path) -> str:
    """The map, as a table in Markdown."""
    lines = ["| file | what it is for |", "|---|---|"]
    for file in modules(package):
        sentence = first_sentence(file.read_text(encoding="utf-8")).replace("|", r"\|")
        lines.append(f"| `{file.relative_to(package).as_posix()}` | {sentence} |")
    return "\n".join(lines)


def update(page: str, package: Path) -> str:
    """The page with a fresh map between the two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        message = f"the markers are missing; put back {BEGIN!r} and {END!r}"
        raise ValueError(f"ARCHITECTURE.md: {message}")
    return f"{before}{BEGIN}\n{draw(package)}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if it is stale")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = update(old, PACKAGE)
    if check and new != old:
        print("ARCHITECTURE.md: the map is stale; run scripts/architecture_map.py", file=sys.stderr)
        return 1
    if new != old:
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
