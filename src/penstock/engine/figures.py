"""Figures: what one operator has done, as plain values that may come from another process.

The figures of a plan are a list in order: an operator, then all operators below it, deeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.engine import spans


class CallTimes(NamedTuple):
    """What the calls of a parallel map have taken, in all threads or processes together."""

    place: str
    """Where the calls run: "threads" or "processes"."""
    most: int
    """How many calls may run at once."""
    seconds: float
    cpu_seconds: float
    """The time in which threads computed. The rest they waited, perhaps for each other."""

    def plus(self, other: CallTimes, sign: int = 1) -> CallTimes:
        return self._replace(
            seconds=self.seconds + sign * other.seconds,
            cpu_seconds=self.cpu_seconds + sign * other.cpu_seconds,
        )


class Figures(NamedTuple):
    """The figures of one operator. `seconds` is the time in its pulls, with all below it."""

    operator: str
    function: str
    depth: int
    elements: int = 0
    chunks: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    errors: int = 0
    waits: bool = False
    """Whether its pulls only wait for other threads or processes."""
    calls: CallTimes | None = None
    hint: str = ""
    """What would help if this operator is the bottleneck."""

    @property
    def name(self) -> str:
        """The operator and its functions, as `explain()` prints them."""
        return f"{self.operator}({self.function})" if self.function else self.operator

    def plus(self, other: Figures, sign: int = 1) -> Figures:
        """The sum with the figures of the same operator; the difference if `sign` is -1."""
        calls = self.calls or other.calls
        if self.calls is not None and other.calls is not None:
            calls = self.calls.plus(other.calls, sign)
        return self._replace(
            elements=self.elements + sign * other.elements,
            chunks=self.chunks + sign * other.chunks,
            nbytes=self.nbytes + sign * other.nbytes,
            seconds=self.seconds + sign * other.seconds,
            errors=self.errors + sign * other.errors,
            calls=calls,
        )


def own_seconds(rows: Sequence[Figures]) -> list[float]:
    """The time in the pulls of each operator, without the pulls of the operators below it."""
    own = [row.seconds for row in rows]
    path: list[int] = []
    for number, row in enumerate(rows):
        while path and rows[path[-1]].depth >= row.depth:
            path.pop()
        if path:
            own[path[-1]] -= row.seconds
        path.append(number)
    return [max(seconds, 0.0) for seconds in own]


class FigureTree:
    """The figures of several plans, added up operator by operator."""

    def __init__(self) -> None:
        self.figures: Figures | None = None
        self.parts: dict[tuple[str, str, int], FigureTree] = {}

    def add(self, rows: Iterable[Figures]) -> None:
        path: list[tuple[int, FigureTree, dict[tuple[str, str], int]]] = [(-1, self, {})]
        for row in rows:
            while path[-1][0] >= row.depth:
                path.pop()
            _, parent, seen = path[-1]
            name = row.operator, row.function
            # Two inputs of one operator may have the same name: they differ by their order.
            seen[name] = seen.get(name, -1) + 1
            part = parent.parts.setdefault((*name, seen[name]), FigureTree())
            if part.figures is None:
                part.figures = row
            else:
                part.figures = row._replace(depth=part.figures.depth).plus(part.figures)
            path.append((row.depth, part, {}))

    def rows(self, depth: int = 0) -> Iterator[Figures]:
        """All figures in order, the first at `depth`."""
        if self.figures is not None:
            yield self.figures._replace(depth=depth)
            depth += 1
        # A copy: another thread may add parts meanwhile.
        for part in list(self.parts.values()):
            yield from part.rows(depth)


class WorkerFigures(FigureTree):
    """What the operators of a plan have done on the workers of a service."""

    def __init__(self) -> None:
        super().__init__()
        self._busy: dict[str, float] = {}
        """Seconds that each worker has computed."""
        self.call = ""
        """The call on a worker that the reader waits for now; empty if that is not known."""
        self._recorder = spans.active

    def note_arrival(self, worker: str, seconds: float, elements: int) -> None:
        """Records that elements arrived, which a worker had made in so many seconds."""
        if self._recorder is not None:
            self._recorder.add(spans.WORKERS, worker, "make", seconds, elements)

    @property
    def count(self) -> int:
        """How many workers have reported."""
        return len(self._busy)

    @property
    def busiest(self) -> float:
        """Seconds that the busiest worker has computed."""
        return max(list(self._busy.values()), default=0.0)

    def add_report(self, worker: str, rows: Iterable[Figures]) -> None:
        """Adds what one worker has done since its last report."""
        found = list(rows)
        own = zip(found, own_seconds(found), strict=True)
        busy = sum(seconds for row, seconds in own if not row.waits)
        self._busy[worker] = self._busy.get(worker, 0.0) + busy
        self.add(found)
