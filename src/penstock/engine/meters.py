"""Meters: what each operator of a running plan has done, and which one is the bottleneck.

Meters are fed from outside, by the taps between streams; no stream imports this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.element.chunk import Chunk
from penstock.engine.contract import Claims, State, Stream
from penstock.engine.formats.remote_requests import RetryCount
from penstock.plan.nodes import Map, Mix, Node, Prefetch
from penstock.plan.seeds import numbers_from


@dataclass
class Meter:
    """One operator: elements, bytes and chunks handed on, and the time spent in its pulls."""

    node: Node
    elements: int = 0
    chunks: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    errors: int = 0
    drawn: Callable[[], list[tuple[int, int]]] | None = None
    """For a `mix`: what was drawn from each of its datasets."""

    def record(self, elements: int, nbytes: int, seconds: float) -> None:
        self.elements += elements
        self.chunks += 1
        self.nbytes += nbytes
        self.seconds += seconds


@dataclass
class Meters:
    """All meters of one iterator, by operator."""

    by_node: dict[int, Meter] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    recording: bool = True
    retries: RetryCount = field(default_factory=RetryCount)
    """Requests to remote files that were repeated."""

    def of(self, node: Node) -> Meter | None:
        if not self.recording:
            return None
        return self.by_node.setdefault(id(node), Meter(node))

    def inner(self) -> Meters:
        """For the datasets inside a dataset: too many and too short-lived to be metered."""
        return Meters(recording=False)

    def profile(self, plan: Node) -> Profile:
        rows: list[OperatorProfile] = []
        self._walk(plan, 0, rows)
        return Profile(tuple(rows), time.perf_counter() - self.started, self.retries.count)

    def _walk(self, node: Node, depth: int, rows: list[OperatorProfile]) -> float:
        """Adds a row per operator; returns the time that its caller spent in it."""
        meter = self.by_node.get(id(node))
        at = len(rows)
        below = sum(self._walk(part, depth + (meter is not None), rows) for part in node.inputs)
        if meter is None:
            return below
        waits = isinstance(node, Prefetch)
        busy = 0.0 if waits else max(meter.seconds - below, 0.0)
        wait = meter.seconds if waits else min(below, meter.seconds)
        row = OperatorProfile(
            node.label,
            depth,
            meter.elements,
            meter.chunks,
            meter.nbytes,
            busy,
            wait,
            _calls_note(node),
            _drawn(meter),
            meter.errors,
        )
        rows.insert(at, row)
        return meter.seconds


class Tap(Stream):
    """Wraps the stream of every operator: feeds its meter and makes its end sticky.

    With random access it counts the `position`, which is then the whole state; if `first` is
    given, it also numbers the elements, from `first` at position 0. If `numbers_end_here`, it hands
    elements on without the numbers that the operator drew by: those after it draw by other ones.
    """

    def __init__(
        self,
        stream: Stream,
        meter: Meter | None,
        position: int | None = None,
        first: int | None = None,
        numbers_end_here: bool = False,
    ) -> None:
        self.inputs = (stream,)
        self._stream = stream
        self._meter = meter
        self._position = position
        self._first = first
        self._numbers_end_here = numbers_end_here
        self._ended = False

    def pull(self, limit: int) -> Chunk:
        return self.pull_needed(1, limit)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        if self._ended:
            raise StopIteration
        started = time.perf_counter()
        try:
            chunk = self._stream.pull_needed(needed, limit, rows)
        except StopIteration:
            self._ended = True
            self._stream.finish()
            raise
        except Exception:
            if self._position is not None:
                self._position += 1
            if self._meter is not None:
                self._meter.errors += 1
            raise
        if self._position is not None:
            if self._first is not None:
                chunk = chunk.with_numbers(numbers_from(self._first + self._position, chunk.size))
            self._position += chunk.size
        if self._numbers_end_here:
            chunk = chunk.with_numbers(None)
        if self._meter is not None:
            self._meter.record(chunk.size, chunk.nbytes, time.perf_counter() - started)
        return chunk

    def save(self) -> State:
        return self._stream.save() if self._position is None else self._position

    @property
    def claims(self) -> Claims | None:
        return self._stream.claims


@dataclass(frozen=True)
class Drawn:
    """What a `mix` drew from one dataset, also before the state that it resumed from."""

    elements: int
    epochs: int
    """How often the dataset was read to its end."""


@dataclass(frozen=True)
class OperatorProfile:
    """One line of a profile; times in seconds."""

    operator: str
    depth: int
    elements: int
    chunks: int
    nbytes: int
    busy: float
    wait: float
    note: str = ""
    """Where its parallel calls run, if that is known, and why."""
    drawn: dict[str, Drawn] = field(default_factory=dict)
    """For a `mix`: what was drawn from each dataset."""
    errors: int = 0
    """How many elements it could not hand on, because it or an operator below raised an error."""


def _drawn(meter: Meter) -> dict[str, Drawn]:
    if not isinstance(meter.node, Mix) or meter.drawn is None:
        return {}
    pairs = zip(meter.node.names, meter.drawn(), strict=True)
    return {name: Drawn(*counts) for name, counts in pairs}


def _calls_note(node: Node) -> str:
    if not isinstance(node, Map) or node.parallel is None:
        return ""
    place, reason = node.function.calls_run
    return f"calls run in {place}{': ' if reason else ''}{reason}" if place else ""


@dataclass(frozen=True)
class Profile:
    """What an iterator's operators have done so far; prints as a table."""

    operators: tuple[OperatorProfile, ...]
    seconds: float
    retries: int = 0
    """How many requests to remote files failed and were repeated."""

    @property
    def drawn(self) -> dict[str, Drawn]:
        """What every `mix` drew from its datasets, by their names; the last `mix` comes first."""
        found: dict[str, Drawn] = {}
        for row in self.operators:
            found = row.drawn | found
        return found

    @property
    def bottleneck(self) -> str:
        """Which operator is in the way, in words."""
        if not self.operators:
            return "nothing has been read yet"
        root = self.operators[0]
        waited = root.busy + root.wait
        if waited < 0.1 * self.seconds:
            return (
                f"the consumer: input took {waited:.3f} s of {self.seconds:.3f} s, "
                "so the pipeline is not in the way"
            )
        worst = max(self.operators, key=lambda row: row.busy)
        share = worst.busy / max(sum(row.busy for row in self.operators), 1e-9)
        return f"{worst.operator}: {share:.0%} of the work ({worst.busy:.3f} s)"

    def __str__(self) -> str:
        lines = [f"{'operator':<28}{'elements':>12}{'MB':>10}{'busy s':>10}{'wait s':>10}"]
        for row in self.operators:
            name = "  " * row.depth + row.operator
            size = row.nbytes / 1e6
            lines.append(
                f"{name:<28}{row.elements:>12}{size:>10.1f}{row.busy:>10.3f}{row.wait:>10.3f}"
            )
        notes = [f"{row.operator}: {row.note}" for row in self.operators if row.note]
        notes += [f"{row.operator}: {row.errors} errors" for row in self.operators if row.errors]
        if self.retries:
            notes.append(f"requests to remote files that were repeated: {self.retries}")
        notes += [
            f"{row.operator}: {drawn.elements} elements of {name!r}, epochs: {drawn.epochs}"
            for row in self.operators
            for name, drawn in row.drawn.items()
        ]
        return "\n".join([*lines, *notes, f"bottleneck: {self.bottleneck}"])
