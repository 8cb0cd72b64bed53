"""Production: how a worker answers for one stream: from what it has, by making more, or by waiting.

Several connections ask for the elements of one stream, each in its own order and at its own pace.
Asking twice is harmless. `step` says what to do next for one of them; nothing here makes anything,
sleeps or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.service.logic.keeping import Block, Known, Marks, Pace, Shelf

IDLE = 3
"""So many opened streams wait for somebody to go on with them, at most."""

TAIL = 4 << 20
"""Bytes that are kept for those who ask again."""


@dataclass(frozen=True)
class Stride:
    """Every `of`-th element of a stream, from number `index` on: what one consumer counts."""

    of: int = 1
    index: int = 0

    def ordinal(self, number: int) -> int:
        """The ordinal in the stream of this consumer's element `number`."""
        return number * self.of + self.index

    def count(self, stop: int) -> int:
        """How many elements of this consumer stand before ordinal `stop` of the stream."""
        return max(0, -((self.index - stop) // self.of))


@dataclass(eq=False)
class Cursor:
    """An opened stream; `at` is the ordinal of what it will give next."""

    at: int
    state: Any
    stop: int | None = None
    """It gives nothing from here on, though the stream may."""
    busy: bool = True
    stream: Any = None
    """What the one who makes holds here; None: it is still to be opened, at `state`."""
    trail: Any = None
    """What the stream has found out."""
    unmarked: float = 0.0
    """Seconds of work since the last mark."""
    frames: int = 0
    """How many times elements were made since the last mark."""
    cost: float = 0.0
    """Seconds that it took to save the last mark."""


@dataclass
class Want:
    """What a fetch needs now: elements from `at` up to `stop`, ordinals of the stream."""

    at: int
    stop: int
    consumer: int = -1
    since: float | None = None
    """When it began to wait."""


@dataclass(frozen=True)
class Serve:
    """It is here."""

    block: Block


@dataclass(frozen=True)
class Make:
    """Go on with this cursor, which is yours until `made`, `ended` or `broke`; `most` elements."""

    cursor: Cursor
    most: int


@dataclass(frozen=True)
class Wait:
    """Somebody else makes it, or it is too early."""


@dataclass(frozen=True)
class End:
    """There is no such element."""


Step = Serve | Make | Wait | End


@dataclass
class Production:
    """One stream. `random`: it can be opened at any ordinal; others at a mark.

    `kept`: others need what was made, so it goes only when the worker's stock runs over;
    `pace`: it goes when every consumer has it, and production waits for the slowest of them.
    """

    random: bool
    kept: bool = False
    pace: Pace | None = None
    longest: int | None = None
    """The cardinality of the plan, if it is known."""
    length: int | None = None
    """Where the stream ends, once that was seen."""
    shelf: Shelf = field(default_factory=Shelf)
    marks: Marks = field(default_factory=Marks)
    cursors: list[Cursor] = field(default_factory=list)
    retired: list[Cursor] = field(default_factory=list)
    """Cursors that nobody needs any more."""

    def step(self, want: Want, now: float, allowance: int = 0) -> Step:
        """What to do about a want; at most `allowance` bytes are kept for slow consumers."""
        if self.pace is not None:
            self.pace.reached(want.consumer, want.at, now)
        if (block := self.shelf.find(want.at)) is not None:
            return Serve(block)
        if self.length is not None and want.at >= self.length:
            return End()
        if self._early(want, now, allowance):
            return Wait()
        cursor = self._cursor(want)
        if cursor is None:
            return Wait()
        want.since = None
        return Make(cursor, self._most(cursor, want))

    def _early(self, want: Want, now: float, allowance: int) -> bool:
        if self.pace is None or self.shelf.nbytes < allowance:
            return False
        want.since = now if want.since is None else want.since
        return self.pace.waits(want.consumer, want.since, now)

    def _cursor(self, want: Want) -> Cursor | None:
        """The cursor to go on with, now busy; None if somebody else is at it."""
        ahead = [
            c for c in self.cursors if c.at <= want.at and (c.stop is None or want.at < c.stop)
        ]
        nearest = max(ahead, key=lambda cursor: cursor.at, default=None)
        known = Known(want.at, want.at) if self.random else self.marks.best(want.at)
        if nearest is None or (nearest.at < known.ordinal and not self.random):
            nearest = Cursor(known.ordinal, known.state, self._bound(want))
            self.cursors.append(nearest)
            return nearest
        if nearest.busy:
            return None
        nearest.busy = True
        return nearest

    def _bound(self, want: Want) -> int | None:
        """Random access needs to go no further than somebody asked, or than what is there."""
        return min(want.stop, self.shelf.behind(want.at) or want.stop) if self.random else None

    def _most(self, cursor: Cursor, want: Want) -> int:
        stop = want.stop if cursor.stop is None else min(want.stop, cursor.stop)
        return stop - cursor.at

    def made(
        self, cursor: Cursor, count: int, nbytes: int, item: Any
    ) -> tuple[Block, Block | None]:
        """`count` elements more; gives the block of them, and what of it is kept."""
        block = Block(cursor.at, cursor.at + count, nbytes, item, cursor.at)
        cursor.at += count
        self._release(cursor)
        return block, self.shelf.put(block)

    def ended(self, cursor: Cursor) -> None:
        """A cursor has come to the end of the stream."""
        self.stopped(cursor.at)
        self.broke(cursor)

    def stopped(self, ordinal: int) -> None:
        """There was no element; with random access, the end may be further in front."""
        ends = (self.length, self.longest, ordinal)
        self.length = min(end for end in ends if end is not None)

    def broke(self, cursor: Cursor) -> None:
        """A cursor that gives nothing more."""
        self.cursors.remove(cursor)
        self.retired.append(cursor)

    def _release(self, cursor: Cursor) -> None:
        cursor.busy = False
        # The one used last stands last.
        self.cursors.remove(cursor)
        self.cursors.append(cursor)
        if cursor.stop is not None and cursor.at >= cursor.stop:
            self.broke(cursor)
        for idle in [c for c in self.cursors if not c.busy][:-IDLE]:
            self.broke(idle)

    def spare(self) -> list[int]:
        """Blocks that may go because nobody waits for them."""
        if self.pace is not None:
            return self.shelf.spare(self.pace.floor, TAIL)
        return [] if self.kept else self.shelf.spare(1 << 62, TAIL)

    def let_go(self, everything: bool = False) -> list[Cursor]:
        """The cursors to close; of `everything` but those that somebody still goes on with."""
        idle = [c for c in self.cursors if everything and not c.busy]
        self.cursors = [c for c in self.cursors if c not in idle]
        gone, self.retired = [*self.retired, *idle], []
        return gone
