"""Entries: the streams of a simulated worker, made of what is known beforehand."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from penstock.service.logic.keeping import Pace
from penstock.service.logic.production import Production
from penstock.service.protocol.messages import Work
from tests.simulation.kernel import Bell
from tests.simulation.plans import Dataset, element, share_of


@dataclass(frozen=True)
class Item:
    """What a cursor gave in one go, or the one element that fails; and a mark before it."""

    values: tuple[int, ...] | int
    mark: bytes | None


class Entry:
    """One stream of a worker, shared by all connections that read it."""

    def __init__(self, name: Hashable, work: Work, plan: Dataset) -> None:
        self.name = name
        self.work = work
        self.plan = plan
        self.random = plan.shape.kind == "random"
        self.changed = Bell()
        self.limit = 1
        self.readers = 0
        self.idle_since = 0.0
        self.elements, self.seconds = 0, 0.0
        strided = work.consumers > 1
        self.strided = strided and self.random
        pace = Pace(work.consumers) if strided and not self.random else None
        kept = work.kept and not (strided and self.random)
        self.production = Production(self.random, kept, pace, self.length)

    @property
    def alone(self) -> bool:
        return self.random and not self.production.kept

    @property
    def length(self) -> int:
        """The truth about it."""
        length = self.plan.length(self.work.stream)
        if self.strided:
            return share_of(length, self.work.consumers, self.work.consumer)
        return length

    def value(self, ordinal: int) -> int:
        if self.strided:
            ordinal = ordinal * self.work.consumers + self.work.consumer
        return element(self.work.stream, ordinal)

    def made(self, at: int, most: int) -> tuple[tuple[int, ...] | int, float]:
        """Elements from `at` on, none at the end, or one that fails; and the time it takes."""
        stop = min(at + min(most, self.limit), self.length)
        values: list[int] = []
        for ordinal in range(at, stop):
            value = self.value(ordinal)
            if value in self.plan.failing:
                if values:
                    break
                return value, self.plan.seconds
            values.append(value)
        self.limit = min(16, 2 * self.limit)
        return tuple(values), self.plan.seconds * len(values)
