"""A virtual clock, and threads on it: greenlets that run until they wait.

Only `World.wait` lets other threads run, and only the world decides which is next. All chance comes
from the one `random` of the world, so that a seed is a history.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from greenlet import GreenletExit, getcurrent, greenlet

STORY = 400
"""How many of the last events are printed when a history fails."""

MOST_STEPS = 200_000
"""A history that needs more goes round in circles."""

LOOKS = 8
"""After so many steps it is looked whether all is over."""

INSTANT = 1e-6
"""A shorter wait would never end: the clock does not move by itself."""


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
        """None of its threads runs."""
        self.alive = False

    def pause(self, seconds: float) -> None:
        self.world.tell(f"{self.name} is stopped for {seconds:.2f} s")
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def spawn(self, work: Callable[[], object]) -> Thread:
        """Does something in a thread, until it ends or this process dies."""
        thread = Thread(self, work)
        self.world.threads[thread] = None
        self.world.at(0.0, thread.go, self)
        return thread


class Thread(greenlet):
    """A thread of a process. `turn` counts how often it went on."""

    def __init__(self, process: Process, work: Callable[[], object]) -> None:
        super().__init__(work, process.world.hub)
        self.process = process
        self.turn = 0
        self.rung = False
        self._ended = Bell()

    def go(self) -> None:
        """Runs until it waits. What it raises, it raises here."""
        world = self.process.world
        self.turn += 1
        world.running = self
        self.switch()
        world.running = None
        if world.violation is not None:
            raise world.violation
        if self.dead:
            world.threads.pop(self, None)
            self._ended.ring()

    def due(self, turn: int) -> None:
        if turn == self.turn:
            self.go()

    def wake(self) -> None:
        self.rung = True
        self.process.world.at(0.0, partial(self.due, self.turn), self.process)

    def join(self, timeout: float | None = None) -> None:
        if not self.dead:
            self.process.world.wait(timeout, self._ended)


class Bell:
    """Wakes the threads that wait for it."""

    def __init__(self) -> None:
        self.waiting: dict[Thread, None] = {}

    def ring(self, most: int | None = None) -> None:
        """Wakes all, or as many as are said."""
        if self.waiting:
            for thread in list(self.waiting)[:most]:
                del self.waiting[thread]
                thread.wake()


class World:
    """The clock, what is to come, and the story so far."""

    def __init__(self, seed: int, most: int = MOST_STEPS) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.hub = getcurrent()
        self.running: Thread | None = None
        self.threads: dict[Thread, None] = {}
        self.locks = 0
        """How many locks the running thread holds."""
        self.violation: Violation | None = None
        self.over = False
        self.shaky = 0.0
        """How often a thread is interrupted where it could be."""
        self._story: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=STORY)
        self.steps = 0
        self._most = most
        self._events: list[tuple[float, int, Callable[[], None], Process | None]] = []
        self._number = 0

    def close(self) -> None:
        """Ends what still runs; it gets no further than to where it would wait again."""
        self.over = True
        for thread in list(self.threads):
            with suppress(Exception):
                thread.throw(GreenletExit)
        self.threads.clear()
        self._events.clear()

    def wait(self, seconds: float | None = None, bell: Bell | None = None) -> bool:
        """Lets other threads run, for a time or until a bell rings; returns whether it rang."""
        thread = self.running
        if self.over:
            raise GreenletExit
        if thread is None or self.locks:
            self.report_violation(
                "a wait that must not be: its caller holds a lock, or is no thread"
            )
        thread.rung = False
        if bell is not None:
            bell.waiting[thread] = None
        if seconds is not None:
            seconds = seconds if seconds > INSTANT else INSTANT
            self.at(seconds, partial(thread.due, thread.turn), thread.process)
        try:
            self.hub.switch()
        finally:
            if bell is not None:
                bell.waiting.pop(thread, None)
        return thread.rung

    def stumble(self) -> None:
        """The running thread may lose its turn for a moment."""
        if self.running is not None and self.random.random() < self.shaky:
            self.wait(self.random.choice((INSTANT, 0.001, 0.02)))

    def report_violation(self, what: str) -> None:
        """Ends the history, also where the caller ignores exceptions."""
        self.violation = Violation(what)
        raise self.violation

    def at(self, seconds: float, act: Callable[[], None], process: Process | None = None) -> None:
        """Does something later, unless `process` is dead then; while it is stopped it waits."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, act, process))

    def when(self, due: float, act: Callable[[], None], process: Process | None = None) -> None:
        """Does something at a time; what is due at the same time happens in order."""
        self._number += 1
        heapq.heappush(self._events, (due, self._number, act, process))

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Lets time pass until `over`, or until it is `until`."""
        while self._events and (self.steps % LOOKS or not over()):
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
        """Notes what happens; it becomes words when they are printed."""
        self._story.append((self.now, what))

    @property
    def story(self) -> list[str]:
        """The last that happened."""
        return [f"{now:9.3f}  {' '.join(map(str, what))}" for now, what in self._story]

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability
