"""Granting: which elements the dispatcher leases to a reader that asks, or resumes a saved state.

The dispatcher journals every grant before it replies; a repeated request gets the same reply.
Pieces of a plan are leased in the local order: a reader gets the lowest piece that no other reader
holds. Streams of workers are leased side by side, because they have no order among themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import count

import msgspec

from penstock.errors import AbortedError, DataLossError, FailedPreconditionError, NotFoundError
from penstock.plan.shape import ENDLESS, Form
from penstock.service.logic.dispatcher_records import (
    HERE,
    LEFT,
    LOST,
    SUPERSEDED,
    ClientRecord,
    IterationRecord,
    is_local,
    spread,
)
from penstock.service.logic.facts import (
    ClientHeard,
    ClientRewound,
    ClientWaits,
    Fact,
    RangesConsumed,
    RangesLeased,
    StreamPlace,
    StreamsPlaced,
)
from penstock.service.logic.leases import Ranges
from penstock.service.logic.state import Decision, State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Grant, Lease, LeaseReply, OpenIteration, StreamRange

MOST_GRANTS = 8
"""The most ranges in one grant."""

_FOREVER = 1 << 62
"""More than there can be."""


def find_reader(state: State, name: str) -> ClientRecord:
    """Returns the record of a client that reads; raises if it left or its leases expired."""
    client = state.clients.get(name)
    if client is None or client.standing == LOST:
        raise NotFoundError(
            f"service: the dispatcher does not know this reader ({name}); it was restarted without "
            f"a work_dir, or has not heard of it for {state.settings.lease_seconds:g} s"
        )
    if client.standing != HERE:
        raise AbortedError(explain_departure(client))
    return client


def explain_departure(member: ClientRecord) -> str:
    """The message for a client that may not read any more."""
    if member.standing == LEFT:
        return f"service: reader {member.client} has left; iterate again to read on"
    if member.consumer >= 0:
        return (
            f"service: another reader has joined as consumer {member.consumer}; only one process "
            "may read under each consumer_index"
        )
    return (
        f"service: another reader resumed a saved state of reader {member.client}; iterate "
        "again to read on"
    )


def report_consumed(
    state: State,
    client: ClientRecord,
    consumed: tuple[StreamRange, ...],
    ended: tuple[tuple[int, int], ...],
) -> list[RangesConsumed]:
    """The fact that a client has consumed elements or reached ends; empty if there is no news."""
    record = state.iterations[client.job]
    if not record.begun.leased or not (consumed or ended):
        return []
    check_ends(record, ended)
    news = tuple(end for end in ended if end[0] not in record.ends)
    return [RangesConsumed(client.client, consumed, news)] if consumed or news else []


def check_ends(record: IterationRecord, ended: tuple[tuple[int, int], ...]) -> None:
    """Checks that a stream has the same length for all readers."""
    for stream, length in ended:
        known = record.ends.get(stream)
        if known is None:
            consumed = (group.consumed_to(stream) for group in record.groups.values())
            known = max(length, *consumed, 0)
        if length != known:
            raise DataLossError(
                f"service: stream {stream} of {record.work.job} ended after {length} elements, "
                f"but another reader got {known}; the functions of a dataset must make the same "
                "number of elements whenever they are called"
            )


def lease(state: State, request: Lease) -> Decision:
    """Leases ranges to a client; a repeated request gets the same ones."""
    client = find_reader(state, request.client)
    record = state.iterations[client.job]
    if not record.begun.leased:
        raise FailedPreconditionError("Lease: the readers of this iteration read without leases")
    heard = ClientHeard(client.client)
    report = report_consumed(state, client, request.consumed, request.ended)
    if request.number <= client.number:
        answer = client.answer if request.number == client.number else ()
        return Decision((heard, *report), _make_reply(record, answer, {}))
    chosen = choose(state, client, request.want, dict(request.ended))
    if chosen:
        facts, reply = _grant(state, record, client, chosen)
    else:
        facts, reply = _reply_without_grants(state, record, client)
    ranges = tuple(grant.range for grant in reply.grants)
    leased = RangesLeased(client.client, request.number, ranges)
    return Decision((heard, *report, *facts, leased), reply)


def _make_reply(
    record: IterationRecord, ranges: tuple[StreamRange, ...], places: dict[int, str | None]
) -> LeaseReply:
    if not ranges:
        return LeaseReply(retry=timing.LEASE_RETRY)
    worker = record.places.worker
    return LeaseReply(tuple(Grant(at, places.get(at.stream) or worker(at.stream)) for at in ranges))


def _grant(
    state: State, record: IterationRecord, client: ClientRecord, chosen: list[StreamRange]
) -> tuple[list[Fact], LeaseReply]:
    """Leases `chosen`, or nothing if no worker can make it."""
    places = _choose_workers(state, record, client, chosen) if record.has_bound_streams else {}
    if any(worker is None for worker in places.values()):
        return [], LeaseReply(retry=timing.LEASE_RETRY)
    moved = [
        StreamPlace(stream, worker, record.places.home(stream))
        for stream, worker in places.items()
        if worker != record.places.worker(stream)
    ]
    facts: list[Fact] = [StreamsPlaced(record.work.job, tuple(moved))] if moved else []
    return facts, _make_reply(record, tuple(chosen), places)


def _choose_workers(
    state: State, record: IterationRecord, client: ClientRecord, chosen: list[StreamRange]
) -> dict[int, str | None]:
    """The worker of each stream: the worker that makes it already, if that is usable."""
    workers, local = state.roster.workers, is_local(record.options)
    places: dict[int, str | None] = {}
    lacking: dict[int, None] = {}
    for stream in dict.fromkeys(at.stream for at in chosen):
        worker = workers.get(record.places.worker(stream) or "")
        # A suspected or draining worker is better than none.
        places[stream] = worker.info.worker if worker is not None else None
        if worker is None or not worker.usable or (local and worker.info.host != client.host):
            lacking[stream] = None
    staying = [worker for stream, worker in places.items() if stream not in lacking]
    near = (w for w in state.roster.usable() if not local or w.info.host == client.host)
    for stream, worker in zip(lacking, spread(near, staying), strict=False):
        places[stream] = worker.info.worker
    return places


def _reply_without_grants(
    state: State, record: IterationRecord, client: ClientRecord
) -> tuple[list[Fact], LeaseReply]:
    """Nothing is free: the iteration is over, or other clients hold the rest and may return it.

    The client is finished once every holder was alive after the client began to wait: a live
    holder will hand its elements out itself.
    """
    if record.waiting:
        return [], LeaseReply(retry=timing.LEASE_RETRY)
    group = state.group(client)
    others = (name for name in group.holders if name != client.client)
    since = client.waits_since
    # A late message does not prove that its sender is alive now. Only a message with a version
    # from after the beginning of the wait does.
    if all(since is not None and state.clients[name].version >= since for name in others):
        shared = any(record.ends.values()) or any(t.reached for t in group.tracks.values())
        return [], LeaseReply(finished=True, shared=shared)
    return [ClientWaits(client.client)], LeaseReply(retry=timing.LEASE_RETRY)


def choose(
    state: State, client: ClientRecord, want: int, ended: dict[int, int]
) -> list[StreamRange]:
    """Chooses about `want` elements for a client; `ended` has lengths that are not applied yet."""
    in_order = state.iterations[client.job].work.form == Form.SPLIT
    kind = _InOrder if in_order else _SideBySide
    return kind(state, client, ended).choose(max(1, want))


class _Choice:
    """What is free for a client; subclasses choose from it."""

    def __init__(self, state: State, client: ClientRecord, ended: dict[int, int]) -> None:
        self._state = state
        self._client = client.client
        self._record = state.iterations[client.job]
        self._group = state.group(client)
        self._ended = ended

    def _known_end(self, stream: int) -> int | None:
        return self._ended.get(stream, self._record.ends.get(stream))

    def _returned_ranges(self, stream: int) -> Iterator[tuple[int, int]]:
        """The free elements of a stream that were leased before."""
        end = self._known_end(stream)
        for start, stop in self._group.tracks[stream].free:
            stop = stop if end is None else min(stop, end)
            if start < stop:
                yield start, stop

    def _unleased_range(self, stream: int, want: int) -> StreamRange:
        """The next `want` elements of a stream that were never leased; fewer at its end."""
        track, end = self._group.tracks.get(stream), self._known_end(stream)
        start = track.reached if track is not None else 0
        stop = start + want if end is None else min(start + want, end)
        return StreamRange(stream, start, stop)

    def _unbegun_streams(self) -> Iterator[int]:
        """Streams that no client has begun."""
        begun, total = self._group.begun, self._record.total
        numbers = count(begun) if total == ENDLESS else range(begun, total)
        return (stream for stream in numbers if self._known_end(stream) != 0)


class _SideBySide(_Choice):
    """Returned elements first, then a part of every stream, in the order in which they have waited.

    With random access there is one stream, and any worker makes any part of it.
    """

    def choose(self, want: int) -> list[StreamRange]:
        found: list[StreamRange] = []
        for stream in self._group.returned:
            for start, stop in self._returned_ranges(stream):
                found.append(StreamRange(stream, start, min(stop, start + want)))
                want -= stop - start
                if want <= 0 or len(found) == MOST_GRANTS:
                    return found
        streams = self._streams(MOST_GRANTS - len(found))
        size = -(-want // max(1, len(streams)))
        return found + [self._unleased_range(stream, size) for stream in streams]

    def _streams(self, most: int) -> list[int]:
        """The streams to lease from next, one for each usable worker."""
        most = (
            max(1, self._state.roster.count_usable(most)) if self._record.has_bound_streams else 1
        )
        chosen: dict[int, None] = {}
        for stream in self._list_candidates():
            if stream not in chosen and self._known_end(stream) != 0 and stream not in self._ended:
                chosen[stream] = None
                if len(chosen) == most:
                    break
        return list(chosen)

    def _list_candidates(self) -> Iterator[int]:
        yield from self._group.idle
        yield from self._unbegun_streams()
        yield from self._group.open


class _InOrder(_Choice):
    """A run of the local order, as far as the ends of streams are known. Of some streams behind it
    the client gets one element, so that workers make them ahead and other clients begin elsewhere.

    If nothing else is left, a client gets elements of a stream that other clients hold parts of.
    """

    def choose(self, want: int) -> list[StreamRange]:
        found: list[StreamRange] = []
        ahead = self._share()
        for stream in self._list_unshared():
            run = want > 0 and len(found) < MOST_GRANTS
            if run:
                spans = list(self._free_ranges(stream, want))
                want -= sum(span.stop - span.start for span in spans)
            else:
                spans = [] if self._holds_part(stream) else list(self._free_ranges(stream, 1))
            found += spans
            ahead -= not run or want <= 0
            if ahead <= 0:
                break
        return found or self._take_over(want)

    def _share(self) -> int:
        """How many streams a client may hold parts of, so that all workers have one to make."""
        usable = self._state.roster.count_usable(_FOREVER)
        others = len(self._group.holders) - (self._client in self._group.holders)
        return max(2, max(MOST_GRANTS, usable) // (others + 1))

    def _list_unshared(self) -> Iterator[int]:
        """Streams of which no other client holds a part, in the local order."""
        group = self._group
        mine = (
            stream for stream in group.held_streams.get(self._client, ()) if stream in group.open
        )
        return merge(sorted({*group.returned, *group.idle, *mine}), self._unbegun_streams())

    def _holds_part(self, stream: int) -> bool:
        return stream in self._group.held_streams.get(self._client, ())

    def _free_ranges(self, stream: int, want: int) -> Iterator[StreamRange]:
        """Up to `want` free elements of a stream: returned ones, then unleased ones, unless only
        other clients hold parts of it."""
        group = self._group
        for start, stop in self._returned_ranges(stream) if stream in group.returned else ():
            yield StreamRange(stream, start, min(stop, start + want))
            want -= stop - start
            if want <= 0:
                return
        apart = stream not in group.open or stream in group.idle or self._holds_part(stream)
        if apart and (new := self._unleased_range(stream, want)).start < new.stop:
            yield new

    def _take_over(self, want: int) -> list[StreamRange]:
        """Elements of a stream that other clients hold parts of.

        It prefers a stream that is not the lowest of any client: no client reads it yet.
        """
        busy: set[str] = set()
        found: list[StreamRange] = []
        for stream in sorted(self._group.open):
            if (new := self._unleased_range(stream, want)).start < new.stop:
                found.append(new)
                if busy.issuperset(self._group.tracks[stream].held):
                    return found[-1:]
                busy.update(self._group.tracks[stream].held)
        return found[:1]


# Readers that resume saved states: whose reading is undone, and what other readers have got


def origin_of(request: OpenIteration) -> str:
    """A digest of the saved states that a client resumes; empty without any."""
    if not request.resumes:
        return ""
    ranges = sorted((*request.consumed, *request.held), key=lambda at: (at.stream, at.start))
    states = (sorted(request.resumes), ranges, request.finished)
    return hashlib.sha256(msgspec.msgpack.encode(states)).hexdigest()[:16]


def find_rewound(record: IterationRecord, request: OpenIteration) -> list[ClientRewound]:
    """The clients whose reading is undone: the resumed ones, and all that resumed states of these.

    Members are in the order in which they joined, so that each comes after those it resumed.
    """
    origin = origin_of(request)
    line = set(request.resumes)
    for member in record.members.values():
        # The requesting client itself, which returns after its leases expired.
        returns = member.client == request.client
        together = _is_merged(request) and member.standing in (HERE, LEFT)
        continues = member.joined.origin == origin and (returns or together)
        if line.intersection(member.joined.resumes) and not continues:
            line.add(member.client)
    rewound = (member for member in record.members.values() if member.client in line)
    return [
        ClientRewound(member.client)
        for member in rewound
        if member.consumed or member.standing != SUPERSEDED
    ]


def _is_merged(request: OpenIteration) -> bool:
    """Whether a client resumes a merged state, perhaps beside other clients."""
    return request.merged or len(request.resumes) > 1


def find_untaken(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact]
) -> tuple[StreamRange, ...]:
    """The part of `request.held` that no other client has once the facts `before` are applied."""
    ends = {**record.ends, **dict(request.finished)}
    taken = _find_taken(record, request, before, {at.stream for at in request.held})
    return _cut_ranges(
        request.held,
        lambda at: taken[at.stream].outside(at.start, min(at.stop, ends.get(at.stream, at.stop))),
    )


def _cut_ranges(
    ranges: Iterable[StreamRange], cut: Callable[[StreamRange], Iterable[tuple[int, int]]]
) -> tuple[StreamRange, ...]:
    """The parts of ranges that `cut` returns for each of them."""
    return tuple(StreamRange(at.stream, start, stop) for at in ranges for start, stop in cut(at))


def find_repeated(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact]
) -> tuple[StreamRange, ...]:
    """The part of `request.consumed` that other clients have got, too."""
    if _is_merged(request):
        return ()  # All clients that resume a merged state report the same; the first has it.
    taken = _find_taken(record, request, before, {at.stream for at in request.consumed})
    return _cut_ranges(request.consumed, lambda at: taken[at.stream].inside(at.start, at.stop))


def find_unclaimed(record: IterationRecord, request: OpenIteration) -> tuple[StreamRange, ...]:
    """As `find_repeated`, for a repeated request: what it reports and the record does not have."""
    if _is_merged(request):
        return ()
    mine = record.members[request.client].consumed
    return _cut_ranges(
        request.consumed, lambda at: mine.get(at.stream, Ranges()).outside(at.start, at.stop)
    )


def _find_taken(
    record: IterationRecord, request: OpenIteration, before: Iterable[Fact], streams: set[int]
) -> dict[int, Ranges]:
    """What the other clients of a group hold or have consumed of some streams, once the facts
    `before` are applied."""
    taken = {stream: Ranges() for stream in streams}
    if not taken:
        return taken  # A new reader: an iteration may have thousands of members.
    name = record.group_of(request)
    undone = {fact.client for fact in before if isinstance(fact, ClientRewound)} | {request.client}
    others = [m for m in record.members.values() if m.group == name and m.client not in undone]
    for member in others:
        for stream in streams & member.consumed.keys():
            for start, stop in member.consumed[stream]:
                taken[stream].add(start, stop)
    tracks = record.groups[name].tracks if name in record.groups else {}
    for stream in streams & tracks.keys():
        for client, held in tracks[stream].held.items():
            for start, stop in held if client not in undone else ():
                taken[stream].add(start, stop)
    return taken


def find_leased(record: IterationRecord, request: OpenIteration) -> tuple[StreamRange, ...]:
    """As `find_untaken`, for a repeated request: the part of `request.held` that it has leased."""
    tracks = record.groups[record.members[request.client].group].tracks

    def find_held(at: StreamRange) -> list[tuple[int, int]]:
        mine = tracks[at.stream].held.get(request.client) if at.stream in tracks else None
        return [] if mine is None else mine.inside(at.start, at.stop)

    return _cut_ranges(request.held, find_held)
