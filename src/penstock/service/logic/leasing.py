"""Leasing: what the dispatcher leased to a client, in the order in which it is handed out.

Pieces of a plan are handed out in the local order: nothing of a stream before the client knows
that it gets nothing more of those before it. Until then workers make what stands behind a lease
ahead, because the client will probably get it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.service.logic.feeds import NOWHERE, Feed
from penstock.service.protocol.messages import Address, Grant


class LeasedFeed(Feed):
    """A stream from `start` on, of which the client may hand out what stands before `leased`.

    `closed`: the client gets nothing behind that.
    """

    def __init__(self, grant: Grant, ahead: bool = False, closed: bool = False) -> None:
        stream, start, stop = grant.address.stream, grant.address.start, grant.address.stop
        super().__init__(stream, start, NOWHERE if ahead else stop, grant.worker)
        self.leased = stop
        self.closed = closed

    @property
    def held(self) -> int:
        return min(self.leased, self.limit)

    @property
    def room(self) -> int:
        """How many elements may be handed out."""
        return max(0, self.held - self.next)

    @property
    def over(self) -> bool:
        """Whether the client has handed out all that it gets."""
        end = NOWHERE if self.length is None else self.length
        return self.next >= (self.held if self.closed else end)

    @property
    def is_settled(self) -> bool:
        """Whether the client knows where its part of the stream ends."""
        return self.closed or (self.length is not None and self.leased >= self.length)

    def ready(self, anywhere: bool = False) -> bool:
        return self.room > 0 and super().ready(anywhere)

    @property
    def is_dry(self) -> bool:
        """Whether the next element has not arrived; it may be here and not leased yet."""
        return self.next not in self._pieces

    def extend(self, stop: int, ahead: bool) -> None:
        """The client was leased what follows, too."""
        self.leased = stop
        self.stop = NOWHERE if ahead else stop

    def close(self) -> LeasedFeed | None:
        """Another client has what stands behind. Gives what to read instead of this feed, if more
        of it was asked for than this client gets."""
        self.closed = True
        if self._asked <= self.leased:
            self.stop = self.leased
            return None
        return self._without_rest()

    def _without_rest(self) -> LeasedFeed:
        feed = LeasedFeed(
            Grant(Address(self.stream, self.next, self.leased), self.home), closed=True
        )
        feed.length, feed.worker = self.length, self.worker
        feed.refused = self.refused
        for mark in self._marks:
            feed.marked(mark)
        return feed


class AsLeased:
    """Leases; `in_order` if they are of pieces, in the order of the plan, else as they come.

    `ahead`: what stands behind a lease may be asked for.
    """

    def __init__(self, in_order: bool = False, ahead: bool = False) -> None:
        self._in_order = in_order
        self._ahead = ahead
        self._open: list[LeasedFeed] = []
        self._ended: list[Feed] = []
        self._dropped: list[Feed] = []
        self.finished = False
        """Nothing more will be handed out."""

    def grant(self, grants: Iterable[Grant], ends: dict[int, int]) -> None:
        """What the dispatcher leased, in its order; `ends` are lengths of streams."""
        for grant in grants:
            self._grant(grant, ends.get(grant.address.stream))
        if self._in_order:
            self._open.sort(key=lambda feed: (feed.stream, feed.next))

    def _grant(self, grant: Grant, length: int | None) -> None:
        at = grant.address
        for feed in self._open if self._in_order else ():
            if feed.stream == at.stream and feed.leased == at.start and not feed.closed:
                feed.extend(at.stop, self._ahead)
                return
        self._close(lambda feed: feed.stream == at.stream and feed.leased < at.start)
        # In the midst of a stream, others may be at it.
        ahead = self._in_order and self._ahead and at.start == 0
        feed = LeasedFeed(grant, ahead, closed=not self._in_order)
        feed.length = length
        self._open.append(feed)

    def answer(self, grants: tuple[Grant, ...], finished: bool, ends: dict[int, int]) -> None:
        """The dispatcher leased the lowest that this client can get: of what is lower, and of
        everything once it has `finished`, the client gets no more than it has."""
        if grants:
            first = (grants[0].address.stream, grants[0].address.start)
            self._close(lambda feed: (feed.stream, feed.leased) < first)
        self.grant(grants, ends)
        if finished:
            self.finished = True
            self._close(lambda feed: True)

    def _close(self, which: Callable[[LeasedFeed], bool]) -> None:
        for place, feed in enumerate(self._open):
            if not feed.closed and which(feed):
                instead = feed.close()
                if instead is not None:
                    self._dropped.append(feed)
                    self._open[place] = instead

    def turn(self) -> Feed | None:
        while self._open and self._open[0].over:
            self._ended.append(self._open.pop(0))
        return self._open[0] if self._open else None

    def known(self) -> list[Feed]:
        """Feeds that may know where their stream ends, once each."""
        ended, self._ended = self._ended, []
        return [*ended, *self._open]

    def dropped(self) -> list[Feed]:
        """Feeds that others took the place of, once each."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def freed(self) -> tuple[int, int]:
        return 0, 0

    def any(self) -> Iterator[Feed]:
        self.turn()
        return iter(self._open)

    def upcoming(self) -> Iterator[Feed]:
        yield from list(self._open)

    def took(self, feed: Feed, count: int) -> None:
        pass

    def room(self, feed: Feed) -> int:
        assert isinstance(feed, LeasedFeed)
        return feed.room

    @property
    def left(self) -> int:
        """How many elements can be handed out before the dispatcher leases more, at most."""
        left = 0
        for feed in self._open:
            left += feed.room
            if not feed.is_settled:
                break
        return left

    @property
    def feeds(self) -> list[Feed]:
        return [feed for feed in self._open if feed.room]

    def state(self, free: bool) -> dict[str, Any]:
        return {}
