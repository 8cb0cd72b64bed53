"""The meters of a worker's streams: what each operator has done since the last report.

A stream may be opened again and again, for other ranges of its elements. Every opening has meters
of its own, so that no two threads count in one meter.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

from penstock.engine.contract import Stream
from penstock.engine.figures import Figures, FigureTree
from penstock.engine.meters import Meter, Meters
from penstock.plan.nodes import Node


@dataclass
class _Opening:
    """A stream that was opened, and what was reported of its meters."""

    plan: Node
    meters: Meters
    stream: weakref.ref[Stream]
    reported: dict[int, Figures] = field(default_factory=dict)

    def take(self) -> list[Figures]:
        rows = [self._take(depth, meter) for depth, meter in self.meters.walk(self.plan)]
        return rows if any(row.chunks or row.errors for row in rows) else []

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

    def add(self, plan: Node, meters: Meters, stream: Stream) -> None:
        """Adds an opening, which is forgotten some time after its stream is gone."""
        with self._lock:
            self._openings.append(_Opening(plan, meters, weakref.ref(stream)))

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
