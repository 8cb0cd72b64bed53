"""Orders: which stream's elements a client hands out next, and how far a consumer may read.

An order depends on the lengths of the streams and on the leases, and on nothing else: not on which
worker is asked, not on what arrives first. `upcoming` opens streams as far ahead as its caller
iterates.

`Laps` limits the consumers of a coordinated read. A lap is one round of every stream. When streams
join, the dispatcher asks each consumer for a limit: a lap that it promises not to enter. The
streams begin behind all limits, so that every consumer knows of them in time. A promise holds
until the dispatcher says that no stream is joining.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import DataLossError
from penstock.plan.shape import GUESS, WHOLE_FILE
from penstock.service.logic.feeds import NOWHERE, Feed, FeedMarks
from penstock.service.protocol.data_messages import NumberInPiece
from penstock.service.protocol.messages import (
    AT_END,
    UNDECIDED,
    ClientHeartbeatReply,
    Grant,
    OpenIterationReply,
    StreamInfo,
    StreamRange,
)


class FeedOrder:
    """The base of all orders, with the feeds that other feeds have replaced."""

    def __init__(self) -> None:
        self._dropped: list[Feed] = []

    def find_turn(self, feed: Feed, ordinal: int) -> int:
        """Which turn it is to hand out an element; elements with lower turns are needed first."""
        return 0

    def pop_dropped(self) -> list[Feed]:
        """Returns each feed once that another feed has replaced."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def pop_freed(self) -> tuple[int, int]:
        """Returns how many elements and bytes were released since the last call, not by `take`."""
        return 0, 0

    def note_loss(self, feed: Feed) -> None:
        """Notes that a worker was lost that owed a request for a feed, in full or in part."""

    def find_number(self, counted: NumberInPiece) -> int | None:
        """The number in the whole plan of the element that is handed out next; None: unknown."""
        return None

    def room(self, feed: Feed) -> int:
        """How many elements of a feed may be handed out in one go."""
        return NOWHERE

    def note_taken(self, feed: Feed, count: int) -> None:
        """Notes that `count` elements of a feed were handed out."""


class SequentialOrder(FeedOrder):
    """One stream after the other: the local order, because streams are consecutive pieces.

    `length` is the length of each stream, if it is known beforehand. A stream may be a part of a
    file whose beginning the worker guessed. Its elements are handed out only after it was compared
    with the end of the part before it; a part that began at a wrong place is read again.
    """

    def __init__(
        self,
        streams: int,
        length: int | None = None,
        state: dict[str, Any] | None = None,
        free: bool = False,
    ) -> None:
        super().__init__()
        self._streams = streams
        self._length = length
        self._begin = WHOLE_FILE if free else GUESS
        state = state or {"open": [], "next": 0, "seam": None}
        self._next: int = state["next"]
        self._open = deque(Feed.of(feed) for feed in state["open"])
        self._seam: int | None = state["seam"]
        """Where the last part that was handed out ended."""
        self._used: dict[str, int] | None = None if free else state.get("used", {})
        """How many elements the operators of all streams before the first open one have used; None
        if that is not known."""
        if self._next and "used" not in state:
            self._used = None
        self._settled: Feed | None = self._open[0] if self._open and not free else None
        """The feed that is known to begin at the right place."""
        for feed in self._open:
            feed.length = length

    def turn(self) -> Feed | None:
        """The feed to hand out from; None at the end."""
        while self._open or self._open_next() is not None:
            settled = self._settle(self._open[0])
            feed = self._open[0]
            if not settled or not feed.over:
                return feed
            if feed.ended is None or feed.ended != feed.began:
                self._seam = feed.ended
            self._open.popleft()
            self._add_used(feed.used)
        return None

    def _add_used(self, used: dict[str, int] | None) -> None:
        if used is None or self._used is None:
            self._used = None
            return
        self._used = dict(self._used)
        for key, count in used.items():
            self._used[key] = self._used.get(key, 0) + count

    def find_number(self, counted: NumberInPiece) -> int | None:
        """Adds what the operator has used in all streams before this one."""
        return None if self._used is None else self._used.get(counted.operator, 0) + counted.number

    def _open_next(self) -> Feed | None:
        """Opens the next stream; None if there is none."""
        if 0 <= self._streams <= self._next:
            return None
        feed = Feed(self._next, begin=self._begin)
        feed.length = self._length
        self._next += 1
        self._open.append(feed)
        return feed

    def _settle(self, feed: Feed) -> bool:
        """Whether the first feed is known to begin at the right place; replaces a wrong one."""
        if feed is self._settled or self._seam is None or self._begin == WHOLE_FILE:
            return True
        if not feed.is_requested:
            feed.begin = self._seam
        elif feed.began is None and not feed.is_known:
            return False
        elif feed.began and not self._fits(feed):
            self._dropped.append(feed)
            feed = self._open[0] = Feed(feed.stream, begin=self._seam)
            feed.length = self._length
        self._settled = feed
        return True

    def _fits(self, feed: Feed) -> bool:
        """Whether a part begins where the part before it ended. A part without records lies inside
        the last record of the part before it."""
        assert feed.began is not None
        assert self._seam is not None
        return feed.began == self._seam or (feed.ended == feed.began < self._seam)

    def available(self) -> Iterator[Feed]:
        """The feeds that elements may come from next, where the order is free: every open feed.

        A part of a file that could not be opened waits for the part before it: if that one could
        not be opened either, both have the same error.
        """
        before = None
        for feed in list(self._open):
            waits = before is not None and not before.over and feed.is_unread
            if not feed.over and not waits:
                yield feed
            before = feed

    def upcoming(self) -> Iterator[Feed]:
        """The feeds in the order in which they will be needed."""
        self.turn()
        yield from list(self._open)
        while (feed := self._open_next()) is not None:
            yield feed

    def find_turn(self, feed: Feed, ordinal: int) -> int:
        return feed.stream

    def state(self, free: bool) -> dict[str, Any]:
        """What to continue from; `free` if elements of several feeds were handed out."""
        open_ = [feed for feed in self._open if not feed.over]
        if free:
            return {"open": [feed.state() for feed in open_], "next": self._next, "seam": None}
        first = self.turn()
        state: dict[str, Any] = {"open": [], "next": self._next, "seam": self._seam}
        if first is not None and first.next:
            state |= {"open": [first.state()], "next": first.stream + 1}
        elif first is not None:
            state["next"] = first.stream
        return {**state, "used": self._used} if self._used else state


class RoundRobinOrder(FeedOrder):
    """Streams that belong to workers, `block` elements of each in turn.

    Every stream has a slot of its own; `add` sets how many there are. Where the order is `free`, a
    turn ends after one chunk of any size. A lap is one turn of every slot; a stream that was added
    later has no turn before the lap in which it begins.
    """

    def __init__(self, block: int, state: dict[str, Any] | None = None, free: bool = False) -> None:
        super().__init__()
        self._free = free
        self._block = block
        state = state or {"open": [], "next": 0, "turn": 0, "left": block}
        self._next: int = state["next"]
        self._turn: int = state["turn"]
        self._left: int = state["left"]
        self._slots = [Feed.of(feed) for feed in state["open"]]
        self.lap: int = state.get("lap", 0)
        self._left_lap: int | None = None
        """The last lap with elements, if `turn` has skipped empty laps since; else None."""
        laps: list[int] = state.get("begins", [0] * len(self._slots))
        self._begins = laps[: len(self._slots)]
        for begins in laps[len(self._slots) :]:
            self._append(begins)
        self.leave_out(state.get("left_out", ()))

    def leave_out(self, streams: Iterable[int]) -> None:
        """Hands out no element of some streams: those of workers on other hosts."""
        self._left_out = sorted(streams)
        for stream in self._left_out:
            self._slots[stream].length = 0

    def _append(self, begins: int) -> None:
        self._slots.append(Feed(self._next))
        self._begins.append(begins)
        self._next += 1

    def add(self, streams: int, homes: dict[int, str | None]) -> None:
        """Adds slots up to `streams`; `homes` is the worker that each stream belongs to."""
        while self._next < streams:
            self._append(0)
        for feed in self._slots:
            feed.home = homes.get(feed.stream, feed.home)

    def extend(self, laps: tuple[int, ...]) -> None:
        """Adds streams that begin in `laps`, as the consumers of a coordinated read have agreed."""
        known, more = list(laps[: self._next]), laps[self._next :]
        if known != self._begins or min(more, default=self._reached_lap) < self._reached_lap:
            raise DataLossError(
                f"service: streams of this coordinated read begin in laps {list(laps)}, but this "
                f"consumer has come to lap {self._reached_lap} with streams that begin in laps "
                f"{self._begins}; the dispatcher has lost what the consumers agreed on"
            )
        for begins in more:
            self._append(begins)
        # They may begin in an empty lap that `turn` has skipped.
        self.lap = min(self.lap, *more) if more else self.lap

    @property
    def _reached_lap(self) -> int:
        """The lap of the last elements that were handed out; laps skipped since do not count."""
        return self.lap if self._left_lap is None else self._left_lap

    @property
    def begins(self) -> list[int]:
        """The laps in which the streams begin."""
        return list(self._begins)

    def is_early(self, feed: Feed) -> bool:
        """Whether a stream has no turn in this lap yet."""
        return self._begins[feed.stream] > self.lap

    def turn(self) -> Feed | None:
        while True:
            lap = self.lap
            for _ in self._slots:
                feed = self._slots[self._turn]
                if not feed.over and not self.is_early(feed):
                    return feed
                self._end_turn()
            later = [begins for begins in self._begins if begins > lap]
            if later and self._left_lap is None:
                self._left_lap = lap
            self.lap = min(later, default=lap)
            if not later:
                return None
            self._turn = 0

    def _end_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._slots)
        self._left = self._block
        self.lap += self._turn == 0

    def available(self) -> Iterator[Feed]:
        return iter([feed for feed in self.upcoming() if not feed.over])

    def upcoming(self) -> Iterator[Feed]:
        self.turn()
        order = self._slots[self._turn :] + self._slots[: self._turn]
        yield from sorted(order, key=self.is_early)

    def find_turn(self, feed: Feed, ordinal: int) -> int:
        """The lap in which an element is handed out."""
        return self._begins[feed.stream] + ordinal // self._block

    def note_taken(self, feed: Feed, count: int) -> None:
        self._left_lap = None
        if self._free:
            self._turn = self._slots.index(feed)
        elif self._slots[self._turn] is feed:
            self._left -= count
        if self._free or self._left <= 0:
            self._end_turn()

    def room(self, feed: Feed) -> int:
        return NOWHERE if self._free else self._left

    def state(self, free: bool) -> dict[str, Any]:
        self.turn()
        state = {
            "open": [feed.state() for feed in self._slots],
            "next": self._next,
            "turn": self._turn,
            "left": self._left,
            "lap": self._reached_lap,
        }
        return {**state, "left_out": self._left_out} if self._left_out else state


class LeasedFeed(Feed):
    """A stream, of which the client may hand out the elements before ordinal `leased`.

    `closed`: the dispatcher leases none of the elements behind that to this client.
    """

    def __init__(self, grant: Grant, ahead: bool = False, closed: bool = False) -> None:
        stream, start, stop = grant.range.stream, grant.range.start, grant.range.stop
        super().__init__(stream, start, NOWHERE if ahead else stop, grant.worker)
        self.leased = stop
        self.closed = closed

    @property
    def held_stop(self) -> int:
        """This client may hand out no element at or beyond this ordinal."""
        return min(self.leased, self.limit)

    @property
    def room(self) -> int:
        """How many elements may be handed out."""
        return max(0, self.held_stop - self.next)

    @property
    def over(self) -> bool:
        """Whether the client has handed out all that it gets of this stream."""
        end = NOWHERE if self.length is None else self.length
        return self.next >= (self.held_stop if self.closed else end)

    @property
    def is_settled(self) -> bool:
        """Whether the client knows where its part of the stream ends."""
        return self.closed or (self.length is not None and self.leased >= self.length)

    def ready(self, anywhere: bool = False) -> bool:
        return self.room > 0 and super().ready(anywhere)

    @property
    def is_dry(self) -> bool:
        """Whether the next element has not arrived; it may be here and not leased yet."""
        return self.next not in self._chunks

    def extend(self, stop: int, ahead: bool) -> None:
        """Adds the elements up to `stop` to the lease."""
        self.leased = stop
        self.stop = NOWHERE if ahead else stop

    def close(self) -> LeasedFeed | None:
        """Ends the feed with its lease, because another client gets the elements behind it.

        Returns the feed to read instead of this one, if more was requested than is leased.
        """
        self.closed = True
        if self._asked <= self.leased:
            self.stop = self.leased
            return None
        feed = LeasedFeed(
            Grant(StreamRange(self.stream, self.next, self.leased), self.home), closed=True
        )
        feed.length, feed.worker = self.length, self.worker
        feed.refused, feed.marks = self.refused, self.marks
        return feed


class LeaseOrder(FeedOrder):
    """What the dispatcher leased: `in_order` of the plan if leases are of pieces, else as granted.

    Pieces are handed out in the local order: nothing of a stream before the client knows that it
    gets nothing more of the streams before it. `ahead`: until then the client requests what lies
    behind a lease, too, because the dispatcher will probably lease it to this client.
    """

    def __init__(self, in_order: bool = False, ahead: bool = False) -> None:
        super().__init__()
        self._in_order = in_order
        self._ahead = ahead
        self._open: list[LeasedFeed] = []
        self._ended: list[Feed] = []
        """Feeds that are over and whose length was not reported yet."""
        self.finished = False
        """Whether the dispatcher leases nothing more to this client."""
        self._marks: defaultdict[int, FeedMarks] = defaultdict(FeedMarks)
        """By stream, if the plan is not in pieces: it has few streams, and each lease is a feed."""

    def grant(self, grants: Iterable[Grant], ends: dict[int, int]) -> None:
        """Adds what the dispatcher leased; `ends` are the known lengths of streams."""
        for grant in grants:
            self._grant(grant, ends.get(grant.range.stream))
        if self._in_order:
            self._open.sort(key=lambda feed: (feed.stream, feed.next))

    def _grant(self, grant: Grant, length: int | None) -> None:
        at = grant.range
        for feed in self._open if self._in_order else ():
            if feed.stream == at.stream and feed.leased == at.start and not feed.closed:
                feed.extend(at.stop, self._ahead)
                return
        self._close(lambda feed: feed.stream == at.stream and feed.leased < at.start)
        # A lease that begins within a stream may be followed by the lease of another client.
        ahead = self._in_order and self._ahead and at.start == 0
        feed = LeasedFeed(grant, ahead, closed=not self._in_order)
        feed.length = length
        if not self._in_order:
            feed.marks = self._marks[at.stream]
        self._open.append(feed)

    def answer(self, grants: tuple[Grant, ...], finished: bool, ends: dict[int, int]) -> None:
        """Adds a reply of the dispatcher.

        It leases the lowest elements that this client can get. So the client gets nothing more of
        lower ones, and nothing more at all once the dispatcher has `finished`.
        """
        if grants:
            first = (grants[0].range.stream, grants[0].range.start)
            self._close(lambda feed: (feed.stream, feed.leased) < first)
        self.grant(grants, ends)
        if finished:
            self.finished = True
            self._close(lambda feed: True)

    def _close(self, which: Callable[[LeasedFeed], bool]) -> None:
        for index, feed in enumerate(self._open):
            if not feed.closed and which(feed):
                instead = feed.close()
                if instead is not None:
                    self._dropped.append(feed)
                    self._open[index] = instead

    def turn(self) -> LeasedFeed | None:
        while self._open and self._open[0].over:
            self._ended.append(self._open.pop(0))
        return self._open[0] if self._open else None

    def pop_known(self) -> list[Feed]:
        """Open feeds and, once each, feeds that are over: they may know the length of a stream."""
        ended, self._ended = self._ended, []
        return [*ended, *self._open]

    def available(self) -> Iterator[Feed]:
        self.turn()
        return iter(self._open)

    def upcoming(self) -> Iterator[Feed]:
        yield from list(self._open)

    def find_turn(self, feed: Feed, ordinal: int) -> int:
        return feed.stream if self._in_order else 0

    def room(self, feed: Feed) -> int:
        assert isinstance(feed, LeasedFeed)
        return feed.room

    @property
    def left(self) -> int:
        """The most elements that can be handed out before the dispatcher leases more."""
        left = 0
        for feed in self._open:
            left += feed.room
            if not feed.is_settled:
                break
        return left

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """The ranges of leases that were not handed out: stream, start, stop."""
        for feed in self._open:
            start, end = feed.next, feed.held_stop
            for ahead, stop in [*sorted(feed.ahead.items()), (end, end)] if feed.room else ():
                if start < ahead:
                    yield feed.stream, start, ahead
                start = max(start, stop)


_BEATS = 2
"""The limit is this many heartbeats ahead: time for an agreement, so that no consumer stops."""


def agreed_laps(streams: Iterable[StreamInfo]) -> tuple[int, ...]:
    """The laps in which streams begin, without streams that consumers have not agreed on yet."""
    return tuple(info.begins for info in streams if info.begins != UNDECIDED)


class Laps:
    """The laps of one consumer. A caller that shares it between threads guards it by a lock."""

    def __init__(self, opened: OpenIterationReply, lap: int) -> None:
        self.lap = lap
        """The last lap that was entered."""
        self.limit: int | None = None
        """The first lap that must not be entered; AT_END if the consumer has read all laps."""
        self.begins: tuple[int, ...] = ()
        """The laps in which the streams begin, as far as they are known."""
        self.joining = False
        self._before = lap
        self._pace = 0
        self.apply_reply(opened)

    def apply_reply(self, news: ClientHeartbeatReply | OpenIterationReply) -> None:
        """Applies news of the dispatcher; promises a limit if streams are joining."""
        if news.streams is not None:
            self.begins = agreed_laps(news.streams)
        self.joining = news.joining
        if self.joining and self.limit is None:
            self.limit = self.lap + 1 + _BEATS * self._pace

    def note_heartbeat(self) -> None:
        """Notes how many laps were entered since the last heartbeat."""
        self._pace, self._before = self.lap - self._before, self.lap

    def enter(self, lap: int) -> bool:
        """Enters a lap; False if the limit forbids it."""
        if self.limit is not None and lap >= self.limit:
            return False
        self.lap = lap
        return True

    def release(self) -> None:
        """Lifts the limit, unless streams are joining. The caller has applied all news."""
        if not self.joining and self.limit != AT_END:
            self.limit = None

    def try_end(self) -> bool:
        """Returns whether the consumer may end: not while a limit holds, as streams may begin."""
        if self.limit is None:
            self.limit = AT_END
        return self.limit == AT_END
