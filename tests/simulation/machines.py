"""The machine that a simulated process runs on: time, threads and waiting on the virtual clock.

It replaces the real `Runtime`, and has the methods of it that are used.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

from penstock.service.host.runtime import Runtime
from tests.simulation.kernel import Bell, Process, Thread, World


class Machine(Runtime):
    """The machine as one process sees it. `named` is called with the name of every new thread."""

    def __init__(self, process: Process, named: Callable[[str], None] | None = None) -> None:
        self._process = process
        self._world = process.world
        self._named = named
        self._names = 0

    def now(self) -> float:  # type: ignore[override]
        return self._world.now

    timer = now  # type: ignore[assignment]

    def lock(self) -> Lock:  # type: ignore[override]
        return Lock(self._world)

    def condition(self, lock: Lock | None = None) -> Condition:  # type: ignore[override]
        return Condition(self._world)

    def event(self) -> Event:  # type: ignore[override]
        return Event(self._world)

    def bell(self) -> Chime:  # type: ignore[override]
        return Chime()

    def selector(self) -> Selector:  # type: ignore[override]
        return Selector(self._world)

    def poll(self) -> Poll:  # type: ignore[override]
        return Poll()

    def name(self) -> str:
        self._names += 1
        name = f"{self._process.name}~{self._names}"
        if self._named is not None:
            self._named(name)
        return name

    def start(self, work: Callable[[], None], name: str) -> Thread:  # type: ignore[override]
        return self._process.spawn(work)


class Lock:
    """A lock. A thread that holds one may not wait; before and after it, other threads may run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None:
        if self._world.shaky and not self._world.locks:
            self._world.stumble()
        self._world.locks += 1

    def __exit__(self, *_: object) -> None:
        self._world.locks -= 1
        if self._world.shaky and not self._world.locks:
            self._world.stumble()


class Condition(Lock):
    """A condition; its lock is released while a thread waits."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._bell = Bell()

    def wait(self, timeout: float | None = None) -> bool:
        locks, self._world.locks = self._world.locks, 0
        try:
            return self._world.wait(timeout, self._bell)
        finally:
            self._world.locks = locks

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._world.now + timeout
        while not holds():
            left = None if until is None else until - self._world.now
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self) -> None:
        self._bell.ring(1)

    def notify_all(self) -> None:
        self._bell.ring()


class Event:
    """An event, like `threading.Event`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bell = Bell()
        self._happened = False

    def is_set(self) -> bool:
        return self._happened

    def set(self) -> None:
        self._happened = True
        self._bell.ring()

    def clear(self) -> None:
        self._happened = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._happened:
            self._world.wait(timeout, self._bell)
        return self._happened


class Chime:
    """Wakes a thread that waits at a selector."""

    def __init__(self) -> None:
        self.readable = False
        self.bell = Bell()

    def ring(self) -> None:
        self.readable = True
        self.bell.ring()

    def quiet(self) -> None:
        self.readable = False

    def close(self) -> None:
        pass


class Selector:
    """Waits for things that are `readable` and ring their `bell` when they become so."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bell = Bell()
        self._keys: dict[Any, tuple[selectors.SelectorKey, int]] = {}

    def register(self, thing: Any, events: int, data: Any = None) -> None:
        thing.bell = self._bell
        self._keys[thing] = (selectors.SelectorKey(thing, 0, events, data), events)

    def unregister(self, thing: Any) -> None:
        del self._keys[thing]

    def select(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._ready()
        if not found:
            self._world.wait(timeout, self._bell)
            found = self._ready()
        return found

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        return [key for thing, key in self._keys.items() if thing.readable]

    def close(self) -> None:
        self._keys.clear()


class Poll:
    """Reports whether the other side has closed a connection."""

    def register(self, connection: Any, events: int) -> None:
        self._connection = connection

    def poll(self, timeout: int) -> list[tuple[int, int]]:
        return [(0, 0)] if self._connection.broken else []
