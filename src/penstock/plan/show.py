"""`explain()`: a plan in words: as written, as run, and what has random access and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from penstock.element.spec import TypeSpec
from penstock.plan.functions import Function
from penstock.plan.nodes import INFINITE, UNKNOWN, Data, Node, Store
from penstock.plan.optimize import prepare
from penstock.plan.options import Options


def explain(node: Node) -> str:
    """The plan, the optimised plan, and the access mode of every operator."""
    run = prepare(node)
    parts = ["plan, as written:", *tree(node)]
    if run == node:
        parts += ["", "run as written"]
    else:
        parts += ["", "as it is run:", *tree(run)]
    return "\n".join([*parts, "", _access(run)])


def _access(node: Node) -> str:
    if node.blocked is None:
        return (
            "random access: yes. ds[i] works, an iterator's state is one number, and shuffling, "
            "sharding and skipping are arithmetic on indices."
        )
    return f"random access: no, because of {node.blocked}"


def tree(node: Node, depth: int = 0) -> Iterator[str]:
    """One line per operator, the last one first, inputs indented."""
    mode = "random access" if node.blocked is None else "stream"
    own = f" ({node.obstacle})" if node.obstacle is not None else ""
    yield f"  {'  ' * depth}{title(node)}  [{_count(node)}; {mode}{own}]"
    for part in node.inputs:
        yield from tree(part, depth + 1)


def title(node: Node) -> str:
    """`batch(size=4, drop_remainder=True)`: an operator and its settings."""
    shown = []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if _worth_showing(value, field.default):
            shown.append(f"{field.name}={value!r:.60}" if field.name != "function" else str(value))
    return f"{node.label}({', '.join(shown)})"


def _worth_showing(value: Any, default: Any) -> bool:
    hidden = isinstance(value, Node | Store | TypeSpec) or value is None
    if hidden or (isinstance(value, tuple) and (not value or isinstance(value[0], Node))):
        return False
    kinds = (int, float, str, Function, Data, Options, tuple)
    return isinstance(value, kinds) and not (type(value) is type(default) and value == default)


def _count(node: Node) -> str:
    words = {INFINITE: "endless", UNKNOWN: "unknown number of elements"}
    count = node.cardinality
    return words.get(count, f"{count} element{'' if count == 1 else 's'}")
