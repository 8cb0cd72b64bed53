"""Parts of files: large files are divided, so that all workers read what comes next.

Where a file is divided is written into the plan (`with_parts`) by the process that makes it known
to a service, because that one looks at the disk. Whoever has the plan then knows all parts.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.plan import nodes
from penstock.plan.bounds import bounded
from penstock.plan.nodes import Node
from penstock.plan.traits import Trait

PART_BYTES = 8 << 20
"""So large is a part: some for each of many workers fit into what a client holds."""

_LOOKED_AT = 4096
"""Files whose size is asked for, at most; the others are thought to be like them."""

_FORMATS = ("text", "fixed", "tfrecord")
DIVISION = "division"
"""The option of a reader that says how its files are divided."""

GUESS, WHOLE = -1, -2
"""How a part of a TFRecord file begins, instead of at a byte: where a record is found; or not at
all, because the first part is the whole file: where nobody compares what parts found."""

NOWHERE = 1 << 62
"""A place that is behind the end of every file."""


class Division(NamedTuple):
    """Every file is read by parts of `size` bytes. `ends` counts the parts of all files up to each
    one; or it is one number, of the parts of every file, where the order of the files is drawn."""

    size: int
    ends: tuple[int, ...] | int

    def find(self, number: int) -> tuple[int, int, bool]:
        """The file of a part, which of its parts it is, and whether it is the last of them."""
        if isinstance(self.ends, int):
            file, part = divmod(number, self.ends)
            return file, part, part + 1 == self.ends
        file = bisect_right(self.ends, number)
        begun = self.ends[file - 1] if file else 0
        return file, number - begun, number + 1 == self.ends[file]


class Files:
    """The files of one reader, in parts."""

    def __init__(self, reader: nodes.Records, division: Division) -> None:
        self._reader = reader
        self._division = division
        ends = division.ends
        count = reader.input.cardinality
        self.streams = ends * count if isinstance(ends, int) else ends[-1]

    def make(self, number: int) -> Node:
        """Part `number` of all; behind the last one there is nothing."""
        options = tuple(pair for pair in self._reader.options if pair[0] != DIVISION)
        if number >= self.streams:
            return replace(self._reader, input=nodes.Take(self._reader.input, 0), options=options)
        file, part, last = self._division.find(number)
        name = nodes.Tail(bounded(self._reader.input, file + 1), file)
        if part or not last:
            size = self._division.size
            stretch = (part * size, None if last else (part + 1) * size)
            options = (*options, ("part", stretch))
        return replace(self._reader, input=name, options=options)


def divided_files(reader: nodes.Records) -> Files | None:
    """The files of a reader, if its plan says how they are divided."""
    division = dict(reader.options).get(DIVISION)
    return None if division is None else Files(reader, Division(*division))


def with_parts(node: Node) -> Node:
    """The plan, which says how files are divided as far as that can be seen from here."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(map(with_parts, node.inputs)))
    if not isinstance(node, nodes.Records) or not _is_divisible(node):
        return node
    names, drawn = _names(node.input)
    division = _division(names, drawn) if names else None
    if division is None:
        return node
    return replace(node, options=(*node.options, (DIVISION, tuple(division))))


def _is_divisible(reader: nodes.Records) -> bool:
    options = dict(reader.options)
    plain = not options.get("compression") and "part" not in options and DIVISION not in options
    return plain and reader.format in _FORMATS and reader.input.blocked is None


def _names(node: Node) -> tuple[list[Any], bool]:
    """The names of files, where they stand in the plan; whether their order is drawn."""
    drawn = False
    while Trait.ADVISORY in node.traits or isinstance(node, nodes.Shuffle):
        drawn = drawn or isinstance(node, nodes.Shuffle)
        node = node.inputs[0]
    return (node.data.chunk.elements() if isinstance(node, nodes.Slices) else []), drawn


def _division(names: list[Any], drawn: bool) -> Division | None:
    """None if no file is large."""
    step = -(-len(names) // _LOOKED_AT)
    sizes = [_size(name) for name in names[::step]]
    counts = [max(1, -(-size // PART_BYTES)) for size in sizes]
    if max(counts) == 1:
        return None
    if not drawn and step == 1:
        return Division(PART_BYTES, tuple(accumulate(counts)))
    # Parts that turn out to be empty cost a request: not too many of them, where few are large.
    parts = max(1, min(max(counts), 4 * sum(counts) // len(counts)))
    return None if parts == 1 else Division(-(-max(sizes) // parts), parts)


def _size(name: Any) -> int:
    try:
        return os.path.getsize(name)
    except (OSError, ValueError, TypeError):
        return 0  # Not here, or not on a disk: perhaps the workers see it.


def begun_at(node: Node, begin: int) -> Node:
    """A piece whose part of a TFRecord file, if it is one, begins at a byte, or as GUESS says.

    Of any file, a part that begins NOWHERE has nothing.
    """
    if isinstance(node, nodes.Records) and "part" in dict(node.options):
        told = node.format == "tfrecord" or begin == NOWHERE
        return _begun(node, begin) if told else node
    return node.with_inputs(
        tuple(begun_at(part, begin) for part in node.inputs[:1]) + node.inputs[1:]
    )


def _begun(reader: nodes.Records, begin: int) -> Node:
    options = dict(reader.options)
    start = options["part"][0]
    if begin == WHOLE:
        del options["part"]
        source = nodes.Take(reader.input, 0) if start else reader.input
        return replace(reader, input=source, options=tuple(options.items()))
    if begin != GUESS:
        options["begin"] = begin
    return replace(reader, options=tuple(options.items()))
