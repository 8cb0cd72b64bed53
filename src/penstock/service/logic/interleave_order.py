"""`InterleaveOrder`: an `interleave` whose inputs workers compute, merged by the operator's rule.

A slot reads one input, `block` elements in a turn. When an input ends, its slot gets the next input
at the slot's next turn. Operators behind the `interleave` run on workers and change the number of
elements. So workers send with each element its place among the elements of its input, and turns
count places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.plan.shape import TURN_WIDTH
from penstock.service.logic.feeds import SHORT, Failure, Feed, FeedChunk
from penstock.service.logic.orders import FeedOrder
from penstock.service.protocol.data_messages import MOST_STATE, NumberInPiece

INFINITE, UNKNOWN = -1, -2

MOST_INPUTS = 256
"""The most inputs that one request is for; only short inputs are requested together."""


@dataclass(frozen=True)
class PlacedChunk:
    """Elements and their places: `places[i]` is the place of element i."""

    content: FeedChunk
    places: Any

    def __len__(self) -> int:
        return len(self.content)

    @property
    def nbytes(self) -> int:
        return self.content.nbytes

    def rows(self, start: int, stop: int) -> Any:
        return self.content.rows(start, stop)


class InputFeed(Feed):
    """`count` inputs of a stream from number `first` on. Several are read whole or not at all."""

    def __init__(self, stream: int, first: int, count: int = 1, start: int = 0) -> None:
        super().__init__(stream, start)
        self.inputs = first, count
        self.lengths: tuple[int, ...] | None = None
        """How many places each input has, once all are known."""
        self.reached = start
        """Behind the highest ordinal that was handed out."""

    @property
    def whole(self) -> bool:
        return self.inputs[1] > 1

    @property
    def asks(self) -> bool:
        """Whether `ask` would return ordinals; several inputs are requested once."""
        return super().asks and not (self.whole and self._asked > 0 and not self._lost)

    def ready(self, anywhere: bool = False) -> bool:
        """Whether elements can be handed out; of several inputs, all must have arrived."""
        return super().ready(anywhere) and (not self.whole or self.complete)

    @property
    def complete(self) -> bool:
        """Whether all elements of all inputs have arrived.

        Chunks that arrived damaged are requested again after their request has ended; the end of
        the request says how long the inputs are, so knowing `lengths` is not enough.
        """
        arrived = sum(map(len, self.chunks))
        return self.lengths is not None and arrived == self.length

    def mark(self, ordinal: int, most: int = MOST_STATE) -> Any:
        return None if self.whole else super().mark(ordinal, most)

    def find(self, ordinal: int) -> tuple[int, PlacedChunk] | None:
        """The chunk that contains an ordinal, and its first ordinal; None if it has not arrived."""
        found = self._chunks.get(ordinal)
        start = ordinal
        if found is None and self.whole:
            starts = sorted(self._chunks)
            place = bisect_right(starts, ordinal) - 1
            start = starts[place] if place >= 0 else ordinal
            found = self._chunks.get(start)
        if not isinstance(found, PlacedChunk) or ordinal >= start + len(found):
            return None
        return start, found

    def first_of(self, index: int) -> int:
        """The ordinal of the first element of an input, once all inputs have arrived."""
        for start in sorted(self._chunks):
            chunk = self._chunks[start]
            assert isinstance(chunk, PlacedChunk)
            for offset, place in enumerate(chunk.places):
                if place // TURN_WIDTH >= index:
                    return start + offset
        return self.length or 0

    def has_handed_out(self, ordinal: int) -> bool:
        """Whether an element was handed out; of several inputs, this holds for the first element
        of the first input."""
        return ordinal < self.reached

    def remove_chunk(self, start: int) -> FeedChunk:
        """Removes the chunk that begins at an ordinal; it was handed out."""
        chunk = self._chunks.pop(start)
        self.next = max(self.next, start + len(chunk))
        return chunk


@dataclass
class InputTurn:
    """One input in turn: `at` is the ordinal of its next element, `position` the next place."""

    feed: InputFeed
    index: int
    at: int
    position: int = 0
    begin: int = 0
    """The ordinal of its first element."""
    start: int = 0
    chunk: PlacedChunk | None = None
    """The chunk that contains `at`; it begins at `start`."""

    def event(self) -> tuple[int, str] | None:
        """The place of what comes next, and whether it is a row, a failure or the end."""
        if self.chunk is None or self.at >= self.start + len(self.chunk):
            found = self.feed.find(self.at)
            if found is None:
                return self._end()
            self.start, self.chunk = found
        place = self.chunk.places[self.at - self.start]
        if place is None:
            return self.position, "failure"
        index, code = divmod(int(place), TURN_WIDTH)
        if index != self.index:
            return self._end()
        return code >> 1, "row" if code & 1 else "failure"

    def _end(self) -> tuple[int, str] | None:
        lengths, length = self.feed.lengths, self.feed.length
        if lengths is None or (length is not None and self.at < length and not self.feed.whole):
            return None
        own = lengths[self.index]
        return max(own, self.position), "end" if own >= 0 else "nothing"

    def count(self, left: int, most: int) -> int:
        """How many rows to hand out, if the turn lasts for `left` more places."""
        assert self.chunk is not None
        offset = self.at - self.start
        places = self.chunk.places
        limit = self.index * TURN_WIDTH + 2 * (self.position + left)
        if most == 1 or len(places) <= offset + 1 or places[offset + 1] >= limit:
            return 1
        return min(most, int(np.searchsorted(places, limit)) - offset)


class InterleaveOrder(FeedOrder):
    """Inputs in turn: a known number of inputs in one stream, or all inputs of the `streams`, one
    stream after the other, where their number is unknown."""

    def __init__(
        self, turns: tuple[int, int, int], streams: int, most: int, state: dict[str, Any] | None
    ) -> None:
        super().__init__()
        self.cycle, self._block, self._inputs = turns
        self._streams = 1 if self._inputs != UNKNOWN else streams
        self._most = most
        """The most inputs that one feed may read."""
        self._count = 1
        """How many inputs the next feed reads; it grows while inputs are short."""
        self._feeds: list[InputFeed] = []
        """Open feeds, in the order of their inputs."""
        state = state or _begin(self.cycle)
        self._turn, self._taken = state["turn"]
        self._next: tuple[int, int] = (state["next"][0], state["next"][1])
        """The stream and the number of the next input."""
        self._slots = [
            None if slot is None else self._restore_slot(*slot) for slot in state["slots"]
        ]
        self._freed = [0, 0]
        """Elements and bytes that were released since the last `pop_freed`."""
        given: list[int | None] = state.get("given", [None, None])
        self._given, self._merged = given
        """How many elements were handed out, and how many elements of the `interleave` the
        operators behind it have used for them; None if a state did not say it."""

    def _restore_slot(
        self, stream: int, first: int, position: int, at: int, mark: Any
    ) -> InputTurn:
        feed = InputFeed(stream, first, 1, at)
        if mark is not None:
            feed.restore_mark(mark)
        self._feeds.append(feed)
        self._feeds.sort(key=_number)
        return InputTurn(feed, 0, at, position)

    # What comes next

    def turn(self) -> Feed | None:
        """The feed to hand out from, or to wait for; None at the end."""
        return self._find_due()[1]

    def _find_due(self) -> tuple[InputTurn | None, Feed | None]:
        """The slot whose next element has arrived, or the feed to wait for; neither at the end."""
        while True:
            slot = self._slots[self._turn]
            if slot is None:
                slot, awaited = self._fill()
                if awaited is not None:
                    return None, awaited
                if slot is None:
                    if not any(self._slots):
                        return None, None
                    self._advance()
                    continue
            if (event := slot.event()) is None:
                return None, slot.feed
            place, kind = event
            if place < slot.position:
                # An operator has made several elements of one input element.
                return slot, slot.feed
            if place - slot.position >= (left := self._block - self._taken):
                self._use_places(slot, left)
                self._advance()
                continue
            self._taken += place - slot.position
            self._use_places(slot, place - slot.position)
            if kind in ("row", "failure"):
                return slot, slot.feed
            self._finish(slot)
            if kind == "end":
                self._advance()

    def _use_places(self, slot: InputTurn, places: int) -> None:
        """Notes that the next places of an input were used."""
        slot.position += places
        if self._merged is not None:
            self._merged += places

    def find_number(self, counted: NumberInPiece) -> int | None:
        """Operators behind the `interleave` count what was merged, or what was handed out."""
        if counted.takes_merged:
            return self._merged
        return self._given if counted.is_last else None

    def _advance(self) -> None:
        self._turn, self._taken = (self._turn + 1) % self.cycle, 0

    def _fill(self) -> tuple[InputTurn | None, Feed | None]:
        """Gives the slot the next input, or returns the feed to wait for; neither at the end."""
        while self._exists(*self._next):
            stream, number = self._next
            feed = self._find_feed(stream, number)
            index = number - feed.inputs[0]
            if feed.whole and not feed.complete:
                return None, feed
            if feed.lengths is not None and index >= len(feed.lengths):
                self._next = (stream + 1, 0)
                self._forget(feed)
                continue
            if self._inputs == UNKNOWN and feed.lengths is None and not feed.is_known:
                return None, feed
            begin = feed.first_of(index) if feed.whole else 0
            slot = InputTurn(feed, index, begin, begin=begin)
            self._slots[self._turn] = slot
            self._next = (stream, number + 1)
            return slot, None
        return None, None

    def _exists(self, stream: int, number: int) -> bool:
        """Whether there may be such an input."""
        if 0 <= self._streams <= stream:
            return False
        return self._inputs < 0 or number < self._inputs

    def _find_feed(self, stream: int, number: int) -> InputFeed:
        for feed in self._feeds:
            first, count = feed.inputs
            if feed.stream == stream and first <= number < first + count:
                return feed
        return self._open_feed(stream, number)

    def _open_feed(self, stream: int, number: int) -> InputFeed:
        """Opens a feed for as many inputs as one feed may read; no other feed reads them."""
        ends = [f.inputs[0] for f in self._feeds if f.stream == stream and f.inputs[0] > number]
        if self._inputs >= 0:
            ends.append(self._inputs)
        count = min([self._count, *(end - number for end in ends)])
        feed = InputFeed(stream, number, count)
        self._feeds.append(feed)
        self._feeds.sort(key=_number)
        return feed

    def _finish(self, slot: InputTurn) -> None:
        """Empties the slot of an input that has ended."""
        self._slots[self._turn] = None
        feed = slot.feed
        used = any(s is not None and s.feed is feed for s in self._slots)
        first, count = feed.inputs
        behind = first + len(feed.lengths or ())
        if not used and self._next >= (feed.stream, behind) and behind >= first + count:
            self._forget(feed)

    def _forget(self, feed: InputFeed) -> None:
        self._feeds.remove(feed)
        for chunk in feed.chunks:
            self._freed[0] += len(chunk)
            self._freed[1] += chunk.nbytes

    # Handing out

    def take(self, count: int) -> list[FeedChunk]:
        """Takes at most `count` elements that have arrived; a failure is returned alone."""
        parts: list[FeedChunk] = []
        while count > 0:
            slot, _ = self._find_due()
            if slot is None:
                break
            assert slot.chunk is not None
            if isinstance(slot.chunk.content, Failure):
                if not parts:
                    slot.chunk.content.number(self.find_number)
                    parts.append(slot.chunk.content)
                    self._note_failure(slot, slot.chunk.places[0] or 0)
                break
            rows = slot.count(self._block - self._taken, count)
            offset = slot.at - slot.start
            parts.append(slot.chunk.rows(offset, offset + rows))
            self._note_rows(slot, rows, slot.chunk.places[offset + rows - 1])
            count -= rows
        return parts

    def _note_failure(self, slot: InputTurn, place: int) -> None:
        """Notes that a failure was handed out; only the failure of an element has a place."""
        self._note_rows(slot, 1, place)
        if not place & 1 and self._merged is not None:
            self._merged += 1

    def _note_rows(self, slot: InputTurn, rows: int, place: int) -> None:
        """Notes that `rows` elements were handed out; `place` is the place of the last one."""
        assert slot.chunk is not None
        slot.at += rows
        if self._given is not None:
            self._given += rows
        slot.feed.reached = max(slot.feed.reached, slot.at)
        if place & 1:
            places = (int(place) % TURN_WIDTH >> 1) + 1 - slot.position
            self._use_places(slot, places)
            self._taken += places
        if not slot.feed.whole and slot.at >= slot.start + len(slot.chunk):
            chunk = slot.feed.remove_chunk(slot.start)
            self._freed[0] += len(chunk)
            self._freed[1] += chunk.nbytes
            slot.chunk = None

    def pop_freed(self) -> tuple[int, int]:
        """Elements and bytes that were released since the last call."""
        freed, self._freed = (self._freed[0], self._freed[1]), [0, 0]
        return freed

    # Asking

    def upcoming(self) -> Iterator[Feed]:
        """The feeds in the order in which they will be needed."""
        awaited = self.turn()
        slots = self._slots[self._turn :] + self._slots[: self._turn]
        needed = [awaited, *(slot.feed for slot in slots if slot is not None), *self._feeds]
        yield from dict.fromkeys(feed for feed in needed if feed is not None)
        while (feed := self._open_ahead()) is not None:
            yield feed

    def _open_ahead(self) -> Feed | None:
        """Opens the feed that is needed after all open ones; None at the end."""
        if not self._feeds:
            return self._open_feed(*self._next) if self._exists(*self._next) else None
        last = self._feeds[-1]
        after = (last.stream, sum(last.inputs))
        if self._inputs == UNKNOWN:
            after = (last.stream + 1, 0)
        after = max(after, self._next)
        return self._open_feed(*after) if self._exists(*after) else None

    def share(self, feed: Feed) -> float:
        """The fraction of the memory limit that one feed may use; 0 for a feed without a slot.

        All feeds with slots share one half, and all feeds without slots the other half.
        """
        in_turn = any(slot is not None and slot.feed is feed for slot in self._slots)
        return 0.5 / self.cycle if in_turn or feed is self.turn() else 0.0

    def done(self, feed: InputFeed, lengths: tuple[int, ...] | None, short: int = SHORT) -> None:
        """A request for a feed was answered; `lengths` if the feed ended.

        The next feed reads several inputs, if they have at most `short` elements together.
        """
        if lengths is not None:
            feed.lengths = lengths
            each = ((feed.length or 0) + len(lengths)) / max(1, len(lengths))
            fits = min(MOST_INPUTS, 2 * self._count, self._most, int(short / max(each, 1)))
            self._count = max(1, fits)
        elif feed.whole and feed.lengths is None and not feed.asks:
            self.divide(feed)

    def note_loss(self, feed: Feed) -> None:
        """All elements may have come and only the end of the answer is lost, with the lengths."""
        assert isinstance(feed, InputFeed)
        self.done(feed, None)

    def divide(self, feed: InputFeed) -> None:
        """Drops a feed whose inputs are not short: each of them gets a feed of its own."""
        self._count = 1
        if feed in self._feeds:
            self._feeds.remove(feed)
            self._dropped.append(feed)

    def state(self, free: bool) -> dict[str, Any]:
        self.turn()
        slots = [None if slot is None else _save_slot(slot) for slot in self._slots]
        made = {"slots": slots, "turn": [self._turn, self._taken], "next": list(self._next)}
        return made if self._given is None else {**made, "given": [self._given, self._merged]}


def _begin(cycle: int) -> dict[str, Any]:
    """The state before the first element."""
    return {"slots": [None] * cycle, "turn": [0, 0], "next": [0, 0], "given": [0, 0]}


def _number(feed: InputFeed) -> tuple[int, int]:
    return feed.stream, feed.inputs[0]


def _save_slot(slot: InputTurn) -> list[Any]:
    feed = slot.feed
    mark = None if feed.whole else feed.small_mark(slot.at)
    number = feed.inputs[0] + slot.index
    return [feed.stream, number, slot.position, slot.at - slot.begin, mark]
