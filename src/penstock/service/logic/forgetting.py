"""Forgetting: what a dispatcher need not know any more.

Anonymous jobs go with their reader, and a dataset that a client would register again goes with its
last iteration. What stays longer, for states that may be restored, goes here.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import FailedPreconditionError, NotFoundError
from penstock.service.logic.facts import DatasetForgotten, Fact, IterationRemoved
from penstock.service.logic.iterations import IterationRecord, JobRecord
from penstock.service.logic.state import Decision, State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Forget, JobsForgotten

REPETITIONS = 16
"""So many repetitions of a job are remembered that were read to their end; earlier ones go."""


def forget_idle(state: State, now: float) -> list[Fact]:
    """What has had no readers for long enough."""
    idle = dict.fromkeys(_idle_iterations(state, now))
    for job in state.jobs.values():
        idle.update(dict.fromkeys(_early_repetitions(state, job)))
    facts: list[Fact] = [IterationRemoved(name) for name in idle]
    spare = (name for name, since in state.spare.items() if now - since >= timing.UNREAD_DATASET)
    return facts + [DatasetForgotten(dataset_id) for dataset_id in spare]


def _idle_iterations(state: State, now: float) -> Iterator[str]:
    """The names of iterations that nobody reads; the one that waited longest comes first."""
    settings = state.settings
    soonest = min(settings.forget_after, settings.job_gc_timeout or settings.forget_after)
    for name in state.idle:
        record = state.iterations[name]
        age = now - record.idle_since
        if age < soonest:
            return
        collected = settings.job_gc_timeout and age >= settings.job_gc_timeout
        if collected or (age >= settings.forget_after and record.forgettable):
            yield name


def _early_repetitions(state: State, job: JobRecord) -> Iterator[str]:
    """The first repetitions of a job that has many."""
    spare = len(job.iterations) - REPETITIONS
    for repetition in sorted(job.iterations)[: max(0, spare)]:
        name = job.iterations[repetition]
        if state.iterations[name].forgettable:
            yield name


def forget_jobs(state: State, request: Forget) -> Decision:
    """Forgets one job, or all jobs that nobody reads, at the wish of a user."""
    asked = [r for r in state.iterations.values() if r.begun.name is not None]
    if request.job is not None:
        asked = _named(asked, request.job)
    read = {record.begun.name for record in asked if record.clients}
    gone = [record for record in asked if record.begun.name not in read]
    facts = tuple(IterationRemoved(record.work.job) for record in gone)
    return Decision(facts, JobsForgotten(_names(gone), tuple(sorted(filter(None, read)))))


def _named(records: list[IterationRecord], job: str) -> list[IterationRecord]:
    found = [record for record in records if record.begun.name == job]
    if not found:
        names = ", ".join(map(repr, _names(records))) or "none"
        raise NotFoundError(f"forget: the dispatcher knows no job {job!r}; it knows {names}")
    readers = sum(len(record.clients) for record in found)
    if readers:
        raise FailedPreconditionError(
            f"forget: {readers} clients read job {job!r}; stop them first, or use another job_name"
        )
    return found


def _names(records: list[IterationRecord]) -> tuple[str, ...]:
    return tuple(sorted({record.begun.name or "" for record in records}))
