"""Keeping: which of the elements that a worker made it still has, and which of them may go.

Everything is counted in ordinals and bytes; what an element is, nobody here knows. Whatever went
can be made again, so forgetting costs time and never an element.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

TAIL_BLOCKS = 256
"""So many blocks that everybody has are kept, however small they are."""

NEWEST = 4
"""So many of the latest marks are kept whatever their distance."""

PATIENCE = 10.0
"""Seconds without a word from a consumer, after which the others wait for it no more."""


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

    def __init__(self, consumers: int, patience: float = PATIENCE) -> None:
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
