"""Makers: they replace the engine on a simulated worker.

The elements of a stream are known beforehand. Making them takes time, some fail, and states
are real places to resume from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.element.chunk import Chunk
from penstock.engine.contract import Stream
from penstock.engine.trail import Trail, add_turns
from penstock.errors import NotFoundError, ResourceExhaustedError
from penstock.plan.shape import GUESS, TURN_WIDTH, WHOLE_FILE
from penstock.service.host.runtime import Runtime
from penstock.service.host.tasks import Tasks
from penstock.service.host.telemetry import OpenedMeters
from penstock.service.host.worker_streams import StreamPool, WorkerStream
from penstock.service.logic.worker import Block
from penstock.service.protocol.messages import Work
from tests.simulation.elements import FailingError, chunk_of
from tests.simulation.kernel import World
from tests.simulation.plans import Dataset, address, begins, element, share_of

HELD, HELD_NUMBERS = 8, 512
"""Elements in a buffer, and the numbers in each: together they are a large state."""

OVERHEAD = 0.0001
"""Seconds that a pull takes in addition to making elements."""


@dataclass(frozen=True)
class Making:
    """Replaces a `StreamPlan`: the stream that `work` describes."""

    owner: NumberTasks
    plan: Dataset
    work: Work
    meters: ClassVar[OpenedMeters] = OpenedMeters()
    """No engine, no meters."""
    stores: ClassVar[tuple[()]] = ()
    """No caches."""

    @property
    def random(self) -> bool:
        return self.plan.shape.kind == "random"

    @property
    def longest(self) -> int | None:
        return self.length if self.random and not self.plan.endless else None

    @property
    def strided(self) -> bool:
        """Whether each consumer has a stream of its own elements."""
        return self.random and self.work.consumers > 1

    @property
    def guesses(self) -> bool:
        """Whether it is a part of a file that begins where it found a record."""
        return self.plan.wrong is not None and self.work.begin == GUESS

    @property
    def errs(self) -> bool:
        """Whether it begins at a wrong place, and misses an element."""
        return self.guesses and self.work.stream in (self.plan.wrong or ())

    def tell(self, trail: Trail | None, ended: bool) -> None:
        """Notes in `trail` where the part of a file began, and where it ended."""
        stream = self.work.stream
        if self.plan.wrong is not None and self.work.form == "split" and trail is not None:
            if self.work.begin not in (GUESS, WHOLE_FILE, begins(stream)):
                self.owner.world.report_violation(
                    f"stream {stream} is to begin at {self.work.begin}"
                )
            trail.part(begins(stream) + 9 * self.errs, begins(stream + 1) if ended else None)

    @property
    def length(self) -> int:
        length = self.plan.length(self.work.stream)
        length = max(0, length - 1) if self.errs else length
        if self.strided:
            return share_of(length, self.work.consumers, self.work.consumer)
        return length

    def value(self, ordinal: int) -> int:
        if self.strided:
            ordinal = ordinal * self.work.consumers + self.work.consumer
        return element(self.work.stream, ordinal + self.errs)

    def fails(self, value: int) -> bool:
        unmade = self.work.form == "turns" and address(value)[0] in self.plan.unmade
        return unmade or value in self.plan.failing

    def open(self, state: Any, stop: int | None = None, trail: Trail | None = None) -> Stream:
        at = state if self.random or state is None else state["own"]
        if self.plan.buffers and not self.random and state is not None:
            held = [(numbers[0], len(numbers)) for numbers in state["inputs"][0]]
            if held != [(at + number, HELD_NUMBERS) for number in range(HELD)]:
                self.owner.world.report_violation(f"a state before element {at} that holds {held}")
        if at and not self.random and self.owner.world.chance(self.plan.unopened):
            raise ResourceExhaustedError("a state that cannot be opened here")
        if self.plan.absent == self.owner.address:
            raise NotFoundError("a file that is not on this machine")
        if self.work.form == "turns":
            return Inputs(self, at or 0, trail or Trail())
        stop = self.length if stop is None else min(stop, self.length)
        return Numbers(self, at or 0, stop, trail)


class Numbers(Stream):
    """Elements from `at` up to `stop`."""

    def __init__(self, making: Making, at: int, stop: int, trail: Trail | None) -> None:
        self._making = making
        self._trail = trail
        self._at = at
        self._stop = stop
        self._open = True
        self._held: dict[int, Any] = {}
        """The elements in the buffer, by ordinal; a state has the objects that the next one has."""
        making.owner.opened += 1

    def pull(self, limit: int) -> Chunk:
        world, plan = self._making.owner.world, self._making.plan
        if not self._open:
            world.report_violation("a stream is pulled that was closed")
        self._making.owner.note_pull(self._making)
        values = self._values(limit)
        world.wait(OVERHEAD + plan.seconds * len(values))
        self._making.tell(self._trail, not values)
        if not values:
            raise StopIteration
        self._at += len(values)
        if self._making.fails(values[0]):
            raise FailingError(str(values[0]))
        return chunk_of(values)

    def _values(self, limit: int) -> list[int]:
        """The next elements up to a failing one, or that one alone."""
        values: list[int] = []
        for ordinal in range(self._at, min(self._at + limit, self._stop)):
            value = self._making.value(ordinal)
            if self._making.fails(value):
                return values or [value]
            values.append(value)
        return values

    def save(self) -> Any:
        # A state with a tuple cannot be sent to another worker.
        held: Any = () if self._making.plan.holds else None
        if self._making.plan.buffers:
            ordinals = range(self._at, self._at + HELD)
            self._held = {at: self._held.get(at, np.full(HELD_NUMBERS, at)) for at in ordinals}
            held = list(self._held.values())
        return {"own": self._at, "inputs": [held]}

    def close(self) -> None:
        self._making.owner.opened -= self._open
        self._open = False


class Inputs(Numbers):
    """The elements of some inputs one after the other, each with its place."""

    def __init__(self, making: Making, at: int, trail: Trail) -> None:
        plan, (first, count) = making.plan, making.work.inputs
        self._all = plan.inputs_of(making.work.stream)[first:][:count]
        self._ends: list[int] = []
        for number in self._all:
            length = 1 if number in plan.unmade else plan.length(number)
            self._ends.append(length + (self._ends[-1] if self._ends else 0))
        self._found = trail
        self._index = bisect_left(self._ends, at)
        if at and self._index < len(self._all) and self._all[self._index] in plan.unmade:
            self._index += self._ends[self._index] == at
        super().__init__(making, at, self._ends[-1] if self._ends else 0, None)

    def pull(self, limit: int) -> Chunk:
        self._close_inputs()
        if self._index == len(self._all):
            self._found.count = len(self._all)
            return super().pull(0)
        place = self._place(self._at)
        try:
            chunk = super().pull(min(limit, self._ends[self._index] - self._at))
        except FailingError as error:
            error.__dict__["turn"] = place
            raise
        places = range(place + 1, place + 1 + 2 * len(chunk), 2)
        return chunk.with_numbers(add_turns(np.arange(len(chunk)), places))

    def _close_inputs(self) -> None:
        """Notes the lengths of inputs that have ended."""
        while self._index < len(self._all) and self._at >= self._ends[self._index]:
            unmade = self._all[self._index] in self._making.plan.unmade
            good = self._place(self._ends[self._index]) % TURN_WIDTH // 2
            self._found.inputs[self._index] = -1 if unmade else good
            self._index += 1

    def _begin(self) -> int:
        """The position at which the current input begins."""
        return self._ends[self._index - 1] if self._index else 0

    def _place(self, at: int) -> int:
        """Twice the number of earlier elements without a failure, behind the other streams."""
        number = self._all[self._index]
        before = (element(number, ordinal) for ordinal in range(at - self._begin()))
        failing = self._making.plan.failing
        return self._index * TURN_WIDTH + 2 * sum(value not in failing for value in before)

    def _values(self, limit: int) -> list[int]:
        number = self._all[self._index] if limit else 0
        values: list[int] = []
        for at in range(self._at, self._at + limit):
            value = element(number, at - self._begin())
            if self._making.fails(value):
                return values or [value]
            values.append(value)
        return values


class CheckedPool(StreamPool):
    """Checks that no more bytes are kept than allowed."""

    def __init__(self, world: World, address: str, kept: int, runtime: Runtime) -> None:
        super().__init__(address, kept, runtime)
        self._world = world

    def keep(self, stream: WorkerStream, block: Block) -> None:
        super().keep(stream, block)
        for budget in self.budgets.values():
            if not 0 <= budget.nbytes <= budget.limit:
                self._world.report_violation(
                    f"{self.address} keeps {budget.nbytes} of {budget.limit} bytes"
                )


class NumberTasks(Tasks):
    """Tasks over datasets that are known beforehand."""

    def __init__(
        self,
        world: World,
        plans: dict[str, Dataset],
        address: str,
        kept: int,
        runtime: Runtime,
        connect: Any = None,
    ) -> None:
        super().__init__(
            plans.__getitem__,  # type: ignore[arg-type]
            dict,  # type: ignore[arg-type]
            address,
            kept,
            runtime,
            connect,
        )
        self.pool = CheckedPool(world, address, kept, runtime)
        self.world = world
        self.opened = 0
        """Streams that are open."""
        self.note_pull: Callable[[Making], None] = lambda making: None
        """Called whenever the computation of elements begins."""

    def _plan_stream(self, work: Work) -> Any:
        if work.consumers and not 0 <= work.consumer < work.consumers:
            self.world.report_violation(f"a fetch of consumer {work.consumer} of {work.consumers}")
        return Making(self, self._get_plan(work.digest), work)  # type: ignore[arg-type]

    def check_idle(self) -> None:
        """Checks that without readers the worker keeps nothing."""
        left = (
            len(self),
            len(self.pool.streams),
            sum(each.nbytes for each in self.pool.budgets.values()),
            self.opened,
        )
        if any(left):
            self.world.report_violation(
                "{} has readers of {} streams, {} streams, {} bytes and {} cursors left".format(
                    self.address, *left
                )
            )
