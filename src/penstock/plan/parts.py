"""Parts of files: large files are divided, so that all workers can read the next elements.

`with_parts` reads the sizes of files and writes into the plan how they are divided. The client
calls it once, when it registers the plan; every process then derives the same parts from the plan.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.plan import nodes
from penstock.plan.bounds import bound_plan
from penstock.plan.nodes import Node
from penstock.plan.shape import GUESS, WHOLE_FILE
from penstock.plan.traits import Trait

PART_BYTES = 8 << 20
"""The size of a part: small enough that a client can hold several parts per worker."""

_MOST_SIZES = 4096
"""The number of files whose size is read, at most; the rest are assumed to be like these."""

_FORMATS = ("text", "fixed", "tfrecord", "json_lines")
DIVISION = "division"
"""The option of a file reader that says how its files are divided."""

NOWHERE = 1 << 62
"""A position after the end of every file."""


class Division(NamedTuple):
    """How the files of a file reader are divided into parts of `size` bytes."""

    size: int
    ends: tuple[int, ...] | int
    """The number of parts up to and including each file; if the files are shuffled, one number:
    the parts of every file."""

    def find(self, number: int) -> tuple[int, int, bool]:
        """The file of part `number`, the part's index in it, and whether it is the file's last."""
        if isinstance(self.ends, int):
            file, part = divmod(number, self.ends)
            return file, part, part + 1 == self.ends
        file = bisect_right(self.ends, number)
        begun = self.ends[file - 1] if file else 0
        return file, number - begun, number + 1 == self.ends[file]


def divide_files(reader: nodes.Records) -> tuple[int, Callable[[int], Node]] | None:
    """The number of parts of a file reader's files, and what makes a file reader of one part.

    None if its plan does not say how the files are divided. A part that does not exist is empty.
    """
    options = dict(reader.options)
    if DIVISION not in options:
        return None
    division = Division(*options.pop(DIVISION))
    ends, files = division.ends, reader.input
    parts = ends * files.cardinality if isinstance(ends, int) else ends[-1]

    def make(number: int) -> Node:
        if number >= parts:
            return replace(reader, input=nodes.Take(files, 0), options=tuple(options.items()))
        file, part, last = division.find(number)
        own = options.copy()
        if part or not last:
            own["part"] = (part * division.size, None if last else (part + 1) * division.size)
        name = nodes.Tail(bound_plan(files, file + 1), file)
        return replace(reader, input=name, options=tuple(own.items()))

    return parts, make


def with_parts(node: Node) -> Node:
    """Writes into the file readers of a plan how files are divided, if this process sees them."""
    return nodes.rewrite(node, _with_division)


def _with_division(node: Node) -> Node:
    if not isinstance(node, nodes.Records) or not _is_divisible(node):
        return node
    names, shuffled = _file_names(node.input)
    division = _divide(names, shuffled) if names else None
    if division is None:
        return node
    return replace(node, options=(*node.options, (DIVISION, tuple(division))))


def _is_divisible(reader: nodes.Records) -> bool:
    options = dict(reader.options)
    plain = not options.get("compression") and "part" not in options and DIVISION not in options
    return plain and reader.format in _FORMATS and reader.input.blocked is None


def _file_names(node: Node) -> tuple[list[Any], bool]:
    """The file names that the plan contains, and whether they are shuffled."""
    shuffled = False
    while Trait.ADVISORY in node.traits or isinstance(node, nodes.Shuffle):
        shuffled = shuffled or isinstance(node, nodes.Shuffle)
        node = node.inputs[0]
    return (node.data.chunk.elements() if isinstance(node, nodes.Slices) else []), shuffled


def _divide(names: list[Any], shuffled: bool) -> Division | None:
    """None if no file is larger than a part."""
    step = -(-len(names) // _MOST_SIZES)
    sizes = [_file_size(name) for name in names[::step]]
    counts = [max(1, -(-size // PART_BYTES)) for size in sizes]
    if max(counts) == 1:
        return None
    if not shuffled and step == 1:
        return Division(PART_BYTES, tuple(accumulate(counts)))
    # An empty part costs a request, so there must not be too many of them if few files are large.
    parts = max(1, min(max(counts), 4 * sum(counts) // len(counts)))
    return None if parts == 1 else Division(-(-max(sizes) // parts), parts)


def _file_size(name: Any) -> int:
    try:
        return os.path.getsize(name)
    except (OSError, ValueError, TypeError):
        return 0  # The file is not on a disk of this machine; workers may still find it.


def begin_part(node: Node, begin: int) -> Node:
    """Sets where the part of a file begins that a piece reads: at a byte, GUESS or WHOLE_FILE.

    It matters for TFRecord files only, except that any part that begins NOWHERE is empty. It never
    matters for the first part of a file.
    """
    if isinstance(node, nodes.Records) and "part" in dict(node.options):
        matters = node.format == "tfrecord" or begin == NOWHERE
        return _begin_file_reader(node, begin) if matters else node
    first = tuple(begin_part(part, begin) for part in node.inputs[:1])
    return node.with_inputs(first + node.inputs[1:])


def _begin_file_reader(reader: nodes.Records, begin: int) -> Node:
    options = dict(reader.options)
    start = options["part"][0]
    if begin == WHOLE_FILE:
        del options["part"]
        source = nodes.Take(reader.input, 0) if start else reader.input
        return replace(reader, input=source, options=tuple(options.items()))
    if begin != GUESS and start:
        # The first part of a file begins at its first byte, wherever the file before it ended.
        options["begin"] = begin
    return replace(reader, options=tuple(options.items()))
