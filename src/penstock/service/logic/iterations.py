"""The records of a job, of its iterations and of their clients.

Only `state` changes records, when it applies a fact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.plan.shape import ENDLESS, OWNED_FORMS, Form
from penstock.service.logic.facts import ClientJoined, IterationBegun
from penstock.service.logic.leases import Group
from penstock.service.logic.ranges import Consumed, Lengths, Ranges
from penstock.service.logic.roster import Places, Throughput
from penstock.service.protocol.messages import (
    AT_END,
    Address,
    DatasetInfo,
    JobOptions,
    OpenIteration,
    StreamInfo,
    Work,
    WorkerInfo,
)

HERE, LEFT, LOST, SUPERSEDED = "here", "left", "lost", "superseded"


def is_local(options: JobOptions) -> bool:
    """Whether clients may only use workers on their own host."""
    return options.target.upper() == "LOCAL"


@dataclass(slots=True)
class ClientRecord:
    """A client, while it reads and afterwards: a later client may resume a saved state of it."""

    client: str
    job: str
    group: str
    host: str
    consumer: int
    resumes: tuple[str, ...]
    origin: str
    program: str
    consumed: Consumed
    standing: str = HERE
    number: int = 0
    answer: tuple[Address, ...] = ()
    """The grants of the reply to request `number`."""
    heard: float = 0.0
    version: int = 0
    """The latest version that a request of it named."""
    waits_since: int | None = None
    """The version that was made when it began to wait for the leases of other clients."""
    limit: int | None = None
    """The limit that it promised together with `version`; see `ClientHeartbeat`."""
    pace: Throughput = field(default_factory=Throughput)

    @classmethod
    def of(cls, fact: ClientJoined, consumed: Consumed) -> ClientRecord:
        return cls(
            client=fact.client,
            job=fact.job,
            group=fact.group,
            host=fact.host,
            consumer=fact.consumer,
            resumes=fact.resumes,
            origin=fact.origin,
            program=fact.program,
            consumed=consumed,
        )


class IterationRecord:
    """One repetition of a job: its streams, the workers that make them, the clients that read."""

    def __init__(self, begun: IterationBegun) -> None:
        self.begun = begun
        self.ready = begun.ready
        self.ends = Lengths()
        if begun.work.form == Form.RANDOM and begun.length >= 0:
            self.ends[0] = begun.length
        self.places = Places(begun.work.job, self.owned)
        self.groups: dict[str, Group] = {}
        self.members: dict[str, ClientRecord] = {}
        """Every client that has ever read this iteration."""
        self.clients: dict[str, None] = {}
        """The clients that read it now."""
        self.hosts: dict[str, int] = {}
        self.consumers: dict[int, str] = {}
        self.idle_since = 0.0
        self.calls = 0
        """How often the dispatcher has begun to wait for heartbeats of the clients.

        It is a part of the version: a client that names a later version was alive since."""
        self.making = Throughput()
        self.asked_since: int | None = None
        """The version since which consumers are asked for a limit; None if they are not."""

    @property
    def work(self) -> Work:
        return self.begun.work

    @property
    def options(self) -> JobOptions:
        return self.begun.options

    @property
    def owned(self) -> bool:
        """Whether each stream belongs to a worker, and the clients get the list of them."""
        work = self.work
        return work.form in OWNED_FORMS or (work.form == Form.SINGLE and work.consumers > 0)

    @property
    def bound(self) -> bool:
        """Whether workers make a stream from its start: one worker should make all of it."""
        return self.work.form != Form.RANDOM

    @property
    def elastic(self) -> bool:
        """Whether every worker that joins makes a stream of its own."""
        return self.work.form == Form.WHOLE and self.work.streams == ENDLESS

    @property
    def extendable(self) -> bool:
        """Whether a worker that joins adds a stream, from a lap on that all consumers agree on."""
        return self.work.form == Form.WHOLE and self.work.consumers > 0

    @property
    def can_extend(self) -> bool:
        """Whether streams wait for an agreement on a lap, and every consumer is there to agree."""
        if not self.places.undecided or self.missing():
            return False
        return all(self.members[name].limit != AT_END for name in self.consumers.values())

    @property
    def waiting(self) -> bool:
        """Whether there are no streams because there are no workers."""
        return self.elastic and not len(self.places)

    @property
    def total(self) -> int:
        """The number of streams; ENDLESS if there is no last one."""
        return len(self.places) if self.elastic or self.extendable else self.work.streams

    @property
    def finished(self) -> bool:
        """Whether every group has consumed all elements."""
        return bool(self.groups) and all(self.complete(group) for group in self.groups.values())

    @property
    def forgettable(self) -> bool:
        """Whether no client needs the record again: it has no readers, and no element is left.

        Without leases, the saved states of the clients say what they have read.
        """
        return not self.clients and (not self.begun.leased or self.finished)

    def complete(self, group: Group) -> bool:
        """Whether a group has consumed all elements; unbegun streams must be empty."""
        if group.tracks or self.total == ENDLESS or self.waiting:
            return False
        return all(self.ends.get(stream) == 0 for stream in range(group.begun, self.total))

    def group_of(self, request: OpenIteration) -> str:
        """The name of the group that a client belongs to."""
        return request.group if self.options.cached else ""

    def consumed_by(self, group: str) -> int:
        """How many elements the clients of a group have consumed."""
        members = (member for member in self.members.values() if member.group == group)
        return sum(member.consumed.count for member in members)

    def near(self, info: WorkerInfo) -> bool:
        """Whether clients of this iteration may use a worker."""
        return not is_local(self.options) or info.host in self.hosts

    def streams(self) -> tuple[StreamInfo, ...]:
        places = sorted(self.places, key=lambda place: place.stream)
        return tuple(StreamInfo(p.stream, p.worker, p.begins or 0) for p in places)

    def missing(self, besides: int = -1) -> tuple[int, ...]:
        """The consumers of a coordinated read that are not connected."""
        wanted = range(self.options.consumers)
        return tuple(c for c in wanted if c != besides and c not in self.consumers)


@dataclass
class JobRecord:
    """A named job: what all its readers agree on, and its repetitions."""

    options: JobOptions
    dataset: DatasetInfo
    iterations: dict[int, str] = field(default_factory=dict)
    programs: dict[str, None] = field(default_factory=dict)
    """The processes that have ever read it."""
    over: Ranges = field(default_factory=Ranges)
    """Repetitions that were read to their end and removed."""
