"""Accounts: what must be true at the end of a history. An element is its own address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.service.logic.dispatcher_records import HERE, IterationRecord
from penstock.service.protocol.messages import UNDECIDED
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import Violation
from tests.simulation.plans import (
    BLOCK,
    address,
    element,
    in_laps,
    in_sequence,
    in_turns,
    interleave_inputs,
    lengths_of,
    share_of,
)
from tests.simulation.trainers import DEAD, ENDED, MERGED, READING, Job, Trainer


def settle(dispatcher: Dispatcher, trainers: Iterable[Trainer]) -> None:
    """Checks the elements that all readers got."""
    shared: dict[tuple[str, int, str], list[Trainer]] = {}
    for trainer in trainers:
        _require(trainer, trainer.status != READING, "has not come to its end")
        job = trainer.job
        if job.name is None or job.options.consumers:
            _alone(trainer, _laps(dispatcher, trainer))
        else:
            shared.setdefault((job.name, job.repetition, trainer.group), []).append(trainer)
    for (name, repetition, group), members in shared.items():
        _together(dispatcher, name, repetition, group, members)
    _nothing_leased(dispatcher)


def _require(who: Trainer | str, holds: bool, what: str) -> None:
    if not holds:
        name = who if isinstance(who, str) else who.name
        raise Violation(f"{name} {what}")


# One reader that gets everything


def _laps(dispatcher: Dispatcher, trainer: Trainer) -> list[int]:
    """The laps in which the streams of a coordinated read begin, the same for all consumers."""
    job = trainer.job
    record = None if job.name is None else _record(dispatcher, job.name, job.repetition)
    if record is None:
        return [0] * max(trainer.streams, 0)
    return [info.begins for info in record.streams() if info.begins != UNDECIDED]


def _alone(trainer: Trainer, laps: list[int]) -> None:
    if not trainer.form:
        _require(trainer, trainer.status == DEAD and not trainer.history, "has opened nothing")
        return
    history = trainer.history
    ordered = trainer.job.ordered or trainer.job.options.consumers > 0
    if trainer.form == "whole" and not trainer.job.options.consumers:
        _whole(trainer)
    elif ordered:
        expected = list(islice(_order(trainer, laps), len(history) + 1))
        _require(trainer, history == expected[: len(history)], _difference(history, expected))
        _require(trainer, trainer.status != ENDED or len(expected) == len(history), "ended early")
    else:
        _require(trainer, len(set(history)) == len(history), "got elements twice")
        if trainer.status == ENDED:
            expected = list(_order(trainer, laps))
            _require(trainer, sorted(history) == sorted(expected), "got other elements")


def _difference(history: list[int], expected: list[int]) -> str:
    for place, (got, due) in enumerate(zip(history, expected, strict=False)):
        if got != due:
            return f"got {address(got)} as element {place}, and not {address(due)}"
    return f"got {len(history)} elements, more than there are"


def _order(trainer: Trainer, laps: list[int]) -> Iterator[int]:
    """The elements of an undisturbed reading."""
    plan, options, streams = trainer.job.plan, trainer.job.options, trainer.streams
    count, me = options.consumers, trainer.consumer
    if trainer.form == "whole" and count:
        turns = in_laps(
            [(begins, share_of(plan.length(s), count, me)) for s, begins in enumerate(laps)]
        )
    elif trainer.form in ("whole", "shard", "share"):
        lengths = ((s, share_of(n, count, me)) for s, n in lengths_of(plan, streams))
        turns = in_turns(lengths, streams, 1 if count else BLOCK)
    elif count:
        turns = (element(0, n) for n in range(share_of(plan.length(0), count, me)))
    elif trainer.form == "split" and plan.shape.turns is not None and trainer.job.ordered:
        turns = interleave_inputs(plan)
    else:
        turns = in_sequence(plan, streams)
    for value in turns:
        stream, number = address(value)
        yield element(stream, number * count + me) if count else value


def _whole(trainer: Trainer) -> None:
    """Every worker computes a copy of all elements; each copy must be complete."""
    history, plan = trainer.history, trainer.job.plan
    _require(trainer, len(set(history)) == len(history), "got elements twice")
    _require(
        trainer,
        all(address(v)[1] < plan.length(address(v)[0]) for v in history),
        "got elements that do not exist",
    )
    if trainer.status == ENDED:
        counts = Counter(address(value)[0] for value in history)
        whole = all(
            counts[stream] == plan.length(stream) for stream in range(max(counts, default=-1) + 1)
        )
        _require(trainer, whole, f"got parts of copies: {counts}")


# Readers that share


def _together(
    dispatcher: Dispatcher, name: str, repetition: int, group: str, members: list[Trainer]
) -> None:
    where = f"job {name}, repetition {repetition}, group {group!r}"
    record = _record(dispatcher, name, repetition)
    if record is None or group not in record.groups:
        opened = [trainer for trainer in members if trainer.history]
        recorded = not any(trainer.untold for trainer in opened)
        _require(where, not (opened and recorded), "is not known to the dispatcher")
        return
    base = {v for t in members if t.merged is not None for v in t.merged.history}
    # Merged states also contain elements that a lost reader got and other readers got again.
    lost = [_doubtful(t, dispatcher.late) for t in members if t.status == MERGED]
    delivered = Counter(base.difference(*lost))
    for trainer in members:
        for clients, history in trainer.past:
            delivered += _count_reported(record, trainer, clients, history)
        if trainer.status == DEAD or not trainer.known:
            delivered += _count_reported(record, trainer, trainer.clients, trainer.history)
        elif trainer.status != MERGED:
            delivered += _got(record, trainer, dispatcher.late)
    all_clients = [
        client
        for trainer in members
        for clients in (trainer.clients, *(clients for clients, _ in trainer.past))
        for client in clients
    ]
    _require(
        where, base <= set(_list_recorded(record, all_clients)), "has forgotten a merged state"
    )
    twice = [address(value) for value, count in delivered.items() if count > 1]
    _require(where, not twice, f"delivered twice: {sorted(twice)}")
    if not any(trainer.untold for trainer in members):
        _complete(where, record, group, members, base | set(delivered))


def _count_reported(
    record: IterationRecord, trainer: Trainer, clients: list[str], history: list[int]
) -> Counter[int]:
    """What the dispatcher recorded for a dead trainer; the rest was leased to other trainers."""
    recorded = _count_recorded(record, trainer, clients)
    more = sorted(map(address, recorded - Counter(history)))
    _require(trainer, not more, f"is thought to have got {more}")
    return recorded


def _got(record: IterationRecord, trainer: Trainer, late: dict[str, set[int]]) -> Counter[int]:
    """What a trainer got that did not die; the dispatcher must have recorded all of it."""
    recorded, got = _count_recorded(record, trainer, trainer.clients), Counter(trainer.history)
    right = not recorded - got and set(got - recorded) <= _doubtful(trainer, late)
    _require(trainer, right, _describe_difference(trainer, recorded))
    return recorded


def _doubtful(trainer: Trainer, late: dict[str, set[int]]) -> set[int]:
    """What a trainer got, but reported after other trainers had leased the same elements."""
    return trainer.doubtful.union(*(late.get(client, ()) for client in trainer.clients))


def _count_recorded(record: IterationRecord, trainer: Trainer, clients: list[str]) -> Counter[int]:
    """What the dispatcher recorded for a trainer, without the state that it resumed from."""
    base = set(trainer.merged.history) if trainer.merged is not None else set()
    return Counter(value for value in _list_recorded(record, clients) if value not in base)


def _describe_difference(trainer: Trainer, recorded: Counter[int]) -> str:
    got = Counter(trainer.history)
    more, less = sorted(map(address, recorded - got)), sorted(map(address, got - recorded))
    return f"is thought to have got {more}, and not to have got {less}"


def _record(dispatcher: Dispatcher, name: str, repetition: int) -> IterationRecord | None:
    job = dispatcher.state.jobs.get((name, ""))
    found = job.iterations.get(repetition) if job is not None else None
    return dispatcher.state.iterations[found] if found is not None else None


def _list_recorded(record: IterationRecord, clients: list[str]) -> list[int]:
    return [
        element(stream, ordinal)
        for client in clients
        if client in record.members
        for stream, ranges in record.members[client].consumed.items()
        for start, stop in ranges
        for ordinal in range(start, stop)
    ]


def _complete(
    where: str, record: IterationRecord, group: str, members: list[Trainer], delivered: set[int]
) -> None:
    """If a trainer read to the end, nothing is missing; else missing elements can be leased."""
    plan, leases = members[0].job.plan, record.groups[group]
    beyond = [address(v) for v in delivered if address(v)[1] >= plan.length(address(v)[0])]
    _require(where, not beyond, f"delivered what does not exist: {beyond}")
    streams = leases.begun
    if all(trainer.status in (ENDED, MERGED) for trainer in members):
        # If a worker joined at the last moment, perhaps no reader read its copy.
        streams = leases.begun if record.elastic else record.total
        whole = not leases.tracks if record.elastic else record.complete(leases)
        _require(where, whole, "has ended, and not everything is consumed")
    for stream in range(streams):
        track = leases.tracks.get(stream)
        reached = plan.length(stream) if track is None else track.reached
        free = set() if track is None else {o for a, b in track.free for o in range(a, b)}
        for ordinal in range(min(reached, plan.length(stream))):
            there = element(stream, ordinal) in delivered
            _require(where, there != (ordinal in free), f"lost element {(stream, ordinal)}")


def _nothing_leased(dispatcher: Dispatcher) -> None:
    state = dispatcher.state
    for record in state.iterations.values():
        for name, group in record.groups.items():
            _require(record.work.job, not group.holders, f"{name!r}: {group.holders} are leased")
    here = [name for name, client in state.clients.items() if client.standing == HERE]
    _require("the dispatcher", not here, f"still counts on {here}")


def describe(job: Job) -> str:
    return f"{job.name} over {job.plan} with {job.options}, {job.limits}, ordered={job.ordered}"
