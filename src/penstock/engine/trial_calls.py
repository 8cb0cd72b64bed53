"""Calls of users' functions on samples: what they assign to variables is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_assignments: ContextVar[list[Callable[[], None]] | None] = ContextVar(
    "penstock_assignments", default=None
)
"""One function for each assignment, which undoes it; None outside of `undo_assignments`."""


@contextmanager
def undo_assignments() -> Iterator[None]:
    """At its end, every variable has the value again that it had at the beginning."""
    undo: list[Callable[[], None]] = []
    token = _assignments.set(undo)
    try:
        yield
    finally:
        _assignments.reset(token)
        for restore in reversed(undo):
            restore()


def note_assignment(restore: Callable[[], None]) -> None:
    """Remembers, in a call on samples, how to give a variable its value back."""
    if (undo := _assignments.get()) is not None:
        undo.append(restore)
