"""The client: reads one iteration from the first reply to the end; its saved states and leases.

The form of the work decides the order of the elements. A state holds ranges only, so it fits
other workers, another dispatcher and, for leased elements, another number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.plan.shape import OWNED_FORMS, WHOLE_FILE, Form, Shape
from penstock.service.logic.feeds import LEAST_AHEAD, Failure, Feed, FeedChunk, Limits
from penstock.service.logic.fetching import Fetcher, Order
from penstock.service.logic.interleave_order import MOST_INPUTS, InterleaveOrder
from penstock.service.logic.leases import Ranges
from penstock.service.logic.orders import LeaseOrder, RoundRobinOrder, SequentialOrder, agreed_laps
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    Grant,
    Intervals,
    LeaseReply,
    OpenIterationReply,
    StreamInfo,
    StreamRange,
    Work,
)

_CALL = "service.merge_states"


def _call_now(make: Callable[[], Any]) -> Any:
    return make()


class Reading:
    """The reader of an iteration: its `fetcher`, its `requests` for leases, and its saved state."""

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
        self.form = work.form
        self.extendable = work.form == Form.WHOLE and work.consumers > 0
        """Whether streams may be added to those of a coordinated read."""
        self.shared_end = False
        """Whether the dispatcher said at the end that other readers got elements, too."""
        self._elements = limits.elements
        keeps_order = _keeps_order(opened, ordered)
        merges_inputs = work.form == Form.SPLIT and keeps_order and not opened.leased
        self._turns = shape.turns if merges_inputs else None
        self.fetcher = Fetcher(
            self._make_order(opened, shape, consumer, state, free=not keeps_order),
            limits,
            bound=work.form != Form.RANDOM,
            ordered=keeps_order,
            kept=work.kept,
        )
        self._streams = 0
        """How many streams of workers are known."""
        self._unread: set[int] = set()
        """Parts of files that could not be opened."""
        self._record = LeaseRecord()
        self.requests = LeaseRequests(opened.intervals, limits.elements)
        self.set_streams(opened.streams)
        if state is not None:
            self._restore(state, opened.held)
        elif self.form == Form.SHARD:
            self._leave_out_parts(opened.streams)

    def _make_order(
        self,
        opened: OpenIterationReply,
        shape: Shape,
        consumer: int,
        state: dict[str, Any] | None,
        free: bool,
    ) -> Order:
        work, saved = opened.work, (state or {}).get("order")
        if opened.leased:
            return self._lease_order()
        if work.form in OWNED_FORMS:
            return RoundRobinOrder(1 if work.consumers else 32, saved, free)
        if self._turns is not None:
            most = 1 if self._elements is not None else MOST_INPUTS
            return InterleaveOrder(self._turns, work.streams, most, saved)
        return SequentialOrder(work.streams, _length(work, consumer, shape), saved, free)

    def _lease_order(self) -> LeaseOrder:
        return LeaseOrder(in_order=self.form == Form.SPLIT, ahead=self._elements is None)

    def _restore(self, state: dict[str, Any], held: Iterable[StreamRange]) -> None:
        if self.leased:
            self._record.restore(state)
            order = self.fetcher.order
            assert isinstance(order, LeaseOrder)
            order.grant(map(Grant, held), self._record.ends)
        for span in state.get("first", ()):
            self.fetcher.promise(*span)

    def set_streams(self, streams: tuple[StreamInfo, ...]) -> None:
        """Adds streams of workers that the dispatcher has announced."""
        homes = {info.stream: info.worker for info in streams}
        order = self.fetcher.order
        if isinstance(order, RoundRobinOrder) and self.form in OWNED_FORMS and homes:
            if self.extendable:
                laps = agreed_laps(streams)
                order.extend(laps)
                self._streams = len(laps)
            else:
                self._streams = max(self._streams, max(homes) + 1)
            order.add(self._streams, homes)

    def _leave_out_parts(self, streams: tuple[StreamInfo, ...]) -> None:
        """Leaves out the parts that the dispatcher has not listed for this client."""
        order = self.fetcher.order
        if isinstance(order, RoundRobinOrder):
            order.leave_out({*range(self._streams)} - {info.stream for info in streams})

    @property
    def lap(self) -> int:
        """Coordinated reads: the lap of the element that is handed out next."""
        order = self.fetcher.order
        if not isinstance(order, RoundRobinOrder):
            return 0
        order.turn()
        return order.lap

    # Leases

    def add_grants(self, leased: LeaseReply, now: float) -> None:
        """Adds what the dispatcher leased."""
        order = self.fetcher.order
        assert isinstance(order, LeaseOrder)
        self.requests.apply_reply(leased, order.left, now)
        order.answer(leased.grants, leased.finished, self._record.ends)
        self.fetcher.hungry = True
        self.shared_end = self.shared_end or leased.shared

    def forget_leases(self) -> None:
        """Drops leases that were not handed out: the dispatcher may lease them to other readers."""
        self.fetcher.restart(self._lease_order())
        self.requests.reset()

    def want(self, now: float) -> int:
        """How many elements to ask the dispatcher for now; 0 for none."""
        order = self.fetcher.order
        if not isinstance(order, LeaseOrder) or order.finished:
            return 0
        return self.requests.want(order.left, len(self.fetcher.workers), now)

    # Handing out

    def take(self, count: int, now: float) -> FeedChunk | None:
        """The next elements (or a `Failure`); None if none has arrived."""
        while (taken := self._take(count, now)) is not None:
            if not self._is_repeated(*taken):
                return taken[2]
        return None

    def _is_repeated(self, feed: Feed, start: int, chunk: FeedChunk) -> bool:
        """Whether this failure repeats the failure of the part before it.

        A file that cannot be opened is one error, although each of its parts fails. Where the
        order is kept, `SequentialOrder` compares the parts instead.
        """
        if self.replays or start or feed.began is None or not isinstance(chunk, Failure):
            return False
        self._unread.add(feed.stream)
        return feed.began > 0 and feed.stream - 1 in self._unread

    def _take(self, count: int, now: float) -> tuple[Feed, int, FeedChunk] | None:
        self._record.settle()
        if self.leased:
            # The dispatcher leases what is not reported again if this client is lost.
            count = max(1, min(count, self.requests.pace.count_in(timing.UNREPORTED_WORK)))
        taken = self.fetcher.take(count)
        if taken is not None and self.leased:
            feed, start, chunk = taken
            self._record.note_end(feed)
            self._record.hand_out(StreamRange(feed.stream, start, start + len(chunk)))
            self.requests.pace.note(len(chunk), now)
        return taken

    def take_turns(self, count: int) -> list[FeedChunk]:
        """The next elements in parts (or a `Failure`); empty if none has arrived."""
        assert isinstance(self.fetcher.order, InterleaveOrder)
        return self.fetcher.take_turns(self.fetcher.order, count)

    def give_back(self, count: int) -> None:
        """The caller has not used the last `count` elements: other readers may get them."""
        self._record.return_last(count)

    def report(
        self, everything: bool = False, unused: int = 0
    ) -> tuple[list[StreamRange], dict[int, int]]:
        """What to report to the dispatcher: ranges consumed, and ends seen, since the last call.

        `everything` includes what was handed out last, except its last `unused` elements: a saved
        state vouches for it.
        """
        order = self.fetcher.order
        for feed in order.pop_known() if isinstance(order, LeaseOrder) else ():
            self._record.note_end(feed)
        return self._record.report(everything, unused)

    @property
    def over(self) -> bool:
        """Whether all was handed out, as far as is known."""
        order = self.fetcher.order
        if isinstance(order, LeaseOrder) and not order.finished:
            return False
        return self.fetcher.over

    @property
    def begun(self) -> bool:
        """Whether any stream is known; before the first worker joins there is none."""
        return self.form not in OWNED_FORMS or self._streams > 0

    @property
    def replays(self) -> bool:
        """Whether what comes next follows from the state alone."""
        return not self.leased and self.fetcher.ordered

    def sure(self) -> int:
        """How many elements come next, no matter what other readers do and what arrives first."""
        order = self.fetcher.order
        if not isinstance(order, LeaseOrder):
            pledge = self.fetcher.pledge()
            return 0 if pledge is None else pledge[2] - pledge[1]
        feed = order.turn()
        if feed is None:
            return 0
        # A lease may reach beyond the end of its stream; the next element is then in another one.
        known = self.form == Form.RANDOM or feed.length is not None
        left = feed.held_stop - feed.next
        return left if known else min(feed.arrived_count, left)

    def state(self, later: Callable[[Callable[[], Any]], Any] = _call_now) -> dict[str, Any]:
        """What to continue from; what was handed out counts as consumed.

        `later` gets functions that make the parts that grow with all that was read, and may call
        them later.
        """
        order = self.fetcher.order
        if isinstance(order, LeaseOrder):
            return {**self._record.state(later), "held": list(map(list, order.spans()))}
        if isinstance(order, RoundRobinOrder) and self.extendable:
            # Read when the state is kept: by then it may count elements of streams added later.
            return {"order": {**order.state(False), "begins": later(lambda: order.begins)}}
        if self.fetcher.ordered:
            return {"order": order.state(False)}
        pledge = self.fetcher.pledge()
        return {"order": order.state(True), "first": [] if pledge is None else [list(pledge)]}


def _keeps_order(opened: OpenIterationReply, ordered: bool) -> bool:
    """Whether elements are handed out in a fixed order.

    Copies of a plan ("whole") are handed out as they arrive. A state of leases lists what a client
    holds in the order in which it would hand it out, and rounds are the same for all consumers.
    """
    fixed = opened.leased or opened.work.consumers > 0
    return fixed or (ordered and opened.work.form != Form.WHOLE)


def _length(work: Work, consumer: int, shape: Shape) -> int | None:
    """How many elements this client gets of a plan whose length is known."""
    if work.form != Form.RANDOM or shape.length < 0:
        return None
    if work.consumers:
        return max(0, -(-(shape.length - consumer) // work.consumers))
    return shape.length


def state_at(position: int) -> dict[str, Any] | None:
    """The state of the only reader of a plan with random access, at a position."""
    if position == 0:
        return None
    return {"order": {"open": [[0, position, [], None, WHOLE_FILE]], "next": 1, "seam": None}}


def known_streams(state: dict[str, Any] | None) -> dict[str, Any]:
    """The streams of workers that a state knows, as fields of `OpenIteration`."""
    order = (state or {}).get("order", {})
    begins = tuple(order.get("begins", ()))
    return {"streams": max(len(order.get("open", ())), len(begins)), "begins": begins}


def claims_of(state: dict[str, Any]) -> dict[str, Any]:
    """The elements that a state of leases claims, as fields of `OpenIteration`."""
    consumed = [
        StreamRange(int(stream), start, stop)
        for stream, ranges in state["consumed"].items()
        for start, stop in ranges
    ]
    return {
        "consumed": tuple(consumed),
        "held": tuple(StreamRange(*span) for span in state["held"]),
        "merged": state.get("merged", False),
        "finished": tuple((int(stream), length) for stream, length in state["ended"].items()),
    }


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One state for all clients of a job; each new client loads it.

    A state may say "skip k elements after this point". The leases that the client held there say
    which elements those are, as long as no operator after the service changes their number.
    """
    if not states:
        raise InvalidArgumentError(f"{_CALL}: there are no states to merge")
    found = [_consumption_of(state) for state in states]
    for name in ("repetition", "key", "epoch"):
        if any(own[name] != found[0][name] for own in found):
            raise InvalidArgumentError(
                f"{_CALL}: the states are of different iterations of a job ({name} differs); "
                "merge states that were saved at the same time"
            )
    if len({state["plan"] for state in states}) > 1:
        raise InvalidArgumentError(f"{_CALL}: the states are of different datasets")
    return {
        **states[0],
        "count": None,
        "at": _replace_service_state(states[0]["at"], _union(found)),
    }


def _consumption_of(state: Any) -> dict[str, Any]:
    """What one client had consumed; the rest of its leases is dropped."""
    own, skip = _service_state(state["at"] if isinstance(state, dict) and "at" in state else None)
    consumed = {stream: Ranges(map(tuple, pairs)) for stream, pairs in own["consumed"].items()}
    for stream, start, stop in own["held"]:
        count = min(skip, stop - start)
        consumed.setdefault(str(stream), Ranges()).add(start, start + count)
        skip -= count
    return {**own, "consumed": consumed, "held": []}


def _service_state(at: Any) -> tuple[dict[str, Any], int]:
    """The service's part of an iterator's state, and how many elements are skipped after it."""
    skip = 0
    while isinstance(at, dict):
        if "skip" in at:
            skip, at = skip + at["skip"], at["from"]
        elif isinstance(at.get("own"), dict) and "held" in at["own"]:
            return at["own"], skip
        elif at.get("own") is None and len(at.get("inputs", ())) == 1:
            at = at["inputs"][0]
        else:
            break
    raise InvalidArgumentError(
        f"{_CALL}: needs states of iterators over a distributed dataset with a job_name, after "
        "which elements are at most mapped or prefetched; batch before distribute"
    )


def _union(found: list[dict[str, Any]]) -> dict[str, Any]:
    consumed: dict[str, Ranges] = {}
    for own in found:
        for stream, ranges in own["consumed"].items():
            for start, stop in ranges:
                consumed.setdefault(stream, Ranges()).add(start, stop)
    return {
        **found[0],
        "clients": [client for own in found for client in own["clients"]],
        "consumed": {
            stream: [list(pair) for pair in ranges] for stream, ranges in consumed.items()
        },
        "held": [],
        "merged": True,
        "ended": {stream: length for own in found for stream, length in own["ended"].items()},
    }


def _replace_service_state(at: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Puts another service's part into a state, and skips nothing after it."""
    if "skip" in at:
        return _replace_service_state(at["from"], own)
    if isinstance(at.get("own"), dict) and "held" in at["own"]:
        return {**at, "own": own}
    return {**at, "inputs": [_replace_service_state(at["inputs"][0], own)]}


# The leases of one client: when it asks for how many elements, and what it did with them.
# Readers of a named job share its elements. No other reader gets what one of them holds, so it asks
# for no more than its user consumes in a short time.


_LEASE_ROWS = 1 << 13
"""The most elements that are leased at once."""


class Pace:
    """How fast the user consumes elements: a mean over about the last `timing.LEASED_WORK`.

    A mean over time, because slow elements may arrive together. The time between two of these says
    nothing about the next ones.
    """

    def __init__(self) -> None:
        self.total = 0
        self._elements = self._seconds = 0.0
        """What was handed out in that time; earlier elements and seconds count for less."""
        self._last: float | None = None

    def note(self, count: int, now: float) -> None:
        """`count` elements were handed out at the time `now`."""
        self.total += count
        if self._last is not None:
            # A longer pause of the user says nothing about the pace after it.
            elapsed = min(max(now - self._last, 1e-6), timing.LONGEST_LEASED_WORK)
            remains = math.exp(-elapsed / timing.LEASED_WORK)
            self._elements = remains * self._elements + count
            self._seconds = remains * self._seconds + elapsed
        self._last = now

    def count_in(self, seconds: float) -> int:
        return int(self._elements / self._seconds * seconds) if self._seconds else 0


class LeaseRequests:
    """When a reader asks for leases, and for how many elements: about as many as its user consumes
    in the time that the dispatcher has chosen, so that no other reader waits for them.

    `most` is the most elements that the user lets it request.
    """

    def __init__(self, intervals: Intervals, most: int | None = None) -> None:
        self.pace = Pace()
        self.is_waiting = False
        """Whether a request for leases is on its way."""
        self.retry = 0.0
        """When leases may be asked for again."""
        self._least = 1
        """Grows while replies come too late: while a reader waits for them, its pace says little
        about what its user could consume."""
        self._intervals = intervals
        self._most = _LEASE_ROWS if most is None else most

    def want(self, left: int, workers: int, now: float) -> int:
        """How many elements to ask for, with `left` leased ones in hand; 0 for none."""
        if self.is_waiting or now < self.retry:
            return 0
        soon = min(self.pace.total, self.pace.count_in(self._seconds), _LEASE_ROWS)
        # All readers together keep all workers busy.
        busy = -(-LEAST_AHEAD * workers // self._intervals.readers)
        want = min(max(soon, busy, self._least), self._most)
        self.is_waiting = left * 2 <= want
        return want if self.is_waiting else 0

    @property
    def _seconds(self) -> float:
        """The time for which elements are leased."""
        return self._intervals.leased_work * timing.LEASED_WORK

    def apply_reply(self, leased: LeaseReply, left: int, now: float) -> None:
        """Applies a reply, which came when the reader had `left` leased elements in hand."""
        granted = sum(grant.range.stop - grant.range.start for grant in leased.grants)
        is_late = not left and granted and self.pace.total
        self._least = 2 * granted if is_late else max(1, self._least // 2)
        self._intervals, self.is_waiting = leased.intervals, False
        if leased.retry:
            self.retry = now + max(leased.retry, self._seconds)

    def reset(self) -> None:
        """The leases are lost: the next request is due at once."""
        self.is_waiting, self.retry = False, 0.0


class LeaseRecord:
    """What a client did with its leases: what it handed out and consumed, and which ends it saw.

    Elements that were handed out count as consumed once the caller takes more.
    """

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        """The length of each stream whose end was seen."""
        self._new_ends: dict[int, int] = {}
        """Those of them that were not reported yet."""
        self._consumed: dict[int, Ranges] = {}
        self._changed: set[int] = set()
        """Streams whose ranges differ from those in `_copied`."""
        self._copied: dict[int, Ranges] = {}
        """Copies of `_consumed` that saved states share; a copy is never changed."""
        self._handed: list[StreamRange] = []
        """What was handed out last."""
        self._unreported: list[StreamRange] = []

    def restore(self, state: dict[str, Any]) -> None:
        for stream, ranges in state["consumed"].items():
            for start, stop in ranges:
                self._consume(StreamRange(int(stream), start, stop))
        self.ends = {int(stream): length for stream, length in state["ended"].items()}

    def hand_out(self, at: StreamRange) -> None:
        self._handed.append(at)

    def settle(self) -> None:
        """A caller that takes more has consumed what it took before."""
        for at in self._handed:
            self._consume(at)
        self._unreported += self._handed
        self._handed = []

    def _consume(self, at: StreamRange) -> None:
        self._consumed.setdefault(at.stream, Ranges()).add(at.start, at.stop)
        self._changed.add(at.stream)

    def return_last(self, count: int) -> None:
        """The last `count` elements were not used, and do not count."""
        self._handed = _without_last(self._handed, count)

    def note_end(self, feed: Feed) -> None:
        if feed.length is not None and feed.stream not in self.ends:
            self.ends[feed.stream] = self._new_ends[feed.stream] = feed.length

    def report(self, everything: bool, unused: int) -> tuple[list[StreamRange], dict[int, int]]:
        used = _without_last(self._handed, unused) if everything else []
        report, self._unreported = self._unreported + used, []
        ends, self._new_ends = self._new_ends, {}
        return report, ends

    def state(self, later: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
        for stream in self._changed:
            self._copied[stream] = self._consumed[stream].copy()
        self._changed.clear()
        return {
            "consumed": later(partial(_save_ranges, dict(self._copied), tuple(self._handed))),
            "ended": later(partial(_save_ends, dict(self.ends))),
        }


def _without_last(handed: Iterable[StreamRange], count: int) -> list[StreamRange]:
    """Ranges without their last `count` elements."""
    kept = list(handed)
    while count > 0 and kept:
        last = kept.pop()
        stop = max(last.start, last.stop - count)
        count -= last.stop - stop
        if stop > last.start:
            kept.append(StreamRange(last.stream, last.start, stop))
    return kept


def _save_ranges(ranges: dict[int, Ranges], handed: Iterable[StreamRange]) -> dict[str, Any]:
    for at in handed:
        ranges[at.stream] = ranges.get(at.stream, Ranges()).copy()
        ranges[at.stream].add(at.start, at.stop)
    return {str(stream): [list(pair) for pair in found] for stream, found in ranges.items()}


def _save_ends(ends: dict[int, int]) -> dict[str, int]:
    return {str(stream): length for stream, length in ends.items()}
