"""What a reader tells the dispatcher about its bottleneck: where workers compute, and the device.

It reads meters that other threads write; a figure that is a moment old does no harm.
"""

from __future__ import annotations

from penstock.engine.figures import Figures, WorkerFigures, own_seconds
from penstock.engine.meters import Meters
from penstock.service.protocol.bottlenecks import Bottleneck

_LONGEST = 120
"""Characters of the longest name of an operator that is sent."""


class ReaderSigns:
    """The signs of one reader, for its heartbeats. Used by one thread."""

    def __init__(self, meters: Meters, figures: WorkerFigures | None) -> None:
        self._meters, self._figures = meters, figures
        self._delivered = 0.0

    def take(self) -> Bottleneck:
        """The slowest operator on the workers, and what was delivered since the last call."""
        delivered = measure_delivery(self._meters)
        before, self._delivered = self._delivered, delivered
        rows = [] if self._figures is None else list(self._figures.rows())
        place, operator = find_slowest(rows)
        return Bottleneck(place, operator, max(0.0, delivered - before))


def find_slowest(rows: list[Figures]) -> tuple[str, str]:
    """The operator with the most time of its own, in words, after its place.

    Its place is `source` if it reads what no operator hands to it, `function` if it calls a user's
    function, else `operator`. Both are empty if nothing is known.
    """
    own = own_seconds(rows)
    if not any(own):
        return "", ""
    number = own.index(max(own))
    row = rows[number]
    below = rows[number + 1] if number + 1 < len(rows) else None
    name = f"{row.operator}({row.function})" if row.function else row.operator
    if below is None or below.depth <= row.depth:
        return "source", name[:_LONGEST]
    return "function" if row.function else "operator", name[:_LONGEST]


def measure_delivery(meters: Meters) -> float:
    """Seconds in which elements were brought to devices, as far as that is certain.

    The time of a stage includes that of the plan below it. An operator that runs ahead may have
    more time than the stage; then the rest is 0.
    """
    stages = sum(meter.seconds for meter in list(meters.stages.values()))
    below = max((meter.seconds for meter in list(meters.by_node.values())), default=0.0)
    return max(0.0, stages - below)
