"""Feeds: what a client still expects from one stream, by ordinal.

A feed asks for every ordinal of its part once, and again only for what was lost on the way; it
hands out every ordinal once. Where the stream ends must not depend on who was asked.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from penstock.errors import DataLossError
from penstock.plan.parts import WHOLE
from penstock.service.protocol.fetches import Mark

_SMALL = 512
"""Bytes of a mark that may stand in a state."""

NOWHERE = 1 << 62
"""Where a stream stops whose end is not known."""

FEW = 4
"""So many elements more than usual a short stream is asked for."""


class Piece(Protocol):
    """Consecutive elements; a chunk is one."""

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int) -> Any: ...

    @property
    def nbytes(self) -> int: ...


class Failure:
    """One element that could not be made."""

    nbytes = 0

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def rows(self, start: int, stop: int) -> Failure:
        return self


class Feed:
    """Ordinals `start` to `stop` of a stream; `home` is the worker to ask first, if one is.

    `begin` tells workers where a part of a file begins; see `Work.begin`.
    """

    def __init__(
        self,
        stream: int,
        start: int = 0,
        stop: int = NOWHERE,
        home: str | None = None,
        begin: int = WHOLE,
    ) -> None:
        self.stream = stream
        self.begin = begin
        self.began: int | None = None
        self.ended: int | None = None
        """Where the part of a file began and ended that the stream is, if workers tell."""
        self.void = False
        """Whether another feed of the same stream has taken its place."""
        self.next = start
        """All before it was handed out."""
        self.stop = stop
        self.home = home
        self.worker: str | None = None
        """Who was asked last; streams that are not random access stay there."""
        self._marks: list[Mark] = []
        self.length: int | None = None
        """How long the stream is, once that was seen."""
        self.refused: dict[str, Exception] = {}
        """Workers that cannot make this stream, and why."""
        self.ahead: dict[int, int] = {}
        """Handed out beyond `next`: where it begins, where it stops."""
        self.pledged: tuple[int, int] | None = None
        """What is handed out next, where that was settled before."""
        self._pieces: dict[int, Piece] = {}
        self._asked = start
        self._proven = False
        self._lost: list[tuple[int, int]] = []
        self._arrived = 0

    @property
    def limit(self) -> int:
        """No element stands here or behind."""
        return self.stop if self.length is None else min(self.stop, self.length)

    @property
    def held(self) -> int:
        """No element that this client may hand out stands here or behind."""
        return self.limit

    @property
    def over(self) -> bool:
        """Whether all was handed out."""
        return self.next >= self.limit

    def ask(self, count: int) -> tuple[int, int] | None:
        """The next ordinals to ask for, at most `count`; None if there is nothing to ask for."""
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
    def asking(self) -> int:
        """The first ordinal that `ask` would ask for, about."""
        return self._lost[-1][0] if self._lost else self._asked

    @property
    def asks(self) -> bool:
        """Whether there is something to ask for."""
        return bool(self._lost) or self._asked < self.limit

    @property
    def outstanding(self) -> int:
        """How many elements were asked for and not handed out."""
        return self._asked - self.next

    def doubtful(self, usual: int | None = None) -> bool:
        """Whether requests are under way, and it may end within them.

        It may within the first one; or, where a `usual` length is known, about there.
        """
        if self._lost or self._asked <= self.next or self.limit != NOWHERE:
            return False
        if usual is None:
            return not self._proven
        return self._arrived < self._asked and usual <= self._asked < 2 * usual + FEW

    def prove(self) -> None:
        """A request was answered, and the stream goes on behind it, for all that is known."""
        self._proven = True

    @property
    def left(self) -> int:
        """How many ordinals were not asked for yet."""
        return max(0, self.limit - self._asked)

    def lose(self, start: int, stop: int) -> None:
        """Ordinals that were asked for and will not come."""
        if start < min(stop, self.limit):
            self._lost.append((start, stop))
            # What is needed first is asked for first: it comes last in the list.
            self._lost.sort(reverse=True)

    @property
    def asked(self) -> bool:
        """Whether anything was asked for."""
        return self._asked > self.next or bool(self._pieces) or self.length is not None

    @property
    def answered(self) -> bool:
        """Whether anything is known of the stream."""
        return bool(self._pieces) or self.length is not None

    @property
    def pieces(self) -> Iterable[Piece]:
        """What has arrived and was not handed out."""
        return self._pieces.values()

    @property
    def is_unread(self) -> bool:
        """Whether the stream is a part of a file, but not the first, that could not be opened."""
        return bool(self.began) and not self.next and isinstance(self._pieces.get(0), Failure)

    def tell(self, began: int | None, ended: int | None = None) -> None:
        """What a worker found out about the part of a file that the stream is."""
        self.began = self.began if began is None else began
        self.ended = self.ended if ended is None else ended

    def arrive(self, start: int, piece: Piece) -> None:
        if self.length is not None and start + len(piece) > self.length:
            self._inconsistent(start + len(piece))
        self._arrived = max(self._arrived, start + len(piece))
        self._pieces[start] = piece

    def end(self, length: int) -> None:
        """The stream has `length` elements."""
        if length < self._arrived or (self.length is not None and self.length != length):
            self._inconsistent(length)
        self.length = length

    def _inconsistent(self, length: int) -> None:
        seen = self._arrived if self.length is None else self.length
        raise DataLossError(
            f"distribute: stream {self.stream} had {seen} elements and, made again elsewhere, "
            f"{length}; a function before distribute does not make the same number of elements "
            "each time (a generator, filter or flat_map that depends on time or chance); seed it"
        )

    def ready(self, anywhere: bool = False) -> bool:
        """Whether something can be handed out."""
        return bool(self._pieces) if anywhere else self.next in self._pieces

    @property
    def is_dry(self) -> bool:
        """Whether the next element has not arrived."""
        return not self.ready()

    @property
    def here(self) -> int:
        """How many elements from `next` on have arrived, as far as they came together."""
        piece = self._pieces.get(self.next)
        return 0 if piece is None else len(piece)

    def pledge(self) -> None:
        """Settles what of all that is there is handed out next."""
        start = self._first()
        self.pledged = start, start + len(self._pieces[start])

    def _first(self) -> int:
        if self.pledged is not None:
            return self.pledged[0]
        return self.next if self.next in self._pieces else next(iter(self._pieces))

    def take(self, count: int, anywhere: bool = False) -> tuple[int, Piece]:
        """Elements from `next` on (`anywhere`: those that are there), and their first ordinal."""
        start = self._first() if anywhere else self.next
        self.pledged = None
        piece = self._pieces.pop(start)
        if len(piece) > count:
            self._pieces[start + count] = piece.rows(count, len(piece))
            piece = piece.rows(0, count)
        self._handed_out(start, start + len(piece))
        return start, piece

    def _handed_out(self, start: int, stop: int) -> None:
        if start != self.next:
            self.ahead[start] = stop
            return
        self.next = stop
        while self.next in self.ahead:
            self.next = self.ahead.pop(self.next)

    def marked(self, mark: Mark) -> None:
        """Notes a place; of those behind which all was handed out, only the last is kept."""
        past = [old for old in self._marks if old.ordinal <= self.next]
        self._marks = [*past[-1:], *(old for old in self._marks if old.ordinal > self.next), mark]

    def mark(self, ordinal: int) -> Mark | None:
        """The last known place at `ordinal` or before it."""
        known = [mark for mark in self._marks if mark.ordinal <= ordinal]
        return max(known, key=lambda mark: mark.ordinal, default=None)

    def state(self) -> list[Any]:
        """Stream, next ordinal, what was handed out ahead of it, a mark where it is small, and
        where a part of a file begins.

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
        """The last known place before an ordinal as it stands in a state, if it is small."""
        mark = self.mark(ordinal)
        if mark is None or len(mark.state) > _SMALL:
            return None
        return [mark.ordinal, b64encode(mark.state).decode()]

    def remember(self, mark: list[Any]) -> None:
        """Notes a place that stood in a state."""
        self.marked(Mark(mark[0], b64decode(mark[1])))

    @property
    def _begins(self) -> int:
        return self.begin if self.began is None or self.begin == WHOLE else self.began

    @classmethod
    def of(cls, state: list[Any], home: str | None = None) -> Feed:
        feed = cls(state[0], state[1], home=home, begin=state[4])
        feed.ahead = dict(state[2])
        if state[3] is not None:
            feed.remember(state[3])
        return feed


def spans(feeds: list[Feed]) -> Iterator[tuple[int, int, int]]:
    """What feeds of leases have not handed out: stream, start, stop."""
    for feed in feeds:
        start = feed.next
        for ahead, stop in [*sorted(feed.ahead.items()), (feed.held, feed.held)]:
            if start < ahead:
                yield feed.stream, start, ahead
            start = max(start, stop)
