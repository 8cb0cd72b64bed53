"""Meters: what each operator of a running plan has done.

Meters are fed from outside, by the taps between streams; no stream imports this module.
`engine/profiles.py` makes the tables that users see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from penstock.element.chunk import Chunk
from penstock.engine import spans
from penstock.engine.advice import hint_of
from penstock.engine.contract import Remote, State, Stream
from penstock.engine.figures import CallTimes, Figures, WorkerFigures
from penstock.engine.formats.remote_requests import RetryCount
from penstock.engine.spans import SpanRecorder
from penstock.plan.nodes import Distribute, Node, Prefetch
from penstock.plan.seeds import numbers_from


class Stage(NamedTuple):
    """What an iterator does with the elements of a plan, such as their delivery to devices."""

    label: str
    hint: str


@dataclass
class Meter:
    """One operator: elements, bytes and chunks handed on, and the time spent in its pulls."""

    node: Node | Stage
    elements: int = 0
    chunks: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    errors: int = 0
    since: float | None = None
    """When the pull began that is not over, by `perf_counter`."""
    drawn: Callable[[], list[tuple[int, int]]] | None = None
    """For a `mix`: what was drawn from each of its datasets."""
    calls: Callable[[], CallTimes] | None = None
    """For a parallel `map`: what its calls have taken."""
    below: Node | None = None
    """For a `distribute` that was cut: the part of the plan that this process runs."""
    workers: WorkerFigures | None = None
    """For a `distribute`: what the operators on the workers have done."""
    shown: Node | None = None
    """The operator that users see instead, if a service has put this one around it."""

    def record(self, elements: int, nbytes: int, seconds: float) -> None:
        self.end_pull(seconds)
        self.elements += elements
        self.chunks += 1
        self.nbytes += nbytes

    def end_pull(self, seconds: float) -> None:
        """Records the time of a pull that is over, with or without elements."""
        # In this order: a thread that reads meanwhile counts the pull not at all, never twice.
        self.since = None
        self.seconds += seconds

    @property
    def running(self) -> float:
        """For how many seconds the pull lasts that is not over: it may take minutes, or hang."""
        since = self.since
        return 0.0 if since is None else time.perf_counter() - since

    def record_copy(self, elements: int, seconds: float) -> None:
        """Records the time of a copy to devices, which is a part of `seconds`."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The plans whose streams this operator pulls from, in this process."""
        if isinstance(self.node, Stage):
            return ()
        return self.node.inputs if self.below is None else (self.below,)

    @cached_property
    def _description(self) -> Figures:
        """The figures of an operator that has done nothing."""
        node = self.shown or self.node
        if isinstance(node, Stage):
            return Figures(node.label, "", 0, hint=node.hint)
        functions = [one.description for one in node.functions if not one.is_own]
        waits = isinstance(node, Prefetch | Distribute)
        return Figures(node.label, ", ".join(functions), 0, waits=waits, hint=hint_of(node))

    def read(self, depth: int) -> Figures:
        """What it has counted so far."""
        described = self._description
        return described._replace(
            depth=depth,
            elements=self.elements,
            chunks=self.chunks,
            nbytes=self.nbytes,
            seconds=self.seconds + self.running,
            errors=self.errors,
            waits=described.waits and self.below is None,
            calls=None if self.calls is None else self.calls(),
        )


@dataclass
class TracedMeter(Meter):
    """A meter that also records when each chunk was handed on."""

    recorder: SpanRecorder = field(default_factory=SpanRecorder)

    def record(self, elements: int, nbytes: int, seconds: float) -> None:
        super().record(elements, nbytes, seconds)
        self.recorder.add_pull(self._description.name, seconds, elements)

    def record_copy(self, elements: int, seconds: float) -> None:
        self.recorder.add(spans.DEVICES, self._description.operator, "copy", seconds, elements)


def _make_meter(node: Node | Stage) -> Meter:
    recorder = spans.active
    return Meter(node) if recorder is None else TracedMeter(node, recorder=recorder)


@dataclass
class Meters:
    """All meters of one iterator, by operator."""

    by_node: dict[int, Meter] = field(default_factory=dict)
    recording: bool = True
    retries: RetryCount = field(default_factory=RetryCount)
    """Requests to remote files that were repeated."""
    stages: dict[Stage, Meter] = field(default_factory=dict)
    """What the iterator does with the elements of the plan."""

    def of(self, node: Node) -> Meter | None:
        if not self.recording:
            return None
        meter = self.by_node.get(id(node))
        if meter is None:
            meter = self.by_node[id(node)] = _make_meter(node)
        return meter

    def of_stage(self, stage: Stage) -> Meter:
        if stage not in self.stages:
            self.stages[stage] = _make_meter(stage)
        return self.stages[stage]

    def inner(self) -> Meters:
        """For the datasets inside a dataset: too many and too short-lived to be metered."""
        return Meters(recording=False)

    def walk(self, plan: Node) -> list[tuple[int, Meter]]:
        """The meters of the stages and of a plan's operators, each with its depth, in order."""
        rows = list(enumerate(self.stages.values()))
        self._walk(plan, len(rows), rows)
        return rows

    def _walk(self, node: Node, depth: int, rows: list[tuple[int, Meter]]) -> None:
        meter = self.by_node.get(id(node))
        if meter is not None:
            rows.append((depth, meter))
        for part in node.inputs if meter is None else meter.inputs:
            self._walk(part, depth + (meter is not None), rows)


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

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        if self._ended:
            raise StopIteration
        started = time.perf_counter()
        if (meter := self._meter) is not None:
            meter.since = started
        try:
            chunk = self._stream.pull_needed(needed, limit, rows)
        except BaseException as error:
            if meter is not None:
                meter.end_pull(time.perf_counter() - started)
            self._note_end(error)
            raise
        if self._position is not None:
            if self._first is not None:
                chunk = chunk.with_numbers(numbers_from(self._first + self._position, chunk.size))
            self._position += chunk.size
        if self._numbers_end_here:
            chunk = chunk.with_numbers(None)
        if meter is not None:
            meter.record(chunk.size, chunk.nbytes, time.perf_counter() - started)
        return chunk

    def _note_end(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):
            self._ended = True
            self._stream.finish()
        elif isinstance(error, Exception):
            if self._position is not None:
                self._position += 1
            if self._meter is not None:
                self._meter.errors += 1

    def save(self) -> State:
        return self._stream.save() if self._position is None else self._position

    @property
    def remote(self) -> Remote | None:
        return self._stream.remote
