"""What a worker does for one stream: which elements it computes next and which it keeps.

Several connections fetch elements of one stream, each in its own order and at its own pace.
`Production.step` decides the next action for one of them. Fetching twice is harmless: an element
that was dropped is computed again, so dropping costs time and never an element.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.service.protocol import timing

TAIL_BLOCKS = 256
"""So many blocks that everybody has are kept, however small they are."""

NEWEST = 4
"""So many of the latest marks are kept whatever their distance."""


IDLE = 3
"""So many opened streams wait for somebody to go on with them, at most."""

TAIL = 4 << 20
"""Bytes that are kept for those who ask again."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements `start` to `stop`, as they were made. `first` is the ordinal of the item's first."""

    start: int
    stop: int
    nbytes: int
    item: Any
    first: int


class Shelf:
    """What is kept of one stream: blocks by ordinal, none of which overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, ordinal: int) -> Block | None:
        """The block that holds an element."""
        place = bisect_right(self._starts, ordinal)
        block = self._blocks[self._starts[place - 1]] if place else None
        return block if block is not None and ordinal < block.stop else None

    def behind(self, ordinal: int) -> int | None:
        """Where the next block begins behind an element."""
        place = bisect_right(self._starts, ordinal)
        return self._starts[place] if place < len(self._starts) else None

    def put(self, block: Block) -> Block | None:
        """Keeps of a block what is not there yet, up to the next one that is."""
        start = block.start
        while (there := self.find(start)) is not None:
            start = there.stop
        stop = min(block.stop, self.behind(start) or block.stop)
        if start >= stop:
            return None
        kept = replace(block, start=start, stop=stop)
        self._starts.insert(bisect_right(self._starts, start), start)
        self._blocks[start] = kept
        self.nbytes += kept.nbytes
        return kept

    def drop(self, start: int) -> None:
        """Forgets the block that begins here."""
        del self._starts[bisect_right(self._starts, start) - 1]
        self.nbytes -= self._blocks.pop(start).nbytes

    def spare(self, floor: int, tail: int) -> list[int]:
        """The oldest blocks that end before `floor`, until what stays is `tail` bytes or less."""
        found: list[int] = []
        nbytes = self.nbytes
        for start in self._starts:
            if self._blocks[start].stop > floor:
                break
            if nbytes <= tail and len(self) - len(found) <= TAIL_BLOCKS:
                break
            nbytes -= self._blocks[start].nbytes
            found.append(start)
        return found


class Stock:
    """The bytes that all streams of a worker keep; what was used least recently goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._used: OrderedDict[tuple[Hashable, int], int] = OrderedDict()
        self._owned: dict[Hashable, set[int]] = {}

    def add(self, owner: Hashable, start: int, nbytes: int) -> None:
        self._used[owner, start] = nbytes
        self._owned.setdefault(owner, set()).add(start)
        self.nbytes += nbytes

    def touch(self, owner: Hashable, start: int) -> None:
        if (owner, start) in self._used:
            self._used.move_to_end((owner, start))

    def remove(self, owner: Hashable, start: int) -> None:
        if (owner, start) in self._used:
            self._owned[owner].remove(start)
            self.nbytes -= self._used.pop((owner, start))

    def clear(self, owner: Hashable) -> None:
        """Forgets all of an owner's blocks."""
        for start in self._owned.pop(owner, ()):
            self.nbytes -= self._used.pop((owner, start))

    def excess(self) -> list[tuple[Hashable, int]]:
        """Owners and blocks to forget, so that the rest is within the limit."""
        found: list[tuple[Hashable, int]] = []
        over = self.nbytes - self.limit
        for name, nbytes in self._used.items():
            if over <= 0:
                break
            over -= nbytes
            found.append(name)
        return found


class Pace:
    """Where the consumers of coordinated reads are, and whether one that is ahead has to wait."""

    def __init__(self, consumers: int, patience: float = timing.PACE) -> None:
        self._at = [0] * consumers
        self._heard = [0.0] * consumers
        self._away = [False] * consumers
        self._patience = patience

    def reached(self, consumer: int, ordinal: int, now: float) -> None:
        """A consumer needs nothing before `ordinal`, an ordinal of the stream."""
        self._at[consumer] = ordinal
        self._heard[consumer] = now
        self._away[consumer] = False

    @property
    def floor(self) -> int:
        """Nobody who takes part needs anything before it."""
        here = [at for at, away in zip(self._at, self._away, strict=True) if not away]
        return min(here, default=0)

    def waits(self, consumer: int, since: float, now: float) -> bool:
        """Whether a consumer, which waits `since`, waits for one that is behind it.

        One of which nothing is heard may be served by another worker, or be gone: the others go
        on, and should it come back, what it needs is made again.
        """
        at = self._at[consumer]
        slow = [c for c, a in enumerate(self._at) if a < at and not self._away[c]]
        if not slow:
            return False
        if now - max(since, *(self._heard[c] for c in slow)) <= self._patience:
            return True
        for one in slow:
            self._away[one] = True
        return False


@dataclass(frozen=True, slots=True)
class Known:
    """A state that a stream can be opened with, before element `ordinal`."""

    ordinal: int
    state: Any
    small: bool = True
    """Whether it costs little to keep; large ones hold the elements of a buffer."""


class Marks:
    """Known states of one stream: the newest, and of the older ones ever fewer."""

    def __init__(self, start: Any = None) -> None:
        self._known = [Known(0, start)]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, known: Known) -> None:
        place = bisect_right(self._ordinals(), known.ordinal)
        if self._known[place - 1].ordinal == known.ordinal:
            return
        self._known.insert(place, known)
        self._thin()

    def best(self, ordinal: int) -> Known:
        """The last one at or before an element; the start is one."""
        return self._known[bisect_right(self._ordinals(), ordinal) - 1]

    def remove(self, ordinal: int) -> None:
        """A state that could not be opened."""
        self._known = [k for k in self._known if k.ordinal != ordinal or k.ordinal == 0]

    def _ordinals(self) -> list[int]:
        return [known.ordinal for known in self._known]

    def _thin(self) -> None:
        """One mark for every power of two of the distance from the newest."""
        newest = self._known[-1].ordinal
        kept, distances = [], set()
        for known in self._known[1:-NEWEST]:
            distance = (newest - known.ordinal).bit_length()
            if distance not in distances and known.small:
                distances.add(distance)
                kept.append(known)
        large = [known for known in self._known[-NEWEST:-2] if not known.small]
        recent = [known for known in self._known[1:][-NEWEST:] if known not in large]
        self._known = [self._known[0], *kept, *recent]


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
