"""What a worker measures and logs of its work: its operators' meters, traffic and failures.

A stream may be opened again and again, for other ranges of its elements. Every opening has meters
of its own, so that no two threads count in one meter.

A plan process counts what it sends, and reports it to its worker with its other work. A process
that crashes has not reported what it sent since the last heartbeat.

The log never has elements, messages of users' exceptions, or secrets.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.engine.contract import Stream
from penstock.engine.figures import Figures, FigureTree
from penstock.engine.meters import Meter, Meters
from penstock.errors import OpError
from penstock.plan.nodes import Branch, Node, Tail, Take
from penstock.service.protocol.messages import Plain, WorkStatus

_LOG = logging.getLogger("penstock.service")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


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


# Traffic: what was made and sent to clients, for metrics and heartbeats


class Sent(Plain, frozen=True):
    """What was sent to clients."""

    elements: int = 0
    nbytes: int = 0
    """Bytes of the elements, before they are compressed."""
    failures: int = 0
    """Elements that could not be computed: their clients got the error."""

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            elements=self.elements + other.elements,
            nbytes=self.nbytes + other.nbytes,
            failures=self.failures + other.failures,
        )


def add_work(one: WorkStatus, other: WorkStatus) -> WorkStatus:
    """What was made for an iteration in both."""
    return WorkStatus(
        job=one.job,
        elements=one.elements + other.elements,
        seconds=one.seconds + other.seconds,
        buffered=one.buffered + other.buffered,
        nbytes=one.nbytes + other.nbytes,
    )


class Traffic:
    """Adds up what the threads of a process send."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Sent()  #: guarded by _lock
        self._taken = Sent()  #: guarded by _lock

    def add(self, elements: int = 0, nbytes: int = 0, failures: int = 0) -> None:
        with self._lock:
            self._total += Sent(elements, nbytes, failures)

    @property
    def total(self) -> Sent:
        """All that was sent."""
        with self._lock:
            return self._total

    def take(self) -> Sent:
        """Returns what was sent since the last call."""
        with self._lock:
            last, self._taken = self._taken, self._total
            return Sent(
                elements=self._total.elements - last.elements,
                nbytes=self._total.nbytes - last.nbytes,
                failures=self._total.failures - last.failures,
            )


class ReportedWork:
    """The work of one plan process since the last heartbeat of its worker, as it reports it."""

    def __init__(self) -> None:
        self.buffered: dict[str, int] = {}
        """Bytes that the process keeps for each job, as it has last reported them."""
        self._done: dict[str, WorkStatus] = {}

    def add(self, jobs: Iterable[WorkStatus], first: bool) -> None:
        """Adds a message of a report; `first`: it is the first message of a new report."""
        if first:
            self.buffered = {}
        for job in jobs:
            so_far = self._done.get(job.job, WorkStatus(job.job, 0, 0.0))
            self._done[job.job] = msgspec.structs.replace(add_work(so_far, job), buffered=0)
            self.buffered[job.job] = job.buffered

    def take(self) -> list[WorkStatus]:
        """Returns the work that was done for every job since the last call."""
        done, self._done = self._done, {}
        found = {name: done.get(name, WorkStatus(name, 0, 0.0)) for name in self.buffered} | done
        return [
            msgspec.structs.replace(job, buffered=self.buffered.get(name, 0))
            for name, job in found.items()
        ]


# Failures of users' functions


class FailureLog:
    """Logs errors of users' functions on a worker: the first, second, fourth, eighth... of each.

    The class and the place say enough. The message of an error may quote elements, so it goes to
    the reader only.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        """How often each class was raised at each place; guarded by `_lock`."""

    def note(self, error: BaseException, job: str) -> None:
        """Counts an error in place of an element of a job, and logs it if its turn has come."""
        cause = error.__cause__ if isinstance(error, OpError) and error.__cause__ else error
        name, place = type(cause).__name__, _place_of(cause)
        with self._lock:
            self._counts[name, place] += 1
            count = self._counts[name, place]
        if count & (count - 1) == 0:
            times = f" ({count} times so far)" if count > 1 else ""
            event = {"event": "failed", "worker": self._worker, "job": job}
            _LOG.info("worker %s: %s%s%s", self._worker, name, place, times, extra=event)

    def warn_of_state(self, reason: str, job: str) -> None:
        """Warns that a worker that leaves cannot hand over the state of a stream."""
        _LOG.warning(
            "worker %s: leaves a stream without its state (%s); another worker computes the "
            "stream again from an earlier state or from its start, and the reader waits meanwhile",
            self._worker,
            reason,
            extra={"event": "failed", "worker": self._worker, "job": job},
        )


def _place_of(error: BaseException) -> str:
    """` in f at train.py:12`: the innermost frame outside penstock; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return f" in {code.co_name} at {os.path.basename(code.co_filename)}:{line}"
    return ""
