"""Logs: what followed a saved state, for as long as somebody holds that state.

A place is counted from a state that was saved before it. Where elements come as they are ready,
counting again leads to the same place only if the state knows what followed it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from penstock.engine.contract import State, Stream


class Log(list[Any]):
    """A part of a state that grows while the stream goes on."""


class Logs:
    """Those of one stream."""

    def __init__(self) -> None:
        self._kept: list[weakref.ref[Log]] = []

    def begin(self) -> Log:
        """One for a state that is being saved."""
        log = Log()
        self._kept.append(weakref.ref(log))
        return log

    def tell(self, events: Iterable[Any]) -> None:
        """Something has happened."""
        if self._kept:
            kept = [(ref, log) for ref in self._kept if (log := ref()) is not None]
            for _, log in kept:
                log.extend(events)
            self._kept = [ref for ref, _ in kept]


class Sequels:
    """Opens streams one behind the other, `loose` ones with a log: where each of them began."""

    def __init__(self, known: Iterable[State] = (), *, loose: bool) -> None:
        self._known = deque(known)
        self._logs = Logs() if loose else None

    def open(self, opens: Callable[[State], Stream]) -> Stream:
        stream = opens(self._known.popleft() if self._known else None)
        if self._logs is not None:
            self._logs.tell([stream.save()])
        return stream

    def logs(self) -> list[Log]:
        """What belongs into a state that is being saved."""
        return [] if self._logs is None else [self._logs.begin()]
