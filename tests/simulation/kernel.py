"""A virtual clock, and programs on it: generators that say what they wait for.

A program yields seconds to sleep, or a `Bell` and seconds to wait for it at most. All chance comes
from the one `random` of the world, so that a seed is a history.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from random import Random
from typing import Any

Program = Generator[Any, Any, Any]
"""Yields what it waits for."""

STORY = 400
"""How many of the last events are told when something goes wrong."""

MOST_STEPS = 200_000
"""A history that needs more goes round in circles."""


class Violation(AssertionError):
    """Something that must never be."""


class Process:
    """What lives, stops for a while, and dies all at once."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused_until = 0.0

    def kill(self) -> None:
        self.alive = False

    def pause(self, seconds: float) -> None:
        self.world.tell(f"{self.name} is stopped for {seconds:.2f} s")
        self.paused_until = self.world.now + seconds

    def spawn(self, program: Program) -> None:
        """Runs a program until it ends or this process dies."""
        running = _Running(self, program)
        self.world.programs[program] = None
        self.world.at(0.0, running.step, self)


class Bell:
    """Wakes the programs that wait for it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[_Running, int]] = []

    def ring(self) -> None:
        waiting, self.waiting = self.waiting, []
        for running, number in waiting:
            running.woken(number)


class _Running:
    def __init__(self, process: Process, program: Program) -> None:
        self._process = process
        self._program = program
        self._number = 0

    def step(self) -> None:
        self._number += 1
        try:
            wanted = next(self._program)
        except StopIteration:
            self._process.world.programs.pop(self._program, None)
            return
        world, number = self._process.world, self._number
        if isinstance(wanted, tuple):
            bell, seconds = wanted
            bell.waiting.append((self, number))
        else:
            seconds = wanted
        if seconds is not None:
            world.at(seconds, lambda: self._due(number), self._process)

    def _due(self, number: int) -> None:
        if number == self._number:
            self.step()

    def woken(self, number: int) -> None:
        if number == self._number:
            self._process.world.at(0.0, lambda: self._due(number), self._process)


class World:
    """The clock, what is to come, and the story so far."""

    def __init__(self, seed: int, most: int = MOST_STEPS) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._story: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=STORY)
        self.steps = 0
        self._most = most
        self._events: list[tuple[float, int, Callable[[], None], Process | None]] = []
        self._number = 0
        self.programs: dict[Program, None] = {}

    def close(self) -> None:
        """Ends what still runs."""
        for program in list(self.programs):
            program.close()

    def at(self, seconds: float, act: Callable[[], None], process: Process | None = None) -> None:
        """Does something later, unless `process` is dead then; while it is stopped it waits."""
        self.when(self.now + seconds, act, process)

    def when(self, due: float, act: Callable[[], None], process: Process | None = None) -> None:
        """Does something at a time; what is due at the same time happens in order."""
        self._number += 1
        heapq.heappush(self._events, (due, self._number, act, process))

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Lets time pass until `over`, or until it is `until`."""
        while self._events and not over():
            due, number, act, process = heapq.heappop(self._events)
            if due > until:
                heapq.heappush(self._events, (due, number, act, process))
                self.now = until
                return
            self.now = max(self.now, due)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused_until > self.now:
                    heapq.heappush(self._events, (process.paused_until, number, act, process))
                    continue
            self.steps += 1
            if self.steps > self._most:
                raise Violation(f"{self._most} steps, and no end")
            act()

    def tell(self, *what: object) -> None:
        """Notes what happens; it becomes words when somebody asks for them."""
        self._story.append((self.now, what))

    @property
    def story(self) -> list[str]:
        """The last that happened."""
        return [f"{now:9.3f}  {' '.join(map(str, what))}" for now, what in self._story]

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability
