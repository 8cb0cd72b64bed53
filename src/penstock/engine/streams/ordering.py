"""Ordering operators over streams: shuffle with a real buffer, repeat by starting anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import ElementCounter, FedStream
from penstock.engine.logs import Sequels
from penstock.plan.nodes import INFINITE
from penstock.plan.seeds import derive_array


class ShuffleStream(FedStream):
    """Elements in random order, within a buffer that holds them.

    The buffer is filled, and the element at a random index handed on: the last element moves there,
    and the next one becomes the last. Indices follow from the number of the element, so the state
    needs no state of a random generator.
    """

    def __init__(self, source: Stream, buffer: int | None, key: int, state: State) -> None:
        super().__init__(source)
        self._size = buffer
        self._key = key
        self._count = 0
        self._held: list[Any] = []
        if state is not None:
            self._count, self._held = state[0], list(state[1])

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        full = self._fill()
        if not self._held:
            raise StopIteration
        incoming = self._pull_replacements(needed - 1, limit - 1) if full else []
        count = len(incoming) + 1 if full else min(limit, len(self._held))
        return Chunk.of(self._emit(count, incoming))

    def _fill(self) -> bool:
        """Fills the buffer; False if the input has ended."""
        while self._size is None or len(self._held) < self._size:
            want = 1024 if self._size is None else self._size - len(self._held)
            try:
                self._held.extend(self._feed.pull(want, want).elements())
            except StopIteration:
                return False
        return True

    def _pull_replacements(self, needed: int, limit: int) -> list[Any]:
        """The elements that replace the handed-on ones, except the last of them."""
        if not limit:
            return []
        try:
            return self._feed.pull(limit, max(needed, 1)).elements()
        except StopIteration:
            return []
        except Exception as error:
            self._feed.unraise(error)
            return []

    def _emit(self, count: int, incoming: list[Any]) -> list[Any]:
        numbers = np.arange(self._count, self._count + count)
        words = derive_array(self._key, numbers) >> np.uint64(1)
        self._count += count
        held, out = self._held, []
        indices = (words[: len(incoming)] % np.uint64(len(held))).tolist()
        for index, element in zip(indices, incoming, strict=True):
            out.append(held[index])
            held[index], held[-1] = held[-1], element
        for word in words[len(incoming) :].tolist():
            index = word % len(held)
            out.append(held[index])
            last = held.pop()
            if index < len(held):
                held[index] = last
        return out

    def _own_state(self) -> State:
        return [self._count, list(self._held)]


class RepeatStream(Stream):
    """The input again and again, each time in an epoch of its own."""

    def __init__(
        self,
        open_repetition: Callable[[int, State], Stream],
        count: int,
        number: int,
        state: State,
        produced: bool,
        sequels: Sequels,
    ) -> None:
        self._open_repetition = open_repetition
        self._sequels = sequels
        self._count = count
        self.number = number
        """How many repetitions have ended."""
        self._produced = produced
        self._feed: ElementCounter | None = None
        self.inputs = ()
        if self._has_more():
            self._start(self._open_repetition(number, state))

    def _has_more(self) -> bool:
        return self._count == INFINITE or self.number < self._count

    def _start(self, current: Stream) -> None:
        self._feed = ElementCounter(current)
        self.inputs = (current,)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while self._feed is not None:
            try:
                return self._feed.pull(limit, needed, rows)
            except StopIteration:
                self._start_next(self._feed.stream)
        raise StopIteration

    @property
    def _has_produced(self) -> bool:
        """Whether this repetition gave an element, also before the state that opened it."""
        return self._produced or (self._feed is not None and self._feed.count > 0)

    def _start_next(self, ended: Stream) -> None:
        """Starts the next repetition.

        An endless `repeat` ends if no reader got an element in the last one.
        """
        remote = ended.remote
        produced = self._has_produced or (remote is not None and remote.shared_end)
        ended.close()
        self._feed, self.inputs = None, ()
        self.number += 1
        self._produced = produced
        if self._has_more() and (produced or self._count != INFINITE):
            self._produced = False
            self._start(self._sequels.open(partial(self._open_repetition, self.number)))

    def _own_state(self) -> State:
        return [self.number, self._has_produced, self._feed is None, *self._sequels.logs()]

    def _input_states(self) -> list[State]:
        return [None if self._feed is None else self._feed.stream.save()]
