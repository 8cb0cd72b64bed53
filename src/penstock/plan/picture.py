"""The picture of a plan in a notebook: its operators as a small tree, in SVG.

Names of functions and files are users' text, so every text is escaped. No function is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from penstock.plan import show
from penstock.plan.nodes import Node, known_spec

_INDENT, _STEP, _BOX = 24, 52, 40
"""Pixels: between two depths, between two rows, and the height of a box."""

_CHARACTER = 7
"""Pixels of an average letter; browsers may have other fonts, so boxes have some room."""

_MOST = 72
"""Letters of a line; the rest is in the tooltip."""

_MOST_OPERATORS = 200


def draw_plan(plan: Node) -> str:
    """A plan as SVG: the last operator on top, its inputs below it, indented."""
    rows = list(_walk(plan, 0, -1))
    left_out = len(rows) - _MOST_OPERATORS
    rows = rows[:_MOST_OPERATORS]
    texts = [(_shorten_text(_call(node)), _shorten_text(_facts(node))) for _, _, node in rows]
    widths = [max(map(len, pair)) * _CHARACTER + 20 for pair in texts]
    width = max(row[0] * _INDENT + wide for row, wide in zip(rows, widths, strict=True)) + 2
    height = len(rows) * _STEP + (20 if left_out > 0 else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="11">'
    ]
    for number, ((depth, parent, node), pair) in enumerate(zip(rows, texts, strict=True)):
        parts += _draw_line(depth, number, parent)
        parts += _draw_box(depth, number, widths[number], pair, show.title(node))
    if left_out > 0:
        parts.append(f'<text x="2" y="{height - 6}" fill="#57606a">and {left_out} more</text>')
    return "".join([*parts, "</svg>"])


def _walk(node: Node, depth: int, parent: int) -> Iterator[tuple[int, int, Node]]:
    """Depth, the number of the row above it in the tree, and the operator, row by row."""
    stack = [(depth, parent, node)]
    number = -1
    while stack:
        depth, parent, node = stack.pop()
        number += 1
        yield depth, parent, node
        stack += [(depth + 1, number, part) for part in reversed(node.inputs)]


def _call(node: Node) -> str:
    functions = ", ".join(function.description for function in node.functions)
    return f"{node.label}({functions})" if functions else show.title(node)


def _facts(node: Node) -> str:
    spec = known_spec(node)
    return show.count(node) + ("" if spec is None else f", {spec}")


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def _draw_line(depth: int, number: int, parent: int) -> Iterator[str]:
    """From the box of its reader, down and to the right."""
    if parent >= 0:
        x, top, y = (depth - 1) * _INDENT + 10, parent * _STEP + _BOX, number * _STEP + _BOX // 2
        path = f"M{x} {top}V{y}H{depth * _INDENT}"
        yield f'<path d="{path}" fill="none" stroke="#8c959f"/>'


def _draw_box(
    depth: int, number: int, width: int, texts: tuple[str, str], tooltip: str
) -> Iterator[str]:
    x, y = depth * _INDENT, number * _STEP
    call, facts = map(escape, texts)
    yield f"<g><title>{escape(tooltip)}</title>"
    yield (
        f'<rect x="{x + 1}" y="{y + 1}" width="{width}" height="{_BOX - 2}" rx="5" '
        'fill="#f6f8fa" stroke="#8c959f"/>'
    )
    yield f'<text x="{x + 10}" y="{y + 16}" fill="#24292f" font-weight="bold">{call}</text>'
    yield f'<text x="{x + 10}" y="{y + 31}" fill="#57606a">{facts}</text></g>'
