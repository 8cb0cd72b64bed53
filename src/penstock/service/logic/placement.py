"""Placement: the form in which workers share a plan, and which worker makes which stream.

The first reader of an iteration decides its form; later readers get the same. A worker that joins
takes over the streams that belong to its address, then streams that belong to no address.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable
from itertools import cycle
from typing import assert_never

import msgspec

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.plan.shape import ENDLESS, Form, Shape
from penstock.service.logic.dispatcher_records import (
    ClientRecord,
    IterationRecord,
    WorkerRecord,
    is_local,
)
from penstock.service.logic.facts import Fact, IterationBegun, StreamPlace, StreamsPlaced
from penstock.service.logic.state import State
from penstock.service.protocol.messages import (
    AT_END,
    UNDECIDED,
    ClientHeartbeat,
    DatasetInfo,
    JobOptions,
    OpenIteration,
    Work,
    WorkerInfo,
)

_EMPTY_SHAPE = Shape(Form.RANDOM, length=0)


def form_of(options: JobOptions, shape: Shape, leased: bool = False) -> Form:
    """The form in which workers share a plan of this shape.

    A single reader merges the inputs of an `interleave` itself. For several readers, one worker
    merges them.
    """
    if options.mode == 0:
        return Form.WHOLE
    if options.mode >= 2:
        return Form.SHARD
    if shape.kind == Form.SPLIT and (options.consumers or (leased and shape.turns)):
        return Form.SINGLE
    return Form.SHARE if shape.kind != Form.RANDOM and options.per_worker else shape.kind


def begin(
    state: State, request: OpenIteration, dataset: DatasetInfo, over: bool = False
) -> IterationBegun:
    """The fact that the first reader begins an iteration; `over`: one without elements."""
    options, shape = request.options, _EMPTY_SHAPE if over else dataset.shape
    leased = request.job is not None and not options.consumers
    form = shape.kind if over else form_of(options, shape, leased)
    work = Work(
        digest=dataset.digest,
        job=_new_iteration_name(state),
        form=form,
        stream=0,
        streams=_count_streams(state, form, request, shape),
        key=request.key,
        epoch=request.epoch,
        policy=options.mode if form == Form.SHARD else 0,
        consumers=options.consumers,
        kept=options.consumers > 0 or (leased and (options.cached or shape.kind != Form.RANDOM)),
    )
    return IterationBegun(
        name=request.job,
        repetition=request.repetition,
        dataset_id=request.dataset_id,
        options=options,
        work=work,
        leased=leased,
        length=shape.length,
        by_id=request.by_id,
    )


def _new_iteration_name(state: State) -> str:
    """A name that no start of the dispatcher gives again, even if it lost the fact that it did."""
    life = next(reversed(state.lives), state.dispatcher)
    start = "" if life == state.dispatcher else f"{life}."
    return f"{state.dispatcher}/{start}{state.iteration_numbers}"


def _count_streams(state: State, form: Form, request: OpenIteration, shape: Shape) -> int:
    match form:
        case Form.RANDOM | Form.SINGLE | Form.TURNS:
            return 1
        case Form.SPLIT:
            return shape.streams
        case Form.SHARD:
            return len(state.settings.worker_addresses)
        case Form.WHOLE if not request.options.consumers:
            return ENDLESS
        case Form.WHOLE | Form.SHARE:
            workers = len(_find_candidates(state, request))
            return request.streams or max(1, workers, streams_resumed(request))
        case _:
            assert_never(form)


def _find_candidates(state: State, request: OpenIteration) -> list[WorkerInfo]:
    return candidates(state, request.host if is_local(request.options) else None)


def opening_places(
    state: State, record: IterationRecord, request: OpenIteration
) -> tuple[StreamPlace, ...]:
    """The workers of the streams of a new iteration, if its streams belong to workers."""
    if not record.has_owned_streams:
        return ()
    workers = _find_candidates(state, request)
    if record.work.form == Form.SHARD:
        if is_local(record.options) and not record.begun.leased:
            return tuple(_places_on_host(state, request, workers))
        return tuple(_place_listed(_listed_workers(state, workers), workers))
    if record.work.form == Form.SINGLE:
        loads = {info.worker: len(state.roster.workers[info.worker].streams) for info in workers}
        return tuple(first_places(1, sorted(workers, key=lambda info: loads[info.worker])))
    streams = max(len(workers), streams_resumed(request)) if record.elastic else record.work.streams
    places = first_places(streams, workers)
    for stream, begins in enumerate(request.begins[:streams]):
        places[stream] = msgspec.structs.replace(places[stream], begins=begins)
    return tuple(places)


def joining_places(
    state: State, record: IterationRecord, request: OpenIteration
) -> tuple[StreamPlace, ...]:
    """The places that change because a client joins an iteration without clients, or without
    clients on its host."""
    if not record.has_owned_streams:
        return ()
    workers = _find_candidates(state, request)
    new_here = is_local(record.options) and request.host not in record.hosts
    places = settle(record, workers) if new_here or not record.clients else []
    if record.elastic:
        places += _places_of_saved_streams(record, request, places, workers)
    places += _places_with_known_laps(record, request, places, workers)
    return tuple(places)


def _places_with_known_laps(
    record: IterationRecord,
    request: OpenIteration,
    places: list[StreamPlace],
    workers: list[WorkerInfo],
) -> list[StreamPlace]:
    """Places for streams of a coordinated read whose first lap the consumer knows and this
    dispatcher does not, because it has lost facts."""
    makers = {place.stream: place.worker for place in (*record.places, *places)}
    names: list[str | None] = [*(info.worker for info in workers)] or [None]
    check_laps(record, request)
    return [
        StreamPlace(
            stream,
            worker=makers.get(stream, names[stream % len(names)]),
            home=record.places.home(stream),
            begins=begins,
        )
        for stream, begins in enumerate(request.begins)
        if record.places.begins(stream) != begins
    ]


def _places_of_saved_streams(
    record: IterationRecord,
    request: OpenIteration,
    places: list[StreamPlace],
    workers: list[WorkerInfo],
) -> list[StreamPlace]:
    """Places for streams that a saved state names and this iteration does not have yet."""
    known = max(len(record.places), *(place.stream + 1 for place in places), 0)
    names: list[str | None] = [*(info.worker for info in workers)] or [None]
    return [
        StreamPlace(stream, names[stream % len(names)])
        for stream in range(known, streams_resumed(request))
    ]


def candidates(state: State, local: str | None) -> list[WorkerInfo]:
    """Workers for new streams, in the order in which they joined; `local`: only those on that host.

    If none of them is usable, all of them.
    """
    living = [
        record
        for record in state.roster.workers.values()
        if local is None or record.info.host == local
    ]
    usable = [record.info for record in living if record.usable]
    return usable or [record.info for record in living]


def first_places(count: int, workers: list[WorkerInfo]) -> list[StreamPlace]:
    """A stream for each worker; these workers also make the streams beyond, until more join."""
    places = [StreamPlace(i, info.worker, info.address) for i, info in enumerate(workers[:count])]
    hosts = cycle(info.worker for info in workers) if workers else cycle((None,))
    return places + [StreamPlace(i, next(hosts)) for i in range(len(places), count)]


def _place_listed(
    listed: list[tuple[str, WorkerInfo | None]], workers: list[WorkerInfo]
) -> list[StreamPlace]:
    """A stream for each listed address; one of `workers` makes it until a worker joins there."""
    there = [info.worker for info in workers]
    known, others = set(there), cycle(there) if there else cycle((None,))
    places = []
    for stream, (address, info) in enumerate(listed):
        worker = info.worker if info is not None and info.worker in known else next(others)
        places.append(StreamPlace(stream, worker, address if info is None else info.address))
    return places


def _places_on_host(
    state: State, request: OpenIteration, workers: list[WorkerInfo]
) -> list[StreamPlace]:
    """The parts of a client that uses only `workers`, those on its host.

    They are the parts of these workers. A client that resumes has the parts of its state.
    """
    listed = _listed_workers(state, candidates(state, None))
    if request.streams:
        return _place_listed(listed[: request.streams], workers)
    places = [
        StreamPlace(stream, info.worker, info.address)
        for stream, (_, info) in enumerate(listed)
        if info is not None and info in workers
    ]
    if not places:
        raise InvalidArgumentError(
            'service.distribute: target_workers="LOCAL" reads the parts of the workers on this '
            f"host, but none of the {len(listed)} listed workers runs here; start one here before "
            'reading, or use target_workers="ANY"'
        )
    return places


def _listed_workers(state: State, workers: list[WorkerInfo]) -> list[tuple[str, WorkerInfo | None]]:
    """The worker of each listed address; for a host without port, the next worker on that host."""
    addresses = state.settings.worker_addresses
    there = {info.address: info for info in workers if info.address in addresses}
    free = [info for info in workers if info.address not in addresses]
    found: list[tuple[str, WorkerInfo | None]] = []
    for listed in addresses:
        info = there.get(listed) or next((w for w in free if is_at(w.address, listed)), None)
        if info in free:
            free.remove(info)
        found.append((listed, info))
    return found


def is_at(address: str, listed: str) -> bool:
    """Whether an address is the listed one, or on the listed host if that has no number as port.

    The port may also have a name, as in "host:%port_data%".
    """
    host = re.sub(r":%port\w*%$", "", listed)
    return address == listed or re.fullmatch(rf"{re.escape(host)}:\d+", address) is not None


def settle(record: IterationRecord, newcomers: Iterable[WorkerInfo]) -> list[StreamPlace]:
    """The places of streams that workers take over which are new to an iteration."""
    changes: dict[int, StreamPlace] = {}
    strangers = []
    newcomers = list(newcomers)
    for info in newcomers:
        mine = record.places.homes.get(info.address)
        if mine is None:
            strangers.append(info)
        for stream in mine or ():
            if record.places.worker(stream) != info.worker:
                changes[stream] = StreamPlace(stream, info.worker, info.address)
    guests = [stream for stream in record.places.guests if stream not in changes]
    _place_on_strangers(record, strangers, guests, changes)
    _place_orphans(record, newcomers, guests, changes)
    return list(changes.values())


def _place_on_strangers(
    record: IterationRecord,
    strangers: list[WorkerInfo],
    guests: list[int],
    changes: dict[int, StreamPlace],
) -> None:
    new = len(record.places)
    # Without clients, a saved state is being restored: it keeps its number of streams.
    extendable = record.extendable and bool(record.clients)
    for info in strangers:
        begins = None
        if guests:
            stream = guests.pop(0)
        elif extendable or (record.elastic and not record.is_finished):
            stream, new = new, new + 1
            begins = UNDECIDED if extendable else None
        else:
            return
        changes[stream] = StreamPlace(stream, info.worker, info.address, begins)


def _place_orphans(
    record: IterationRecord,
    newcomers: list[WorkerInfo],
    guests: list[int],
    changes: dict[int, StreamPlace],
) -> None:
    """Places streams without a worker on the newcomers, until workers at their homes join."""
    hosts = cycle(info.worker for info in newcomers) if newcomers else cycle((None,))
    for stream in guests:
        if record.places.worker(stream) is None and newcomers:
            changes[stream] = StreamPlace(stream, next(hosts), record.places.home(stream))


def welcome(state: State, info: WorkerInfo) -> list[Fact]:
    """The facts that place streams on a worker that joins."""
    placed: list[Fact] = []
    for job in state.active:
        record = state.iterations[job]
        if record.has_owned_streams and record.near(info) and (places := settle(record, (info,))):
            placed.append(StreamsPlaced(job, tuple(places)))
    return placed


def extend(state: State, record: IterationRecord, request: ClientHeartbeat) -> list[Fact]:
    """Lets undecided streams of a coordinated read begin, once all consumers have promised a limit.

    They begin in the lap of the highest limit: no consumer has entered it, and none enters it
    before it knows of them.
    """
    limits = [
        _valid_limit(state.clients[name], record, request) for name in record.consumers.values()
    ]
    known = [limit for limit in limits if limit is not None]
    if record.asked_since is None or len(known) < len(limits) or AT_END in known:
        return []
    waiting = [place for place in record.places if place.stream in record.places.undecided]
    begin = [StreamPlace(p.stream, p.worker, p.home, max(known)) for p in waiting]
    return [StreamsPlaced(record.work.job, tuple(begin))]


def _valid_limit(
    client: ClientRecord, record: IterationRecord, request: ClientHeartbeat
) -> int | None:
    """The limit of a consumer, also if `request` promises it; None if it has promised none."""
    version, limit = client.version, client.limit
    if client.client == request.client and request.version >= version:
        version, limit = request.version, request.limit
    return limit if record.asked_since is not None and version >= record.asked_since else None


def inherit(state: State, old: WorkerRecord, worker: str) -> list[Fact]:
    """Moves all streams of a worker to the worker that took over its address."""
    streams: dict[str, list[StreamPlace]] = {}
    for job, stream in old.streams:
        home = state.iterations[job].places.home(stream)
        streams.setdefault(job, []).append(StreamPlace(stream, worker, home))
    return [StreamsPlaced(job, tuple(places)) for job, places in streams.items()]


def relieve(state: State, leaving: Collection[str]) -> list[Fact]:
    """Moves the streams of some workers to other usable workers, if there are any."""
    records = [state.roster.workers[worker] for worker in leaving]
    if not any(record.streams for record in records):
        return []
    others = _LoadHeap([r for r in state.roster.usable() if r.info.worker not in leaving])
    moved: dict[str, list[StreamPlace]] = {}
    for record in records:
        for job, stream in record.streams:
            iteration = state.iterations[job]
            if (other := others.lightest(iteration)) is not None:
                place = StreamPlace(stream, other, iteration.places.home(stream))
                moved.setdefault(job, []).append(place)
    return [StreamsPlaced(job, tuple(places)) for job, places in moved.items()]


class _LoadHeap:
    """Workers by the number of their streams, including streams that are being placed."""

    def __init__(self, records: list[WorkerRecord]) -> None:
        self._heap = [(len(record.streams), i) for i, record in enumerate(records)]
        self._records = records
        heapq.heapify(self._heap)

    def lightest(self, iteration: IterationRecord) -> str | None:
        """The worker with the fewest streams that the iteration may use; counts one more for it."""
        near = self._lightest_entry(iteration)
        if near is None:
            return None
        load, i = near
        if near is self._heap[0]:
            heapq.heapreplace(self._heap, (load + 1, i))
        else:
            self._heap[self._heap.index(near)] = (load + 1, i)
            heapq.heapify(self._heap)
        return self._records[i].info.worker

    def _lightest_entry(self, iteration: IterationRecord) -> tuple[int, int] | None:
        if self._heap and iteration.near(self._records[self._heap[0][1]].info):
            return self._heap[0]
        near = (e for e in self._heap if iteration.near(self._records[e[1]].info))
        return min(near, default=None)


# What a saved state says about streams


_MAX_WORKERS = 1 << 16
"""A saved state with more streams than this is damaged: each stream is of one worker."""


def streams_resumed(request: OpenIteration) -> int:
    """How many streams of workers a saved state names."""
    known = (at.stream for at in (*request.consumed, *request.held))
    streams = 1 + max((*known, *(stream for stream, _ in request.finished)), default=-1)
    if streams > _MAX_WORKERS:
        raise InvalidArgumentError(
            f"load_state_dict: the saved state has read {streams} streams, one for each worker; "
            f"at most {_MAX_WORKERS} are possible"
        )
    return streams


def check_laps(record: IterationRecord, request: OpenIteration) -> None:
    """Checks that the streams of a coordinated read begin in the same laps for all consumers."""
    for stream, begins in enumerate(request.begins):
        known = record.places.begins(stream)
        if known not in (UNDECIDED, begins):
            raise FailedPreconditionError(
                f"load_state_dict: stream {stream} of the saved state begins in lap {begins}, and "
                f"in lap {known} for the other consumers of job {request.job!r}; restore states of "
                "one run, or use another job_name"
            )
