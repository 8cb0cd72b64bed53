"""Laps: how far a consumer of a coordinated read may read before it must know of new streams.

A lap is one round of every stream. When streams join, the dispatcher asks each consumer for a
limit: a lap that it promises not to enter. The streams begin behind all limits, so that every
consumer knows of them in time. A promise holds until the dispatcher says that no stream is joining.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.service.protocol.messages import (
    AT_END,
    UNDECIDED,
    ClientHeartbeatReply,
    OpenIterationReply,
    StreamInfo,
)

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
        self.hear(opened)

    def hear(self, news: ClientHeartbeatReply | OpenIterationReply) -> None:
        """Applies news of the dispatcher; promises a limit if streams are joining."""
        if news.streams is not None:
            self.begins = agreed_laps(news.streams)
        self.joining = news.joining
        if self.joining and self.limit is None:
            self.limit = self.lap + 1 + _BEATS * self._pace

    def beat(self) -> None:
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

    def end(self) -> bool:
        """Whether the consumer may end: not while a limit holds, because streams may begin."""
        if self.limit is None:
            self.limit = AT_END
        return self.limit == AT_END
