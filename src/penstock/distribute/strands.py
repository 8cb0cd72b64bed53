"""Strands: replicas in threads of their own, of which at most one runs while its caller waits.

A strand runs from one stop to the next: to a merge_call, its end, or its failure.
"""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

from penstock.engine.pool import Pool


class Unwind(BaseException):
    """Raised inside a replica's function to end it, because another one has failed."""


@dataclass(frozen=True)
class Arrived:
    """It stands at its merge_call."""

    merge_fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Returned:
    """It has come to its end."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """It has failed."""

    error: BaseException


Stop = Arrived | Returned | Raised


@lru_cache(maxsize=1)
def _threads(process: int) -> Pool:
    """The threads for replicas; a forked process has none of its parent's."""
    return Pool(sys.maxsize, "penstock-replica")


class Strand:
    """A replica in a thread of its own, which runs only between `resume` and its next stop."""

    def __init__(self, call: Callable[[], Any], context: contextvars.Context) -> None:
        self._call, self._context = call, context
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._stops: SimpleQueue[Stop] = SimpleQueue()
        self._started = self._unwinding = False
        self.stop: Stop | None = None
        """Where it stands; None before it starts and while it runs."""

    def resume(self, answer: Any) -> Stop:
        """Lets it run to its next stop; the answer is what its merge_call returns."""
        if isinstance(self.stop, Returned | Raised):
            return self.stop
        self.stop = None
        if self._started:
            self._answers.put(answer)
        else:
            self._started = True
            _threads(os.getpid()).submit(self._context.run, self._body)
        self.stop = self._stops.get()
        return self.stop

    def arrive(self, arrived: Arrived) -> Any:
        """Called by its own thread: stops, and gives what it is answered."""
        if not self._unwinding:
            self._stops.put(arrived)
            answer = self._answers.get()
        if self._unwinding:
            raise Unwind
        return answer

    def unwind(self) -> None:
        """Ends it. Nobody waits for one that runs (the wait for it was interrupted)."""
        self._unwinding = True
        if isinstance(self.stop, Arrived):
            self.resume(None)
        elif self.stop is None:
            self._answers.put(None)

    def _body(self) -> None:
        try:
            self._stops.put(Returned(self._call()))
        except BaseException as error:
            self._stops.put(Raised(error))
