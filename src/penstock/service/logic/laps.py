"""Laps: how far a consumer of a coordinated read may go before it must know of new streams.

A lap is one element of every stream. The dispatcher asks all consumers for a limit, a lap that they
do not enter, and lets new streams begin behind all limits. A promise holds until it asks no more.
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
"""The limit is so many beats ahead, in which the other consumers hear of it; none has to stop."""


def agreed_laps(streams: Iterable[StreamInfo]) -> tuple[int, ...]:
    """The laps in which streams begin, without those that consumers have to agree on."""
    return tuple(info.begins for info in streams if info.begins != UNDECIDED)


class Laps:
    """The laps of one consumer. Whoever shares it between threads guards it by a lock."""

    def __init__(self, opened: OpenIterationReply, lap: int) -> None:
        self.lap = lap
        """The last one that was entered."""
        self.limit: int | None = None
        """The first one that must not be entered; AT_END if there is none left to enter."""
        self.begins: tuple[int, ...] = ()
        """The laps in which the streams begin, as far as the dispatcher has told."""
        self.joining = False
        self._before = lap
        self._pace = 0
        self.hear(opened)

    def hear(self, news: ClientHeartbeatReply | OpenIterationReply) -> None:
        """What the dispatcher says; if streams wait to begin, a limit is promised from now on."""
        if news.streams is not None:
            self.begins = agreed_laps(news.streams)
        self.joining = news.joining
        if self.joining and self.limit is None:
            self.limit = self.lap + 1 + _BEATS * self._pace

    def beat(self) -> None:
        """Takes notice of how many laps there were since the last beat."""
        self._pace, self._before = self.lap - self._before, self.lap

    def enter(self, lap: int) -> bool:
        """Whether elements of a lap may be handed out."""
        if self.limit is not None and lap >= self.limit:
            return False
        self.lap = lap
        return True

    def release(self) -> None:
        """All that was said is known; the promise is void if the dispatcher asks no more."""
        if not self.joining and self.limit != AT_END:
            self.limit = None

    def end(self) -> bool:
        """Whether the consumer may end. If it has promised a limit, streams may still begin."""
        if self.limit is None:
            self.limit = AT_END
        return self.limit == AT_END
