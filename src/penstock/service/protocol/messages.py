"""Control messages: what clients and workers say to the dispatcher, and what it answers.

Each is defined once, here, and is the same value in the logic, on the wire and in tests. A request
may arrive twice (its answer was lost), so every one of them can be repeated without harm.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.plan.shape import Shape
from penstock.service.protocol import timing

PROTOCOL = 1
"""Peers of another protocol are refused."""

UNDECIDED = -1
"""Where a stream of a coordinated read begins before its consumers have agreed on a lap."""

AT_END = -1
"""The limit of a consumer that has handed out all: no stream may begin any more."""


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="t", omit_defaults=True):
    """A value on the wire; its class is its tag."""


class Plain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a message."""


class Address(Plain, frozen=True):
    """Elements `start` to `stop` of a stream (`stop` left out) of one iteration of a job."""

    stream: int
    start: int
    stop: int


class LastFact(Plain, frozen=True):
    """The last fact that an answer rests on, as the dispatcher counts them through its restarts."""

    life: str
    """The start of the dispatcher that gave the answer: numbers are given again after a loss."""
    number: int


class WorkerInfo(Plain, frozen=True):
    """A worker, as clients see it."""

    worker: str
    """Its identity; another process at the same address is another worker."""
    address: str
    host: str
    """Equal for processes that can share memory."""
    transfers: dict[str, str] = {}
    """Where it hands out data, by protocol: tcp, shm."""
    tags: tuple[str, ...] = ()


class StreamInfo(Plain, frozen=True):
    """A stream that belongs to a worker: a slot of `parallel_epochs` or a share of the files."""

    stream: int
    worker: str | None = None
    begins: int = 0
    """Coordinated reads: the lap in which it has its first turn, or UNDECIDED."""


# Requests of clients


class Hello(Message, frozen=True):
    """The first words of everybody."""

    protocol: int
    python: str
    version: str


class PutPlan(Message, frozen=True):
    """A part of the bytes of a plan. A client sends the parts in order, each once."""

    digest: str
    offset: int
    total: int
    data: bytes


class GetPlan(Message, frozen=True):
    """The bytes of a plan from `offset` on, as many as fit an answer."""

    digest: str
    offset: int = 0


class RegisterDataset(Message, frozen=True):
    """A plan, whose bytes the dispatcher has, becomes a dataset.

    `structure` and `spec` tell two datasets apart whose functions may differ in their bytes.
    """

    digest: str
    structure: str
    spec: bytes
    shape: Shape
    cardinality: int
    dataset_id: str | None = None
    request: str = ""
    """Names this registration, so that a repeated request gets the same id."""
    lasting: bool = True
    """False: it may be forgotten when nobody reads it; its client registers it again."""
    seeds: tuple[int, ...] | None = None


class GetDataset(Message, frozen=True):
    """What is known of a dataset."""

    dataset_id: str


class JobOptions(Plain, frozen=True):
    """What all readers of a job must agree on."""

    mode: int
    consumers: int = 0
    """Coordinated reads: how many consumers; 0 without coordination."""
    target: str = "AUTO"
    cached: bool = False
    """Several groups of readers get the same elements, each group all of them."""
    per_worker: bool = False
    """Operators that see all elements run on each worker's share, as TensorFlow does."""


class OpenIteration(Message, frozen=True):
    """A client begins to read one iteration of a job, or goes on with it.

    Anonymous jobs (`job` None) have one reader, which decides by itself what it reads. Readers of
    a named job share what `Lease` hands out. `key` and `epoch` are those of the first reader.
    """

    client: str
    job: str | None
    repetition: int
    dataset_id: str
    options: JobOptions
    key: int
    epoch: tuple[int, ...]
    host: str = ""
    consumer: int = -1
    """Coordinated reads: which consumer this is."""
    group: str = ""
    """Readers of one group share; each group of a cached job gets everything."""
    resumes: tuple[str, ...] = ()
    """The clients whose saved states this one goes on from."""
    consumed: tuple[Address, ...] = ()
    """What those states had consumed; all else of theirs is handed out again."""
    finished: tuple[tuple[int, int], ...] = ()
    """Streams that those states knew the length of, with it."""
    streams: int = 0
    """How many streams those states knew, where workers have one each; 0 if there are none."""
    begins: tuple[int, ...] = ()
    """Coordinated reads: the laps in which those streams begin."""
    held: tuple[Address, ...] = ()
    """What those states had set aside to be handed out next: it is leased to this client."""
    merged: bool = False
    """Whether those states were made one for any number of clients, which go on side by side."""
    program: str = ""
    """The process that reads."""
    by_id: bool = False
    """Whether the user named the dataset by its id: another id is another job."""
    last: LastFact | None = None
    """For a client that was taken for dead and comes back: the last fact that it was told of.

    If that is known, and the job is not, the job was forgotten and must not begin anew.
    """
    endless: bool = False
    """Whether the client repeats for ever: it joins the first repetition that is not over."""
    names: tuple[str, ...] = ()
    """For a client that was taken for dead and comes back: all names under which it has read."""


class Lease(Message, frozen=True):
    """A reader of a named job asks for about `want` elements, and tells what it has consumed.

    `number` counts the requests of a client: the same number gets the same answer.
    """

    client: str
    number: int
    want: int
    consumed: tuple[Address, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    """Streams whose end was seen, with their length."""
    last: LastFact | None = None
    """What answers to this client rest on; a dispatcher that does not know it has lost facts."""


class ClientHeartbeat(Message, frozen=True):
    """A client lives. `lost` names workers that it cannot reach."""

    client: str
    version: int
    """The version of the list of workers and streams that it knows: it has lived since that one."""
    lost: tuple[str, ...] = ()
    consumed: tuple[Address, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    elements: int = 0
    """Handed to the user since the last beat."""
    waited: float = 0.0
    """Seconds in which the user waited for them."""
    seconds: float = 0.0
    """Seconds since the last beat."""
    last: LastFact | None = None
    limit: int | None = None
    """Coordinated reads: this consumer enters neither this lap nor a later one before an answer
    says that no stream is joining; AT_END if it has handed out all. None: it promises nothing."""


class Leave(Message, frozen=True):
    """A client reads no more; what it did not consume is handed out again."""

    client: str
    consumed: tuple[Address, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    last: LastFact | None = None


class ForgetJobs(Message, frozen=True):
    """Forgets a job that nobody reads, or all such jobs, so that their names are new again."""

    job: str | None = None


class GetStatus(Message, frozen=True):
    """What goes on, for people."""


# Requests of workers


class RegisterWorker(Message, frozen=True):
    """A worker offers itself, or tells a dispatcher that came back that it is still here."""

    info: WorkerInfo
    protocol: int
    python: str
    version: str
    process: int = 0


class Work(Plain, frozen=True):
    """One stream, as a worker makes it. `job` is the iteration's own name, unique for ever.

    `form` is what becomes of the plan: `random`, `split` and `single` as in `Shape`; `turns`, some
    inputs of its `interleave`, between which the client takes turns; `whole`, all
    of it, for a slot of parallel_epochs; `shard`, part `stream` of `streams` by `policy`; `share`,
    every `streams`-th split, for per-worker operators.
    """

    digest: str
    job: str
    form: str
    stream: int
    streams: int
    key: int
    epoch: tuple[int, ...]
    policy: int = 0
    consumers: int = 0
    consumer: int = -1
    """Coordinated reads: ordinals count this consumer's elements, every `consumers`-th one."""
    kept: bool = False
    """Several clients ask for the same elements: keep what was made for the others."""
    begin: int = -2
    """Where a part of a file begins whose records are not found from every byte: at this one, or
    as `plan.parts` says. Its reader tells of every part where that began and ended."""
    inputs: tuple[int, int] = (0, 1)
    """Of an `interleave`: from which of its inputs on, and how many; only for the form `turns`."""


class WorkStatus(Plain, frozen=True):
    """What a worker did for one iteration since its last beat."""

    job: str
    elements: int
    seconds: float
    """Spent in making them."""
    buffered: int = 0
    """Bytes kept."""


class WorkerHeartbeat(Message, frozen=True):
    """A worker lives."""

    worker: str
    jobs: tuple[WorkStatus, ...] = ()
    draining: bool = False
    restarts: int = 0
    """How many of its plans' processes it has lost and replaced."""


class LeaveWorker(Message, frozen=True):
    """A worker stops; it answers no more fetches."""

    worker: str


# Answers


class HelloReply(Message, frozen=True):
    """The dispatcher, and how functions may travel to it: by_value or by_reference."""

    dispatcher: str
    functions: str = "by_value"


class PutPlanReply(Message, frozen=True):
    """How many bytes of the plan are there; the next part begins here."""

    offset: int


class GetPlanReply(Message, frozen=True):
    """Bytes of a plan."""

    data: bytes
    total: int


class RegisterDatasetReply(Message, frozen=True):
    """The id of a dataset."""

    dataset_id: str


class DatasetInfo(Message, frozen=True):
    """What is known of a dataset."""

    dataset_id: str
    digest: str
    structure: str
    spec: bytes
    shape: Shape
    cardinality: int
    seeds: tuple[int, ...] | None = None
    """Of its random operators, with which any reader can make the same dataset; None: unknown."""


class OpenIterationReply(Message, frozen=True):
    """What a client needs to read: `work` is what to ask workers for, for each stream.

    `streams` lists those that belong to workers; of other forms there are `work.streams`.
    """

    work: Work
    leased: bool
    """Whether elements are handed out by `Lease`; else the client reads all of them."""
    version: int
    workers: tuple[WorkerInfo, ...]
    streams: tuple[StreamInfo, ...]
    ready: bool = True
    """False while consumers of coordinated reads are missing."""
    missing: tuple[int, ...] = ()
    lease_seconds: float = timing.LEASE
    held: tuple[Address, ...] = ()
    """Of what a saved state had set aside, what is leased again; others have got the rest."""
    seeds: tuple[int, ...] | None = None
    """Of the dataset that is read, which the first reader of the job registered."""
    repetition: int = 0
    """Which one it is: a later one than was asked for, if that was over and the client repeats."""
    warning: str = ""
    """What the user should know before reading."""
    worker_timeout: float = timing.WORKER_TIMEOUT
    """Seconds after which a worker that says nothing is given up."""
    repeated: tuple[Address, ...] = ()
    """Of what the client has consumed, what other readers have got, too: it comes twice."""
    last: LastFact | None = None
    joining: bool = False
    """As in `ClientHeartbeatReply`."""


class Grant(Plain, frozen=True):
    """A range of addresses that a client may read, and the worker to ask for it, if only one."""

    address: Address
    worker: str | None = None


class LeaseReply(Message, frozen=True):
    """What a client may read. Nothing, and not `finished`: ask again after `retry` seconds."""

    grants: tuple[Grant, ...] = ()
    finished: bool = False
    retry: float = 0.0
    shared: bool = False
    """With `finished`: the iteration has elements, whoever got them."""
    last: LastFact | None = None


class ClientHeartbeatReply(Message, frozen=True):
    """What changed since the version that the client knew; None where nothing did."""

    version: int
    workers: tuple[WorkerInfo, ...] | None = None
    streams: tuple[StreamInfo, ...] | None = None
    ready: bool = True
    missing: tuple[int, ...] = ()
    last: LastFact | None = None
    joining: bool = False
    """Coordinated reads: whether the dispatcher asks all consumers for a limit, to let streams
    begin behind all limits."""


class WorkerHeartbeatReply(Message, frozen=True):
    """`known` False: register again. `jobs` are the iterations that go on; others may be forgotten.

    None where the dispatcher cannot say (it has just come back).
    """

    known: bool
    jobs: tuple[str, ...] | None = None


class ForgetJobsReply(Message, frozen=True):
    """The names of the jobs that were forgotten, and of those that are read and were not."""

    forgotten: tuple[str, ...]
    kept: tuple[str, ...] = ()


class GetStatusReply(Message, frozen=True):
    """Plain data, as `service.status` gives it."""

    status: dict[str, Any]


class Ok(Message, frozen=True):
    """Done."""


class ErrorReply(Message, frozen=True):
    """An error: the name of a class in `penstock.errors`, and its message."""

    kind: str
    message: str


Request = (
    Hello
    | PutPlan
    | GetPlan
    | RegisterDataset
    | GetDataset
    | OpenIteration
    | Lease
    | ClientHeartbeat
    | Leave
    | ForgetJobs
    | GetStatus
    | RegisterWorker
    | WorkerHeartbeat
    | LeaveWorker
)

Reply = (
    HelloReply
    | PutPlanReply
    | GetPlanReply
    | RegisterDatasetReply
    | DatasetInfo
    | OpenIterationReply
    | LeaseReply
    | ClientHeartbeatReply
    | WorkerHeartbeatReply
    | ForgetJobsReply
    | GetStatusReply
    | Ok
    | ErrorReply
)
