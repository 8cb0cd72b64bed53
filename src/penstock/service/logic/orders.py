"""Orders: which stream's elements a client hands out next.

An order depends on the lengths of the streams and on nothing else: not on who is asked, not on
what arrives first. `upcoming` opens streams as far as somebody looks ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from penstock.service.logic.feeds import NOWHERE, Feed

CYCLE = 16
"""How many streams are read in turns."""

BLOCK = 32
"""How many elements of each, in a turn."""


class InSequence:
    """One stream after the other: the local order, where streams are consecutive pieces.

    `length` is that of each stream, where it is known beforehand.
    """

    def __init__(
        self, streams: int, length: int | None = None, state: dict[str, Any] | None = None
    ) -> None:
        self._streams = streams
        self._length = length
        state = state or {"open": [], "next": 0}
        self._next: int = state["next"]
        self._open = deque(Feed.of(feed) for feed in state["open"])
        for feed in self._open:
            feed.length = length

    def turn(self) -> Feed | None:
        """The feed to hand out from; None at the end."""
        while self._open and self._open[0].over:
            self._open.popleft()
        return self._open[0] if self._open else self._opened()

    def _opened(self) -> Feed | None:
        if 0 <= self._streams <= self._next:
            return None
        feed = Feed(self._next)
        feed.length = self._length
        self._next += 1
        self._open.append(feed)
        return feed

    def any(self) -> Iterator[Feed]:
        """Where the order is free: every open feed."""
        return iter([feed for feed in self._open if not feed.over])

    def upcoming(self) -> Iterator[Feed]:
        """The feeds in the order in which they will be needed."""
        yield from list(self._open)
        while (feed := self._opened()) is not None:
            yield feed

    def took(self, feed: Feed, count: int) -> None:
        pass

    def room(self, feed: Feed) -> int:
        """How many elements of a feed may be handed out in one go."""
        return NOWHERE

    def state(self, free: bool) -> dict[str, Any]:
        """What to go on from; `free` if feeds behind the first were handed out from, too."""
        open_ = [feed for feed in self._open if not feed.over]
        if free:
            return {"open": [feed.state() for feed in open_], "next": self._next}
        first = open_[0] if open_ else None
        if first is None:
            return {"open": [], "next": self._next}
        return {"open": [first.state()], "next": first.stream + 1}


class InTurns:
    """Several streams at once, `block` elements of each in turn; one that ends gives its slot on.

    With a `cycle` of 0 every stream has a slot of its own, and `add` tells how many there are.
    Where the order is `free`, a turn is whatever is there.
    """

    def __init__(
        self,
        streams: int,
        cycle: int = CYCLE,
        block: int = BLOCK,
        state: dict[str, Any] | None = None,
        free: bool = False,
    ) -> None:
        self._streams = streams
        self._free = free
        self._block = block
        state = state or {"open": [], "next": 0, "turn": 0, "left": block}
        self._next: int = state["next"]
        self._turn: int = state["turn"]
        self._left: int = state["left"]
        self._slots: list[Feed | None] = [f if f is None else Feed.of(f) for f in state["open"]]
        while len(self._slots) < cycle and (feed := self._fresh()) is not None:
            self._slots.append(feed)

    def _fresh(self) -> Feed | None:
        if 0 <= self._streams <= self._next:
            return None
        self._next += 1
        return Feed(self._next - 1)

    def add(self, streams: int, homes: dict[int, str | None]) -> None:
        """There are now `streams` of them, each with a slot; `homes` says whom to ask."""
        self._streams = max(self._streams, streams)
        while (feed := self._fresh()) is not None:
            self._slots.append(feed)
        for feed in self._slots:
            if feed is not None:
                feed.home = homes.get(feed.stream, feed.home)

    def turn(self) -> Feed | None:
        for _ in range(len(self._slots) + 1):
            if not self._slots:
                return None
            feed = self._slots[self._turn]
            if feed is not None and not feed.over:
                return feed
            self._slots[self._turn] = self._fresh()
            if self._slots[self._turn] is None:
                self._pass_on()
        return None

    def _pass_on(self) -> None:
        self._turn = (self._turn + 1) % len(self._slots)
        self._left = self._block

    def any(self) -> Iterator[Feed]:
        return iter([feed for feed in self.upcoming() if not feed.over])

    def upcoming(self) -> Iterator[Feed]:
        self.turn()
        order = self._slots[self._turn :] + self._slots[: self._turn]
        yield from (feed for feed in order if feed is not None)

    def took(self, feed: Feed, count: int) -> None:
        if self._free:
            self._turn = self._slots.index(feed)
        elif self._slots[self._turn] is feed:
            self._left -= count
        if self._free or self._left <= 0:
            self._pass_on()

    def room(self, feed: Feed) -> int:
        return NOWHERE if self._free else self._left

    def state(self, free: bool) -> dict[str, Any]:
        self.turn()
        return {
            "open": [None if feed is None else feed.state() for feed in self._slots],
            "next": self._next,
            "turn": self._turn,
            "left": self._left,
        }


class AsLeased:
    """What the dispatcher handed out, in whichever order it comes."""

    def __init__(self) -> None:
        self._open: list[Feed] = []
        self._ended: list[Feed] = []
        self.finished = False
        """Nothing more will be handed out."""

    def grant(self, feed: Feed) -> None:
        self._open.append(feed)

    def turn(self) -> Feed | None:
        self._drop()
        return self._open[0] if self._open else None

    def _drop(self) -> None:
        """Forgets what is over; where streams end is kept until somebody asks."""
        self._ended += [feed for feed in self._open if feed.over and feed.length is not None]
        self._open = [feed for feed in self._open if not feed.over]

    def known(self) -> list[Feed]:
        """Feeds that may know where their stream ends, once each."""
        ended, self._ended = self._ended, []
        return ended + self._open

    def any(self) -> Iterator[Feed]:
        self.turn()
        return iter(self._open)

    def upcoming(self) -> Iterator[Feed]:
        yield from self._open

    def took(self, feed: Feed, count: int) -> None:
        pass

    def room(self, feed: Feed) -> int:
        return NOWHERE

    @property
    def left(self) -> int:
        """How many elements were leased and not handed out, at most."""
        return sum(feed.limit - feed.next for feed in self._open)

    @property
    def feeds(self) -> list[Feed]:
        return [feed for feed in self._open if not feed.over]

    def state(self, free: bool) -> dict[str, Any]:
        return {}


Order = InSequence | InTurns | AsLeased
