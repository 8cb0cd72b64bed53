"""The leases of one client: when it asks for how many elements, and what it did with them.

Readers of a named job share its elements. What one of them holds, the others do not get, so a
reader asks for no more than its user consumes in a short time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from penstock.service.logic.feeds import LEAST_AHEAD, Feed
from penstock.service.logic.leases import Ranges
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Intervals, LeaseReply, StreamRange

_LEASE_ROWS = 1 << 13
"""The most elements that are leased at once."""


class Pace:
    """How fast the user consumes elements."""

    def __init__(self) -> None:
        self.total = 0
        self._rate = 0.0
        self._last: float | None = None

    def note(self, count: int, now: float) -> None:
        """`count` elements were handed out at the time `now`."""
        self.total += count
        if self._last is not None:
            rate = count / max(now - self._last, 1e-6)
            self._rate = rate if not self._rate else 0.5 * (self._rate + rate)
        self._last = now

    def count_in(self, seconds: float) -> int:
        return int(self._rate * seconds)


class LeaseRequests:
    """When a reader asks for leases, and for how many elements: about those that its user consumes
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

    def hear(self, leased: LeaseReply, left: int, now: float) -> None:
        """The dispatcher has replied, when the reader had `left` leased elements in hand."""
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
