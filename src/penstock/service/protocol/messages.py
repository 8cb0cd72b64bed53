"""Control messages: the requests of clients and workers to the dispatcher, and its replies.

The logic, the wire and the tests use the same classes. A client repeats a request whose reply was
lost, so the dispatcher may get any request twice, and must handle it as one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.plan.shape import Form, Shape
from penstock.service.protocol import timing

UNDECIDED = -1
"""The first lap of a stream of a coordinated read while its consumers have not agreed on one."""

AT_END = -1
"""The limit of a consumer that has handed out every element: no further stream may begin."""


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="t", omit_defaults=True):
    """A value on the wire; its class is its tag."""


class Plain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a message."""


class StreamRange(Plain, frozen=True):
    """Elements `start` to `stop` of a stream (`stop` left out) of one iteration of a job."""

    stream: int
    start: int
    stop: int


class LastFact(Plain, frozen=True):
    """The last fact that a reply rests on; the dispatcher counts facts across its restarts."""

    life: str
    """Which start of the dispatcher sent the reply: after a loss of facts, numbers are reused."""
    number: int


class WorkerInfo(Plain, frozen=True):
    """What clients know about a worker."""

    worker: str
    """Unique per process: a new process at the same address is another worker."""
    address: str
    host: str
    """Equal for processes that can share memory."""
    transfers: dict[str, str] = {}
    """The endpoints that serve data, by transfer protocol: tcp, shm."""
    tags: tuple[str, ...] = ()
    version: str = ""
    """Its version of the package, for `status`."""


class StreamInfo(Plain, frozen=True):
    """A stream that one worker makes: a slot of `parallel_epochs` or a share of the files."""

    stream: int
    worker: str | None = None
    begins: int = 0
    """Coordinated reads: the lap in which it has its first turn, or UNDECIDED."""


class Intervals(Plain, frozen=True):
    """How much less often a client calls the dispatcher than it does if there are few clients."""

    heartbeat: float = 1.0
    """The time between two heartbeats, as a multiple of `timing.CLIENT_HEARTBEAT`."""
    leased_work: float = 1.0
    """The time for which elements are leased, as a multiple of `timing.LEASED_WORK`."""
    readers: int = 1
    """How many readers share the elements."""


FEW_CLIENTS = Intervals()
"""The intervals of a small service; they are not sent."""


# Requests of clients


class Hello(Message, frozen=True):
    """The first request of every client and worker; it compares the versions of Python."""

    python: str


class PutPlan(Message, frozen=True):
    """A part of the bytes of a plan. A client sends the parts in order, each once."""

    digest: str
    offset: int
    total: int
    data: bytes


class GetPlan(Message, frozen=True):
    """Asks for the bytes of a plan from `offset` on; the reply has as many as fit one message."""

    digest: str
    offset: int = 0


class PutArray(Message, frozen=True):
    """A part of a shared array, or without `data` a question: which part does a worker want?"""

    array: str
    total: int
    offset: int = 0
    data: bytes = b""
    everything: bool = False
    """Whether the dispatcher should want all parts: other clients will read the dataset."""


class GetArray(Message, frozen=True):
    """Asks for the part of a shared array at `offset`."""

    array: str
    offset: int


class RegisterDataset(Message, frozen=True):
    """Registers a plan, whose bytes the dispatcher has, as a dataset.

    `structure` and `spec` distinguish datasets, because the pickled bytes of equal functions may
    differ.
    """

    digest: str
    structure: str
    spec: bytes
    shape: Shape
    cardinality: int
    dataset_id: str | None = None
    request: str = ""
    """The name of this registration, so that a repeated request gets the same id."""
    lasting: bool = True
    """False: the dispatcher may remove the dataset when no client reads it; its client registers it
    again."""
    seeds: tuple[int, ...] | None = None


class GetDataset(Message, frozen=True):
    """Asks for the `DatasetInfo` of an id."""

    dataset_id: str


MODES = ("OFF", "DYNAMIC", "FILE", "DATA", "FILE_OR_DATA", "HINT")
"""The names of the processing modes, by their numbers."""


class JobOptions(Plain, frozen=True):
    """What all readers of a job must agree on."""

    mode: int
    consumers: int = 0
    """Coordinated reads: how many consumers; 0 without coordination."""
    target: str = "AUTO"
    cached: bool = False
    """Each group of readers gets all elements, from a cache that the groups share."""
    per_worker: bool = False
    """Operators that need all elements run on the share of each worker, as in TensorFlow."""


class OpenIteration(Message, frozen=True):
    """A client begins to read one iteration of a job, or resumes it.

    An anonymous job (`job` None) has one reader, which reads every element without leases. The
    readers of a named job share its elements by `Lease`. The `key` and `epoch` of the first reader
    apply to all.
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
    """The clients whose saved states this client resumes."""
    consumed: tuple[StreamRange, ...] = ()
    """The elements that those states had consumed; their other elements are leased again."""
    finished: tuple[tuple[int, int], ...] = ()
    """The streams whose length those states knew: (stream, length)."""
    streams: int = 0
    """How many streams those states knew, where each worker makes one; 0 without states."""
    begins: tuple[int, ...] = ()
    """Coordinated reads: the laps in which those streams begin."""
    held: tuple[StreamRange, ...] = ()
    """The elements that those states would have handed out next: this client gets their leases."""
    merged: bool = False
    """Whether `merge_states` made those states one: many clients may resume it together."""
    program: str = ""
    """The id of the process that reads."""
    by_id: bool = False
    """Whether the user passed a dataset id: the same job name with another id is another job."""
    last: LastFact | None = None
    """For a client that returns after its leases expired: the last fact that it knows of.

    If the dispatcher knows this fact and not the job, it has removed the job: the client must not
    begin it again.
    """
    endless: bool = False
    """Whether the client repeats without end: it joins the first repetition that is not over."""
    names: tuple[str, ...] = ()
    """For a client that returns after its leases expired: all client ids that it has used."""


class Lease(Message, frozen=True):
    """A reader of a named job asks for about `want` elements, and reports what it has consumed.

    `number` counts the requests of a client: a repeated number gets the same reply.
    """

    client: str
    number: int
    want: int
    consumed: tuple[StreamRange, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    """The streams whose end the client has reached: (stream, length)."""
    last: LastFact | None = None
    """The last fact that a reply to this client rests on. A dispatcher that does not know it has
    lost facts."""


class Bottleneck(Plain, frozen=True):
    """The slowest operator on the workers, and the work of the reader itself."""

    place: str = ""
    """`source`, `function` or `operator`; empty if nothing is known."""
    operator: str = ""
    """The operator with its function and its place in the source: `map(decode at train.py:12)`."""
    delivered: float = 0.0
    """Seconds in which the reader brought elements to devices, since the last heartbeat."""


UNKNOWN_BOTTLENECK = Bottleneck()
"""What is known before a reader has reported it; it is not sent."""


class ClientHeartbeat(Message, frozen=True):
    """Sent regularly by a client. `lost` names workers that it cannot reach."""

    client: str
    version: int
    """The version of the lists of workers and streams that the client has: it was alive after the
    dispatcher made that version."""
    lost: tuple[str, ...] = ()
    consumed: tuple[StreamRange, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    elements: int = 0
    """How many elements the user got since the last heartbeat."""
    waited: float = 0.0
    """Seconds that the user waited for them."""
    seconds: float = 0.0
    """Seconds since the last heartbeat."""
    held: int = 0
    budget: int = 0
    """About the bytes that the client has requested and not handed out, and the most of them."""
    last: LastFact | None = None
    limit: int | None = None
    """Coordinated reads: this consumer enters neither this lap nor a later one before a reply says
    that no stream is joining; AT_END if it has handed out every element. None: no promise."""
    bottleneck: Bottleneck = UNKNOWN_BOTTLENECK


class Leave(Message, frozen=True):
    """A client stops reading; the dispatcher leases what it did not consume to other clients."""

    client: str
    consumed: tuple[StreamRange, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    last: LastFact | None = None
    elements: int = 0
    waited: float = 0.0
    seconds: float = 0.0
    """As in `ClientHeartbeat`: what happened since the last one."""


class ForgetJobs(Message, frozen=True):
    """Removes one job without readers, or all of them, so that their names can be used again."""

    job: str | None = None


class GetStatus(Message, frozen=True):
    """Asks for the workers, jobs and datasets, as a user wants to see them."""


# Requests of workers


class RegisterWorker(Message, frozen=True):
    """A worker registers, for the first time or after a restart of the dispatcher."""

    info: WorkerInfo
    python: str
    process: int = 0


class Work(Plain, frozen=True):
    """One stream, as a worker makes it. `job` is the name of the iteration, which is never reused.

    It is part `stream` of `streams`; `form` says in which way, and `policy` how SHARD divides.
    """

    digest: str
    job: str
    form: Form
    stream: int
    streams: int
    key: int
    epoch: tuple[int, ...]
    policy: int = 0
    consumers: int = 0
    consumer: int = -1
    """Coordinated reads: ordinals count this consumer's elements, every `consumers`-th one."""
    kept: bool = False
    """Whether several clients ask for the same elements: the worker keeps what it has made."""
    begin: int = -2
    """Where a part of a file begins if records cannot be found from every byte: at this byte, or as
    `plan.parts` says. The reader of such a file records where each part began and ended."""
    inputs: tuple[int, int] = (0, 1)
    """Only for the form TURNS: the first input of the `interleave`, and how many inputs."""


class WorkStatus(Plain, frozen=True):
    """What a worker did for one iteration since its last heartbeat."""

    job: str
    elements: int
    seconds: float
    """Spent on making them."""
    buffered: int = 0
    """Bytes of elements that the worker keeps."""
    nbytes: int = 0
    """Bytes of the elements that it made."""


class WorkerHeartbeat(Message, frozen=True):
    """Sent regularly by a worker."""

    worker: str
    jobs: tuple[WorkStatus, ...] = ()
    draining: bool = False
    restarts: int = 0
    """How many plan processes it has lost and replaced."""
    failures: int = 0
    """How many elements it could not compute: their clients got the error."""


class LeaveWorker(Message, frozen=True):
    """A worker stops and serves no more fetches."""

    worker: str


# Replies


class HelloReply(Message, frozen=True):
    """The name of the dispatcher, and how it accepts functions: by_value or by_reference."""

    dispatcher: str
    functions: str = "by_value"


class PutPlanReply(Message, frozen=True):
    """How many bytes of the plan the dispatcher has; the next part begins here."""

    offset: int


class GetPlanReply(Message, frozen=True):
    """Bytes of a plan."""

    data: bytes
    total: int


class PutArrayReply(Message, frozen=True):
    """The offset of the part that the client should send next; -1 if none is wanted."""

    wanted: int


class GetArrayReply(Message, frozen=True):
    """A part of a shared array; empty if no client has sent it yet."""

    data: bytes


class RegisterDatasetReply(Message, frozen=True):
    """The id of a dataset."""

    dataset_id: str


class DatasetInfo(Message, frozen=True):
    """A registered dataset; also the reply to `GetDataset`."""

    dataset_id: str
    digest: str
    structure: str
    spec: bytes
    shape: Shape
    cardinality: int
    seeds: tuple[int, ...] | None = None
    """Of its random operators: with them any reader can make the same dataset. None: unknown."""


class OpenIterationReply(Message, frozen=True):
    """What a client needs to read: `work` is what it asks workers for, for each stream.

    `streams` lists the streams that belong to workers. Work of other forms has `work.streams`
    streams, which any worker may make.
    """

    work: Work
    leased: bool
    """Whether the client needs leases; otherwise it reads all elements."""
    version: int
    workers: tuple[WorkerInfo, ...]
    streams: tuple[StreamInfo, ...]
    ready: bool = True
    """False while consumers of a coordinated read are missing."""
    missing: tuple[int, ...] = ()
    lease_seconds: float = timing.LEASE
    held: tuple[StreamRange, ...] = ()
    """Which of `OpenIteration.held` this client leases; other clients have the rest."""
    seeds: tuple[int, ...] | None = None
    """Of the dataset that the first reader of the job registered, which all readers read."""
    repetition: int = 0
    """Which repetition it is: a later one than requested if that is over and the client repeats."""
    warning: str = ""
    """A warning to log before reading; empty: none."""
    worker_timeout: float = timing.WORKER_TIMEOUT
    """Seconds without a heartbeat after which the dispatcher removes a worker."""
    repeated: tuple[StreamRange, ...] = ()
    """Which of `OpenIteration.consumed` other readers have got, too: these elements are read
    twice."""
    last: LastFact | None = None
    joining: bool = False
    """As in `ClientHeartbeatReply`."""
    intervals: Intervals = FEW_CLIENTS


class Grant(Plain, frozen=True):
    """A range of elements that a client may read; `worker` is the only worker to ask; None: any."""

    range: StreamRange
    worker: str | None = None


class LeaseReply(Message, frozen=True):
    """What a client may read. If that is nothing, and not `finished`: ask again after `retry` s."""

    grants: tuple[Grant, ...] = ()
    finished: bool = False
    retry: float = 0.0
    shared: bool = False
    """With `finished`: whether any reader got elements of the iteration."""
    last: LastFact | None = None
    intervals: Intervals = FEW_CLIENTS


class ClientHeartbeatReply(Message, frozen=True):
    """What changed since the version of the client; None: no change."""

    version: int
    workers: tuple[WorkerInfo, ...] | None = None
    streams: tuple[StreamInfo, ...] | None = None
    ready: bool = True
    missing: tuple[int, ...] = ()
    last: LastFact | None = None
    joining: bool = False
    """Coordinated reads: whether the dispatcher asks all consumers for a limit, so that new streams
    begin behind all limits."""
    intervals: Intervals = FEW_CLIENTS


class WorkerHeartbeatReply(Message, frozen=True):
    """`known` False: the worker must register again. `jobs`: the iterations that have readers.

    The worker may drop the streams of all other iterations. None: the dispatcher does not know
    yet, because it has just restarted.
    """

    known: bool
    jobs: tuple[str, ...] | None = None
    heartbeat: float = 1.0
    """The time until the next heartbeat, as a multiple of `timing.WORKER_HEARTBEAT`."""


class ForgetJobsReply(Message, frozen=True):
    """The names of the jobs that were removed, and of jobs that were kept: they have readers."""

    forgotten: tuple[str, ...]
    kept: tuple[str, ...] = ()


class GetStatusReply(Message, frozen=True):
    """Plain data, as `service.status` returns it."""

    status: dict[str, Any]


class Ok(Message, frozen=True):
    """The request succeeded, and there is nothing to report."""


class ErrorReply(Message, frozen=True):
    """An error: the name of a class in `penstock.errors`, and its message."""

    kind: str
    message: str


Request = (
    Hello
    | PutPlan
    | GetPlan
    | PutArray
    | GetArray
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
    | PutArrayReply
    | GetArrayReply
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
