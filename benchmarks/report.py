"""Formats results: tables for the terminal and sections of `docs/benchmarks.md`.

A section is found by its heading and replaced whole; the other sections stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.environments import PEERS, ROOT
from benchmarks.machine import OtherWork, description
from benchmarks.rounds import Result
from benchmarks.workloads import Suite, Workload

PAGE = ROOT / "docs" / "benchmarks.md"
OPENING = """# Benchmarks

Measured by `scripts/bench`; `scripts/bench all --write` writes this page.
"""
METHOD = """Median of {rounds} rounds; in each round every peer runs in turn, each in a process and
an environment of its own. *penstock is* says how many times as fast penstock is. What a peer yields
is checked against the bare NumPy loop.

{more}"""

Row = tuple[str, ...]


def headings(unit: str) -> Row:
    """The titles of the columns of `rows`."""
    times = (f"ns/{unit}", "spread", "first pass", f"{unit}s/s")
    return ("peer", *times, "penstock is", "at least", "verdict", "notes")


def verdict(result: Result, subject: Result) -> str:
    """`ok` or `MISS` where a ratio is owed, `failed` or `missing` where nothing was measured."""
    if result.problem:
        return "missing" if result.missing else "failed"
    times = ratio(result, subject)
    if times is None or result.rival.at_least is None:
        return ""
    return "MISS" if times < result.rival.at_least else "ok"


def ratio(result: Result, subject: Result) -> float | None:
    """How many times as fast as the rival penstock is."""
    if result is subject or not result.nanoseconds or not subject.nanoseconds:
        return None
    return result.nanoseconds / subject.nanoseconds


def has_failed(results: list[Result]) -> bool:
    """Whether a ratio is missed or something went wrong; a missing peer is no failure."""
    verdicts = {verdict(result, results[0]) for result in results}
    return bool(results[0].problem) or not verdicts.isdisjoint({"MISS", "failed"})


def rows(results: list[Result]) -> Iterable[Row]:
    """A row for each rival, under the `headings`."""
    for result in results:
        times, word = ratio(result, results[0]), verdict(result, results[0])
        yield (
            PEERS[result.rival.peer].label,
            *figures(result),
            "" if times is None else f"{times:,.2f}x",
            describe_owed(result),
            word,
            result.problem or notes(result, results[0]),
        )


def figures(result: Result) -> Row:
    """The median, the least and the most, the first pass, and how many in a second."""
    if not result.nanoseconds:
        return "-", "", "", ""
    return (
        f"{result.nanoseconds:,.1f}",
        f"{min(result.rounds):,.1f} to {max(result.rounds):,.1f}",
        f"{result.first:,.1f}",
        f"{1e9 / result.nanoseconds:,.0f}",
    )


def describe_owed(result: Result) -> str:
    match result.rival.at_least:
        case None:
            return ""
        case least if least < 1:
            return f"{least:.2f}x (within {1 / least:.1f}x)"
        case least:
            return f"{least:g}x"


def notes(result: Result, subject: Result) -> str:
    fewer = f"{result.elements:,} elements" if result.elements != subject.elements else ""
    return "; ".join(filter(None, (result.rival.note, fewer)))


def terminal(suite: Suite, workload: Workload, results: list[Result]) -> str:
    title = f"{workload.name}: {workload.pipeline}, n = {results[0].elements:,}"
    return f"{title}\n{columns([headings(suite.unit), *rows(results)])}\n"


def columns(table: list[Row]) -> str:
    """Aligned text: the first and last column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    last = len(widths) - 1
    lines = (
        "  ".join(
            cell.ljust(width) if place in (0, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    )
    return "\n".join("  " + line.rstrip() for line in lines)


def markdown(table: Iterable[Row]) -> str:
    head, *body = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table]
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join((head, rule, *body))


def section(suite: Suite, measured: list[tuple[Workload, list[Result]]], rounds: int) -> str:
    """The whole of a suite for the page."""
    table: list[Row] = [("workload", *headings(suite.unit))]
    for workload, results in measured:
        for place, row in enumerate(rows(results)):
            table.append((workload.name if place == 0 else "", *row))
    pipelines: list[Row] = [("workload", "pipeline", "n")]
    pipelines += [(w.name, f"`{w.pipeline}`", f"{r[0].elements:,}") for w, r in measured]
    method = METHOD.format(rounds=rounds, more=suite.method)
    return "\n\n".join((method, markdown(pipelines), markdown(table)))


def circumstances(others: OtherWork, versions: Mapping[str, Mapping[str, str]]) -> str:
    """Date, machine, other work on it and the versions of everything measured."""
    pairs = sorted({pair for found in versions.values() for pair in found.items()})
    listed = ", ".join(f"{name} {number}" for name, number in pairs)
    today = datetime.now(UTC).date().isoformat()
    lines = [f"Date: {today}", f"Machine: {description()}", f"Other work took {others.words()}"]
    return "\n".join(f"- {line}" for line in lines + [f"Versions: {listed}"] * bool(listed))


def write_section(heading: str, body: str, page: Path = PAGE) -> None:
    """Replaces the text under `## heading` by `body`."""
    text = page.read_text() if page.exists() else OPENING
    section = f"## {heading}\n\n{body.strip()}\n"
    found = re.search(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found:
        rest = text[found.end() :]
        text = text[: found.start()] + section + ("\n" + rest if rest else "")
    else:
        text = text.rstrip() + "\n\n" + section
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
