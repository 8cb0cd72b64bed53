"""Progress: what workers say about requests that take long, while they work on them.

A client that hears nothing of a worker which owes it something cannot tell a function that takes
long from a network that carries nothing. So a thread that runs no user's function says where the
others are. It says nothing while elements flow.
"""

from __future__ import annotations

from typing import Protocol

from penstock.service.host.outside import Outside

PROGRESS_SECONDS = 0.5
"""After so long without a word, a client is told what is done for it; and again and again."""


class Reporting(Protocol):
    """Somebody who has something to report."""

    def report(self) -> None: ...


class Reporter:
    """Has all who serve clients report, for as long as there are any."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._changed = outside.condition()
        self._serving: dict[Reporting, None] = {}
        self._runs = False

    def add(self, serving: Reporting) -> None:
        with self._changed:
            self._serving[serving] = None
            starts, self._runs = not self._runs, True
        if starts:
            self._outside.start(self._run, "penstock-progress")

    def remove(self, serving: Reporting) -> None:
        with self._changed:
            self._serving.pop(serving, None)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(PROGRESS_SECONDS)
                if not self._serving:
                    self._runs = False
                    return
                serving = list(self._serving)
            for each in serving:
                each.report()
