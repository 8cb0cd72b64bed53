"""Draws a figure for each file of results: `python -m benchmarks.figures` writes the SVG files.

A bar says how many times as fast as a peer penstock is, on a logarithmic scale. A bar to the left
of 1 is a peer that is faster. A mark shows the ratio that is owed; a bar that misses it is orange.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.record import FOLDER

CAPTION = "Bars: how many times as fast as its peers penstock is"
WIDTH, ROW, GAP, TOP, LEFT, RIGHT = 900, 17, 9, 62, 330, 96
PAPER, INK, PALE, GRID = "#f8fafb", "#1d2733", "#5b6875", "#d5dce2"
# By verdict. The colours differ in brightness too, for readers who do not see hues.
COLOURS = {"ok": "#12877b", "": "#7fa8c9", "MISS": "#d9731a"}
LEAST, MOST = 0.1, 10_000.0


def draw(found: dict[str, Any]) -> str:
    """The figure of one suite, on paper of its own, so that it is readable on any background."""
    bars = list(_bars(found))
    height = TOP + (bars[-1][0] if bars else 0) + ROW + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(found['heading'])}: how many times as fast penstock is</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
        _text(20, 26, f"{found['heading']}: how many times as fast as its peers penstock is", 15),
        _text(20, 45, "; ".join(found["circumstances"][:2]), 11, PALE),
        *_axis(height),
    ]
    for top, workload, result in bars:
        parts += _bar(TOP + top, workload, result)
    return "\n".join([*parts, "</svg>\n"])


def _bars(found: dict[str, Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Where each bar is, the name of its workload if it is the first of it, and its result."""
    top = 0
    for workload in found["workloads"]:
        name = workload["name"]
        for result in workload["results"]:
            if result["ratio"] is not None:
                yield top, name, result
                top, name = top + ROW, ""
        top += GAP


def _x(times: float) -> float:
    share = math.log(min(max(times, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _axis(height: int) -> Iterator[str]:
    for power in range(-1, 5):
        x = _x(10.0**power)
        colour = PALE if power == 0 else GRID
        yield f'<path d="M{x:.1f} {TOP - 4}V{height - 26}" stroke="{colour}"/>'
        yield _text(x, height - 12, f"{10.0**power:,g}x", 11, PALE, "middle")


def _bar(top: int, workload: str, result: dict[str, Any]) -> Iterator[str]:
    times, owed = result["ratio"], result["at_least"]
    start, end = sorted((_x(1.0), _x(times)))
    colour = COLOURS[result["verdict"]]
    middle = top + ROW - 5
    if workload:
        yield _text(20, middle, workload)
    yield _text(LEFT - 50, middle, _peer(result), 11, PALE, "end")
    yield (
        f'<rect x="{start:.1f}" y="{top + 2}" width="{max(end - start, 1):.1f}" '
        f'height="{ROW - 5}" rx="2" fill="{colour}"/>'
    )
    if owed is not None:
        yield f'<path d="M{_x(owed):.1f} {top}v{ROW - 1}" stroke="{INK}" stroke-width="2"/>'
    said = f"{times:,.3g}x" if times < 1000 else f"{times:,.0f}x"
    missed = f", owed {owed:g}x" if result["verdict"] == "MISS" else ""
    yield _text(max(end, _x(owed or LEAST)) + 6, middle, said + missed, 11)


def _peer(result: dict[str, Any]) -> str:
    note = f" ({result['note']})" if result["note"] else ""
    return shorten(result["peer"] + note, 34, placeholder=" …")


def _text(
    x: float, y: float, text: str, size: int = 12, colour: str = INK, anchor: str = "start"
) -> str:
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def draw_file(path: Path) -> Path:
    """Draws the results of one file beside it."""
    figure = path.with_suffix(".svg")
    figure.write_text(draw(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    return figure


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.json")):
        print(draw_file(file))
