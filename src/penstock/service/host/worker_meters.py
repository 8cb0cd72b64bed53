"""The meters of a worker's streams: what each operator has done since the last report.

A stream may be opened again and again, for other ranges of its elements. Every opening has meters
of its own, so that no two threads count in one meter.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.engine.contract import Stream
from penstock.engine.figures import Figures, FigureTree
from penstock.engine.meters import Meter, Meters
from penstock.plan.nodes import Branch, Node, Tail, Take


@dataclass
class _Opening:
    """A stream that was opened, and what was reported of its meters."""

    plan: Node
    meters: Meters
    stream: weakref.ref[Stream]
    hidden: set[int] = field(default_factory=set)
    """The ids of meters of operators that are not shown, because those inside them are."""
    reported: dict[int, Figures] = field(default_factory=dict)

    def show_as_written(self, written: Node) -> None:
        """Shows what a user has written instead of what bounds it to a piece or to a request."""
        known = set(_walk_ids(written))
        for _, meter in self.meters.walk(self.plan):
            if isinstance(meter.node, Node):
                shown = _find_shown(meter.node, known)
                if shown is not meter.node and id(shown) in self.meters.by_node:
                    self.hidden.add(id(meter))
                meter.shown = shown

    def take(self) -> list[Figures]:
        rows = [self._take(depth, meter) for depth, meter in self._walk()]
        return rows if any(row.chunks or row.errors or row.seconds for row in rows) else []

    def _walk(self) -> Iterator[tuple[int, Meter]]:
        around: list[int] = []
        """The depths of the hidden operators around this one."""
        for depth, meter in self.meters.walk(self.plan):
            while around and around[-1] >= depth:
                around.pop()
            if id(meter) in self.hidden:
                around.append(depth)
            else:
                yield depth - len(around), meter

    def _take(self, depth: int, meter: Meter) -> Figures:
        now, before = meter.read(depth), self.reported.get(id(meter))
        self.reported[id(meter)] = now
        return now if before is None else now.plus(before, -1)


class OpenedMeters:
    """The meters of all openings of one stream."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._openings: list[_Opening] = []
        """Guarded by `_lock`."""

    def add(self, plan: Node, meters: Meters, stream: Stream, written: Node) -> None:
        """Adds an opening, which is forgotten some time after its stream is gone.

        `plan` has bounds that `written` does not have.
        """
        opening = _Opening(plan, meters, weakref.ref(stream))
        opening.show_as_written(written)
        with self._lock:
            self._openings.append(opening)

    def take(self) -> tuple[Figures, ...]:
        """What the operators of the stream have done since the last call."""
        with self._lock:
            # First: a stream that is gone by now counts nothing more.
            left = [opening for opening in self._openings if opening.stream() is not None]
            taken = [rows for opening in self._openings if (rows := opening.take())]
            self._openings = left
        if len(taken) <= 1:
            return tuple(taken[0]) if taken else ()
        tree = FigureTree()
        for rows in taken:
            tree.add(rows)
        return tuple(tree.rows())


def _walk_ids(node: Node) -> Iterator[int]:
    yield id(node)
    for part in node.inputs:
        yield from _walk_ids(part)


def _find_shown(node: Node, known: set[int]) -> Node:
    """The operator inside of those that a service has put around it."""
    in_piece = False
    while isinstance(node, Tail | Branch) or (
        isinstance(node, Take) and (in_piece or id(node) not in known)
    ):
        in_piece = in_piece or isinstance(node, Tail)
        node = node.inputs[0]
    return node
