"""Granting: what the dispatcher answers to a reader of a named job that asks for elements.

Every grant is journalled before the reader learns of it; the same request gets the same answer.
"""

from __future__ import annotations

from penstock.errors import AbortedError, FailedPreconditionError, NotFoundError
from penstock.service.logic.agreement import check_ends, gone_for_good
from penstock.service.logic.choosing import choose
from penstock.service.logic.facts import (
    ClientHeard,
    ClientWaits,
    Fact,
    RangesConsumed,
    RangesLeased,
    StreamPlace,
    StreamsPlaced,
)
from penstock.service.logic.iterations import HERE, LOST, ClientRecord, IterationRecord, is_local
from penstock.service.logic.roster import least_loaded
from penstock.service.logic.state import Decision, State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Address, Grant, Lease, Leased


def reader(state: State, name: str) -> ClientRecord:
    """A client that reads."""
    client = state.clients.get(name)
    if client is None or client.standing == LOST:
        raise NotFoundError(
            f"service: the dispatcher does not know this reader ({name}); it was restarted without "
            f"a work_dir, or has not heard of it for {state.settings.lease_seconds:g} s"
        )
    if client.standing != HERE:
        raise AbortedError(gone_for_good(client))
    return client


def reported(
    state: State,
    client: ClientRecord,
    consumed: tuple[Address, ...],
    ended: tuple[tuple[int, int], ...],
) -> list[RangesConsumed]:
    """What a client says that it has done."""
    record = state.iterations[client.job]
    if not record.begun.leased or not (consumed or ended):
        return []
    check_ends(record, ended)
    news = tuple(end for end in ended if end[0] not in record.ends)
    return [RangesConsumed(client.client, consumed, news)] if consumed or news else []


def lease(state: State, request: Lease) -> Decision:
    """Hands out addresses; the same request again gets the same ones."""
    client = reader(state, request.client)
    record = state.iterations[client.job]
    if not record.begun.leased:
        raise FailedPreconditionError(
            "Lease: the readers of this iteration decide by themselves what they read"
        )
    heard = ClientHeard(client.client)
    report = reported(state, client, request.consumed, request.ended)
    if request.number <= client.number:
        answer = client.answer if request.number == client.number else ()
        return Decision((heard, *report), _leased(record, answer, {}))
    chosen = choose(state, client, request.want, dict(request.ended))
    facts, reply = _answer(state, record, client, chosen)
    addresses = tuple(grant.address for grant in reply.grants)
    leased = RangesLeased(client.client, request.number, addresses)
    return Decision((heard, *report, *facts, leased), reply)


def _answer(
    state: State, record: IterationRecord, client: ClientRecord, chosen: list[Address]
) -> tuple[list[Fact], Leased]:
    if not chosen:
        return _in_vain(state, record, client)
    return _granted(state, record, client, chosen) or ([], Leased(retry=timing.LEASE_RETRY))


def _leased(
    record: IterationRecord, addresses: tuple[Address, ...], places: dict[int, str | None]
) -> Leased:
    if not addresses:
        return Leased(retry=timing.LEASE_RETRY)
    worker = record.places.worker
    return Leased(tuple(Grant(at, places.get(at.stream) or worker(at.stream)) for at in addresses))


def _granted(
    state: State,
    record: IterationRecord,
    client: ClientRecord,
    chosen: list[Address],
) -> tuple[list[Fact], Leased] | None:
    """Hands out `chosen`; None if nobody could make it."""
    places = _places(state, record, client, chosen) if record.bound else {}
    if any(worker is None for worker in places.values()):
        return None
    moved = [
        StreamPlace(stream, worker, record.places.home(stream))
        for stream, worker in places.items()
        if worker != record.places.worker(stream)
    ]
    facts: list[Fact] = [StreamsPlaced(record.work.job, tuple(moved))] if moved else []
    return facts, _leased(record, tuple(chosen), places)


def _places(
    state: State, record: IterationRecord, client: ClientRecord, chosen: list[Address]
) -> dict[int, str | None]:
    """Who makes each stream: whoever did, as long as that works."""
    places: dict[int, str | None] = {}
    local = is_local(record.options)
    for stream in dict.fromkeys(at.stream for at in chosen):
        worker = state.roster.workers.get(record.places.worker(stream) or "")
        if worker is None or not worker.usable or (local and worker.info.host != client.host):
            usable = state.roster.usable()
            near = (w for w in usable if not local or w.info.host == client.host)
            # Somebody who is about to leave is better than nobody.
            worker = least_loaded(near, list(places.values())) or worker
        places[stream] = worker.info.worker if worker is not None else None
    return places


def _in_vain(
    state: State, record: IterationRecord, client: ClientRecord
) -> tuple[list[Fact], Leased]:
    """Nothing is free: all is over, or in the hands of others who may yet give it back."""
    if record.waiting:
        return [], Leased(retry=timing.LEASE_RETRY)
    group = state.group(client)
    others = (name for name in group.holders if name != client.client)
    since = client.waits_since
    # A message may be late, and its sender dead: only one that knows of the wait is a sign of life.
    if all(since is not None and state.clients[name].version >= since for name in others):
        shared = any(record.ends.values()) or any(t.reached for t in group.tracks.values())
        return [], Leased(finished=True, shared=shared)
    return [ClientWaits(client.client)], Leased(retry=timing.LEASE_RETRY)
