"""Interleaving without order: elements are handed on from any dataset that has some ready.

A log names each element by the outer element that its dataset was made of. A state has the log of
what followed it, so a stream that is opened from it begins with the same elements.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import takewhile
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine.contract import State, Stream
from penstock.engine.logs import Logs
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.streams.interleaving import InterleaveStream, Slot
from penstock.engine.user_calls import FailedCall
from penstock.plan.nodes import Interleave


class UnorderedInterleaveStream(InterleaveStream):
    """Takes a block of elements from each slot that has some ready, without waiting for the rest.

    With `ordered`, the slots take turns as soon as the elements of the state's log have come.
    """

    def __init__(
        self, node: Interleave, source: Stream, *, ordered: bool, **arguments: Any
    ) -> None:
        self._ordered = ordered
        self._ready = threading.Event()
        """Set by the prefetching thread of a slot that has a result, and cleared before the slots
        are checked, so that no result is missed. All other fields belong to the thread that pulls.
        """
        self._logs = Logs()
        self._again: deque[int] = deque()
        super().__init__(node, source, **arguments)

    def pull(self, limit: int) -> Chunk:
        self._look_ahead(self._ahead - self._open_slots)
        parts: list[Chunk] = []
        count = 0
        while count < limit and self._turn_to_next(first=not parts):
            slot = self._slots[self._turn]
            assert slot is not None
            try:
                chunk = self._from(slot, min(limit - count, self._again_from(slot)))
            except Exception as error:
                if parts:
                    slot.feed.unraise(error)
                    break
                self._record([slot.ordinal])
                raise
            if chunk is not None:
                self._record([slot.ordinal] * len(chunk))
                parts.append(chunk)
                count += len(chunk)
        if not parts:
            raise StopIteration
        return Chunk.join(parts)

    @property
    def _open_slots(self) -> int:
        return sum(slot is not None for slot in self._slots)

    def _turn_to_next(self, first: bool) -> bool:
        """Turns to the slot that gives the next element.

        Returns False at the end and, unless it is for the `first` chunk, instead of waiting.
        """
        if self._again:
            return self._turn_to(self._again[0], first)
        while True:
            self._ready.clear()
            self._fill_slots(first)
            for step in range(len(self._slots)):
                turn = (self._turn + step) % len(self._slots)
                if (slot := self._slots[turn]) is not None and self._is_ready(slot):
                    self._taken = self._taken if turn == self._turn else 0
                    self._turn = turn
                    return True
            if not first or not self._open_slots:
                return False
            self._ready.wait()

    def _turn_to(self, ordinal: int, first: bool) -> bool:
        """Turns to the slot of an outer element; opens all slots up to it if need be."""
        while True:
            for turn, slot in enumerate(self._slots):
                if slot is not None and slot.ordinal == ordinal:
                    self._turn = turn
                    return first or self._is_ready(slot)
            if not first and self._fails_next():
                return False
            # A slot may be exhausted, but only a pull from it shows that.
            self._turn = len(self._slots)
            self._slots.append(None)
            if self._fill() is None:  # The input has fewer elements than the log.
                self._again.clear()
                return self._turn_to_next(first)

    def _again_from(self, slot: Slot) -> int:
        """How many elements the log takes from a slot before it turns to another one."""
        if not self._again:
            return self._node.block
        return sum(1 for _ in takewhile(slot.ordinal.__eq__, self._again))

    def _fill_slots(self, first: bool) -> None:
        """Opens the slots that may be read ahead, at least one more, and at most `cycle`."""
        want = min(self._node.cycle, max(self._ahead, self._open_slots + 1))
        while self._open_slots < want and (first or not self._fails_next()):
            turn, self._turn = self._turn, self._free_slot()
            slot = self._fill()
            self._turn = turn
            if slot is None:
                return

    def _free_slot(self) -> int:
        return next(turn for turn, slot in enumerate(self._slots) if slot is None)

    def _fails_next(self) -> bool:
        """Whether filling the next slot would raise."""
        self._look_ahead(1)
        if self._next:
            return isinstance(self._next[0][1], FailedCall)
        return not self._ended

    def _fill(self) -> Slot | None:
        ordinal = self._ordinal
        try:
            return super()._fill()
        except Exception:
            self._record([ordinal])
            raise

    def _is_ready(self, slot: Slot) -> bool:
        if not isinstance(slot.stream, PrefetchStream):
            return True
        slot.stream.start()
        return self._ordered or slot.feed.holds or slot.stream.ready

    def _open_slot(self, row: Chunk, ordinal: int, state: State = None, given: int = 0) -> Slot:
        slot = super()._open_slot(row, ordinal, state, given)
        if isinstance(slot.stream, PrefetchStream):
            slot.stream.notify(self._ready.set)
        return slot

    def _record(self, ordinals: list[int]) -> None:
        self._logs.record(ordinals)
        for _ in ordinals[: len(self._again)]:
            self._again.popleft()

    def _advance(self) -> None:
        """Turns to the next slot, and drops exhausted slots that were opened beyond the cycle."""
        super()._advance()
        extra = len(self._slots) - self._node.cycle
        if extra > 0:
            kept = [slot for slot in self._slots if slot is not None]
            self._slots = [*kept, *[None] * (self._node.cycle - len(kept))]
        self._turn %= len(self._slots)

    def _restore(self, state: State) -> None:
        self._again = deque(state["log"])
        self._slots += [None] * max(
            (slot - len(self._slots) + 1 for slot, *_ in state["slots"]), default=0
        )
        super()._restore(state)

    def state(self) -> State:
        return {**super().state(), "log": self._logs.begin()}
