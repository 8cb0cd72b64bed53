"""Pieces: plans divided by ranges of indices, by files and by parts of files.

A piece is made from the plan and two numbers, so every process makes the same one. Only
`parts_of_files`, which one process asks for all, looks at the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.plan import nodes
from penstock.plan.bounds import bounded
from penstock.plan.nodes import INFINITE, UNKNOWN, Node
from penstock.plan.readers import is_reader

ENDLESS = -1
"""The number of pieces of a plan that has infinitely many."""

_PIECES = 1024
_LONGEST = 1024
_ENDLESS_LENGTH = 256

_PARTS = 64
_PART_BYTES = 16 << 20
"""A few large files are read by parts of at least this size."""


_ELEMENTWISE = (
    *(nodes.Map, nodes.Interleave, nodes.Unbatch, nodes.IgnoreErrors, nodes.Records),
    *(nodes.Prefetch, nodes.WithOptions, nodes.Part),
)
"""What does with each element what it would do with that element alone."""


class Pieces(NamedTuple):
    """A plan in pieces: how many, and each of them."""

    streams: int
    make: Callable[[int], Node]


def pieces_of(node: Node, parts: int = 1) -> Pieces | None:
    """The pieces of a plan; None if it has no way to be divided."""
    if node.blocked is None:
        return _ranges(node)
    match node:
        case nodes.Saved(shards=shards) if shards:
            return Pieces(len(shards), lambda number: _shard_file(node, number))
        case nodes.Records() if parts > 1:
            return _file_parts(node, parts)
        case nodes.Concatenate(first, second):
            return _both(pieces_of(first), pieces_of(second))
        case _ if _is_elementwise(node):
            inner = pieces_of(node.inputs[0], parts)
            return inner and Pieces(inner.streams, lambda i: node.with_inputs((inner.make(i),)))
    return None


def _is_elementwise(node: Node) -> bool:
    """Whether each element is treated for itself."""
    return isinstance(node, _ELEMENTWISE) or type(node) is nodes.Filter


def _ranges(node: Node) -> Pieces:
    """Ranges of indices."""
    count = node.cardinality
    if count == INFINITE:
        return Pieces(ENDLESS, lambda i: _range(node, i * _ENDLESS_LENGTH, _ENDLESS_LENGTH))
    size = min(max(count // _PIECES, 1), _LONGEST)
    return Pieces(max(1, -(-count // size)), lambda i: _range(node, i * size, size))


def _range(node: Node, start: int, size: int) -> Node:
    if 0 <= node.cardinality <= start:
        return nodes.Take(node, 0)
    return nodes.Tail(bounded(node, start + size), start)


def _shard_file(node: nodes.Saved, number: int) -> Node:
    if number >= len(node.shards):
        return nodes.Take(node, 0)
    if len(node.shards) == 1:
        return node
    return nodes.Part(replace(node, shards=(node.shards[number],), count=UNKNOWN), number)


def _file_parts(node: nodes.Records, parts: int) -> Pieces:
    def make(number: int) -> Node:
        file, part = divmod(number, parts)
        names = _range(node.input, file, 1)
        return replace(node, input=names, options=(*node.options, ("part", (part, parts))))

    return Pieces(node.input.cardinality * parts, make)


def _both(first: Pieces | None, second: Pieces | None) -> Pieces | None:
    """The pieces of one plan, then those of another, which is part 1."""
    if first is None or second is None or first.streams == ENDLESS:
        return first if first is not None and first.streams == ENDLESS else None
    before = first.streams
    streams = ENDLESS if second.streams == ENDLESS else before + second.streams
    behind = second.make

    def make(number: int) -> Node:
        return first.make(number) if number < before else nodes.Part(behind(number - before), 1)

    return Pieces(streams, make)


def is_ordered(node: Node) -> bool:
    """Whether the pieces, one after the other, are the plan. Files are rather read in turns."""
    if node.blocked is None:
        return True
    match node:
        case nodes.Records() | nodes.Saved():
            return False
        case nodes.Interleave(cycle=cycle):
            return cycle == 1 and not is_reader(node) and is_ordered(node.input)
    return all(map(is_ordered, node.inputs))


# Parts of files


def reader_of(plan: Node) -> nodes.Records | None:
    """The reader at the bottom of a plan, if its files can be read by parts."""
    node = plan
    while not isinstance(node, nodes.Records):
        if node.blocked is None or not _is_elementwise(node):
            return None
        node = node.inputs[0]
    plain = not dict(node.options).get("compression")
    can = plain and node.format in ("text", "fixed") and 0 < node.input.cardinality <= _PARTS
    return node if can and node.input.blocked is None else None


def parts_of_files(plan: Node) -> int:
    """By how many parts each file is read: more than one where there are few and large files."""
    reader = reader_of(plan)
    if reader is None:
        return 1
    sizes = list(map(_size, _names(reader.input)))
    if not sizes or None in sizes:
        return 1
    return max(1, min(_PARTS // len(sizes), max(filter(None, sizes), default=0) // _PART_BYTES))


def _names(node: Node) -> list[Any]:
    """The names of files, where they stand in the plan; in any order."""
    while isinstance(node, nodes.Shuffle | nodes.Prefetch | nodes.WithOptions):
        node = node.input
    return node.data.chunk.elements() if isinstance(node, nodes.Slices) else []


def _size(name: Any) -> int | None:
    try:
        return os.path.getsize(name)
    except (OSError, ValueError, TypeError):
        return None  # Not here, or not on a disk: perhaps the workers see it.
