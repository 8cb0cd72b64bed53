"""`Fetcher`: what a client requests from which worker, and which elements it hands out next.

Nothing is asked of a worker that is not needed soon: what was asked for and not handed out stays
within a number of elements or of bytes. Asking is cheap to repeat: when a worker is lost, what it
still owed is asked of others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from penstock.errors import OpError, UnavailableError
from penstock.service.logic.crashes import Blame
from penstock.service.logic.feeds import FEW, Failure, Feed, Piece
from penstock.service.logic.interleave_order import SHORT, InputFeed, InterleaveOrder, Placed
from penstock.service.logic.orders import LeaseOrder, RoundRobinOrder, SequentialOrder
from penstock.service.logic.request_sizes import Limits, Sizes
from penstock.service.protocol.fetches import Mark

Order = SequentialOrder | RoundRobinOrder | LeaseOrder | InterleaveOrder

DEPTH = 4
"""Requests that wait at a worker, so that it always has the next one."""

MOST_REFUSED = 16
"""Streams that wait for one of those who can make them, beyond what all workers have in hand."""

KEPT_BLOCK = 64
"""What several trainers read is asked for in blocks, each of them always of the same worker."""


@dataclass
class Ask:
    """A request to a worker. `at` is the ordinal that comes next."""

    request: int
    worker: str
    feed: Feed
    start: int
    stop: int
    mark: Mark | None
    at: int


class Fetcher:
    """One client's reading of one iteration.

    `bound` streams are made from their start, so that each is asked of one worker as long as that
    works; the others of whichever has least to do. `ordered` False hands out what arrives first.
    """

    def __init__(
        self, order: Order, limits: Limits, bound: bool, ordered: bool = True, kept: bool = False
    ) -> None:
        self.order = order
        self.ordered = ordered
        self.sizes = Sizes(limits)
        self._limits = limits
        self._bound = bound
        self._in_blocks = kept and not bound
        self._promised: list[Feed] = []
        """What a saved state had settled to hand out first, whatever the order."""
        self._pledge: Feed | None = None
        self._workers: dict[str, int] = {}
        self.leaving: set[str] = set()
        """Those of them that take nothing on: they are about to stop, or in trouble."""
        self.expects = False
        """Whether other workers may join soon."""
        self._asks: dict[int, Ask] = {}
        self._requests = 0
        self.hungry = True
        """Whether `asks` may have something to say."""
        self._buffered = 0
        self._here = 0
        """Elements that arrived and were not handed out."""
        self._owed = 0
        """Elements that were asked for and did not arrive."""
        self._silences: dict[tuple[int, int], int] = {}
        """How often workers said nothing when these elements were asked of them."""
        self.blame = Blame()

    @property
    def takes_turns(self) -> bool:
        """Whether elements of several inputs follow each other in turn."""
        return isinstance(self.order, InterleaveOrder)

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    def join(self, worker: str) -> None:
        self._workers.setdefault(worker, 0)
        self.leaving.discard(worker)
        self.hungry = True

    def lose(self, worker: str, broken: bool = False) -> None:
        """A worker that answers no more: others are asked for what it owes.

        `broken`: its connection broke. Where that happens again and again, it is no accident.
        """
        self._workers.pop(worker, None)
        self.leaving.discard(worker)
        owed = [ask for ask in self._asks.values() if ask.worker == worker]
        for ask in owed:
            del self._asks[ask.request]
            self._owed -= ask.stop - ask.at
            ask.feed.lose(ask.at, ask.stop)
        if broken and owed:
            self.blame.add(worker, owed[0].feed.stream, owed[0].at, owed[0].stop)

    def patience(self, worker: str, seconds: float) -> float:
        """How long a worker may say nothing.

        Longer each time that the same elements were asked of others before: a function that keeps
        the interpreter to itself keeps its worker from saying anything, wherever it runs.
        """
        ask = self._first_of(worker)
        return seconds * (1 if ask is None else 1 << self._silences.get(_place(ask), 0))

    def fall_silent(self, worker: str) -> None:
        """A worker said nothing for longer than that, and is about to be lost."""
        if (ask := self._first_of(worker)) is not None:
            self._silences = {_place(ask): self._silences.get(_place(ask), 0) + 1}

    def _first_of(self, worker: str) -> Ask | None:
        return next((ask for ask in self._asks.values() if ask.worker == worker), None)

    def owed_next(self) -> Ask | None:
        """The request that the user waits for; None if it was not made."""
        awaited = self._awaited()
        asks = [ask for ask in self._asks.values() if awaited is None or ask.feed is awaited]
        return min(asks, key=lambda ask: ask.at, default=None)

    def restart(self, order: Order) -> None:
        """Begins anew with another order; what was asked for before is not expected any more."""
        self.order = order
        self._promised, self._pledge = [], None
        self._asks.clear()
        self._workers = dict.fromkeys(self._workers, 0)
        self._here = self._owed = self._buffered = 0
        self.hungry = True

    def asks(self) -> list[Ask]:
        """What to ask for now."""
        made: list[Ask] = []
        if not self._workers or self.blame.is_certain:
            return made
        refused = 0
        for feed in chain(self._promised, self._upcoming()):
            if not feed.asks:
                continue  # Many wait to be handed out; this loop runs for every answer.
            try:
                while (ask := self._ask(feed)) is not None:
                    made.append(ask)
            except OpError:
                if made:
                    return made  # They count as owed; the error comes again with the next call.
                raise
            refused += bool(feed.refused) and feed.asks
            if self._full() or not self._free() or self._stuck(feed) or self._is_ahead(feed):
                break
            if refused > MOST_REFUSED + DEPTH * len(self._workers):
                break  # Who refuses has time for ever more of them.
        self.hungry = self._full()
        return made

    def _upcoming(self) -> Iterable[Feed]:
        upcoming = self.order.upcoming()
        self._discard()
        return upcoming

    def _discard(self) -> None:
        """Forgets what arrived of feeds that are not handed out, or is handed out whole."""
        for feed in self.order.dropped():
            feed.void = True
            self._here -= sum(map(len, feed.pieces))
            self._buffered -= sum(piece.nbytes for piece in feed.pieces)
        rows, nbytes = self.order.freed()
        self._here -= rows
        self._buffered -= nbytes

    def _staying(self) -> dict[str, int]:
        """Those who take on more, and how many requests they have."""
        return {w: n for w, n in self._workers.items() if w not in self.leaving}

    def _free(self) -> bool:
        """Whether anybody has time."""
        return any(n < DEPTH for n in self._staying().values())

    def _stuck(self, feed: Feed) -> bool:
        """Whether nobody here can make it; those who come may be able to."""
        return all(worker in feed.refused for worker in self._staying())

    def _full(self) -> bool:
        """Whether as much was asked for as may be; the first request of all is always allowed."""
        if not (waiting := self._here + self._owed):
            return False
        if self._limits.elements is not None:
            return waiting >= self._limits.elements
        return self._buffered + self._owed * self.sizes.element_bytes >= self._limits.nbytes

    def _ask(self, feed: Feed) -> Ask | None:
        if (self._full() or self._is_crowded(feed)) and not self._starving(feed):
            return None
        if self._is_early(feed) and feed.home not in self._workers:
            return None  # It has no turn yet, and its own worker may come until then.
        if feed.doubtful(self._usual):
            return None  # The next stream is asked for meanwhile: many streams are short.
        worker = self._worker_for(feed)
        if worker is None:
            return None
        if (span := feed.ask(self._count(feed))) is None:
            return None
        feed.worker = worker
        self._workers[worker] += 1
        self._owed += span[1] - span[0]
        self._requests += 1
        ask = Ask(self._requests, worker, feed, *span, feed.mark(span[0]), span[0])
        self._asks[ask.request] = ask
        return ask

    def _is_crowded(self, feed: Feed) -> bool:
        """Whether others need what is left more than this feed, where turns are taken."""
        if not isinstance(self.order, InterleaveOrder):
            return False
        limits, size = self._limits, self.sizes.element_bytes
        share = self.order.share(feed)
        if limits.elements is not None:
            most, held, all_ = limits.elements, feed.outstanding, self._here + self._owed
        else:
            most, held = limits.nbytes, int(feed.outstanding * size)
            all_ = self._buffered + int(self._owed * size)
        return held >= most * share if share else all_ * 2 >= most

    @property
    def _usual(self) -> int | None:
        """How long streams are that are read one after the other, if that was seen."""
        return self.sizes.usual if isinstance(self.order, SequentialOrder | LeaseOrder) else None

    def _is_early(self, feed: Feed) -> bool:
        """Whether a feed has a turn in a later lap only."""
        return isinstance(self.order, RoundRobinOrder) and self.order.is_early(feed)

    def _is_ahead(self, feed: Feed) -> bool:
        """Whether a feed is not in turn, and there is no room for it nor for any behind it."""
        ahead = isinstance(self.order, InterleaveOrder) and not self.order.share(feed)
        return ahead and self._is_crowded(feed)

    def _starving(self, feed: Feed) -> bool:
        """Whether the user waits for this feed and nothing of it is on its way."""
        return (
            feed is self._awaited()
            and feed.is_dry
            and not any(ask.feed is feed for ask in self._asks.values())
        )

    def _awaited(self) -> Feed | None:
        """What must be handed out next; None where anything may be."""
        if self._promised:
            return self._promised[0]
        return self.order.turn() if self.ordered else None

    def _count(self, feed: Feed) -> int:
        if isinstance(feed, InputFeed) and feed.whole:
            return self._whole
        count = self.sizes.request
        if self._usual is not None and feed.length is None:
            # No more than there may be: what does not come would keep others from being asked for.
            left = max(self._usual - feed.asking, self._usual // 8 + 1)
            if left + FEW <= min(self._little, 8 * FEW):
                count = left + FEW  # Short streams are rarely all of one length.
            elif left < 1.5 * count:
                count = left
        if isinstance(self.order, InterleaveOrder):
            fits = self._limits.nbytes / (4 * self.order.cycle * max(self.sizes.element_bytes, 1))
            count = max(1, min(count, int(fits)))
        if self._limits.elements is not None:
            count = min(count, max(1, self._limits.elements - self._here - self._owed))
        if not self._bound:
            # Towards the end smaller pieces, so that all workers are done at about the same time.
            count = max(1, min(count, feed.left // (2 * len(self._workers)) or 1))
        return self._block(feed, count) if self._in_blocks else count

    @property
    def _little(self) -> int:
        """So many elements take so little room that a request may be for more than there are."""
        if self._limits.elements is not None:
            return 1
        requests = 4 * DEPTH * len(self._workers)
        return int(self._limits.nbytes / (requests * max(self.sizes.element_bytes, 1)))

    @property
    def _whole(self) -> int:
        """How many elements several inputs may have, to be asked for at once: no more than may
        wait. As long as nobody knows how large they are, they may be huge."""
        if not self.sizes.element_bytes:
            return DEPTH
        fits = self._limits.nbytes / (2 * max(self.sizes.element_bytes, 1))
        return max(1, min(2 * SHORT, int(fits)))

    def _block(self, feed: Feed, count: int) -> int:
        """To the end of a block, so that others wait for it instead of making parts of it."""
        block = KEPT_BLOCK - feed.asking % KEPT_BLOCK
        limits, nbytes = self._limits, block * self.sizes.element_bytes
        # As long as nobody knows how large they are, they may be huge.
        small = limits.elements is None and 0 < nbytes <= limits.request_bytes
        return block if small else min(count, block)

    def _worker_for(self, feed: Feed) -> str | None:
        """Who is to be asked; None if nobody has time."""
        staying = self._staying()
        if not staying:
            return None
        able = {w: n for w, n in staying.items() if w not in feed.refused}
        if not able:
            if self.expects:
                return None
            raise next(iter(feed.refused.values()))
        if self._in_blocks:
            keeper = _keeper(able, feed.asking)
            return keeper if able[keeper] < DEPTH else None
        if self._bound:
            for favourite in (feed.worker, feed.home):
                if favourite in able:
                    return favourite if able[favourite] < DEPTH else None
        worker = min(able, key=lambda w: able[w], default=None)
        return worker if worker is not None and able[worker] < DEPTH else None

    def arrive(
        self,
        request: int,
        start: int,
        piece: Piece,
        seconds: float = 0.0,
        began: int | None = None,
    ) -> None:
        """Elements that a worker sent."""
        ask = self._asks.get(request)
        if ask is None or start != ask.at:
            return
        ask.at = start + len(piece)
        self._owed -= len(piece)
        if ask.feed.void:
            return
        ask.feed.arrive(start, piece)
        ask.feed.tell(began)
        self._here += len(piece)
        self._buffered += piece.nbytes
        if not isinstance(piece.rows_ if isinstance(piece, Placed) else piece, Failure):
            self.sizes.record(len(piece), piece.nbytes, seconds)

    def mark(self, request: int, mark: Mark) -> None:
        """A place where another worker could go on."""
        ask = self._asks.get(request)
        if ask is not None:
            ask.feed.marked(mark)

    def done(
        self,
        request: int,
        length: int | None,
        began: int | None = None,
        ended: int | None = None,
        lengths: tuple[int, ...] | None = None,
    ) -> Feed | None:
        """A worker has answered all of a request; `length` if the stream ends there.

        Gives the feed if the worker will be asked for nothing more of it.
        """
        ask = self._asks.pop(request, None)
        if ask is None:
            return None
        self.hungry = True
        self._owed -= ask.stop - ask.at
        if ask.worker in self._workers:
            self._workers[ask.worker] -= 1
        if ask.feed.void:
            return None
        ask.feed.tell(began)
        if length is not None:
            if ask.feed.length is None:
                self.sizes.note_length(length)
            ask.feed.end(length)
            ask.feed.tell(began, ended)
        if ask.at < min(ask.stop, ask.feed.limit):
            ask.feed.lose(ask.at, ask.stop)
        elif ask.at > ask.start:
            self.sizes.grow(ask.at - ask.start)
            ask.feed.prove()
        if isinstance(self.order, InterleaveOrder):
            assert isinstance(ask.feed, InputFeed)
            short = self._whole // 2 if self.sizes.element_bytes else SHORT
            self.order.done(ask.feed, lengths if length is not None else None, short)
        return ask.feed if self._is_complete(ask.feed) else None

    def _is_complete(self, feed: Feed) -> bool:
        if feed.length is None or feed.asks:
            return False
        return not any(ask.feed is feed for ask in self._asks.values())

    def refuse(self, request: int, error: OpError, elsewhere: bool) -> None:
        """A worker cannot answer; perhaps another one can."""
        ask = self._asks.get(request)
        if ask is None:
            return
        if not elsewhere and isinstance(ask.feed, InputFeed):
            self._fail_input(ask, ask.feed, Failure(error))
        elif not elsewhere:
            self.arrive(request, ask.at, Failure(error))
        elif isinstance(error, UnavailableError):
            self.leaving.add(ask.worker)
        else:
            ask.feed.refused[ask.worker] = error
        self.done(request, None)

    def _fail_input(self, ask: Ask, feed: InputFeed, failure: Failure) -> None:
        """A worker cannot make an element of an input; one of several is found by asking anew."""
        if feed.whole:
            assert isinstance(self.order, InterleaveOrder)
            self.order.part(feed)
        else:
            self.arrive(ask.request, ask.at, Placed(failure, [None]))

    def promise(self, stream: int, start: int, stop: int) -> None:
        """What a saved state had pledged comes first."""
        self._promised.append(Feed(stream, start, stop))

    def pledge(self) -> tuple[int, int, int] | None:
        """Settles what is handed out next, where the order is free: a stream, and a part of it.

        A state with a pledge in it can be gone on from exactly, for as long as the pledge reaches.
        """
        if self._promised:
            promised = self._promised[0]
            return promised.stream, promised.next, promised.stop
        if self._pledge is None:
            self._pledge = next((feed for feed in self._candidates() if feed.ready(True)), None)
            if self._pledge is None:
                return None
            self._pledge.pledge()
        assert self._pledge.pledged is not None
        return self._pledge.stream, *self._pledge.pledged

    def take(self, count: int) -> tuple[Feed, int, Piece] | None:
        """The next elements, with their feed and first ordinal; None: nothing is here yet."""
        self._discard()
        if self._promised:
            return self._take(self._promised[0], count, False)
        for feed in self._candidates() if self._pledge is None else (self._pledge,):
            if (taken := self._take(feed, count, not self.ordered)) is not None:
                return taken
        return None

    def take_turns(self, order: InterleaveOrder, count: int) -> list[Piece]:
        """The next elements that are here, of as many inputs as have their turn."""
        parts = order.take(count)
        self._discard()
        return parts

    def _take(self, feed: Feed, count: int, anywhere: bool) -> tuple[Feed, int, Piece] | None:
        if not feed.ready(anywhere):
            return None
        self._pledge = None
        if self._promised:
            start, piece = feed.take(count)
            self._promised = [feed for feed in self._promised if not feed.over]
        else:
            assert not isinstance(self.order, InterleaveOrder)
            start, piece = feed.take(min(count, self.order.room(feed)), anywhere)
            self.order.took(feed, len(piece))
        self._here -= len(piece)
        self._buffered -= piece.nbytes
        return feed, start, piece

    def _candidates(self) -> Iterable[Feed]:
        if not self.ordered and not isinstance(self.order, InterleaveOrder):
            return self.order.any()
        feed = self.order.turn()
        return () if feed is None else (feed,)

    @property
    def over(self) -> bool:
        """Whether all was handed out."""
        return not self._promised and self.order.turn() is None


def _keeper(workers: Iterable[str], start: int) -> str:
    """The worker that keeps a block, the same for all who ask: highest random weight."""
    block = start // KEPT_BLOCK
    return max(workers, key=lambda worker: zlib.crc32(f"{worker}/{block}".encode()))


def _place(ask: Ask) -> tuple[int, int]:
    return ask.feed.stream, ask.at
