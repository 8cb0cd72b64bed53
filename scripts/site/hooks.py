"""Hooks of MkDocs: adds the pages that other files of the repository hold, and mends their links.

The front page is README.md. The pages of the reference name what mkdocstrings is to describe. The
pages under project/ are files of the repository's root, those under sources/ its examples.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.site import names  # noqa: E402

# Files of the root, by the pages that they become.
MOVED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "LICENSE": "project/license.md",
}
LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)#\s]+)")
WHOLE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
HIDDEN = "|".join(sorted(names.INTERNAL))


def on_config(config: Any) -> Any:
    """Pages that the menu does not name go to the end of *How to*, under *More*."""
    docs = Path(config["docs_dir"])
    pages = {file.relative_to(docs).as_posix() for file in docs.rglob("*.md")}
    listed = set(re.findall(r"[\w/.-]+\.md", str(config["nav"])))
    more = [page for page in sorted(pages - listed) if not re.match(r"decisions/\d", page)]
    if more:
        next(part["How to"] for part in config["nav"] if "How to" in part).append({"More": more})
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, page in MOVED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        add(
            files,
            config,
            page,
            text if source.endswith(".md") else f"# License\n\n```text\n{text}```\n",
        )
    for file in sorted((ROOT / "examples").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        text = file.read_text(encoding="utf-8")
        add(files, config, page_of(path), f"# {path}\n\n```python\n{text}```\n")
    for page, text in reference().items():
        add(files, config, f"reference/{page}.md", text)
    return files


def add(files: Files, config: Any, page: str, text: str) -> None:
    files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links between files of the repository become links between pages."""
    origin = next((old for old, new in MOVED.items() if new == page.file.src_uri), None)
    here = ROOT / (origin or f"docs/{page.file.src_uri}")

    def mend(match: re.Match[str]) -> str:
        target = (here.parent / match[1]).resolve()
        if not target.is_relative_to(ROOT):
            return match[0]
        return relative(page_of(target.relative_to(ROOT).as_posix()), page.file.src_uri)

    parts = WHOLE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(mend, part) for part in parts)


def page_of(path: str) -> str:
    """The page that a file of the repository becomes, as a path below docs/."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("examples/"):
        return f"sources/{path.removesuffix('.py')}.md"
    return path.removeprefix("docs/")


def relative(target: str, origin: str) -> str:
    folder = Path(origin).parent
    ups = 0
    while not Path(target).is_relative_to(folder):
        folder, ups = folder.parent, ups + 1
    return "../" * ups + Path(target).relative_to(folder).as_posix()


def reference() -> dict[str, str]:
    """The pages of the reference: a heading, the module's own words, and every public name."""
    public, ported = names.public_names(), names.ported_names()
    pages = {"index": index(public, ported), "commands": commands()}
    for page, (title, modules) in names.PORTED.items():
        parts = [f"# {title}\n"]
        parts += [introduce(module, alone=len(modules) == 1) for module in modules]
        parts += [describe(each) for each in ported if each.page == page]
        pages[page] = "\n".join(parts)
    for page, (title, modules) in names.PAGES.items():
        parts = [f"# {title}\n"]
        parts += [introduce(module, alone=len(modules) == 1) for module in modules]
        parts += [describe(each) for each in public if each.page == page and each.kind != "value"]
        parts += [f"## {path}\n\n{text}\n" for path, text in values_of(public, page)]
        if page == "penstock":
            parts.append(dtypes(public))
        pages[page] = "\n".join(parts)
    return pages


def introduce(module: str, alone: bool) -> str:
    heading = "" if alone else f"## {module}\n\n"
    options = "    options:\n      members: false\n      show_root_heading: false\n"
    return f"{heading}::: {module}\n{options}"


def describe(name: names.Name) -> str:
    lines = [f"::: {name.path}", "    options:", "      heading_level: 2"]
    lines += [f'      filters: ["!^_", "!^({HIDDEN})$"]']
    text = "\n".join(lines) + "\n"
    if name.aliases:
        text += f"\nAlso {', '.join(f'`{alias}`' for alias in name.aliases)}.\n"
    return text


def index(public: list[names.Name], ported: list[names.Name]) -> str:
    """All public names, by page."""
    parts = [
        "# Reference\n",
        "Every public name, from its docstring. The tests run each example.\n",
        *list_names(names.PAGES, public),
        "# For ported code\n",
        "What `import penstock.tf as tf` has besides. Names, arguments and meaning are those of",
        "TensorFlow, except as [Differences](../deviations.md) says. `tf.data` and `tf.distribute`",
        "are those above. [From TensorFlow](../from-tensorflow.md) lists all names, also those",
        "that are not there.\n",
        *list_names(names.PORTED, ported),
    ]
    return "\n".join(parts)


def list_names(pages: dict[str, Any], listed: list[names.Name]) -> Iterator[str]:
    for page, (title, _) in pages.items():
        links = [link(each) for each in listed if each.page == page]
        yield f"## [{title}]({page}.md)\n\n" + ", ".join(links) + "\n"


def link(name: names.Name) -> str:
    word = name.path.rpartition(".")[2]
    return f"`{word}`" if name.kind == "value" else f"[`{word}`]({name.page}.md#{name.path})"


def values_of(public: list[names.Name], page: str) -> Iterator[tuple[str, str]]:
    return (
        (each.path, names.VALUES[each.path])
        for each in public
        if each.page == page and each.path in names.VALUES
    )


def dtypes(public: list[names.Name]) -> str:
    kinds = [each.path for each in public if type(each.value).__name__ == "DType"]
    words = ", ".join(f"`{path}`" for path in kinds)
    return f"## Dtypes\n\nEach is a `DType`, as `penstock.as_dtype` returns it: {words}.\n"


def commands() -> str:
    """What `penstock COMMAND --help` prints, for every command."""
    overview = help_of()
    found = re.search(r"\{(.*?)\}", overview)
    assert found is not None
    parts = ["# The command penstock\n", f"```text\n{overview}```\n"]
    parts += [
        f"## penstock {name}\n\n```text\n{help_of(name)}```\n" for name in found[1].split(",")
    ]
    return "\n".join(parts)


def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "penstock", *words, "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
