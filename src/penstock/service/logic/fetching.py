"""`Fetcher`: what a client requests from which worker, and which elements it hands out next.

A client requests only what it needs soon: what was requested and not handed out stays within a
number of elements or of bytes. When a worker is lost, other workers are asked for what it owes.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from itertools import chain

from penstock.errors import AbortedError, OpError, UnavailableError
from penstock.service.logic.feeds import (
    DEPTH,
    FEW,
    KEPT_BLOCK,
    LEAST_AHEAD,
    NOWHERE,
    SHORT,
    Ask,
    Asks,
    Failure,
    Feed,
    FeedChunk,
    Limits,
    Sizes,
)
from penstock.service.logic.interleave_order import InputFeed, InterleaveOrder, PlacedChunk
from penstock.service.logic.orders import LeaseOrder, RoundRobinOrder, SequentialOrder
from penstock.service.protocol.data_messages import LARGE_STATE, MOST_STATE, Done, Mark

Order = SequentialOrder | RoundRobinOrder | LeaseOrder | InterleaveOrder

MOST_CRASHES = 3
"""Workers, or plan processes, that may crash while they compute the same elements."""

MOST_REFUSED = 16
"""Streams that some workers refused and that wait for another one, beyond `DEPTH` per worker."""


class Fetcher:
    """Requests the elements of one iteration in the order `order`, and hands them out.

    `bound` streams are computed from their start, so each is requested from one worker as long as
    that works; other streams from the worker with the fewest requests. `ordered` False hands out
    what arrives first. `kept`: several trainers read the same elements.
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
        """What a saved state had pledged, and is handed out before anything else."""
        self._pledge: Feed | None = None
        """The feed that the next elements come from, if a state says so."""
        self._workers: dict[str, int] = {}
        """How many requests wait at each worker."""
        self.leaving: set[str] = set()
        """Workers that refuse all work: they are about to stop, or cannot work now."""
        self.expected: Collection[str] = ()
        """Workers that may join soon."""
        self.returning: Collection[str] = ()
        """Workers whose connection broke and may be opened again."""
        self._behind: list[Feed] = []
        """Feeds of which a worker that leaves keeps elements for this client."""
        self._asks = Asks()
        self._requests = 0
        self.hungry = True
        """Whether `asks` may return requests."""
        self._buffered = 0
        """Bytes of the elements that arrived and were not handed out."""
        self._here = 0
        """Elements that arrived and were not handed out."""
        self._owed = 0
        """Elements that were requested and did not arrive."""
        self._silences: dict[tuple[int, int], int] = {}
        """How often workers were silent for too long while they computed these elements."""
        self.blame = Blame()

    @property
    def takes_turns(self) -> bool:
        """Whether elements of several inputs follow each other: `take_turns` hands them out."""
        return isinstance(self.order, InterleaveOrder)

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    def join(self, worker: str) -> None:
        self._workers.setdefault(worker, 0)
        self.leaving.discard(worker)
        self.hungry = True

    def lose(self, worker: str, broken: bool = False) -> None:
        """Requests what a lost worker owes from other workers.

        `broken`: its connection broke. If that happens repeatedly with the same elements, they are
        to blame; see `Blame`.
        """
        self._workers.pop(worker, None)
        self.leaving.discard(worker)
        owed = self._asks.remove_worker(worker)
        self.hungry = self.hungry or bool(owed)
        for ask in owed:
            self._owed -= ask.stop - ask.at
            ask.feed.lose(ask.at, ask.stop)
            self.order.note_loss(ask.feed)
        if broken and owed:
            self.blame.add(worker, owed[0].feed.stream, owed[0].at, owed[0].stop)
            # Other workers would crash there, too. This one has begun to search for the cause.
            owed[0].feed.crashed_at[owed[0].at] = worker

    def patience(self, worker: str, seconds: float) -> float:
        """How long a worker may be silent.

        It doubles each time that a worker was silent with the same elements: a function that holds
        the interpreter's lock keeps every worker silent that runs it.
        """
        ask = self._first_of(worker)
        return seconds * (1 if ask is None else 1 << self._silences.get(_first_element(ask), 0))

    def note_silence(self, worker: str) -> None:
        """Notes that a worker was silent for longer than `patience`; the caller then loses it."""
        if (ask := self._first_of(worker)) is not None:
            self._silences = {_first_element(ask): self._silences.get(_first_element(ask), 0) + 1}

    def _first_of(self, worker: str) -> Ask | None:
        return next(iter(self._asks.of_worker(worker)), None)

    def owed_next(self) -> Ask | None:
        """The request that the user waits for; None if there is none."""
        feed = self._next_feed()
        asks = self._asks.values() if feed is None else self._asks.of_feed(feed)
        return min(asks, key=lambda ask: ask.at, default=None)

    def restart(self, order: Order) -> None:
        """Starts again with another order; replies to earlier requests are ignored."""
        self.order = order
        self._promised, self._pledge, self._behind = [], None, []
        self._asks.clear()
        self._workers = dict.fromkeys(self._workers, 0)
        self._here = self._owed = self._buffered = 0
        self.hungry = True

    def find_successor(self, worker: str, feed: Feed, job: str = "") -> str | None:
        """The worker that continues a stream of `worker` if that one leaves.

        All clients of a job choose the same one, as far as they know the same workers: a stream
        that they share moves to that worker. Streams of one worker move to several ones.
        """
        if not self._bound:
            return None
        chosen, unable = feed.marks.named_successor, {worker, *self.leaving, *feed.refused}
        if chosen not in self._workers or chosen in unable:
            able = sorted(self._workers.keys() - unable)
            hashed = zlib.crc32(f"{worker}/{job}/{feed.stream}".encode())
            chosen = feed.marks.named_successor = able[hashed % len(able)] if able else None
        return chosen

    def begin_move(self, feed: Feed, worker: str) -> None:
        """Notes that a worker that leaves still makes a stream, until another one has its state."""
        feed.marks.moving_from, feed.marks.moved_at = worker, NOWHERE

    def end_move(self, feed: Feed, mark: Mark | None = None, worker: str = "") -> None:
        """Notes that a leaving worker has ended a stream; another continues from `mark`.

        `worker` is still asked for what it has made.
        """
        is_behind = mark is not None and bool(mark.worker) and feed.next_ask < mark.ordinal
        feed.marks.moving_from = worker if is_behind else ""
        feed.marks.moved_at = NOWHERE if mark is None else mark.ordinal
        if mark is not None and not feed.void:
            feed.add_mark(mark)
        if is_behind and isinstance(self.order, RoundRobinOrder):
            self._behind.append(feed)
        self.hungry = True

    def asks(self) -> list[Ask]:
        """The requests to send now."""
        made: list[Ask] = []
        if not self._workers or self.blame.is_certain:
            return made
        self._ask_for_made(made)
        refused = 0
        self._discard()
        for feed in chain(self._promised, self.order.upcoming()):
            if not feed.asks:
                continue  # Cheap: many feeds only wait to be handed out, and this loop runs often.
            try:
                while (ask := self._ask(feed)) is not None:
                    made.append(ask)
            except OpError:
                if made:
                    return made  # They count as owed; the next call raises the error again.
                raise
            refused += bool(feed.refused) and feed.asks
            if (
                self._is_full()
                or not self._has_free_worker()
                or self._is_refused_by_all(feed)
                or self._is_ahead(feed)
            ):
                break
            if refused > MOST_REFUSED + DEPTH * len(self._workers):
                # A worker that refuses streams never becomes busy; without this cap it would be
                # asked for every stream.
                break
        self.hungry = self._is_full()
        return made

    def _ask_for_made(self, made: list[Ask]) -> None:
        """Adds requests for what workers that leave have made for all consumers of a stream.

        These requests come first: the workers wait for them.
        """
        self._behind = [feed for feed in self._behind if self._is_moving(feed) and feed.asks]
        for feed in self._behind:
            while self._is_moving(feed) and (ask := self._ask(feed)) is not None:
                made.append(ask)

    def _discard(self) -> None:
        """Subtracts what replaced feeds had, and what the order has released, from the counts."""
        for feed in self.order.pop_dropped():
            feed.void = True
            self._here -= sum(map(len, feed.chunks))
            self._buffered -= sum(chunk.nbytes for chunk in feed.chunks)
        rows, nbytes = self.order.pop_freed()
        self._here -= rows
        self._buffered -= nbytes

    def _staying_workers(self) -> dict[str, int]:
        """Workers that accept work, and how many requests each has."""
        return {w: n for w, n in self._workers.items() if w not in self.leaving}

    def _has_free_worker(self) -> bool:
        """Whether any worker can take another request."""
        return any(n < DEPTH for n in self._staying_workers().values())

    def _is_refused_by_all(self, feed: Feed) -> bool:
        """Whether every connected worker has refused a stream; a worker that joins may take it."""
        return all(worker in feed.refused for worker in self._staying_workers())

    def _is_full(self) -> bool:
        """Whether the limit is reached; a request is always allowed while nothing is waiting."""
        if not (waiting := self._here + self._owed):
            return False
        if self._limits.elements is not None:
            return waiting >= self._limits.elements
        if not self.sizes.element_bytes:
            # The size of the first elements is unknown and may be large.
            return waiting >= LEAST_AHEAD * len(self._workers)
        return self.held + self.sizes.element_bytes > self.room

    @property
    def held(self) -> int:
        """About the bytes that were requested and not handed out."""
        return self._buffered + int(self._owed * self.sizes.element_bytes)

    @property
    def room(self) -> int:
        """The bytes that may be requested and not handed out."""
        return self._limits.count_bytes(len(self._workers), self.sizes.element_bytes)

    @property
    def budget(self) -> int:
        """The most bytes that `room` may be."""
        return self._limits.budget

    @property
    def is_short(self) -> bool:
        """Whether the budget leaves workers idle."""
        return self._limits.is_short(len(self._workers), self.sizes.element_bytes)

    def _ask(self, feed: Feed) -> Ask | None:
        if (self._is_full() or self._is_crowded(feed)) and not self._is_starving(feed):
            return None
        if self._waits_for_home(feed) or self._waits_for_mark(feed):
            return None
        if feed.may_end_soon(self._usual):
            return None  # It may end within this request; the next stream is requested meanwhile.
        worker = self._worker_for(feed)
        if worker is None:
            return None
        again = feed.asks_again
        if (span := feed.ask(self._count_to_move(feed))) is None:
            return None
        feed.crashed_at.pop(span[0], None)
        feed.has_moved, feed.worker = self._is_moved(feed, worker), worker
        # A worker that owes something may be sending it; then it would not read a large mark.
        most_state = LARGE_STATE if self._workers[worker] else MOST_STATE
        self._workers[worker] += 1
        self._owed += span[1] - span[0]
        self._requests += 1
        start, stop = span
        ask = Ask(
            request=self._requests,
            worker=worker,
            feed=feed,
            start=start,
            stop=stop,
            mark=feed.mark(start, most_state),
            at=start,
            turn=self._turn_of(feed, start),
        )
        self._asks.add(ask, again)
        return ask

    def _turn_of(self, feed: Feed, ordinal: int) -> int:
        """Which turn it is to hand out an element, where the order is fixed."""
        return self.order.find_turn(feed, ordinal) if self.ordered else 0

    def _is_crowded(self, feed: Feed) -> bool:
        """Whether a feed has used its share of the limit, where inputs take turns."""
        if not isinstance(self.order, InterleaveOrder):
            return False
        limits, size = self._limits, self.sizes.element_bytes
        share = self.order.share(feed)
        if limits.elements is not None:
            most, held, all_ = limits.elements, feed.outstanding, self._here + self._owed
        else:
            most, held, all_ = self.room, int(feed.outstanding * size), self.held
        return held >= most * share if share else all_ * 2 >= most

    @property
    def _usual(self) -> int | None:
        """The usual length of streams that are read one after the other, once one has ended."""
        return self.sizes.usual if isinstance(self.order, SequentialOrder | LeaseOrder) else None

    def _waits_for_home(self, feed: Feed) -> bool:
        """Whether a stream that was not begun should be made by its own worker, which may join."""
        if feed.home in self._workers:
            return False
        return self._is_early(feed) or (feed.worker is None and feed.home in self.expected)

    def _waits_for_mark(self, feed: Feed) -> bool:
        """Whether a worker that leaves is making an element of a stream that is computed in order.

        It then sends a mark, from which another worker continues. Earlier, that worker would have
        to compute the same element.
        """
        if self._is_moving(feed):
            return False
        leaving = (ask for ask in self._asks.values() if ask.worker in self.leaving)
        return self._bound and any(ask.feed.marks is feed.marks for ask in leaving)

    def _is_moving(self, feed: Feed) -> bool:
        """Whether a worker that leaves still makes a stream, or has made what comes next."""
        return feed.marks.moving_from in self._workers and feed.next_ask < feed.marks.moved_at

    def _is_early(self, feed: Feed) -> bool:
        """Whether the first turn of a feed is in a later lap."""
        return isinstance(self.order, RoundRobinOrder) and self.order.is_early(feed)

    def _is_ahead(self, feed: Feed) -> bool:
        """Whether a feed has no slot, and there is no room for it nor for any feed behind it."""
        ahead = isinstance(self.order, InterleaveOrder) and not self.order.share(feed)
        return ahead and self._is_crowded(feed)

    def _is_starving(self, feed: Feed) -> bool:
        """Whether the user waits for this feed, and none of its elements is on its way."""
        return feed is self._next_feed() and feed.is_dry and not self._asks.of_feed(feed)

    def _next_feed(self) -> Feed | None:
        """The feed that must be handed out from next; None where any may be."""
        if self._promised:
            return self._promised[0]
        return self.order.turn() if self.ordered else None

    def _count_to_move(self, feed: Feed) -> int:
        """How many elements to request: none that a worker which leaves has not made."""
        count = self._count(feed)
        if not self._is_moving(feed):
            return count
        is_sized = self._limits.elements is None and self.sizes.element_bytes
        if is_sized and feed in self._behind:
            # They are made already. This client may read no reply before it needs an element, so
            # a few requests should be enough for all of them.
            count = max(count, self.sizes.largest_request)
        return min(count, feed.marks.moved_at - feed.next_ask)

    def _count(self, feed: Feed) -> int:
        if isinstance(feed, InputFeed) and feed.whole:
            return self.sizes.whole
        count = self.sizes.request
        if self._usual is not None and feed.length is None:
            # No more than there may be: elements that do not exist count as owed until then.
            left = max(self._usual - feed.next_ask, self._usual // 8 + 1)
            if left + FEW <= min(self.sizes.count_small(len(self._workers)), 8 * FEW):
                count = left + FEW  # Lengths of short streams differ.
            elif left < 1.5 * count:
                count = left
        if isinstance(self.order, InterleaveOrder):
            fits = self.room / (4 * self.order.cycle * max(self.sizes.element_bytes, 1))
            count = max(1, min(count, int(fits)))
        if self._limits.elements is not None:
            count = min(count, max(1, self._limits.elements - self._here - self._owed))
        if not self._bound:
            # Smaller requests towards the end, so that all workers finish at about the same time.
            count = max(1, min(count, feed.left // (2 * len(self._workers)) or 1))
        return self.sizes.fill_block(feed.next_ask, count) if self._in_blocks else count

    def _worker_for(self, feed: Feed) -> str | None:
        """The worker to ask; None if no worker can take the request now."""
        if self._is_moving(feed):
            leaving = feed.marks.moving_from
            # It has made what it was asked for before; the replies may be unread here.
            most = 2 * DEPTH if feed in self._behind else DEPTH
            return leaving if self._workers[leaving] < most else None
        staying = self._staying_workers()
        if not staying:
            return None
        able = {w: n for w, n in staying.items() if w not in feed.refused}
        if not able:
            if self.expected:
                return None
            raise next(iter(feed.refused.values()))
        crashed = feed.crashed_at.get(feed.next_ask)
        if crashed is not None and (crashed in able or crashed in self.returning):
            return crashed if able.get(crashed, DEPTH) < DEPTH else None
        if self._in_blocks:
            # A worker that is about to join may be the keeper: another one would make it twice.
            block = feed.next_ask // KEPT_BLOCK
            keeper = _choose_keeper({*able, *self.expected} - feed.refused.keys(), block)
            return keeper if self._has_room(keeper, feed) else None
        if self._bound:
            makers = (ask.worker for ask in self._asks.values() if ask.feed.marks is feed.marks)
            for favourite in (feed.marks.successor, feed.worker, *makers, feed.home):
                if favourite in able:
                    return favourite if self._has_room(favourite, feed) else None
        worker = min(able, key=lambda w: able[w])
        return worker if self._has_room(worker, feed) else None

    def _has_room(self, worker: str, feed: Feed) -> bool:
        """Whether a worker can take another request of a feed.

        Up to a bound, requests that it answers later do not count, if another worker owed this
        one, or if the feed has moved and the user waits for it.
        """
        count = self._workers.get(worker, 2 * DEPTH)
        if feed.asks_again:
            return count < 2 * DEPTH
        if count < DEPTH or not self._is_moved(feed, worker) or feed is not self._next_feed():
            return count < DEPTH
        turn = self._turn_of(feed, feed.next_ask)
        before = [a for a in self._asks.of_worker(worker) if a.turn <= turn]
        return count < 2 * DEPTH and len(before) < DEPTH

    def _is_moved(self, feed: Feed, worker: str) -> bool:
        """Whether a worker gets a feed that another one made, or got it before."""
        return feed.has_moved or (self._bound and feed.worker not in (None, worker))

    def arrive(
        self,
        request: int,
        start: int,
        chunk: FeedChunk,
        seconds: float = 0.0,
        began: int | None = None,
    ) -> None:
        """Adds elements that a worker sent."""
        ask = self._asks.get(request)
        if ask is None or start != ask.at:
            return
        ask.at = start + len(chunk)
        self._owed -= len(chunk)
        if ask.feed.void:
            return
        ask.feed.arrive(start, chunk)
        ask.feed.note_part(began)
        self._here += len(chunk)
        self._buffered += chunk.nbytes
        if not isinstance(chunk.content if isinstance(chunk, PlacedChunk) else chunk, Failure):
            self.sizes.record(len(chunk), chunk.nbytes, seconds)

    def mark(self, request: int, mark: Mark) -> None:
        """Adds a mark, from which another worker can continue."""
        if (ask := self._asks.get(request)) is None:
            return
        if mark.worker:
            self.end_move(ask.feed, mark, ask.worker)
        else:
            ask.feed.add_mark(mark)

    def done(self, answered: Done) -> Feed | None:
        """Notes that a worker has answered a request in full.

        Returns the feed if the worker will be asked for nothing more of it.
        """
        ask = self._asks.pop(answered.request, None)
        if ask is None:
            return None
        self.hungry = True
        self._owed -= ask.stop - ask.at
        if ask.worker in self._workers:
            self._workers[ask.worker] -= 1
        if ask.feed.void:
            return None
        ask.feed.note_part(answered.began)
        if answered.length is not None:
            if ask.feed.length is None:
                self.sizes.note_length(answered.length)
            ask.feed.end(answered.length)
            ask.feed.used = answered.used
            ask.feed.note_part(answered.began, answered.ended)
        self._note_progress(ask)
        if isinstance(self.order, InterleaveOrder):
            assert isinstance(ask.feed, InputFeed)
            short = self.sizes.whole // 2 if self.sizes.element_bytes else SHORT
            self.order.done(ask.feed, None if answered.length is None else answered.lengths, short)
        return ask.feed if self._is_complete(ask.feed) else None

    def _note_progress(self, ask: Ask) -> None:
        """Requests missing elements again; if none is missing, the next request may be larger."""
        if ask.at < min(ask.stop, ask.feed.limit):
            ask.feed.lose(ask.at, ask.stop)
        elif ask.at > ask.start:
            self.sizes.grow(ask.at - ask.start)
            ask.feed.prove()

    def _is_complete(self, feed: Feed) -> bool:
        if feed.length is None or feed.asks:
            return False
        return not self._asks.of_feed(feed)

    def refuse(self, request: int, error: OpError, elsewhere: bool) -> None:
        """Notes that a worker cannot answer a request; `elsewhere`: another worker may."""
        ask = self._asks.get(request)
        if ask is None:
            return
        if not elsewhere and isinstance(ask.feed, InputFeed):
            self._fail_input(ask, ask.feed, Failure(error))
        elif not elsewhere:
            self.arrive(request, ask.at, Failure(error))
        elif isinstance(error, UnavailableError):
            self.leaving.add(ask.worker)
            ask.feed.has_moved = True
            self.end_move(ask.feed)
        else:
            ask.feed.refused[ask.worker] = error
        self.done(Done(request))

    def _fail_input(self, ask: Ask, feed: InputFeed, failure: Failure) -> None:
        """Handles an element of an input that no worker can compute.

        Of several inputs, each is requested alone, to find the input that fails.
        """
        if feed.whole:
            assert isinstance(self.order, InterleaveOrder)
            self.order.divide(feed)
        else:
            self.arrive(ask.request, ask.at, PlacedChunk(failure, [None]))

    def promise(self, stream: int, start: int, stop: int) -> None:
        """Hands out what a saved state had pledged before anything else."""
        self._promised.append(Feed(stream, start, stop))

    def pledge(self) -> tuple[int, int, int] | None:
        """Where the order is free: chooses a stream and a range of it that is handed out next.

        A state that includes the pledge continues exactly for as long as the pledge reaches.
        """
        if self._promised:
            promised = self._promised[0]
            return promised.stream, promised.next, promised.stop
        if self._pledge is None:
            self._pledge = next(
                (feed for feed in self._list_candidates() if feed.ready(True)), None
            )
            if self._pledge is None:
                return None
            self._pledge.pledge()
        assert self._pledge.pledged is not None
        return self._pledge.stream, *self._pledge.pledged

    def take(self, count: int) -> tuple[Feed, int, FeedChunk] | None:
        """The next elements, with their feed and first ordinal; None if none has arrived."""
        self._discard()
        if self._promised:
            return self._take(self._promised[0], count, False)
        for feed in self._list_candidates() if self._pledge is None else (self._pledge,):
            if (taken := self._take(feed, count, not self.ordered)) is not None:
                return taken
        return None

    def take_turns(self, order: InterleaveOrder, count: int) -> list[FeedChunk]:
        """The next elements that have arrived, of all inputs whose turns come within `count`."""
        parts = order.take(count)
        self._discard()
        return parts

    def _take(self, feed: Feed, count: int, anywhere: bool) -> tuple[Feed, int, FeedChunk] | None:
        if not feed.ready(anywhere):
            return None
        self._pledge = None
        if self._promised:
            start, chunk = feed.take(count)
            self._promised = [feed for feed in self._promised if not feed.over]
        else:
            start, chunk = feed.take(min(count, self.order.room(feed)), anywhere)
            if isinstance(chunk, Failure):
                chunk.number(self.order.find_number)
            self.order.note_taken(feed, len(chunk))
        self._here -= len(chunk)
        self._buffered -= chunk.nbytes
        return feed, start, chunk

    def _list_candidates(self) -> Iterable[Feed]:
        if not self.ordered and not isinstance(self.order, InterleaveOrder):
            return self.order.available()
        feed = self.order.turn()
        return () if feed is None else (feed,)

    @property
    def over(self) -> bool:
        """Whether all elements were handed out."""
        return not self._promised and self.order.turn() is None


def _choose_keeper(workers: Iterable[str], what: object) -> str:
    """The worker that keeps a block, the same for all clients: highest random weight."""
    return max(workers, key=lambda worker: zlib.crc32(f"{worker}/{what}".encode()))


def _first_element(ask: Ask) -> tuple[int, int]:
    return ask.feed.stream, ask.at


class Blame:
    """Counts the workers that crashed in a row while they computed the same elements.

    A worker passes over an element if a call is known to crash its processes. Otherwise no element
    can be passed over, and the reader ends with an error.
    """

    def __init__(self) -> None:
        self._stream = self._start = self._stop = 0
        self.workers: list[str] = []
        self._how = self._function = ""
        self._accused: tuple[int, int] | None = None
        """The stream and the first element of the last verdict."""

    def add(self, worker: str, stream: int, start: int, stop: int) -> None:
        """Records that a worker crashed while it computed elements `start` to `stop`."""
        if (stream, start) != (self._stream, self._start):
            self._clear()
        self._stream, self._start, self._stop = stream, start, stop
        self.workers.append(worker)

    def explain(self, worker: str, how: str, function: str = "") -> None:
        """Records how the plan process of a worker crashed, for the error message."""
        if worker in self.workers:
            self._how = f", the last one because it {how}"
            self._function = f", in {function}" if function else ""

    def acquit(self, worker: str) -> None:
        """Takes back the last crash of a worker: another call crashed it, or it still searches."""
        if worker in self.workers:
            self.workers.remove(worker)

    @property
    def is_certain(self) -> bool:
        """Whether so many workers crashed that the reader must request nothing more."""
        return len(self.workers) >= MOST_CRASHES

    @property
    def is_final(self) -> bool:
        """Whether another attempt is pointless: plan processes crashed, or as many workers were
        lost with the same elements a second time. Workers may also be lost because they were
        stopped."""
        return bool(self._how) or self._accused == (self._stream, self._start)

    def verdict(self) -> AbortedError:
        """Returns the error that names the elements, and begins to count anew."""
        who = "plan processes crashed" if self._how else "workers were lost"
        ends = (
            "no call of a function is known to cause this, so no element can be passed over and "
            "reading ends here"
            if self.is_final
            else "reading can continue there, and ends if that happens again"
        )
        error = AbortedError(
            f"distribute: {MOST_CRASHES} {who} one after the other while they computed elements "
            f"{self._start} to {self._stop - 1} of stream {self._stream}{self._function}"
            f"{self._how}; {ends}; see what the workers printed"
        )
        self._accused = (self._stream, self._start)
        self._clear()
        return error

    def _clear(self) -> None:
        self.workers, self._how, self._function = [], "", ""
