"""Origins: which rows of which sources an element was made of, for errors that lead to the data.

Nothing is recorded while elements are made. When a function has failed, the plan is run once more
for that one element, with sources whose rows are their own numbers, and without functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.dtypes import int64
from penstock.engine.access import Epoch, access
from penstock.errors import OpError
from penstock.plan.nodes import (
    Batch,
    Counter,
    Enumerate,
    Map,
    Node,
    Range,
    Select,
    Slices,
    TableRows,
    Tensors,
)

_SOURCE = 48
"""A number says in its bits from here on which source it is of."""

_MOST = 3
"""An error names at most so many rows of a source."""


def describe_origin(node: Node, position: int, epoch: Epoch) -> str:
    """Where the element of a plan at a position comes from; empty if it is not known.

    >>> from penstock.data import Dataset
    >>> rows = Dataset.from_tensor_slices([7, 8, 9, 10]).shard(2, 1)
    >>> describe_origin(rows.__plan__, 1, (0,))
    'row 3 of from_tensor_slices'
    """
    if node.blocked is not None:
        return ""
    sources: list[Node] = []
    try:
        numbered = _number_rows(node, sources)
        found = access(numbered, lambda _: None)(np.array([position]), epoch)
    except OpError:
        return ""
    columns: list[Any] = found.columns
    rows: dict[int, list[int]] = {}
    for number in (int(number) for column in columns for number in np.ravel(column)):
        rows.setdefault(number >> _SOURCE, []).append(number & ((1 << _SOURCE) - 1))
    return " and ".join(filter(None, (_describe(sources[key], rows[key]) for key in sorted(rows))))


def _number_rows(node: Node, sources: list[Node]) -> Node:
    """The plan with rows that are their own numbers; appends the sources."""
    match node:
        case Map() | Enumerate():
            return _number_rows(node.input, sources)
        case Select(source, positions):
            return Select(_number_rows(source, sources), positions)
        case Batch(source, size, drop_remainder):
            return Batch(_number_rows(source, sources), size, drop_remainder)
        case _ if node.inputs:
            return node.with_inputs(tuple(_number_rows(part, sources) for part in node.inputs))
    first = len(sources) << _SOURCE
    sources.append(node)
    if node.cardinality < 0:
        return Counter(np.int64(first), np.int64(1), int64)
    return Range(first, first + node.cardinality, 1, int64)


def _describe(source: Node, rows: list[int]) -> str:
    """Rows of one source in words. A number of a range says itself where it comes from."""
    match source:
        case TableRows(files=files) if files and files[0].path:
            places = [_place(files, row) for row in rows[:_MOST]]
        case TableRows() | Slices() if not isinstance(source, Tensors):
            places = [f"row {row} of {source.label}" for row in rows[:_MOST]]
        case _:
            return ""
    more = [f"{len(rows) - _MOST} more"] if len(rows) > _MOST else []
    return ", ".join(places + more)


def _place(files: Any, row: int) -> str:
    for file in files:
        length = sum(file.blocks)
        if row < length:
            return f"row {row} of {file.path}"
        row -= length
    raise AssertionError(f"row {row} is in none of the files")
