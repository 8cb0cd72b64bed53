"""A plan for people: `explain()`, as text, as written and as run; and a picture for notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from html import escape
from typing import Any

from penstock.element.spec import TypeSpec
from penstock.plan.cuts import cut
from penstock.plan.functions import Function, travel_problem
from penstock.plan.nodes import (
    INFINITE,
    UNKNOWN,
    Data,
    Distribute,
    Map,
    Node,
    Store,
    known_spec,
    options_of,
)
from penstock.plan.optimize import prepare, without_options
from penstock.plan.options import Options, ShardingPolicy
from penstock.plan.shape import ENDLESS, Form, Shape
from penstock.plan.splits import shape_of


def explain(node: Node) -> str:
    """The plan, the optimised plan, and the access mode of every operator."""
    run, options = prepare(node), options_of(node)
    parts = ["plan, as written:", *tree(node, options=options)]
    if run == node:
        parts += ["", "run as written"]
    else:
        parts += ["", "as it is run:", *tree(run, options=options)]
    return "\n".join([*parts, "", _access(run)])


def _access(node: Node) -> str:
    if node.blocked is None:
        return (
            "random access: yes. ds[i] works, an iterator's state is one number, and shuffling, "
            "sharding and skipping are arithmetic on indices."
        )
    return f"random access: no, because of {node.blocked}"


def tree(node: Node, depth: int = 0, options: Options | None = None) -> Iterator[str]:
    """One line per operator, the last one first, inputs indented."""
    options = Options() if options is None else options
    mode = "random access" if node.blocked is None else "stream"
    own = f" ({node.obstacle})" if node.obstacle is not None else ""
    yield f"  {'  ' * depth}{title(node)}  [{count(node)}; {mode}{own}]"
    if isinstance(node, Distribute):
        yield from (f"  {'  ' * depth}  - {line}" for line in _describe_sharing(node, options))
    if isinstance(node, Map) and node.parallel is not None and not node.vectorized:
        yield f"  {'  ' * depth}  - {calls_place(node.function, options.executor or 'auto')}"
    for part in node.inputs:
        yield from tree(part, depth + 1, options)


def calls_place(function: Function, executor: str) -> str:
    """Where the parallel calls of a function run, and why."""
    if executor == "inline":
        return "calls run in the caller's thread"
    if executor == "threads":
        return "calls run in threads"
    place, reason = function.notes.calls_run
    if place != "processes" and (problem := travel_problem(function)):
        place, reason = "threads", problem
    if place and (reason or executor == "auto"):
        return f"calls run in {place}: {reason}"
    if executor == "processes":
        return "calls run in processes"
    return "calls run in threads, and move to processes if threads do not scale"


def title(node: Node) -> str:
    """`batch(size=4, drop_remainder=True)`: an operator and its settings."""
    shown = []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(node, Distribute) and field.name in _SHOWN_BY_SHARING:
            continue
        if _worth_showing(value, field.default):
            shown.append(f"{field.name}={value!r:.60}" if field.name != "function" else str(value))
    return f"{node.label}({', '.join(shown)})"


_SHOWN_BY_SHARING = ("mode", "element", "known")


def _describe_sharing(node: Distribute, options: Options) -> Iterator[str]:
    """How workers of a service share the work, and how readers share the elements."""
    match ShardingPolicy(node.mode):
        case ShardingPolicy.OFF:
            yield "parallel_epochs: every worker makes all of it"
        case ShardingPolicy.DYNAMIC:
            yield from _division(node)
        case policy:
            yield f"{policy.name}: each worker makes its own part, which is settled beforehand"
    yield _reader_memory(node, options_of(node).merge(options))
    if node.job_name is not None:
        yield f"all readers of the job {node.job_name!r} share the elements"


def _reader_memory(node: Distribute, options: Options) -> str:
    """How much a reader holds that it has not handed out."""
    if node.max_outstanding is not None and node.max_outstanding > 0:
        return f"a reader requests up to {node.max_outstanding} elements ahead"
    memory = options.service.reader_memory
    most = f"{memory} bytes" if memory else "an eighth of the machine's memory"
    return f"a reader requests up to 64 MB, or 3 elements per worker, ahead, and at most {most}"


def _division(node: Distribute) -> Iterator[str]:
    if node.input is None:
        yield "distributed_epoch: the dispatcher knows how it is divided"
        return
    shape = shape_of(node.input)
    if shape.kind == Form.SINGLE and options_of(node).service.stateful == "per_worker":
        yield "distributed_epoch: every worker runs all operators on its share of the source"
        return
    parts: list[Node] = []

    def collect(part: Node) -> Node:
        parts.append(part)
        return part

    reason = cut(node.input, collect)[1]
    if shape.kind != Form.SINGLE or node.job_name is not None or reason is None:
        yield f"distributed_epoch, {_pieces(shape)}"
        return
    for part in parts:
        shown = without_options(part).label
        yield f"distributed_epoch of {shown} and all before it, {_pieces(shape_of(part))}"
    yield reason


def _pieces(shape: Shape) -> str:
    if shape.kind == Form.RANDOM:
        return "random access: any worker computes any range of the elements"
    if shape.kind == Form.SINGLE:
        return "one stream: one worker after the other can make it, but not two at once"
    count = "pieces without end" if shape.streams == ENDLESS else f"{shape.streams} pieces"
    if shape.streams == 1:
        return "1 piece: there is nothing to divide"
    return f"{count}, delivered in order"


def _worth_showing(value: Any, default: Any) -> bool:
    hidden = isinstance(value, Node | Store | TypeSpec) or value is None
    if hidden or (isinstance(value, tuple) and (not value or isinstance(value[0], Node))):
        return False
    kinds = (int, float, str, Function, Data, Options, tuple)
    return isinstance(value, kinds) and not (type(value) is type(default) and value == default)


def count(node: Node) -> str:
    """`5 elements`: how many there are, in words."""
    words = {INFINITE: "endless", UNKNOWN: "unknown number of elements"}
    known = node.cardinality
    return words.get(known, f"{known} element{'' if known == 1 else 's'}")


# The picture of a plan in a notebook: its operators as a small tree, in SVG
#
# Names of functions and files are users' text, so every text is escaped. No function is called.


_INDENT, _STEP, _BOX = 24, 52, 40
"""Pixels: between two depths, between two rows, and the height of a box."""

_CHARACTER = 7
"""Pixels of an average letter; browsers may have other fonts, so boxes have some room."""

_MOST = 72
"""Letters of a line; the rest is in the tooltip."""

_MOST_OPERATORS = 200


def draw_plan(plan: Node) -> str:
    """A plan as SVG: the last operator on top, its inputs below it, indented."""
    rows = list(_rows_of(plan))
    left_out = len(rows) - _MOST_OPERATORS
    rows = rows[:_MOST_OPERATORS]
    texts = [(_shorten_text(_call(node)), _shorten_text(_result_text(node))) for _, _, node in rows]
    widths = [max(map(len, pair)) * _CHARACTER + 20 for pair in texts]
    width = max(row[0] * _INDENT + wide for row, wide in zip(rows, widths, strict=True)) + 2
    height = len(rows) * _STEP + (20 if left_out > 0 else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="11">'
    ]
    for number, ((depth, parent, node), pair) in enumerate(zip(rows, texts, strict=True)):
        parts += _draw_line(depth, number, parent)
        parts += _draw_box(depth, number, widths[number], pair, title(node))
    if left_out > 0:
        parts.append(f'<text x="2" y="{height - 6}" fill="#57606a">and {left_out} more</text>')
    return "".join([*parts, "</svg>"])


def _rows_of(plan: Node) -> Iterator[tuple[int, int, Node]]:
    """Depth, the number of the row above it in the tree, and the operator, row by row."""
    stack = [(0, -1, plan)]
    number = -1
    while stack:
        depth, parent, node = stack.pop()
        number += 1
        yield depth, parent, node
        stack += [(depth + 1, number, part) for part in reversed(node.inputs)]


def _call(node: Node) -> str:
    functions = ", ".join(function.description for function in node.functions)
    return f"{node.label}({functions})" if functions else title(node)


def _result_text(node: Node) -> str:
    spec = known_spec(node)
    return count(node) + ("" if spec is None else f", {spec}")


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def _draw_line(depth: int, number: int, parent: int) -> Iterator[str]:
    """A line from the box of the operator that reads it, down and to the right."""
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
