"""The worker: which elements it computes next and which it keeps, and how it treats crashes.

Several connections fetch elements of one stream, each in its own order and at its own pace.
`Production.decide` decides the next action for one of them. Fetching twice is harmless: an element
that was dropped is computed again, so dropping costs time and never an element.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.service.protocol import timing

TAIL = 4 << 20
"""Bytes that are kept of a stream for clients that fetch again."""

TAIL_BLOCKS = 256
"""Blocks of a stream that are kept for clients that fetch again, however small they are."""

NEWEST = 4
"""The latest marks of a stream, all of which are kept."""

IDLE = 3
"""Opened cursors of a stream that may wait for the next fetch."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements `start` to `stop` of an item that was computed at once.

    `first` is the ordinal of the first element of the item.
    """

    start: int
    stop: int
    nbytes: int
    item: Any
    first: int


class KeptBlocks:
    """The blocks that are kept of one stream, by ordinal; they do not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, ordinal: int) -> Block | None:
        """Returns the block that holds element `ordinal`."""
        index = bisect_right(self._starts, ordinal)
        block = self._blocks[self._starts[index - 1]] if index else None
        return block if block is not None and ordinal < block.stop else None

    def next_start(self, ordinal: int) -> int | None:
        """Returns the start of the first block that begins behind element `ordinal`."""
        index = bisect_right(self._starts, ordinal)
        return self._starts[index] if index < len(self._starts) else None

    def add(self, block: Block) -> Block | None:
        """Keeps the part of `block` that is missing, up to the next kept block; returns it."""
        start = block.start
        while (found := self.find(start)) is not None:
            start = found.stop
        stop = min(block.stop, self.next_start(start) or block.stop)
        if start >= stop:
            return None
        kept = replace(block, start=start, stop=stop)
        self._starts.insert(bisect_right(self._starts, start), start)
        self._blocks[start] = kept
        self.nbytes += kept.nbytes
        return kept

    def drop(self, start: int) -> None:
        del self._starts[bisect_right(self._starts, start) - 1]
        self.nbytes -= self._blocks.pop(start).nbytes

    def droppable(self, floor: int, tail: int) -> list[int]:
        """Returns the starts of the oldest blocks that end before `floor`.

        Of these, the latest stay that have `tail` bytes or less, and few enough blocks.
        """
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


class BlockBudget:
    """Limits the bytes that all streams of a worker keep; drops the least recently used first.

    A block is named by its owner, which is the name of a stream, and by its start.
    """

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
        """Notes that a block was used."""
        if (owner, start) in self._used:
            self._used.move_to_end((owner, start))

    def remove(self, owner: Hashable, start: int) -> None:
        if (owner, start) in self._used:
            self._owned[owner].remove(start)
            self.nbytes -= self._used.pop((owner, start))

    def clear(self, owner: Hashable) -> None:
        """Removes all blocks of `owner`."""
        for start in self._owned.pop(owner, ()):
            self.nbytes -= self._used.pop((owner, start))

    def excess(self) -> list[tuple[Hashable, int]]:
        """Returns the blocks to drop, so that the rest is within the limit."""
        found: list[tuple[Hashable, int]] = []
        over = self.nbytes - self.limit
        for name, nbytes in self._used.items():
            if over <= 0:
                break
            over -= nbytes
            found.append(name)
        return found


class ConsumerPace:
    """Where the consumers of a coordinated read are, and whether a fast one has to wait."""

    def __init__(self, consumers: int) -> None:
        self._at = [0] * consumers
        self._heard = [0.0] * consumers
        self._away = [False] * consumers

    def record(self, consumer: int, ordinal: int, now: float) -> None:
        """Notes that a consumer needs no element before `ordinal` of the stream."""
        self._at[consumer] = ordinal
        self._heard[consumer] = now
        self._away[consumer] = False

    @property
    def floor(self) -> int:
        """The ordinal before which no consumer that takes part needs an element."""
        present = [at for at, away in zip(self._at, self._away, strict=True) if not away]
        return min(present, default=0)

    def must_wait(self, consumer: int, since: float, now: float) -> bool:
        """Whether a consumer, which has waited `since`, waits for consumers behind it.

        A consumer that is silent for long may fetch from another worker, or be gone. It no longer
        holds up the faster consumers. If it returns, its elements are computed again.
        """
        at = self._at[consumer]
        slow = [c for c, a in enumerate(self._at) if a < at and not self._away[c]]
        if not slow:
            return False
        if now - max(since, *(self._heard[c] for c in slow)) <= timing.PACE:
            return True
        for silent in slow:
            self._away[silent] = True
        return False


@dataclass(frozen=True, slots=True)
class DecodedMark:
    """A state with which a stream can be opened, before element `ordinal`."""

    ordinal: int
    state: Any
    small: bool = True
    """Whether it costs little to keep; large states hold the elements of a buffer."""


class Marks:
    """The marks of one stream: all of the newest, and ever fewer of the older ones."""

    def __init__(self, start: Any = None) -> None:
        self._marks = [DecodedMark(0, start)]

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, mark: DecodedMark) -> None:
        index = bisect_right(self._ordinals(), mark.ordinal)
        if self._marks[index - 1].ordinal == mark.ordinal:
            return
        self._marks.insert(index, mark)
        self._thin_marks()

    def best(self, ordinal: int) -> DecodedMark:
        """Returns the last mark at or before element `ordinal`; the start of the stream is one."""
        return self._marks[bisect_right(self._ordinals(), ordinal) - 1]

    @property
    def newest(self) -> DecodedMark:
        return self._marks[-1]

    def remove(self, ordinal: int) -> None:
        """Removes a mark whose state could not be opened; the start of the stream stays."""
        self._marks = [m for m in self._marks if m.ordinal != ordinal or m.ordinal == 0]

    def _ordinals(self) -> list[int]:
        return [mark.ordinal for mark in self._marks]

    def _thin_marks(self) -> None:
        """Keeps one mark for every power of two of the distance from the newest."""
        newest = self._marks[-1].ordinal
        kept, distances = [], set()
        for mark in self._marks[1:-NEWEST]:
            distance = (newest - mark.ordinal).bit_length()
            if distance not in distances and mark.small:
                distances.add(distance)
                kept.append(mark)
        large = [mark for mark in self._marks[-NEWEST:-2] if not mark.small]
        recent = [mark for mark in self._marks[1:][-NEWEST:] if mark not in large]
        self._marks = [self._marks[0], *kept, *recent]


@dataclass(frozen=True)
class Stride:
    """Every `of`-th element of a stream, from number `index` on: the elements of one consumer."""

    of: int = 1
    index: int = 0

    def ordinal(self, number: int) -> int:
        """Returns the ordinal in the stream of this consumer's element `number`."""
        return number * self.of + self.index

    def count(self, stop: int) -> int:
        """Counts the elements of this consumer before ordinal `stop` of the stream."""
        return max(0, -((self.index - stop) // self.of))


@dataclass(eq=False)
class Cursor:
    """An opened stream of the engine, which computes element `at` next."""

    at: int
    state: Any
    stop: int | None = None
    """The cursor computes nothing from here on, though the stream may be longer."""
    busy: bool = True
    stream: Any = None
    """The engine's stream; None until the worker opens it at `state`."""
    trail: Any = None
    """What the engine's stream reports about its source."""
    unmarked: float = 0.0
    """Seconds of work since the last mark."""
    frames: int = 0
    """Chunks that were computed since the last mark."""
    cost: float = 0.0
    """Seconds that it took to save the last mark."""


@dataclass
class WantedElements:
    """The elements that a fetch needs now: `at` up to `stop`, ordinals of the stream."""

    at: int
    stop: int
    consumer: int = -1
    since: float | None = None
    """When the fetch began to wait for slower consumers."""


@dataclass(frozen=True)
class Serve:
    """Send elements of this block."""

    block: Block


@dataclass(frozen=True)
class Make:
    """Compute up to `most` elements with this cursor.

    No other thread gets the cursor until `add_block`, `record_end` or `retire`.
    """

    cursor: Cursor
    most: int


@dataclass(frozen=True)
class Wait:
    """Wait: another thread computes the element, slower consumers come first, or none is begun."""


@dataclass(frozen=True)
class End:
    """The stream ends before this element."""


Action = Serve | Make | Wait | End


@dataclass
class Production:
    """The elements and cursors of one stream. The worker's lock guards all of it.

    `random`: a cursor can be opened at any ordinal; without it, at a mark.
    `kept`: several clients read the elements, so they are dropped only when the worker keeps too
    many bytes. `pace`: an element is dropped when every consumer has it, and fast consumers wait
    for the slowest.
    """

    random: bool
    kept: bool = False
    pace: ConsumerPace | None = None
    longest: int | None = None
    """The cardinality of the plan, if it is known."""
    length: int | None = None
    """Where the stream ends, once a cursor has reached it."""
    blocks: KeptBlocks = field(default_factory=KeptBlocks)
    marks: Marks = field(default_factory=Marks)
    cursors: list[Cursor] = field(default_factory=list)
    """Least recently used first."""
    retired: list[Cursor] = field(default_factory=list)
    """Cursors that the worker has to close."""
    is_paused: bool = False
    """Whether no element may be begun."""

    def decide(
        self, want: WantedElements, now: float, allowance: int = 0, begins: bool = True
    ) -> Action:
        """Decides what to do for a fetch; slow consumers let `allowance` bytes be kept.

        `begins`: an element may be begun for it.
        """
        if self.pace is not None:
            self.pace.record(want.consumer, want.at, now)
        if (block := self.blocks.find(want.at)) is not None:
            return Serve(block)
        if self.length is not None and want.at >= self.length:
            return End()
        if self._is_early(want, now, allowance):
            return Wait()
        cursor = self._take_cursor(want) if begins and not self.is_paused else None
        if cursor is None:
            return Wait()
        want.since = None
        stop = want.stop if cursor.stop is None else min(want.stop, cursor.stop)
        return Make(cursor, stop - cursor.at)

    def _is_early(self, want: WantedElements, now: float, allowance: int) -> bool:
        if self.pace is None or self.blocks.nbytes < allowance:
            return False
        want.since = now if want.since is None else want.since
        return self.pace.must_wait(want.consumer, want.since, now)

    def _take_cursor(self, want: WantedElements) -> Cursor | None:
        """Returns the cursor to continue with, now busy; None if another thread uses it."""
        ahead = [
            c for c in self.cursors if c.at <= want.at and (c.stop is None or want.at < c.stop)
        ]
        nearest = max(ahead, key=lambda cursor: cursor.at, default=None)
        mark = DecodedMark(want.at, want.at) if self.random else self.marks.best(want.at)
        if nearest is None or (nearest.at < mark.ordinal and not self.random):
            nearest = Cursor(mark.ordinal, mark.state, self._cursor_stop(want))
            self.cursors.append(nearest)
            return nearest
        if nearest.busy:
            return None
        nearest.busy = True
        return nearest

    def _cursor_stop(self, want: WantedElements) -> int | None:
        """Where a cursor with random access stops: at the end of the fetch, or at a kept block."""
        if not self.random:
            return None
        return min(want.stop, self.blocks.next_start(want.at) or want.stop)

    def add_block(
        self, cursor: Cursor, count: int, nbytes: int, item: Any
    ) -> tuple[Block, Block | None]:
        """Records `count` computed elements; returns their block, and the part that is kept."""
        block = Block(cursor.at, cursor.at + count, nbytes, item, cursor.at)
        cursor.at += count
        self._release(cursor)
        return block, self.blocks.add(block)

    def record_end(self, cursor: Cursor) -> None:
        """Notes that the stream ends where `cursor` is."""
        self.record_length(cursor.at)
        self.retire(cursor)

    def record_length(self, ordinal: int) -> None:
        """Notes that there is no element `ordinal`; a plan with random access may be shorter."""
        ends = (self.length, self.longest, ordinal)
        self.length = min(end for end in ends if end is not None)

    def retire(self, cursor: Cursor) -> None:
        """Takes a cursor out of use; `take_retired` returns it."""
        self.cursors.remove(cursor)
        self.retired.append(cursor)

    def _release(self, cursor: Cursor) -> None:
        cursor.busy = False
        self.cursors.remove(cursor)
        self.cursors.append(cursor)
        if cursor.stop is not None and cursor.at >= cursor.stop:
            self.retire(cursor)
        for idle in [c for c in self.cursors if not c.busy][:-IDLE]:
            self.retire(idle)

    def droppable(self) -> list[int]:
        """Returns the starts of blocks that no client waits for."""
        if self.pace is not None:
            return self.blocks.droppable(self.pace.floor, TAIL)
        return [] if self.kept else self.blocks.droppable(1 << 62, TAIL)

    def take_retired(self, include_idle: bool = False) -> list[Cursor]:
        """Returns the cursors to close, once; with `include_idle`, all that no thread uses."""
        idle = [c for c in self.cursors if include_idle and not c.busy]
        self.cursors = [c for c in self.cursors if c not in idle]
        taken, self.retired = [*self.retired, *idle], []
        return taken


# Crashed plan processes: when the worker restarts them, and which call it refuses.
# A function can end its process by a crash in native code, by `os._exit`, or because memory runs
# out. The worker replaces a crashed plan process at once. The successor records the calls that it
# makes (see `engine/call_watch.py`). A call in which processes crash repeatedly is then refused: it
# fails, and its element with it, as if the function had raised. So a crash costs one element, like
# any failure.

AT_ONCE = 4
"""Early crashes in a row before a worker pauses: so many are needed to find a call."""

MOST_ALONE = 2
"""Processes that may crash in a call while no other call runs."""


class RunningCall(Protocol):
    """A call that ran when a process crashed: a digest that identifies it, empty if it has none,
    and its function in words."""

    @property
    def key(self) -> bytes: ...

    @property
    def function(self) -> str: ...


@dataclass(frozen=True)
class Crash:
    """How the last process of a plan crashed."""

    number: int
    """Counts all crashes of the worker, so that clients can distinguish two of them."""
    code: int
    """The exit code, negative for a signal."""
    at: float
    early: int = 0
    """How many processes in a row crashed soon after their start."""
    lifetime: float = 0.0
    is_traced: bool = False
    """Whether the worker has found the call, or the next process may find it."""
    function: str = ""
    """The user's function that was running, if it is known."""

    @property
    def pause(self) -> float:
        """Seconds until the next process may start."""
        late = self.early - AT_ONCE
        if late < 0:
            return 0.0
        return min(timing.CRASH_FIRST_PAUSE * 2.0**late, timing.CRASH_LONGEST_PAUSE)

    @property
    def watch(self) -> float:
        """Seconds for which the next process records its calls."""
        return max(timing.CALL_WATCH, 2.0 * self.lifetime)


@dataclass
class Search:
    """The search for the call that crashes the processes of one plan."""

    suspects: dict[bytes, int] = field(default_factory=dict)
    """Calls that ran when a process crashed, and how often each of them ran alone then."""
    refused: dict[bytes, int] = field(default_factory=dict)
    """Calls that are not made any more, and the exit code of the last process that made them."""
    _crashes: int = 0
    """How many processes crashed since the last call was refused."""
    _widest: int = 0
    """The most calls that ran at once when a process crashed."""

    def add(self, calls: Sequence[RunningCall] | None, code: int) -> bool:
        """Adds the calls that ran at a crash, None if they were not recorded.

        Returns whether the call is found, or the next crash may reveal more about it.
        """
        self._crashes += 1
        known = [call for call in calls or () if call.key]
        self._widest = max(self._widest, len(known))
        for call in known:
            self.suspects.setdefault(call.key, 0)
        if len(known) == 1:
            self._add_alone(known[0], code)
        # A call whose arguments differ each time is never found.
        may_find = self._crashes <= AT_ONCE + MOST_ALONE * self._widest
        return may_find and (calls is None or bool(known))

    def _add_alone(self, call: RunningCall, code: int) -> None:
        self.suspects[call.key] += 1
        if self.suspects[call.key] >= MOST_ALONE:
            del self.suspects[call.key]
            self.refused[call.key] = code
            self._crashes = 0


class Crashes:
    """The last crash of every plan, and the search for its cause, by the digest of the plan."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[bytes, Crash] = {}
        self._searches: dict[bytes, Search] = {}

    def add(
        self,
        plan: bytes,
        code: int,
        started: float,
        now: float,
        calls: Sequence[RunningCall] | None = None,
    ) -> Crash:
        """Records that a process crashed, which had started at `started`, in one of `calls`."""
        self.count += 1
        search = self._searches.setdefault(plan, Search())
        refused = len(search.refused)
        is_traced = search.add(calls, code)
        crash = self._last[plan] = Crash(
            number=self.count,
            code=code,
            at=now,
            # A call that was found does not crash the next process.
            early=0 if len(search.refused) > refused else self._count_early(plan, now - started),
            lifetime=now - started,
            is_traced=is_traced,
            function=calls[0].function if calls and len(calls) == 1 else "",
        )
        return crash

    def _count_early(self, plan: bytes, lifetime: float) -> int:
        before = self._last.get(plan)
        in_a_row = 0 if before is None else before.early
        return in_a_row + 1 if lifetime < timing.EARLY_CRASH else 0

    def last(self, plan: bytes) -> Crash | None:
        return self._last.get(plan)

    def search(self, plan: bytes) -> Search:
        """What is known about the calls of a plan that crash processes."""
        return self._searches.get(plan) or Search()

    def pause(self, plan: bytes, now: float) -> float:
        """Seconds until the next process of a plan may start."""
        crash = self._last.get(plan)
        return 0.0 if crash is None else max(0.0, crash.at + crash.pause - now)

    def forget(self, now: float) -> None:
        """Forgets crashes that no client asks for any more."""
        oldest = now - timing.CRASH_MEMORY
        self._last = {plan: crash for plan, crash in self._last.items() if crash.at >= oldest}
        self._searches = {plan: self._searches[plan] for plan in self._last}
