"""Finding: which iteration of a job a client means, and what it must be told about it.

A job that was read to its end stays so until it is forgotten: whoever comes later gets nothing of
it. That is never silent, and never read again by mistake (decision 0022).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import FailedPreconditionError
from penstock.service.logic.agreement import check_same
from penstock.service.logic.iterations import IterationRecord, JobRecord
from penstock.service.logic.state import State, job_key
from penstock.service.protocol.messages import DatasetInfo, OpenIteration


@dataclass(frozen=True)
class Found:
    """The iteration, if it was begun; its number; and what the user should know."""

    record: IterationRecord | None
    repetition: int
    warning: str = ""


def find_iteration(state: State, request: OpenIteration, dataset: DatasetInfo) -> Found:
    """The iteration that `request` asks for; raises where nothing can be left of it by mistake."""
    job = None
    if request.job is not None:
        job = state.jobs.get(job_key(request.job, request.dataset_id, request.by_id))
    if job is None:
        return Found(None, request.repetition)
    check_same(job, request, dataset)
    repetition = request.repetition
    while request.endless and not request.resumes and _is_over(state, job, repetition, request):
        repetition += 1
    name = job.iterations.get(repetition)
    if name is None:
        return Found(None, repetition)
    record = state.iterations[name]
    return Found(record, repetition, _warning(state, job, record, request))


def _is_over(state: State, job: JobRecord, repetition: int, request: OpenIteration) -> bool:
    name = job.iterations.get(repetition)
    return name is not None and _is_read(state.iterations[name], request)


def _is_read(record: IterationRecord, request: OpenIteration) -> bool:
    """Whether the readers that the client would share with have read everything."""
    group = record.groups.get(record.group_of(request))
    return record.begun.leased and group is not None and record.complete(group)


def _warning(state: State, job: JobRecord, record: IterationRecord, request: OpenIteration) -> str:
    if not record.begun.leased or request.resumes or request.consumed:
        return ""
    call = f"service.distribute(job_name={request.job!r})"
    others_read = any(state.iterations[name].clients for name in job.iterations.values())
    known = not request.program or request.program in job.programs
    if _is_read(record, request):
        read = f"{call}: repetition {record.begun.repetition} of this job was read to its end"
        if not others_read and not known:
            raise FailedPreconditionError(
                f"{read} by readers that have left, and the dispatcher remembers it; to read the "
                f"dataset again use another job_name, or run: penstock forget {request.job!r}"
            )
        return f"{read} by others, so this reader gets nothing of it"
    consumed = record.consumed_by(record.group_of(request))
    if consumed and not others_read and not known:
        return (
            f"{call}: readers that have left read {consumed} elements of this job, and this reader "
            "gets the rest; to read all of them use another job_name, or run: "
            f"penstock forget {request.job!r}"
        )
    return ""
