"""Feeds: what a client still expects from each stream, and its requests that are not answered yet.

A feed requests every ordinal of its range once, and again only if it was lost on the way; it hands
out every ordinal once. The length of a stream must not depend on which worker computes it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.errors import DataLossError, OpError
from penstock.plan.shape import WHOLE_FILE
from penstock.service.protocol.data_messages import MOST_STATE, Mark, NumberInPiece, renumber

_SMALL = 512
"""The most bytes of a mark that a saved state includes."""

NOWHERE = 1 << 62
"""The stop of a stream whose length is not known."""

FEW = 4
"""A request for a short stream is for this many elements more than streams usually have."""

DEPTH = 4
"""Requests that wait at a worker, so that it always has the next one to work on."""

KEPT_BLOCK = 64
"""Elements that several trainers read are requested in blocks; all trainers request a block from
the same worker."""

AHEAD = 3
"""Elements for each worker that a client may hold, of any size: two that are under way, and
a third that has arrived and waits for its turn."""

LEAST_AHEAD = 2
"""Elements for each worker without which some workers are idle."""

SHORT = 1 << 11
"""The most elements that inputs of one request have together, if they are small and not slow."""


class FeedChunk(Protocol):
    """Consecutive elements that a worker sent, such as a `Chunk` or one `Failure`."""

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int) -> Any: ...

    @property
    def nbytes(self) -> int: ...


class Failure:
    """One element that could not be computed."""

    nbytes = 0

    def __init__(self, error: Exception, counted: NumberInPiece | None = None) -> None:
        self.error = error
        self.counted = counted
        """The number in the text of the error, if a worker with a piece of the plan counted."""

    def number(self, find: Callable[[NumberInPiece], int | None]) -> None:
        """Writes the number of the element into the text, if `find` returns it."""
        if self.counted is None or not isinstance(self.error, OpError):
            return
        number = find(self.counted)
        if number is not None:
            renumber(self.error, self.counted, number)
            self.counted = None

    def __len__(self) -> int:
        return 1

    def rows(self, start: int, stop: int) -> Failure:
        return self


class FeedMarks(list[Mark]):
    """The marks that workers have sent of one stream; feeds of one stream may share them."""

    moving_from = ""
    """The worker that leaves and still makes the stream, while its state moves to another one."""

    moved_at = NOWHERE
    """Where the successor continues. The worker that leaves has made what is before it, and other
    consumers of a coordinated read have it already."""

    named_successor: str | None = None
    """The worker that continues the stream if its current worker leaves."""

    @property
    def successor(self) -> str:
        """The worker that continues at once; empty if there is none."""
        return next((mark.worker for mark in reversed(self) if mark.worker), "")


class Feed:
    """Ordinals `start` to `stop` of a stream; `home` is the worker that it belongs to, if any.

    `begin` says where a part of a file begins; see `Work.begin`.
    """

    def __init__(
        self,
        stream: int,
        start: int = 0,
        stop: int = NOWHERE,
        home: str | None = None,
        begin: int = WHOLE_FILE,
    ) -> None:
        self.stream = stream
        self.begin = begin
        self.began: int | None = None
        self.ended: int | None = None
        """Where the part of a file that the stream is began and ended, as workers report it."""
        self.void = False
        """Whether another feed of the same stream has replaced this one."""
        self.next = start
        """Every ordinal below it was handed out."""
        self.stop = stop
        self.home = home
        self.worker: str | None = None
        """The worker that was asked last; streams without random access stay there."""
        self.marks = FeedMarks()
        self.length: int | None = None
        """How many elements the stream has, once its end was seen."""
        self.used: dict[str, int] | None = None
        """How many elements the operators of the stream have used, if its end says so."""
        self.has_moved = False
        """Whether another worker than the first one makes it."""
        self.refused: dict[str, Exception] = {}
        """Workers that cannot compute this stream, and why."""
        self.crashed_at: dict[int, str] = {}
        """Ordinals that must be requested again, and the worker that crashed with each."""
        self.ahead: dict[int, int] = {}
        """Ranges beyond `next` that were handed out: start to stop."""
        self.pledged: tuple[int, int] | None = None
        """The range that is handed out next, if a state says so; see `pledge`."""
        self._chunks: dict[int, FeedChunk] = {}
        """What has arrived and was not handed out, by its first ordinal."""
        self._asked = start
        """Every ordinal below it was requested."""
        self._proven = False
        """Whether a request was answered in full."""
        self._lost: list[tuple[int, int]] = []
        """Ranges that must be requested again, the lowest last."""
        self._arrived = 0
        """The stop of the highest range that has arrived."""

    @property
    def limit(self) -> int:
        """The stream has no element at or beyond this ordinal, for this feed."""
        return self.stop if self.length is None else min(self.stop, self.length)

    @property
    def over(self) -> bool:
        """Whether all elements of this feed were handed out."""
        return self.next >= self.limit

    def ask(self, count: int) -> tuple[int, int] | None:
        """The next ordinals to request, at most `count`; None if there are none."""
        while self._lost:
            start, stop = self._lost.pop()
            stop = min(stop, self.limit)
            if start < stop:
                if stop - start > count:
                    self._lost.append((start + count, stop))
                return start, min(stop, start + count)
        self._asked = max(self._asked, self.next)
        while self._asked in self.ahead:
            self._asked = self.ahead[self._asked]
        start = self._asked
        stop = min(start + count, self.limit, *(at for at in self.ahead if at > start))
        if start >= stop:
            return None
        self._asked = stop
        return start, stop

    @property
    def next_ask(self) -> int:
        """About the first ordinal that `ask` would return."""
        return self._lost[-1][0] if self._lost else self._asked

    @property
    def asks(self) -> bool:
        """Whether `ask` would return ordinals."""
        return bool(self._lost) or self._asked < self.limit

    @property
    def asks_again(self) -> bool:
        """Whether `ask` would return ordinals that were requested before."""
        return bool(self._lost)

    @property
    def outstanding(self) -> int:
        """How many elements were requested and not handed out."""
        return self._asked - self.next

    def may_end_soon(self, usual: int | None = None) -> bool:
        """Whether the stream may end within the requests that are under way.

        It may end within the first one, or, where a `usual` length is known, about there.
        """
        if self._lost or self._asked <= self.next or self.limit != NOWHERE:
            return False
        if usual is None:
            return not self._proven
        return self._arrived < self._asked and usual <= self._asked < 2 * usual + FEW

    def prove(self) -> None:
        """Notes that a request was answered in full: the stream may continue behind it."""
        self._proven = True

    @property
    def left(self) -> int:
        """How many ordinals were not requested yet."""
        return max(0, self.limit - self._asked)

    def lose(self, start: int, stop: int) -> None:
        """Notes that requested ordinals will not arrive, so that `ask` returns them again."""
        if start < min(stop, self.limit):
            self._lost.append((start, stop))
            # `ask` pops the last entry: the lowest ordinals are needed first.
            self._lost.sort(reverse=True)

    @property
    def is_requested(self) -> bool:
        """Whether anything was requested."""
        return self._asked > self.next or bool(self._chunks) or self.length is not None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the stream."""
        return bool(self._chunks) or self.length is not None

    @property
    def chunks(self) -> Iterable[FeedChunk]:
        """What has arrived and was not handed out."""
        return self._chunks.values()

    @property
    def is_unread(self) -> bool:
        """Whether the stream is a part of a file, but not the first, that could not be opened."""
        return bool(self.began) and not self.next and isinstance(self._chunks.get(0), Failure)

    def note_part(self, began: int | None, ended: int | None = None) -> None:
        """Notes where a worker found that the part of a file begins and ends."""
        self.began = self.began if began is None else began
        self.ended = self.ended if ended is None else ended

    def arrive(self, start: int, chunk: FeedChunk) -> None:
        if self.length is not None and start + len(chunk) > self.length:
            self._raise_inconsistent(start + len(chunk))
        self._arrived = max(self._arrived, start + len(chunk))
        self._chunks[start] = chunk
        # A worker that sends what is behind a mark has used it. Large marks are then dropped.
        self.marks[:] = [m for m in self.marks if m.ordinal > start or not m.is_large]

    def end(self, length: int) -> None:
        """Notes that the stream has `length` elements."""
        if length < self._arrived or (self.length is not None and self.length != length):
            self._raise_inconsistent(length)
        self.length = length

    def _raise_inconsistent(self, length: int) -> None:
        seen = self._arrived if self.length is None else self.length
        raise DataLossError(
            f"distribute: stream {self.stream} had {seen} elements and, made again elsewhere, "
            f"{length}; a function before distribute does not make the same number of elements "
            "each time (a generator, filter or flat_map that depends on time or chance); seed it"
        )

    def ready(self, anywhere: bool = False) -> bool:
        """Whether elements can be handed out; `anywhere`: any, not only the next ones."""
        return bool(self._chunks) if anywhere else self.next in self._chunks

    @property
    def is_dry(self) -> bool:
        """Whether the next element has not arrived."""
        return not self.ready()

    @property
    def arrived_count(self) -> int:
        """How many elements from `next` on are in one chunk that has arrived."""
        chunk = self._chunks.get(self.next)
        return 0 if chunk is None else len(chunk)

    def pledge(self) -> None:
        """Chooses which of the chunks that have arrived is handed out next."""
        start = self._first()
        self.pledged = start, start + len(self._chunks[start])

    def _first(self) -> int:
        if self.pledged is not None:
            return self.pledged[0]
        return self.next if self.next in self._chunks else next(iter(self._chunks))

    def take(self, count: int, anywhere: bool = False) -> tuple[int, FeedChunk]:
        """Takes the elements at `next` (`anywhere`: any that arrived), with their first ordinal."""
        start = self._first() if anywhere else self.next
        self.pledged = None
        chunk = self._chunks.pop(start)
        if len(chunk) > count:
            self._chunks[start + count] = chunk.rows(count, len(chunk))
            chunk = chunk.rows(0, count)
        self._hand_out(start, start + len(chunk))
        return start, chunk

    def has_handed_out(self, ordinal: int) -> bool:
        """Whether an element was handed out."""
        ahead = any(start <= ordinal < stop for start, stop in self.ahead.items())
        return ordinal < self.next or ahead

    def _hand_out(self, start: int, stop: int) -> None:
        if start != self.next:
            self.ahead[start] = stop
            return
        self.next = stop
        while self.next in self.ahead:
            self.next = self.ahead.pop(self.next)

    def add_mark(self, mark: Mark) -> None:
        """Adds a mark; of the marks at or before `next`, only the last is kept.

        A mark whose state another worker has replaces none: that worker may be lost.
        """
        past = [old for old in self.marks if old.ordinal <= self.next and not old.worker]
        rest = [old for old in self.marks if old.ordinal > self.next or old.worker]
        self.marks[:] = [*past[-1:], *rest, mark]

    def mark(self, ordinal: int, most: int = MOST_STATE) -> Mark | None:
        """The last mark at `ordinal` or before it whose state has at most `most` bytes."""
        own = [m for m in self.marks if m.state or not m.worker]
        known = [m for m in own if m.ordinal <= ordinal and len(m.state) <= most]
        return max(known, key=lambda mark: mark.ordinal, default=None)

    def state(self) -> list[Any]:
        """Stream, next ordinal, ranges handed out beyond it, a mark if it is small, and where a
        part of a file begins.

        What is pledged counts as handed out.
        """
        ahead, following = dict(self.ahead), self.next
        if self.pledged is not None:
            ahead[self.pledged[0]] = self.pledged[1]
        while following in ahead:
            following = ahead.pop(following)
        spans = sorted(map(list, ahead.items()))
        return [self.stream, following, spans, self.small_mark(following), self._begins]

    def small_mark(self, ordinal: int) -> list[Any] | None:
        """The last mark before an ordinal that a state includes, as the state stores it."""
        mark = self.mark(ordinal, _SMALL)
        return None if mark is None else [mark.ordinal, b64encode(mark.state).decode()]

    def restore_mark(self, mark: list[Any]) -> None:
        """Adds a mark that a state stored."""
        self.add_mark(Mark(mark[0], b64decode(mark[1])))

    @property
    def _begins(self) -> int:
        return self.begin if self.began is None or self.begin == WHOLE_FILE else self.began

    @classmethod
    def of(cls, state: list[Any], home: str | None = None) -> Feed:
        """The feed that `state` was saved from."""
        feed = cls(state[0], state[1], home=home, begin=state[4])
        feed.ahead = dict(state[2])
        if state[3] is not None:
            feed.restore_mark(state[3])
        return feed


@dataclass(frozen=True)
class Limits:
    """How much may be requested and not handed out, in all and in one request.

    `nbytes` keep workers busy if elements are small. If elements are large, it may be more, so that
    every worker has elements to compute, within the `budget`.
    """

    elements: int | None = None
    nbytes: int = 64 << 20
    budget: int = 64 << 20
    request_bytes: int = 8 << 20
    request_rows: int = 1 << 15
    request_seconds: float = 0.01

    def count_bytes(self, workers: int, element_bytes: float) -> int:
        """The bytes that may be requested and not handed out, by so many workers."""
        return min(self.budget, max(self.nbytes, int(AHEAD * workers * element_bytes)))

    def is_short(self, workers: int, element_bytes: float) -> bool:
        """Whether the budget leaves workers idle."""
        return self.elements is None and LEAST_AHEAD * workers * element_bytes > self.budget


class Sizes:
    """How large elements are and how long they take; how many to request at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nbytes = min(limits.nbytes, limits.budget)
        self.most = 1
        """The most elements of one request; it doubles while requests are answered in full."""
        self.element_bytes = 0.0
        self.element_seconds = 0.0
        self._length: float | None = None
        """A moving average of the lengths of streams that have ended."""

    def record(self, count: int, nbytes: int, seconds: float) -> None:
        weight = 0.5 if self.element_bytes else 1.0
        self.element_bytes += weight * (nbytes / count - self.element_bytes)
        self.element_seconds += weight * (seconds / count - self.element_seconds)

    def grow(self, count: int) -> None:
        """A request for `count` elements was answered: the next may be for twice as many."""
        self.most = max(self.most, min(2 * count, self._limits.request_rows))

    def shrink(self) -> None:
        """A chunk arrived damaged: the next requests are smaller, and may arrive undamaged."""
        self.most = max(1, self.most // 2)

    def note_length(self, length: int) -> None:
        """A stream ended after `length` elements; other streams may be about as long."""
        before = length if self._length is None else self._length
        self._length = before + (length - before) / 8

    @property
    def usual(self) -> int | None:
        """The length that most streams do not exceed; None until one has ended."""
        return None if self._length is None else int(self._length * 9 / 8) + 1

    @property
    def request(self) -> int:
        soon = self._limits.request_seconds / max(self.element_seconds, 1e-9)
        return max(1, int(min(self.most, self.largest_request, soon)))

    @property
    def largest_request(self) -> int:
        """The most elements of one request, however long they take."""
        limits = self._limits
        fits = min(limits.request_bytes, limits.budget / DEPTH) / max(self.element_bytes, 1)
        return max(1, int(min(limits.request_rows, fits)))

    def count_small(self, workers: int) -> int:
        """Below this count elements need so little memory that a request may exceed the stream."""
        if self._limits.elements is not None:
            return 1
        requests = 4 * DEPTH * workers
        return int(self._nbytes / (requests * max(self.element_bytes, 1)))

    @property
    def whole(self) -> int:
        """How many elements to request of several inputs at once, within the memory limit. Before
        the first element has arrived, its size is unknown and may be large.

        No element of them is handed out before all have arrived, so slow elements are not requested
        in this way.
        """
        if not self.element_bytes:
            return DEPTH
        fits = self._nbytes / (2 * max(self.element_bytes, 1))
        soon = 2 * self._limits.request_seconds / max(self.element_seconds, 1e-9)
        return max(1, int(min(2 * SHORT, fits, soon)))

    def fill_block(self, start: int, count: int) -> int:
        """Up to the end of a block, so that other trainers wait for it and do not compute parts."""
        block = KEPT_BLOCK - start % KEPT_BLOCK
        limits, nbytes = self._limits, block * self.element_bytes
        # Before the first element has arrived, its size is unknown and may be large.
        small = limits.elements is None and 0 < nbytes <= limits.request_bytes
        return block if small else min(count, block)


# Requests that workers have not answered yet


@dataclass
class Ask:
    """A request to a worker. `at` is the next ordinal that the worker sends.

    A worker answers requests with a lower `turn` first.
    """

    request: int
    worker: str
    feed: Feed
    start: int
    stop: int
    mark: Mark | None
    at: int
    turn: int = 0


class Asks(dict[int, Ask]):
    """By number; those of one worker in the order in which the worker answers them."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, int] = {}
        """The highest turn that each worker was asked for."""

    def add(self, ask: Ask, again: bool) -> None:
        """Adds a request where its worker puts it: before requests that are needed later.

        `again`: later elements of its feed may have been requested before. The first request of a
        worker stays first, because the worker has begun it, unless it has a higher turn: then the
        worker interrupts it.
        """
        self[ask.request] = ask
        if again or self.has_later(ask.worker, ask.turn):
            first, *waiting = self.of_worker(ask.worker)[:-1] or [ask]
            for other in (first, *waiting):
                precedes = other.feed is ask.feed and other.start > ask.start
                if other.turn > ask.turn or (precedes and other is not first):
                    self._move_last(other)
                    break
        self._latest[ask.worker] = max(ask.turn, self._latest.get(ask.worker, 0))

    def _move_last(self, before: Ask) -> None:
        requests = list(self)
        for request in requests[requests.index(before.request) : -1]:
            self[request] = self.pop(request)

    def clear(self) -> None:
        super().clear()
        self._latest.clear()

    def remove_worker(self, worker: str) -> list[Ask]:
        """Removes all requests of a worker, and returns them."""
        owed = self.of_worker(worker)
        for ask in owed:
            del self[ask.request]
        self._latest.pop(worker, None)
        return owed

    def has_later(self, worker: str, turn: int) -> bool:
        """Whether a worker was ever asked for a higher turn."""
        return self._latest.get(worker, 0) > turn

    def of_worker(self, worker: str) -> list[Ask]:
        return [ask for ask in self.values() if ask.worker == worker]

    def of_feed(self, feed: Feed) -> list[Ask]:
        return [ask for ask in self.values() if ask.feed is feed]
