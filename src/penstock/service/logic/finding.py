"""Finding: which iteration of a job a client means, and what it must be told about it.

A job that was read to its end stays so until it is forgotten: whoever comes later gets nothing of
it. That is never silent, and never read again by mistake (decision 0022).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.errors import FailedPreconditionError
from penstock.service.logic.agreement import check_same
from penstock.service.logic.iterations import IterationRecord, JobRecord
from penstock.service.logic.remembering import knows
from penstock.service.logic.state import State, job_key
from penstock.service.protocol.messages import DatasetInfo, OpenIteration


@dataclass(frozen=True)
class Found:
    """The iteration, if it was begun; its number; and what the user should know."""

    record: IterationRecord | None
    repetition: int
    warning: str = ""
    over: bool = False
    """Whether it was read to its end and forgotten since."""


def find_iteration(state: State, request: OpenIteration, dataset: DatasetInfo) -> Found:
    """The iteration that `request` asks for; raises where nothing can be left of it by mistake."""
    job = None
    if request.job is not None:
        job = state.jobs.get(job_key(request.job, request.dataset_id, request.by_id))
    if job is None:
        _check_begins(state, request)
        return Found(None, request.repetition)
    check_same(job, request, dataset)
    repetition = request.repetition
    while request.endless and not request.resumes and _is_over(state, job, repetition, request):
        repetition += 1
    request = msgspec.structs.replace(request, repetition=repetition)
    name = job.iterations.get(repetition)
    if name is not None:
        record = state.iterations[name]
        return Found(record, repetition, _warning(state, job, record, request))
    if repetition not in job.over:
        _check_begins(state, request)
        return Found(None, repetition)
    _check_not_forgotten(request)
    return Found(None, repetition, _warning(state, job, None, request), over=True)


def _check_begins(state: State, request: OpenIteration) -> None:
    if request.last is not None and knows(state, request.last):
        raise FailedPreconditionError(
            f"service: this reader was not heard of for so long that job {request.job!r} has been "
            "forgotten meanwhile, and others may have read the rest; iterate again to read it anew"
        )


def _check_not_forgotten(request: OpenIteration) -> None:
    if request.resumes:
        raise FailedPreconditionError(
            f"Iterator.load_state_dict: repetition {request.repetition} of job {request.job!r} was "
            "read to its end, and the dispatcher has forgotten what others read of it; restore the "
            "state under another job_name (several of them: as one, of service.merge_states)"
        )


def _is_over(state: State, job: JobRecord, repetition: int, request: OpenIteration) -> bool:
    name = job.iterations.get(repetition)
    if name is None:
        return repetition in job.over
    return _is_read(state.iterations[name], request)


def _is_read(record: IterationRecord, request: OpenIteration) -> bool:
    """Whether the readers that the client would share with have read everything."""
    group = record.groups.get(record.group_of(request))
    return record.begun.leased and group is not None and record.complete(group)


def _warning(
    state: State, job: JobRecord, record: IterationRecord | None, request: OpenIteration
) -> str:
    """`record` is None for a repetition that was read to its end and forgotten."""
    returns = request.resumes or request.consumed or request.last is not None
    if returns or (record is not None and not record.begun.leased):
        return ""
    call = f"service.distribute(job_name={request.job!r})"
    others_read = any(state.iterations[name].clients for name in job.iterations.values())
    known = not request.program or request.program in job.programs
    if record is None or _is_read(record, request):
        read = f"{call}: repetition {request.repetition} of this job was read to its end"
        if not others_read and not known:
            raise FailedPreconditionError(
                f"{read} by readers that have left, and the dispatcher remembers it; to read the "
                f"dataset again use another job_name, or run: penstock forget SERVICE "
                f"{request.job!r}"
            )
        return f"{read} by others, so this reader gets nothing of it"
    consumed = record.consumed_by(record.group_of(request))
    if consumed and not others_read and not known:
        return (
            f"{call}: readers that have left read {consumed} elements of this job, and this reader "
            "gets the rest; to read all of them use another job_name, or run: "
            f"penstock forget SERVICE {request.job!r}"
        )
    return ""
