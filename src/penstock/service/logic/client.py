"""`Reading`: one client's way through one iteration, from the dispatcher's first answer on.

Which order it reads in follows from the form of the work. Its state holds addresses only, so it
fits other workers, another dispatcher, and, for leased elements, another number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from penstock.plan.shape import Shape
from penstock.service.logic.feeds import Failure, Feed, Piece, spans
from penstock.service.logic.fetching import Fetcher, Order
from penstock.service.logic.interleave_order import MOST_INPUTS, InterleaveOrder
from penstock.service.logic.laps import agreed_laps
from penstock.service.logic.orders import LeaseOrder, RoundRobinOrder, SequentialOrder
from penstock.service.logic.ranges import Ranges
from penstock.service.logic.request_sizes import Limits
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    Address,
    Grant,
    LeaseReply,
    OpenIterationReply,
    StreamInfo,
    Work,
)

_OWNED = ("whole", "shard", "share")
"""Forms whose streams belong to workers."""


_LEASE_ROWS = 1 << 13


def _now(make: Callable[[], Any]) -> Any:
    return make()


class Reading:
    """The reader of an iteration, with the leases and the state around it."""

    def __init__(
        self,
        opened: OpenIterationReply,
        shape: Shape,
        limits: Limits,
        ordered: bool = True,
        state: dict[str, Any] | None = None,
        consumer: int = -1,
    ) -> None:
        work = opened.work
        self.leased = opened.leased
        self.shared_end = False
        """Whether the dispatcher said at the end that there were elements, whoever got them."""
        self.form = work.form
        self.extendable = work.form == "whole" and work.consumers > 0
        """Whether streams may be added to those of a coordinated read."""
        self._elements = limits.elements
        bound = work.form != "random"
        # Copies come as they come. A state of leases tells what a client holds in the order in
        # which it would hand it out, and rounds are the same for all.
        fixed = self.leased or work.consumers > 0
        ordered = fixed or (ordered and work.form != "whole")
        length = _length(work, consumer, shape)
        split = work.form == "split" and ordered and not self.leased
        self._turns = shape.turns if split else None
        order = self._order(opened, length, (state or {}).get("order"), not ordered)
        self.fetcher = Fetcher(order, limits, bound, ordered, work.kept)
        self._streams = 0
        self._consumed: dict[int, Ranges] = {}
        self._changed: set[int] = set()
        self._copied: dict[int, Ranges] = {}
        """What was consumed, of all streams but those that have changed since."""
        self._ends: dict[int, int] = {}
        self._new_ends: dict[int, int] = {}
        self._unread: set[int] = set()
        """Parts of files that could not be opened."""
        self._handed: list[Address] = []
        self._report: list[Address] = []
        self._rate = 0.0
        self._total = 0
        self._taken: float | None = None
        self._asked = False
        self._retry = 0.0
        self.streams(opened.streams)
        if self.leased and state is not None:
            self._restore(state, opened.held)
        for span in (state or {}).get("first", ()):
            self.fetcher.promise(*span)

    def _order(
        self,
        opened: OpenIterationReply,
        length: int | None,
        state: dict[str, Any] | None,
        free: bool,
    ) -> Order:
        work = opened.work
        if opened.leased:
            return self._as_leased()
        if work.form in _OWNED:
            block = 1 if work.consumers else 32
            return RoundRobinOrder(block, state, free)
        if self._turns is not None:
            most = 1 if self._elements is not None else MOST_INPUTS
            return InterleaveOrder(self._turns, work.streams, most, state)
        return SequentialOrder(work.streams, length, state, free)

    def _as_leased(self) -> LeaseOrder:
        return LeaseOrder(in_order=self.form == "split", ahead=self._elements is None)

    @property
    def takes_turns(self) -> bool:
        """Whether elements of several inputs follow each other in turn."""
        return self._turns is not None

    def streams(self, streams: tuple[StreamInfo, ...]) -> None:
        """The streams that belong to workers, as far as they are known now."""
        homes = {info.stream: info.worker for info in streams}
        order = self.fetcher.order
        if isinstance(order, RoundRobinOrder) and self.form in _OWNED and homes:
            if self.extendable:
                laps = agreed_laps(streams)
                order.extend(laps)
                self._streams = len(laps)
            else:
                self._streams = max(self._streams, max(homes) + 1)
            order.add(self._streams, homes)

    @property
    def lap(self) -> int:
        """Coordinated reads: the lap of the element that is handed out next."""
        order = self.fetcher.order
        if not isinstance(order, RoundRobinOrder):
            return 0
        order.turn()
        return order.lap

    # Leases

    def _restore(self, state: dict[str, Any], held: Iterable[Address]) -> None:
        for stream, ranges in state["consumed"].items():
            for start, stop in ranges:
                self._consume(int(stream), start, stop)
        self._ends = {int(stream): length for stream, length in state["ended"].items()}
        order = self.fetcher.order
        assert isinstance(order, LeaseOrder)
        order.grant(map(Grant, held), self._ends)

    def _consume(self, stream: int, start: int, stop: int) -> None:
        self._consumed.setdefault(stream, Ranges()).add(start, stop)
        self._changed.add(stream)

    def granted(self, leased: LeaseReply, now: float) -> None:
        """What the dispatcher leased."""
        order = self.fetcher.order
        assert isinstance(order, LeaseOrder)
        self._asked = False
        self._retry = now + leased.retry
        order.answer(leased.grants, leased.finished, self._ends)
        self.fetcher.hungry = True
        self.shared_end = self.shared_end or leased.shared

    def unanswered(self) -> None:
        """Leases that were asked for may not come, and are asked for again."""
        self._asked = False

    def forget_leases(self) -> None:
        """Others may have what this client held, but did not hand out."""
        self.fetcher.restart(self._as_leased())
        self._asked, self._retry = False, 0.0

    def want(self, now: float) -> int:
        """How many elements to ask the dispatcher for now; 0 for none."""
        order = self.fetcher.order
        if not isinstance(order, LeaseOrder) or self._asked or order.finished or now < self._retry:
            return 0
        # No more than it has shown to need: what one holds and does not use, others wait for.
        soon = min(self._total, int(self._rate * timing.LEASED_WORK), _LEASE_ROWS)
        want = max(soon, 2 * len(self.fetcher.workers), 1)
        if self._elements is not None:
            want = min(want, self._elements)
        if order.left * 2 > want:
            return 0
        self._asked = True
        return want

    @property
    def retry(self) -> float:
        """When leases may be asked for again."""
        return self._retry

    # Handing out

    def take(self, count: int, now: float) -> Piece | None:
        """The next elements (or a `Failure`); None if nothing is here."""
        while (taken := self._take(count, now)) is not None:
            if not self._is_repeated(*taken):
                return taken[2]
        return None

    def _is_repeated(self, feed: Feed, start: int, piece: Piece) -> bool:
        """Whether a part of a file could not be opened, as the part before it: a file that is
        missing is one error. Where parts are compared, a part behind such a one has nothing."""
        if self.replays or start or feed.began is None or not isinstance(piece, Failure):
            return False
        self._unread.add(feed.stream)
        return feed.began > 0 and feed.stream - 1 in self._unread

    def _take(self, count: int, now: float) -> tuple[Feed, int, Piece] | None:
        self._settle()
        if self.leased:
            count = max(1, min(count, int(self._rate * timing.UNREPORTED_WORK)))
        taken = self.fetcher.take(count)
        if taken is None:
            return None
        feed, start, piece = taken
        if self.leased:
            self._note_end(feed)
            self._handed.append(Address(feed.stream, start, start + len(piece)))
            self._pace(len(piece), now)
        return taken

    def take_turns(self, count: int) -> list[Piece]:
        """The next elements in parts (or a `Failure`); empty if nothing is here."""
        assert isinstance(self.fetcher.order, InterleaveOrder)
        return self.fetcher.take_turns(self.fetcher.order, count)

    def _pace(self, count: int, now: float) -> None:
        """How fast the user consumes: elements between two takes."""
        self._total += count
        if self._taken is not None:
            rate = count / max(now - self._taken, 1e-6)
            self._rate = rate if not self._rate else 0.5 * (self._rate + rate)
        self._taken = now

    def _settle(self) -> None:
        """Whoever takes more has consumed what it took before."""
        for address in self._handed:
            self._consume(address.stream, address.start, address.stop)
        self._report += self._handed
        self._handed = []

    def unused(self, count: int) -> None:
        """The last elements of what was handed out last were not used: others may have them."""
        self._handed = _without(self._handed, count)

    def report(
        self, everything: bool = False, unused: int = 0
    ) -> tuple[list[Address], dict[int, int]]:
        """What to tell the dispatcher: addresses consumed, and ends seen, since the last time.

        `everything` counts what was handed out last, too, but for the elements at its end that are
        not used yet: a saved state vouches for it.
        """
        used = _without(self._handed, unused) if everything else []
        report, self._report = self._report + used, []
        order = self.fetcher.order
        for feed in order.known() if isinstance(order, LeaseOrder) else ():
            self._note_end(feed)
        ends, self._new_ends = self._new_ends, {}
        return report, ends

    def _note_end(self, feed: Feed) -> None:
        if feed.length is not None and feed.stream not in self._ends:
            self._ends[feed.stream] = self._new_ends[feed.stream] = feed.length

    @property
    def over(self) -> bool:
        """Whether all was handed out, as far as is known."""
        order = self.fetcher.order
        if isinstance(order, LeaseOrder) and not order.finished:
            return False
        return self.fetcher.over

    @property
    def begun(self) -> bool:
        """Whether any stream is known; before the first worker comes there is none."""
        return self.form not in _OWNED or self._streams > 0

    @property
    def replays(self) -> bool:
        """Whether what comes next follows from the state, without being settled in it."""
        return not self.leased and self.fetcher.ordered

    def sure(self) -> int:
        """How many elements come next for certain, whoever else reads and whatever arrives."""
        if not self.leased:
            pledge = self.fetcher.pledge()
            return 0 if pledge is None else pledge[2] - pledge[1]
        feed = self.fetcher.order.turn()
        if feed is None:
            return 0
        # A lease may lie behind the end of its stream, and the next element then in another one.
        known = self.form == "random" or feed.length is not None
        left = feed.held - feed.next
        return left if known else min(feed.here, left)

    def state(self, later: Callable[[Callable[[], Any]], Any] = _now) -> dict[str, Any]:
        """Where the reading is; what was handed out counts.

        `later` gets what makes the parts that grow with all that was read, and may call it later.
        """
        order = self.fetcher.order
        if not isinstance(order, LeaseOrder):
            if isinstance(order, RoundRobinOrder) and self.extendable:
                # As known when somebody keeps the state: it may count elements behind this one.
                return {"order": {**order.state(False), "begins": later(lambda: order.begins)}}
            if self.fetcher.ordered:
                return {"order": order.state(False)}
            pledge = self.fetcher.pledge()
            return {"order": order.state(True), "first": [] if pledge is None else [list(pledge)]}
        for stream in self._changed:
            self._copied[stream] = self._consumed[stream].copy()
        self._changed.clear()
        return {
            "consumed": later(partial(_consumed, dict(self._copied), tuple(self._handed))),
            "held": [list(span) for span in spans(order.feeds)],
            "ended": later(partial(_named, dict(self._ends))),
        }


def _without(handed: Iterable[Address], count: int) -> list[Address]:
    """Addresses without their last `count` elements."""
    kept = list(handed)
    while count > 0 and kept:
        last = kept.pop()
        stop = max(last.start, last.stop - count)
        count -= last.stop - stop
        if stop > last.start:
            kept.append(Address(last.stream, last.start, stop))
    return kept


def _consumed(ranges: dict[int, Ranges], handed: Iterable[Address]) -> dict[str, Any]:
    for address in handed:
        ranges[address.stream] = ranges.get(address.stream, Ranges()).copy()
        ranges[address.stream].add(address.start, address.stop)
    return {str(stream): [list(pair) for pair in found] for stream, found in ranges.items()}


def _named(ends: dict[int, int]) -> dict[str, int]:
    return {str(stream): length for stream, length in ends.items()}


def _length(work: Work, consumer: int, shape: Shape) -> int | None:
    """How many elements this client gets of a plan whose length is known."""
    if work.form != "random" or shape.length < 0:
        return None
    if work.consumers:
        return max(0, -(-(shape.length - consumer) // work.consumers))
    return shape.length
