"""Checks a built site: `python -m scripts.site.check FOLDER` prints what is wrong with it.

Every link to a page of the site leads to a page, and its anchor to an element of that page. No page
loads a script, a style, a font or an image from another server.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, when it shows a page.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")


class Page(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name, value in values.items():
            if (tag, name) in LOADED and values.get("rel") != "canonical":
                self.loads.append(value)


def problems(folder: Path) -> Iterator[str]:
    """A line for each thing that is wrong."""
    pages = {
        file: Page(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.html"))
    }
    for file, page in pages.items():
        name = file.relative_to(folder)
        for link in page.links:
            if wrong := wrong_link(link, file, pages, folder):
                yield f"{name}: {link}: {wrong}"
        for link in page.loads:
            if is_elsewhere(link):
                yield f"{name}: loads {link} from another server"
            elif wrong := wrong_link(link, file, pages, folder):
                yield f"{name}: {link}: {wrong}"
    for file in sorted(folder.rglob("*.css")):
        for link in LOADED_BY_STYLE.findall(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(folder)}: loads {link} from another server"


def is_elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def wrong_link(link: str, file: Path, pages: dict[Path, Page], folder: Path) -> str:
    """Why a link leads nowhere; empty if it leads somewhere, or out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    # The page for missing pages has absolute links, because it is shown at any address.
    start = folder if parts.path.startswith("/") else file.parent
    target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "there is no such anchor"
    return ""


def main() -> int:
    found = list(problems(Path(sys.argv[1]).resolve()))
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
