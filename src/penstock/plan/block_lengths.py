"""The blocks of a plan: which neighbouring elements are read together.

The blocks of a source that reads no blocks are not known. The result depends on the plan alone, so
that all processes divide it alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.plan import nodes
from penstock.plan.nodes import Node

Lengths = np.ndarray[Any, np.dtype[np.int64]]


def block_lengths(node: Node) -> Lengths | None:
    """The number of elements in each block of a plan with random access; None if not known."""
    match node:
        case nodes.TableRows(files=files):
            return np.array([rows for file in files for rows in file.blocks], np.int64)
        case nodes.Concatenate(first, second):
            before, after = block_lengths(first), block_lengths(second)
            return None if before is None or after is None else np.concatenate([before, after])
        case nodes.Take(source, count):
            return _move_ends(source, lambda ends: np.minimum(ends, count))
        case nodes.Skip(source, count) | nodes.Tail(source, count):
            return _move_ends(source, lambda ends: np.maximum(ends - count, 0))
        case nodes.Shard(source, shards, index):
            return _move_ends(source, lambda ends: (ends - index + shards - 1) // shards)
        case (
            nodes.Map()
            | nodes.Enumerate()
            | nodes.Prefetch()
            | nodes.AssertCardinality()
            | nodes.WithOptions()
            | nodes.OneRepetition()
        ):
            return block_lengths(node.inputs[0])
    return None


def _move_ends(source: Node, move: Callable[[Lengths], Lengths]) -> Lengths | None:
    """The blocks of a source after `move` has mapped the ends of blocks to ends of new blocks."""
    lengths = block_lengths(source)
    if lengths is None:
        return None
    ends = np.maximum(move(np.cumsum(lengths)), 0)
    found: Lengths = np.diff(ends, prepend=np.int64(0))
    return found


def tables_of(node: Node) -> list[nodes.TableRows]:
    """All tables that a plan reads."""
    return [one for one in nodes.walk_plan(node) if isinstance(one, nodes.TableRows)]
