"""Forms: what becomes of a plan when workers share it, and who makes which part of it first.

The first reader of an iteration decides; those who come later find it decided.
"""

from __future__ import annotations

import msgspec

from penstock.plan.shape import ENDLESS, Shape
from penstock.service.logic.agreement import check_laps, streams_resumed
from penstock.service.logic.facts import IterationBegun, StreamPlace
from penstock.service.logic.iterations import IterationRecord, is_local
from penstock.service.logic.placing import candidates, first_places, listed_places, settle
from penstock.service.logic.state import State
from penstock.service.protocol.messages import (
    DatasetInfo,
    JobOptions,
    OpenIteration,
    Work,
    WorkerInfo,
)

_NOTHING = Shape("random", length=0)


def form_of(options: JobOptions, shape: Shape, leased: bool = False) -> str:
    """What becomes of a plan whose elements are addressed as `shape` says.

    Turns between inputs are taken by one reader. Where several share, one worker takes them.
    """
    if options.mode == 0:
        return "whole"
    if options.mode >= 2:
        return "shard"
    if shape.kind == "split" and (options.consumers or (leased and shape.turns)):
        return "single"
    return "share" if shape.kind != "random" and options.per_worker else shape.kind


def begin(
    state: State, request: OpenIteration, dataset: DatasetInfo, over: bool = False
) -> IterationBegun:
    """The iteration that its first reader asks for; without elements if it is `over`."""
    options, shape = request.options, _NOTHING if over else dataset.shape
    leased = request.job is not None and not options.consumers
    form = shape.kind if over else form_of(options, shape, leased)
    work = Work(
        digest=dataset.digest,
        job=_name(state),
        form=form,
        stream=0,
        streams=_streams(state, form, request, shape),
        key=request.key,
        epoch=request.epoch,
        policy=options.mode if form == "shard" else 0,
        consumers=options.consumers,
        kept=options.consumers > 0 or (leased and (options.cached or shape.kind != "random")),
    )
    key = (request.job, request.repetition, request.dataset_id)
    return IterationBegun(*key, options, work, leased, shape.length, by_id=request.by_id)


def _name(state: State) -> str:
    """Unique for ever: a start that does not know of an iteration must not give its name again."""
    life = next(reversed(state.lives), state.dispatcher)
    start = "" if life == state.dispatcher else f"{life}."
    return f"{state.dispatcher}/{start}{state.iteration_numbers}"


def _streams(state: State, form: str, request: OpenIteration, shape: Shape) -> int:
    if form == "shard":
        return len(state.settings.worker_addresses)
    if form == "share" or (form == "whole" and request.options.consumers):
        return request.streams or max(1, len(_workers(state, request)), streams_resumed(request))
    if form == "whole":
        return ENDLESS
    return shape.streams if form == "split" else 1


def _workers(state: State, request: OpenIteration) -> list[WorkerInfo]:
    return candidates(state, request.host if is_local(request.options) else None)


def opening_places(
    state: State, record: IterationRecord, request: OpenIteration
) -> tuple[StreamPlace, ...]:
    """Who makes the streams of a new iteration, where streams belong to workers."""
    if not record.owned:
        return ()
    workers = _workers(state, request)
    if record.work.form == "shard":
        return tuple(listed_places(state, workers))
    if record.work.form == "single":
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
    """What changes because a client joins where nobody was, or nobody on its host."""
    if not record.owned:
        return ()
    workers = _workers(state, request)
    new_here = is_local(record.options) and request.host not in record.hosts
    places = settle(record, workers) if new_here or not record.clients else []
    if record.elastic:
        places += _resumed_places(record, request, places, workers)
    places += _agreed_places(record, request, places, workers)
    return tuple(places)


def _agreed_places(
    record: IterationRecord,
    request: OpenIteration,
    places: list[StreamPlace],
    workers: list[WorkerInfo],
) -> list[StreamPlace]:
    """Streams of a coordinated read that this dispatcher, which was told less than the consumers
    were, does not know where to begin."""
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


def _resumed_places(
    record: IterationRecord,
    request: OpenIteration,
    places: list[StreamPlace],
    workers: list[WorkerInfo],
) -> list[StreamPlace]:
    """Streams that a saved state knows and this iteration does not have yet."""
    known = max(len(record.places), *(place.stream + 1 for place in places), 0)
    names: list[str | None] = [*(info.worker for info in workers)] or [None]
    return [
        StreamPlace(stream, names[stream % len(names)])
        for stream in range(known, streams_resumed(request))
    ]
