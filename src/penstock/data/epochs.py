"""`Epochs`: iterations that a training framework begins, saved and resumed from outside of them.

A framework that gets something to iterate over keeps the iterators to itself. So the position is
saved and loaded where the program can reach it: on the thing that it passed to the framework.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from penstock.data.delivered import DeliveredIterator

Open = Callable[[], DeliveredIterator]
"""Makes an iterator at the beginning of a new epoch."""


class Epochs:
    """The latest epoch that began, and the one that begins next, if it is prepared already.

    The latest iterator is not kept alive: an iterator that its loop drops ends its threads, and
    leaves its elements to other readers of a shared job.
    """

    def __init__(self) -> None:
        self._latest: Callable[[], DeliveredIterator | None] = lambda: None
        self._next: DeliveredIterator | None = None

    def begin(self, open_epoch: Open) -> DeliveredIterator:
        """Begins an epoch: the rest of the one whose state was loaded, or a new one."""
        iterator, self._next = self._next or open_epoch(), None
        self._latest = weakref.ref(iterator)
        return iterator

    def state_dict(self, open_epoch: Open) -> dict[str, Any]:
        """Where the program continues: in the latest epoch, or in a new one if that is over."""
        latest = self._latest()
        if self._next is None and (latest is None or latest._is_at_end):
            self._next = open_epoch()
        return (self._next or latest).state_dict()  # type: ignore[union-attr]

    def load_state_dict(self, state: Any, open_epoch: Open) -> None:
        """Makes the next epoch the rest of the one that `state` was saved in."""
        iterator = open_epoch()
        iterator.load_state_dict(state)
        self._next = iterator

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()  # Positions stay in this process.
