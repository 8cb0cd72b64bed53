"""Logs: what followed a saved state, for as long as the state is referenced.

A place is a state and a number of elements since then. Where elements come as they are ready,
skipping that number again leads to the same place only if the state records their order.

Only the thread that pulls from a stream calls `begin` and `record`; another thread may copy a `Log`
meanwhile. Streams record an event before they hand its element on, so a copy that is made at a
place has all events before that place. Later events in it do no harm: they did follow.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from penstock.engine.contract import State, Stream


class Log(list[Any]):
    """A part of a state that grows with every element that its stream hands on."""


class Logs:
    """The logs in all states of one stream that are still referenced."""

    def __init__(self) -> None:
        self._open: list[weakref.ref[Log]] = []

    def begin(self) -> Log:
        """Returns an empty log, for a state that is saved now."""
        log = Log()
        self._open.append(weakref.ref(log))
        return log

    def record(self, events: Iterable[Any]) -> None:
        """Appends `events` to every log that is still referenced."""
        if self._open:
            found = [(ref, log) for ref in self._open if (log := ref()) is not None]
            for _, log in found:
                log.extend(events)
            self._open = [ref for ref, _ in found]


class Sequels:
    """Opens streams one after the other; logs where each began if their order is `loose`.

    `known` are the logged states from which the next streams are opened.
    """

    def __init__(self, known: Iterable[State] = (), *, loose: bool) -> None:
        self._known = deque(known)
        self._logs = Logs() if loose else None

    def open(self, opens: Callable[[State], Stream]) -> Stream:
        stream = opens(self._known.popleft() if self._known else None)
        if self._logs is not None:
            self._logs.record([stream.save()])
        return stream

    def logs(self) -> list[Log]:
        """The part of a state that is saved now: a new log, or nothing if the order is fixed."""
        return [] if self._logs is None else [self._logs.begin()]
