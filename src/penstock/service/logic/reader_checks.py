"""Checks of readers: what must hold before a client may read, and what readers of a job share.

Every check returns nothing, or raises the error that the user sees.
"""

from __future__ import annotations

from penstock.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from penstock.service.logic.dispatcher_records import (
    LEFT,
    LOST,
    SUPERSEDED,
    ClientRecord,
    IterationRecord,
    JobRecord,
    is_local,
)
from penstock.service.logic.state import State
from penstock.service.protocol.messages import (
    UNDECIDED,
    DatasetInfo,
    OpenIteration,
    StreamRange,
)

MODES = ("OFF", "DYNAMIC", "FILE", "DATA", "FILE_OR_DATA", "HINT")

_MAX_STREAMS_AHEAD = 1 << 18
"""A saved state that names streams farther behind the begun ones is not of this dataset."""

_MAX_WORKERS = 1 << 16
"""A saved state with more streams than this is damaged: each stream is of one worker."""


def find_dataset(state: State, dataset_id: str, call: str) -> DatasetInfo:
    dataset = state.datasets.get(dataset_id)
    if dataset is None:
        raise NotFoundError(
            f"{call}: the dispatcher knows no dataset {dataset_id!r}; register it (a dispatcher "
            "without a work_dir forgets its datasets when it stops)"
        )
    return dataset


def check_opening(state: State, request: OpenIteration) -> None:
    """Checks a request without regard to its job."""
    if not 0 <= request.options.mode < len(MODES):
        raise InvalidArgumentError(
            f"service.distribute: unknown processing mode {request.options.mode}"
        )
    _check_consumer(request)
    if request.options.mode >= 2 and not state.settings.worker_addresses:
        raise NotFoundError(
            f"service.distribute: {MODES[request.options.mode]} gives every worker a fixed part, "
            "but the dispatcher has no list of workers; start it with "
            "DispatcherConfig(worker_addresses=[...]), or penstock dispatcher --worker-address"
        )
    if is_local(request.options):
        _check_host(state, request.host)


def _check_consumer(request: OpenIteration) -> None:
    consumers = request.options.consumers
    if consumers and request.job is None:
        raise InvalidArgumentError(
            "service.distribute: num_consumers is given without job_name; consumers find each "
            "other by the name of the job"
        )
    if consumers and not 0 <= request.consumer < consumers:
        raise FailedPreconditionError(
            f"service.distribute: consumer_index must be at least 0 and less than num_consumers "
            f"({consumers}), got {request.consumer}"
        )


def _check_host(state: State, host: str) -> None:
    workers = state.roster.workers.values()
    if workers and not any(worker.info.host == host for worker in workers):
        raise InvalidArgumentError(
            f'service.distribute: target_workers="LOCAL", but none of the {len(workers)} workers '
            'runs on this host; start one here, or use target_workers="ANY"'
        )


def check_same(job: JobRecord, request: OpenIteration, dataset: DatasetInfo) -> None:
    """Checks that a reader asks for the same as the first reader of its job."""
    ours, theirs = request.options, job.options
    numbers = {
        "processing_mode": (MODES[ours.mode], MODES[theirs.mode]),
        "num_consumers": (ours.consumers, theirs.consumers),
        "target_workers": (ours.target.upper(), theirs.target.upper()),
        "the use of cross_trainer_cache": (ours.cached, theirs.cached),
        "the use of per-worker operators": (ours.per_worker, theirs.per_worker),
        "the cardinality of the dataset": (dataset.cardinality, job.dataset.cardinality),
    }
    for what, (here, there) in numbers.items():
        if here != there:
            _disagree(request, f"{what} is {here} here and was {there} for the first reader")
    for what, same in (
        ("element_spec", dataset.spec == job.dataset.spec),
        ("structure", dataset.structure == job.dataset.structure),
    ):
        if not same:
            _disagree(request, f"the {what} of this dataset is not that of the first reader's")


def _disagree(request: OpenIteration, what: str) -> None:
    raise InvalidArgumentError(
        f"service.distribute(job_name={request.job!r}): all readers of a job must ask for the "
        f"same, but {what}; use another job_name"
    )


def check_return(record: IterationRecord, request: OpenIteration) -> None:
    """Checks that a client may join: it did not leave, was not superseded, and its state fits."""
    member = record.members.get(request.client)
    if member is not None and member.standing in (LEFT, SUPERSEDED):
        raise AbortedError(explain_departure(member))
    if member is not None and member.standing == LOST and record.begun.leased:
        # A late duplicate of a request must not bring the client back: it would not know which of
        # its leases have expired.
        raise NotFoundError(
            f"service: the leases of reader {request.client} have expired, and other readers may "
            "have them; it must return under another name"
        )
    if (overtaken := _find_overtaken(record, request)) is not None:
        raise AbortedError(explain_departure(overtaken))
    if (request.resumes or request.consumed) and request.key != record.work.key:
        raise FailedPreconditionError(
            f"service.distribute(job_name={request.job!r}): repetition {request.repetition} was "
            "begun anew, with other random numbers than those of the saved state; restore the "
            "state before other readers read, or use another job_name"
        )


def _find_overtaken(record: IterationRecord, request: OpenIteration) -> ClientRecord | None:
    """Returns the record of a returning client, if another client continues from its saved state.

    The returning client checked this before, but the other client may have come since.
    """
    for member in record.members.values():
        if member.client not in (*request.names, request.client):
            for name in request.names:
                if name in member.resumes and name in record.members:
                    return record.members[name]
    return None


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


def check_claims(record: IterationRecord, request: OpenIteration) -> None:
    """Checks that a saved state names elements that can exist."""
    begun = max((group.begun for group in record.groups.values()), default=0)
    last = record.total if record.total >= 0 and not record.elastic else begun + _MAX_STREAMS_AHEAD
    ends = (StreamRange(stream, 0, end) for stream, end in request.finished)
    for at in (*request.consumed, *request.held, *ends):
        if not (0 <= at.stream < last and 0 <= at.start <= at.stop):
            raise InvalidArgumentError(
                f"load_state_dict: the saved state has read elements {at.start} to {at.stop} of "
                f"stream {at.stream}, which this dataset does not have; restore it into the "
                "dataset that it was saved from"
            )
    check_ends(record, request.finished)


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
