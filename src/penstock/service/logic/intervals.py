"""Intervals: how often clients and workers call the dispatcher, which tells them in its replies.

One dispatcher handles only so many requests per second. With few clients it hears each of them
often. With many, each calls less often, so that all together send about as many requests. No
interval is longer than `timing` allows, where the inequalities say why.
"""

from __future__ import annotations

from penstock.service.logic.dispatcher_records import IterationRecord
from penstock.service.logic.state import State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import FEW_CLIENTS, Intervals


def intervals_of(state: State, record: IterationRecord) -> Intervals:
    """The intervals of the clients of one iteration."""
    clients, readers = len(state.silent), _count_sharing(record)
    heartbeat = _stretch(
        clients / timing.HEARTBEATS,
        timing.CLIENT_HEARTBEAT,
        timing.LONGEST_CLIENT_HEARTBEAT * _scale(state.settings.lease_seconds, timing.LEASE),
    )
    leased_work = _stretch(clients / timing.LEASES, timing.LEASED_WORK, timing.LONGEST_LEASED_WORK)
    if heartbeat == leased_work == readers == 1:
        return FEW_CLIENTS
    return Intervals(heartbeat, leased_work, readers)


def worker_heartbeat(state: State) -> float:
    """The time between two heartbeats of a worker, as a multiple of that with few workers."""
    return _stretch(
        len(state.roster.workers) / timing.HEARTBEATS,
        timing.WORKER_HEARTBEAT,
        timing.LONGEST_WORKER_HEARTBEAT
        * _scale(state.settings.worker_timeout, timing.WORKER_TIMEOUT),
    )


def _count_sharing(record: IterationRecord) -> int:
    """How many readers share the elements of an iteration: each group of a cached job gets all."""
    return max(1, -(-len(record.clients) // max(1, len(record.groups))))


def _stretch(seconds: float, shortest: float, longest: float) -> float:
    """An interval of so many seconds, within bounds, as a multiple of the shortest one."""
    return max(1.0, min(seconds, longest) / shortest)


def _scale(seconds: float, usual: float) -> float:
    """By what longest intervals are shortened if the service expires silent processes sooner."""
    return min(1.0, seconds / usual)
