"""Profiles: what the operators of an iterator have done, as a table, and the bottleneck in words.

A profile is made from meters and holds plain values only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.engine.advice import AHEAD, SPREAD, advise_calls, advise_single_calls
from penstock.engine.figures import CallTimes, Figures, WorkerFigures, own_seconds
from penstock.engine.meters import Meter, Meters
from penstock.plan.nodes import Map, Mix, Node

_BOTTLENECK_SHARE = 0.1
"""If the program waits for input for a smaller share of its time, input is no bottleneck."""

_BUSY_SHARE = 0.5
"""If the busiest worker computes for a smaller share of the time, workers are no bottleneck."""

_LONG_CALL_SHARE = 0.5
"""If one call takes a larger share of the time that the program waits, it is the bottleneck."""


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
    """The time in which it waited for the operators below it, for threads or for workers."""
    note: str = ""
    """Where its parallel calls run, if that is known, and why."""
    drawn: dict[str, Drawn] = field(default_factory=dict)
    """For a `mix`: what was drawn from each dataset."""
    errors: int = 0
    """How many elements it could not hand on, because it or an operator below raised an error."""
    function: str = ""
    """The functions that it calls, with their places in the source: `decode at train.py:12`."""
    workers: int = 0
    """How many workers ran it; 0 if this process did. The times of all workers are added up."""
    calls: CallTimes | None = None
    """For a parallel `map`: what its calls have taken."""
    hint: str = ""
    """What would help if this operator is the bottleneck."""
    busiest: float = 0.0
    """For a `distribute`: the seconds that the busiest worker has computed."""
    call: str = ""
    """For a `distribute`: the call on a worker that it waits for now."""
    call_seconds: float = 0.0
    """For how long it has waited for this call."""

    @property
    def name(self) -> str:
        """The operator and its functions, as `explain()` prints them."""
        return f"{self.operator}({self.function})" if self.function else self.operator

    @property
    def advice(self) -> str:
        """What would help if this operator is the bottleneck."""
        if self.calls is None:
            each = self.busy / max(self.elements, 1)
            return advise_single_calls(self.function or self.operator, self.hint, each)
        return advise_calls(self.function or self.operator, self.calls, self.busy)


@dataclass(frozen=True)
class Profile:
    """What an iterator's operators have done so far; prints as a table."""

    operators: tuple[OperatorProfile, ...]
    seconds: float
    """From the first element that was requested until now, or until the end of the iteration."""
    retries: int = 0
    """How many requests to remote files failed and were repeated."""
    waited: float | None = None
    """For how many of these seconds the caller waited for elements."""

    @property
    def drawn(self) -> dict[str, Drawn]:
        """What every `mix` drew from its datasets, by their names; the last `mix` comes first."""
        found: dict[str, Drawn] = {}
        for row in self.operators:
            found = row.drawn | found
        return found

    @property
    def bottleneck(self) -> str:
        """Which operator is the bottleneck, and what would help, in words."""
        if not self.operators:
            return "nothing has been read yet"
        longest = max(self.operators, key=lambda row: row.call_seconds)
        if longest.call_seconds > _LONG_CALL_SHARE * self._seconds_waited:
            so_far = f"for {longest.call_seconds:.1f} s so far"
            return f"{longest.call}: the program waits for this call, {so_far}"
        if not any(row.elements or row.errors for row in self.operators):
            return "there have been no elements so far"
        waited = self._seconds_waited
        if waited < _BOTTLENECK_SHARE * self.seconds:
            return (
                f"the consumer: input took {waited:.3f} s of {self.seconds:.3f} s, so it waits "
                f"{waited / self.seconds:.1%} of the time: nothing to gain"
            )
        here = [row for row in self.operators if not row.workers]
        there = [row for row in self.operators if row.workers]
        worst = max(here, key=lambda row: row.busy)
        for_workers = sum(row.wait for row in here if row.operator == "distribute")
        if there and for_workers > worst.busy:
            return self._name_worker_bottleneck(there, max(row.busiest for row in here))
        return _name_bottleneck(worst, here, "the work", self._advise(worst))

    @property
    def _seconds_waited(self) -> float:
        root = self.operators[0]
        return root.busy + root.wait if self.waited is None else self.waited

    def _advise(self, worst: OperatorProfile) -> str:
        is_ahead = any(row.operator in ("prefetch", "deliver") for row in self.operators)
        return worst.advice or (SPREAD if is_ahead else AHEAD)

    def _name_worker_bottleneck(self, rows: Sequence[OperatorProfile], busiest: float) -> str:
        worst, workers = max(rows, key=lambda row: row.busy), rows[0].workers
        average = sum(row.busy for row in rows) / workers
        share = max(average, busiest) / max(self.seconds, 1e-9)
        if share < _BUSY_SHARE:
            return (
                f"the way from the workers: none of {_count(workers)} computes for more than "
                f"{share:.0%} of the time: "
                "send fewer bytes, or raise Options.service.reader_memory"
            )
        return _name_bottleneck(worst, rows, _count(workers), _advise_workers(worst.advice))

    def __str__(self) -> str:
        names = ["  " * row.depth + _name_with_workers(row) for row in self.operators]
        width = max([28, *(len(name) + 2 for name in names)])
        lines = [f"{'operator':<{width}}{'elements':>12}{'MB':>10}{'busy s':>10}{'wait s':>10}"]
        for name, row in zip(names, self.operators, strict=True):
            size = row.nbytes / 1e6
            lines.append(
                f"{name:<{width}}{row.elements:>12}{size:>10.1f}{row.busy:>10.3f}{row.wait:>10.3f}"
            )
        return "\n".join([*lines, *self._notes(), f"bottleneck: {self.bottleneck}"])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython calls this for a profile that is the result of a notebook's cell."""
        printer.text(str(self))

    def _notes(self) -> Iterator[str]:
        for row in self.operators:
            if row.note:
                yield f"{row.operator}: {row.note}"
        for row in self.operators:
            if row.errors:
                yield f"{row.operator}: {row.errors} errors"
        if self.retries:
            yield f"requests to remote files that were repeated: {self.retries}"
        for row in self.operators:
            for name, drawn in row.drawn.items():
                yield (
                    f"{row.operator}: {drawn.elements} elements of {name!r}, epochs: {drawn.epochs}"
                )


def _advise_workers(advice: str) -> str:
    """The advice for an operator whose work is already divided among workers."""
    if SPREAD in advice:
        return advice.replace(SPREAD, "add workers")
    return f"add workers, or {advice}" if advice else "add workers"


def _name_bottleneck(
    worst: OperatorProfile, rows: Sequence[OperatorProfile], whose: str, advice: str
) -> str:
    share = worst.busy / max(sum(row.busy for row in rows), 1e-9)
    of = f"the work of {whose}" if worst.workers else whose
    return f"{worst.name}: {share:.0%} of {of} ({worst.busy:.3f} s): {advice}"


def _name_with_workers(row: OperatorProfile) -> str:
    return f"{row.name} on {_count(row.workers)}" if row.workers else row.name


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def make_profile(
    meters: Meters, plan: Node, seconds: float, waited: float | None = None
) -> Profile:
    """The profile of an iterator over `plan`."""
    walked = meters.walk(plan)
    figures = [meter.read(depth) for depth, meter in walked]
    rows: list[OperatorProfile] = []
    for (_, meter), row, own in zip(walked, figures, own_seconds(figures), strict=True):
        made = _make_row(row, own, note=_calls_note(meter), drawn=_read_drawn(meter))
        if meter.workers is None:
            rows.append(made)
        else:
            rows.append(_add_workers(made, meter, meter.workers))
            found = list(meter.workers.rows(row.depth + 1))
            pairs = zip(found, own_seconds(found), strict=True)
            rows += [_make_row(*pair, workers=meter.workers.count) for pair in pairs]
    return Profile(tuple(rows), seconds, meters.retries.count, waited)


def _add_workers(row: OperatorProfile, meter: Meter, workers: WorkerFigures) -> OperatorProfile:
    if not (call := workers.call):
        return replace(row, busiest=workers.busiest)
    seconds = meter.running
    note = f"has waited for {call} for {seconds:.1f} s"
    return replace(row, note=note, busiest=workers.busiest, call=call, call_seconds=seconds)


def _make_row(row: Figures, own: float, **more: Any) -> OperatorProfile:
    """A line of a profile: figures, and in `more` what figures do not say."""
    busy = 0.0 if row.waits else own
    figures = row._asdict()
    del figures["seconds"], figures["waits"]
    return OperatorProfile(busy=busy, wait=row.seconds - busy, **figures, **more)


def merge_profiles(profiles: Iterable[Profile]) -> Profile:
    """One profile of several iterators that a program reads at once."""
    found = list(profiles)
    return Profile(
        operators=tuple(row for one in found for row in one.operators),
        seconds=max(one.seconds for one in found),
        retries=sum(one.retries for one in found),
        waited=sum(one._seconds_waited for one in found if one.operators),
    )


def _read_drawn(meter: Meter) -> dict[str, Drawn]:
    if not isinstance(meter.node, Mix) or meter.drawn is None:
        return {}
    pairs = zip(meter.node.names, meter.drawn(), strict=True)
    return {name: Drawn(*counts) for name, counts in pairs}


def _calls_note(meter: Meter) -> str:
    node = meter.node
    if not isinstance(node, Map) or node.parallel is None:
        return ""
    place, reason = node.function.notes.calls_run
    if not place:
        return ""
    return f"calls run in {place}: {reason}" if reason else f"calls run in {place}"
