"""docs/operations.md: the runbook has an entry for each warning, and no other entries."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    path
    for room in ("service", "launch", "cli", "engine")
    for path in sorted((ROOT / "src" / "penstock" / room).rglob("*.py"))
]
RUNBOOK = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## Runbook")[2]
ENTRIES = re.findall(r"^\| `(.+?)` \| .+ \| .+ \|$", RUNBOOK, re.MULTILINE)
PLACEHOLDER = re.compile(r"%[-.0-9]*[a-z]")
LEVELS = ("warning", "error", "exception", "critical")

ELSEWHERE = {
    "agent.py distribute: %s": ["service: the dispatcher does not know this reader ("],
    "connect.py %s": [
        " by other readers, so this reader gets nothing of it",
        " elements of this job, and this reader ",
    ],
    "deliveries.py distribute: %s: %s%s": [" arrived damaged"],
    "holds.py %s": [
        "dispatcher: lost work_dir ",
        ", so a standby may take over; look at that disk",
    ],
    "journal.py %s": ["service: the dispatcher has lost facts: reader "],
    "ray_actors.py ray: %s": ["worker processes end soon after they start (exit code "],
}
"""The texts of messages that another function than the logging one formats."""


def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def list_logged() -> list[tuple[str, str]]:
    """File and text of every warning or worse."""
    return [
        (path.name, text)
        for path in SOURCES
        if re.search(r"\b(?:_LOG|log)\.", source(path))
        for node in ast.walk(ast.parse(source(path)))
        if isinstance(node, ast.Call) and (text := text_of(node)) is not None
    ]


def text_of(call: ast.Call) -> str | None:
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="_LOG" | "log"), attr=level), args=[text, *_]
        ) if level in LEVELS:
            return with_placeholders(text)
    return None


def with_placeholders(text: ast.expr) -> str:
    """A text as `logging` takes it, also if it is an f-string."""
    match text:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values):
            return "".join(v.value if isinstance(v, ast.Constant) else "%s" for v in values)
    raise TypeError(ast.unparse(text))


def has_words(text: str) -> bool:
    """Whether a text says more than the name of its subject."""
    words = re.sub("worker|dispatcher|distribute|ray", "", PLACEHOLDER.sub("", text))
    return len(re.findall("[a-z]", words)) > 6


def pattern_of(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, PLACEHOLDER.split(text))))


def patterns(file: str, text: str) -> list[re.Pattern[str]]:
    pieces = ELSEWHERE.get(f"{file} {text}")
    if pieces is None:
        return [pattern_of(text)]
    return [re.compile(f".*{re.escape(piece)}.*") for piece in pieces]


def most_specific(entry: str) -> re.Pattern[str]:
    """The longest pattern that an entry of the runbook matches."""
    known = [pattern for file, text in list_logged() for pattern in patterns(file, text)]
    matching = [pattern for pattern in known if pattern.fullmatch(entry)]
    assert matching, f"no process logs this: {entry}"
    return max(matching, key=lambda pattern: len(pattern.pattern))


def test_every_warning_has_an_entry_and_every_entry_is_logged() -> None:
    described = {most_specific(entry) for entry in ENTRIES}
    expected = {pattern for file, text in list_logged() for pattern in patterns(file, text)}
    assert expected - described == set()


@pytest.mark.parametrize(("file", "text"), list_logged())
def test_a_message_without_words_of_its_own_is_listed_above(file: str, text: str) -> None:
    assert f"{file} {text}" in ELSEWHERE or has_words(text)


@pytest.mark.parametrize("piece", [piece for pieces in ELSEWHERE.values() for piece in pieces])
def test_the_texts_that_are_written_elsewhere_exist(piece: str) -> None:
    everything = "".join(map(source, SOURCES))
    assert piece in re.sub(r'"\n\s*f?"', "", everything)


def test_there_are_as_many_warnings_as_a_reader_finds() -> None:
    calls = sum(
        len(re.findall(r"\b(?:_LOG|log)\.(?:warning|error|exception|critical)\(", source(path)))
        for path in SOURCES
    )
    assert len(list_logged()) == calls
