"""Ordering operators over streams: shuffle with a real buffer, repeat by starting anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.engine.stream import State, Stream
from penstock.plan.nodes import INFINITE
from penstock.plan.seeds import derive_array


class ShuffleStream(Stream):
    """Elements in random order, within a buffer that holds them.

    The buffer is kept full; element after element, a random place of it is emptied and filled
    with the next one. Places are drawn by number, so the state needs no generator's inside.
    """

    def __init__(self, source: Stream, buffer: int | None, key: int, state: State) -> None:
        self.inputs = (source,)
        self._source = source
        self._size = buffer
        self._key = key
        self._count = 0
        self._held: list[Any] = []
        if state is not None:
            self._count, self._held = state[0], list(state[1])

    def pull(self, limit: int) -> Chunk:
        ended = not self._fill()
        count = min(limit, len(self._held))
        if count == 0:
            raise StopIteration
        incoming = [] if ended else self._incoming(count)
        count = count if ended or not incoming else len(incoming)
        return Chunk.of(self._emit(count, incoming))

    def _fill(self) -> bool:
        """Fills the buffer; False if the input has ended."""
        while self._size is None or len(self._held) < self._size:
            want = 1024 if self._size is None else self._size - len(self._held)
            try:
                self._held.extend(self._source.pull(want).elements())
            except StopIteration:
                return False
        return True

    def _incoming(self, count: int) -> list[Any]:
        try:
            return self._source.pull(count).elements()
        except StopIteration:
            return []

    def _emit(self, count: int, incoming: list[Any]) -> list[Any]:
        numbers = np.arange(self._count, self._count + count)
        words = derive_array(self._key, numbers) >> np.uint64(1)
        self._count += count
        held, out = self._held, []
        if incoming:
            places = (words % np.uint64(len(held))).tolist()
            for place, element in zip(places, incoming, strict=True):
                out.append(held[place])
                held[place] = element
            return out
        for word in words.tolist():
            place = word % len(held)
            out.append(held[place])
            last = held.pop()
            if place < len(held):
                held[place] = last
        return out

    def state(self) -> State:
        return [self._count, list(self._held)]


class RepeatStream(Stream):
    """The input again and again, each time in an epoch of its own."""

    def __init__(
        self,
        open_round: Callable[[int, State], Stream],
        count: int,
        number: int,
        state: State,
        produced: bool = False,
    ) -> None:
        self._open_round = open_round
        self._count = count
        self._number = number
        self._produced = produced
        self._current: Stream | None = None
        self.inputs = ()
        if self._more():
            self._start(state)

    def _more(self) -> bool:
        return self._count == INFINITE or self._number < self._count

    def _start(self, state: State) -> None:
        self._current = self._open_round(self._number, state)
        self.inputs = (self._current,)

    def pull(self, limit: int) -> Chunk:
        while self._current is not None:
            try:
                chunk = self._current.pull(limit)
            except StopIteration:
                self._next_round()
                continue
            except Exception:
                self._produced = True
                raise
            self._produced = True
            return chunk
        raise StopIteration

    def _next_round(self) -> None:
        """Starts over; for ever only if there was something in this round."""
        assert self._current is not None
        self._current.close()
        self._current, self.inputs = None, ()
        self._number += 1
        if self._more() and (self._produced or self._count != INFINITE):
            self._produced = False
            self._start(None)

    def state(self) -> State:
        return [self._number, self._produced, self._current is None]

    def input_states(self) -> list[State]:
        return [None if self._current is None else self._current.save()]
