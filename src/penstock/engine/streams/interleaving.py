"""Interleaving: the datasets that a function makes of the elements, several of them in turn.

A slot holds one open dataset. Its state is the place of the outer element that it was made of, the
state of its own stream, and how many elements it gave; opening it again calls the function again,
on the same element. With parallel calls, the datasets of the next outer elements are opened and
prefetched before their turn.

Without order, elements are handed on from any dataset that has some ready. A log names each element
by the outer element that its dataset was made of. A state has the log of what followed it, so a
stream that is opened from it begins with the same elements.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import BUDGET, Demand, FedStream, Inlet, Place
from penstock.engine.logs import Logs
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.streams.merging import StructureCheck
from penstock.engine.streams.windowing import OpenInner, plan_of
from penstock.engine.trail import (
    Trail,
    add_turns,
    drawing_numbers,
    inherit_turn,
    put_turn,
)
from penstock.engine.tuning import Brevity
from penstock.engine.user_calls import Calls, FailedCall
from penstock.errors import InvalidTypeError, OpError
from penstock.plan.nodes import Interleave
from penstock.plan.seeds import derive, derive_array, numbers_from, seed_scope
from penstock.plan.shape import TURN_WIDTH


@dataclass
class Slot:
    """One open dataset: its outer element, how many of its own were given, and its stream."""

    ordinal: int
    number: int
    place: Place
    stream: Stream
    feed: Inlet
    given: int
    origin: Array | None = None
    """The number of its outer element."""
    demand: Demand = field(default_factory=Demand)


class InterleaveStream(FedStream):
    """Takes a block of elements from each slot in turn; refills exhausted slots at their turn.

    Whole cycles are woven of the chunks that the slots give; where a slot is exhausted or fails,
    each block is taken on its own.
    """

    def __init__(
        self,
        node: Interleave,
        source: Stream,
        *,
        key: int,
        open_inner: OpenInner,
        brevity: Brevity,
        ahead: int,
        numbered: bool,
        state: State,
    ) -> None:
        super().__init__(source)
        self._node = node
        self._key = key
        self._open_inner = open_inner
        self._calls = Calls(node.label, node.function)
        self._slots: list[Slot | None] = [None] * node.cycle
        self._brevity, self._failures = brevity, 0
        self._ahead = ahead
        self._numbered = numbered
        tried = node.function.trial
        self._structures = StructureCheck(
            self._calls.where, None if tried is None else tried.structure
        )
        self._next: deque[tuple[Place, Slot | FailedCall]] = deque()
        self._turn, self._taken, self._ordinal, self._ended = 0, 0, 0, False
        if state is not None:
            self._restore(state)

    def pull(self, limit: int) -> Chunk:
        self._read_ahead()
        parts: list[Chunk] = []
        count, weaves = 0, self._node.cycle > 1
        until = time.perf_counter() + BUDGET
        while count < limit and (not parts or time.perf_counter() < until):
            if not self._turn_to_next(first=not parts):
                break
            chunk = None
            if weaves and not self._taken:
                chunk = self._pull_cycles(limit - count)
                weaves = chunk is not None
            if chunk is None:
                slot = self._slots[self._turn]
                assert slot is not None
                try:
                    chunk = self._pull_from(slot, limit - count)
                except Exception as error:
                    if not parts:
                        self._note_failure(slot)
                        raise
                    slot.feed.unraise(error)
                    break
            if chunk is None:
                weaves = self._node.cycle > 1  # The slot that has kept cycles from being whole.
            else:
                parts.append(chunk)
                count += len(chunk)
        if not parts:
            raise StopIteration
        return Chunk.join(parts)

    def _turn_to_next(self, first: bool) -> bool:
        """Turns to the slot that gives the next element, and fills it if it is empty.

        Returns False at the end. Unless it is for the `first` chunk, it also returns False instead
        of opening a dataset, and if there is only one slot.
        """
        if not first and self._node.cycle == 1:
            return False
        while self._slots[self._turn] is None:
            if not first and not self._has_opened_all:
                return False
            if self._fill() is None:
                if not any(self._slots):
                    return False
                self._advance()
        return True

    @property
    def _has_opened_all(self) -> bool:
        return self._ended and not self._next

    def _note_failure(self, slot: Slot) -> None:
        """Called before the failure of an element of a slot is raised."""

    def _pull_cycles(self, limit: int) -> Chunk | None:
        """Whole cycles, with a block of every slot; None if the next cycle has fewer elements."""
        block, turns = self._node.block, self._turns()
        slots = [slot for turn in turns if (slot := self._slots[turn]) is not None]
        if not slots or limit < len(slots) * block:
            return None
        chunks, cycles = self._pull_cycle(slots), limit // (len(slots) * block)
        if len(chunks) < len(slots) or not all(map(self._structures.is_known, chunks)):
            cycles = 0
        cycles = min([cycles, *(len(chunk) // block for chunk in chunks)])
        used = [self._use(*pulled, cycles * block) for pulled in zip(slots, chunks, strict=False)]
        if not cycles:
            return None
        self._turn = (turns[-1] + 1) % self._node.cycle
        return self._weave(slots, used)

    def _weave(self, slots: list[Slot], used: list[Chunk]) -> Chunk:
        return Chunk.weave(used, self._node.block)

    def _turns(self) -> list[int]:
        """The numbers of the open slots in their order; none if an empty slot is filled first."""
        if None in self._slots and not self._has_opened_all:
            return []
        return [turn for turn in self._order() if self._slots[turn] is not None]

    def _order(self) -> list[int]:
        """The numbers of all slots, from the present one on."""
        count = len(self._slots)
        return [(self._turn + step) % count for step in range(count)]

    def _pull_cycle(self, slots: list[Slot]) -> list[Chunk]:
        """Elements of every slot, up to a slot that is exhausted, fails or has no whole block."""
        chunks: list[Chunk] = []
        for slot in slots:
            try:
                chunks.append(slot.demand.pull(slot.feed, self._node.block))
            except StopIteration:
                break
            except Exception as error:
                slot.feed.unraise(error)
                break
            if len(chunks[-1]) < self._node.block:
                break
        return chunks

    def _use(self, slot: Slot, chunk: Chunk, count: int) -> Chunk:
        """The first `count` elements of what a slot gave; takes back what follows."""
        slot.feed.unread(chunk, count)
        used = chunk.rows(0, count)
        if self._numbered:
            used = used.with_numbers(self._numbers(slot, count))
        slot.given += count
        return used

    def _pull_from(self, slot: Slot, limit: int) -> Chunk | None:
        """The next elements of a slot's block; None if it is exhausted."""
        has_turns = self._node.cycle > 1
        left = self._node.block - self._taken if has_turns else limit
        try:
            whole = slot.demand.pull(slot.feed, left) if has_turns else slot.feed.pull(limit)
            self._check(slot, whole)
        except StopIteration:
            slot.stream.close()
            self._close(slot)
            return None
        except Exception as error:
            put_turn(error, self._numbers(slot, 1, failed=True))
            raise
        chunk = self._use(slot, whole, min(left, limit, len(whole)))
        self._taken += len(chunk)
        if self._taken >= self._node.block:
            self._advance()
        return chunk

    def _check(self, slot: Slot, chunk: Chunk) -> None:
        """Raises if elements have another structure than those before; only the first one fails."""
        try:
            self._structures.check(chunk)
        except InvalidTypeError:
            slot.feed.unread(chunk, 1)
            raise

    def _numbers(self, slot: Slot, count: int, failed: bool = False) -> Array:
        """The numbers of the next elements of a slot."""
        made = derive_array(slot.number, numbers_from(slot.given, count))
        return inherit_turn(made, slot.origin)

    def _close(self, slot: Slot) -> None:
        self._slots[self._turn] = None
        self._advance()

    def _fill(self) -> Slot | None:
        """Puts the dataset of the next outer element into the current slot."""
        self._look_ahead(1)
        if not self._next and not self._ended:
            self._ordinal += 1
            self._feed.pull(1)  # Raises: the next outer element failed, and now is its turn.
        if not self._next:
            return None
        _, slot = self._next.popleft()
        self._ordinal += 1
        if isinstance(slot, FailedCall):
            raise slot.error
        self._slots[self._turn] = slot
        return slot

    @property
    def _open_slots(self) -> int:
        return sum(slot is not None for slot in self._slots)

    def _read_ahead(self) -> None:
        """Opens datasets up to the number that is read ahead; starts threads that are missing."""
        if self._failures != self._brevity.failures:
            self._failures = self._brevity.failures
            for slot in [*self._slots, *(slot for _, slot in self._next)]:
                if isinstance(slot, Slot) and isinstance(slot.stream, PrefetchStream):
                    slot.stream.start()
        self._look_ahead(self._ahead - sum(map(_is_being_read, self._slots)))

    def _look_ahead(self, count: int) -> None:
        """Opens the datasets of the next outer elements."""
        while len(self._next) < count and not self._ended:
            try:
                row = self._feed.pull(1)
            except StopIteration:
                self._ended = True
                return
            except Exception as error:
                self._feed.unraise(error)
                return
            slot = self._try_to_open(row, self._ordinal + len(self._next))
            self._next.append((self._feed.place, slot))

    def _try_to_open(self, row: Chunk, ordinal: int) -> Slot | FailedCall:
        try:
            slot = self._open_slot(row, ordinal)
        except Exception as error:
            if isinstance(error, OpError) and error.__cause__ is not None:
                error.counted = self._node, ordinal
            return FailedCall(put_turn(error, row.numbers))
        if isinstance(slot.stream, PrefetchStream):
            slot.stream.start()
        return slot

    def _open_slot(self, row: Chunk, ordinal: int, state: State = None, given: int = 0) -> Slot:
        number = ordinal if row.numbers is None else int(drawing_numbers(row.numbers)[0])
        with seed_scope(derive(self._key, number)):
            made = self._calls.one(row.elements()[0], ordinal)
        stream = self._open_inner(plan_of(self._calls.where, made), state, number)
        return Slot(
            ordinal=ordinal,
            number=number,
            place=self._feed.place,
            stream=stream,
            feed=Inlet(stream),
            given=given,
            origin=row.numbers,
        )

    def count_used(self) -> int:
        return self._ordinal

    def _advance(self) -> None:
        self._turn = (self._turn + 1) % self._node.cycle
        self._taken = 0

    def _restore(self, state: State) -> None:
        """Pulls the outer elements, from that of the oldest open slot on, and opens the slots."""
        self._turn, self._taken, last = state["at"]
        waiting = {ordinal: (slot, *inner) for slot, ordinal, *inner in state["slots"]}
        self._ordinal = min(waiting, default=last)
        while self._ordinal < last:
            try:
                row = self._feed.pull(1)
            except Exception:  # The caller got it before the state was saved.
                self._ordinal += 1
                continue
            if self._ordinal in waiting:
                slot, inner, given = waiting[self._ordinal]
                self._slots[slot] = self._open_slot(row, self._ordinal, inner, given)
            self._ordinal += 1

    def _own_state(self) -> State:
        slots = [
            [number, slot.ordinal, slot.feed.save(), slot.given]
            for number, slot in enumerate(self._slots)
            if slot is not None
        ]
        return {"at": [self._turn, self._taken, self._ordinal], "slots": slots}

    def _input_states(self) -> list[State]:
        """The state at the oldest outer element whose dataset is not exhausted."""
        open_slots = [slot for slot in self._slots if slot is not None]
        if open_slots:
            return [min(open_slots, key=lambda slot: slot.ordinal).place.state]
        return [self._next[0][0].state if self._next else self._feed.save()]

    def close(self) -> None:
        self._ended = True  # First, or a pull in another thread would open the next datasets.
        for slot in [*self._slots, *(slot for _, slot in self._next)]:
            if isinstance(slot, Slot):
                slot.stream.close()
        super().close()


def _is_being_read(slot: Slot | None) -> bool:
    """Whether a slot takes one of the parallel calls: no longer once it is read to its end."""
    if slot is None:
        return False
    return not (isinstance(slot.stream, PrefetchStream) and slot.stream.has_read_all)


class InputsStream(InterleaveStream):
    """Some inputs one after the other, for a client that takes turns between them.

    The turn of an element is `TURN_WIDTH` times the number of its input, counted from the first one
    here, plus an odd number for its position in that input. A failure has the even number before
    the element that it replaces. `trail` receives the length of each input.
    """

    def __init__(
        self, node: Interleave, source: Stream, *, base: int, count: int, trail: Trail, **rest: Any
    ) -> None:
        self._base = base
        self._last = base + count
        self._trail = trail
        super().__init__(node, source, **rest)

    def pull(self, limit: int) -> Chunk:
        try:
            return super().pull(limit)
        except StopIteration:
            self._trail.count = self._ordinal - self._base
            raise

    def _numbers(self, slot: Slot, count: int, failed: bool = False) -> Array:
        made = super()._numbers(slot, count)
        first = (slot.ordinal - self._base) * TURN_WIDTH + 2 * slot.given + (not failed)
        return add_turns(drawing_numbers(made), np.arange(first, first + 2 * count, 2))

    def _close(self, slot: Slot) -> None:
        self._trail.inputs[slot.ordinal - self._base] = slot.given
        super()._close(slot)

    def _fill(self) -> Slot | None:
        try:
            return super()._fill()
        except Exception as error:
            index = self._ordinal - 1 - self._base
            self._trail.inputs[index] = -1
            error.__dict__["turn"] = index * TURN_WIDTH
            raise

    def _look_ahead(self, count: int) -> None:
        left = self._last - self._ordinal
        super()._look_ahead(min(count, left))
        self._ended = self._ended or len(self._next) >= left


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

    def _pull_from(self, slot: Slot, limit: int) -> Chunk | None:
        if self._again:  # The log takes so many elements from the slot, and then turns to another.
            limit = min(limit, sum(1 for _ in takewhile(slot.ordinal.__eq__, self._again)))
        chunk = super()._pull_from(slot, limit)
        if chunk is not None:
            self._record([slot.ordinal] * len(chunk))
        return chunk

    def _note_failure(self, slot: Slot) -> None:
        self._record([slot.ordinal])

    def _turns(self) -> list[int]:
        """The numbers of the slots that have some ready; none if a log is next."""
        if self._again or len(self._slots) > self._node.cycle:
            return []
        if self._ordered:
            return super()._turns()
        return [turn for turn in self._order() if self._has_some(turn)]

    def _weave(self, slots: list[Slot], used: list[Chunk]) -> Chunk:
        block = self._node.block
        cycle = [slot.ordinal for slot in slots for _ in range(block)]
        self._record(cycle * (len(used[0]) // block))
        return super()._weave(slots, used)

    def _turn_to_next(self, first: bool) -> bool:
        """Turns to the slot that gives the next element.

        Returns False at the end and, unless it is for the `first` chunk, instead of waiting.
        """
        if self._again:
            return self._turn_to(self._again[0], first)
        while True:
            self._ready.clear()
            self._fill_slots(first)
            for turn in self._order():
                if self._has_some(turn):
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

    def _fill_slots(self, first: bool) -> None:
        """Opens the slots that may be read ahead, at least one more, and at most `cycle`."""
        want = min(self._node.cycle, max(self._ahead, self._open_slots + 1))
        while self._open_slots < want and (first or not self._fails_next()):
            turn, self._turn = self._turn, self._slots.index(None)
            slot = self._fill()
            self._turn = turn
            if slot is None:
                return

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

    def _has_some(self, turn: int) -> bool:
        slot = self._slots[turn]
        return slot is not None and self._is_ready(slot)

    def _is_ready(self, slot: Slot) -> bool:
        if not isinstance(slot.stream, PrefetchStream):
            return True
        if not slot.stream.ready:
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

    def _own_state(self) -> State:
        return {**super()._own_state(), "log": self._logs.begin()}
