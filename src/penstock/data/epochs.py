"""`Epochs`: iterations that a training framework begins, saved and resumed from outside of them.

A framework that gets something to iterate over keeps the iterators to itself. So the position is
saved and loaded where the program can reach it: on the thing that it passed to the framework.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.data.delivered import DeliveredIterator
from penstock.engine.contract import copy_state

Open = Callable[[], DeliveredIterator]
"""Makes an iterator at the beginning of a new epoch."""


class Epochs:
    """The latest epoch that began, and the one that begins next, if it is prepared already.

    The latest iterator is not kept alive: an iterator that its loop drops ends its threads, and
    leaves its elements to other readers of a shared job. Only its state is kept.
    """

    def __init__(self) -> None:
        self._latest: Callable[[], DeliveredIterator | None] = lambda: None
        self._next: DeliveredIterator | None = None
        self._left: dict[str, Any] | None = None
        """The state of the latest epoch, if its loop ended early and dropped the iterator."""
        self._begun = 0

    def begin(self, open_epoch: Open) -> DeliveredIterator:
        """Begins an epoch: the rest of the one whose state was loaded, or a new one."""
        iterator, self._next = self._next or open_epoch(), None
        self._begun += 1
        self._latest, self._left = weakref.ref(iterator), None
        iterator.keep_state = partial(self._keep_state, self._begun)
        return iterator

    def _keep_state(self, number: int, state: dict[str, Any]) -> None:
        if number == self._begun and self._next is None:
            self._left = state

    def state_dict(self, open_epoch: Open) -> dict[str, Any]:
        """Where the program continues: in the latest epoch, or in a new one if that is over."""
        if (current := self._find_current(open_epoch)) is not None:
            return current.state_dict()
        return copy_state(self._left)  # type: ignore[no-any-return]

    def find_place(self, open_epoch: Open) -> tuple[int, int | None]:
        """The epoch that `state_dict` is in, and how many of its elements came before."""
        if (current := self._find_current(open_epoch)) is not None:
            return current.epoch, current.position
        assert self._left is not None
        return self._left["iteration"], self._left["count"]

    def _find_current(self, open_epoch: Open) -> DeliveredIterator | None:
        """The iterator of the latest epoch, or a new one if that is over; None if `_left` is it."""
        latest = self._latest()
        if self._left is None and self._next is None and (latest is None or latest._is_at_end):
            self._next = open_epoch()
        return self._next or latest

    def load_state_dict(self, state: Any, open_epoch: Open) -> None:
        """Makes the next epoch the rest of the one that `state` was saved in."""
        iterator = open_epoch()
        iterator.load_state_dict(state)
        self._next, self._left = iterator, None

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()  # Positions stay in this process.
