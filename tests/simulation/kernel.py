"""A virtual clock, and threads on it: greenlets that run until they wait.

Only `World.wait` lets other threads run, and only the world decides which is next. All chance comes
from the one `random` of the world, so that a seed determines the history.
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
"""A history that needs more is stuck in a loop."""

LOOKS = 8
"""After so many steps the world checks whether the history is over."""

INSTANT = 1e-6
"""The shortest wait. The clock moves only when threads wait, so shorter waits might never end."""


class Violation(AssertionError):
    """The simulated service broke a rule."""


class Process:
    """Threads that are suspended together, and killed together."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused_until = 0.0

    def kill(self) -> None:
        """None of its threads runs again."""
        self.alive = False

    def pause(self, seconds: float) -> None:
        self.world.tell(f"{self.name} is stopped for {seconds:.2f} s")
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def spawn(self, work: Callable[[], object]) -> Thread:
        """Runs `work` in a thread, until it returns or this process is killed."""
        thread = Thread(self, work)
        self.world.threads[thread] = None
        self.world.at(0.0, thread.go, self)
        return thread


class Thread(greenlet):
    """A thread of a process. `turn` counts how often it was resumed."""

    def __init__(self, process: Process, work: Callable[[], object]) -> None:
        super().__init__(work, process.world.hub)
        self.process = process
        self.turn = 0
        self.rung = False
        self._ended = Bell()

    def go(self) -> None:
        """Runs the thread until it waits. Its exceptions are raised here."""
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
        """Wakes all waiting threads, or the first `most`."""
        if self.waiting:
            for thread in list(self.waiting)[:most]:
                del self.waiting[thread]
                thread.wake()


class World:
    """The clock, the events to come, and the story so far."""

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
        """The probability that a thread is interrupted at a place where that is possible."""
        self._story: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=STORY)
        self.steps = 0
        self._most = most
        self._events: list[tuple[float, int, Callable[[], None], Process | None]] = []
        self._number = 0

    def close(self) -> None:
        """Ends all threads: each stops where it waits now, or where it would wait next."""
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
        """Calls `act` later: not if `process` is dead then; if it is suspended, after that."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, act, process))

    def when(self, due: float, act: Callable[[], None], process: Process | None = None) -> None:
        """Calls `act` at the time `due`; calls with the same time keep their order."""
        self._number += 1
        heapq.heappush(self._events, (due, self._number, act, process))

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Lets time pass until `over()` is true, or until the time `until`."""
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
        """Notes an event of the story; its words are formatted only when they are printed."""
        self._story.append((self.now, what))

    @property
    def story(self) -> list[str]:
        """The last events, as text."""
        return [f"{now:9.3f}  {' '.join(map(str, what))}" for now, what in self._story]

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability
