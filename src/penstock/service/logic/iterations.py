"""What the dispatcher knows of an iteration and of its clients.

Records are changed by `state` alone, when a fact is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.plan.shape import ENDLESS
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

OWNED = ("whole", "shard", "share")
"""Forms of work whose streams belong to workers."""


def is_local(options: JobOptions) -> bool:
    """Whether clients may only use workers on their own host."""
    return options.target.upper() == "LOCAL"


@dataclass(slots=True)
class ClientRecord:
    """A client, while it reads and after: a saved state of it may come back."""

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
    """What the request `number` was answered with."""
    heard: float = 0.0
    version: int = 0
    """The latest one that it has shown to know."""
    waits_since: int | None = None
    """The version that was made when it began to wait for others."""
    limit: int | None = None
    """What it promised when it showed to know `version`; see `ClientHeartbeat`."""
    pace: Throughput = field(default_factory=Throughput)

    @classmethod
    def of(cls, fact: ClientJoined, consumed: Consumed) -> ClientRecord:
        place = (fact.job, fact.group, fact.host, fact.consumer)
        return cls(fact.client, *place, fact.resumes, fact.origin, fact.program, consumed)


class IterationRecord:
    """One repetition of a job: its streams, who makes them, who reads them."""

    def __init__(self, begun: IterationBegun) -> None:
        self.begun = begun
        self.ready = begun.ready
        self.ends = Lengths()
        if begun.work.form == "random" and begun.length >= 0:
            self.ends[0] = begun.length
        self.places = Places(begun.work.job, self.owned)
        self.groups: dict[str, Group] = {}
        self.members: dict[str, ClientRecord] = {}
        """Every client that ever read here."""
        self.clients: dict[str, None] = {}
        """Those that do now."""
        self.hosts: dict[str, int] = {}
        self.consumers: dict[int, str] = {}
        self.idle_since = 0.0
        self.calls = 0
        """How often somebody began to wait for a sign of life of the others."""
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
        """Whether its streams belong to workers, and the clients are told to which."""
        work = self.work
        return work.form in OWNED or (work.form == "single" and work.consumers > 0)

    @property
    def bound(self) -> bool:
        """Whether a stream is best made by one worker only."""
        return self.work.form != "random"

    @property
    def elastic(self) -> bool:
        """Whether there is a stream for every worker, however many come."""
        return self.work.form == "whole" and self.work.streams == ENDLESS

    @property
    def extendable(self) -> bool:
        """Whether a worker that joins brings a stream, from a lap that all consumers agree on."""
        return self.work.form == "whole" and self.work.consumers > 0

    @property
    def can_extend(self) -> bool:
        """Whether streams wait for an agreement, and every consumer is here to take part in it."""
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
        """Whether all was consumed by every group."""
        return bool(self.groups) and all(self.complete(group) for group in self.groups.values())

    @property
    def forgettable(self) -> bool:
        """Whether nothing is lost if it is forgotten: no client comes back for the rest of it.

        What the clients of coordinated reads have read is in their own states.
        """
        return not self.clients and (not self.begun.leased or self.finished)

    def complete(self, group: Group) -> bool:
        """Whether a group has consumed all; streams of which nobody read may be known as empty."""
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
        """Whether a worker may be used here."""
        return not is_local(self.options) or info.host in self.hosts

    def streams(self) -> tuple[StreamInfo, ...]:
        places = sorted(self.places, key=lambda place: place.stream)
        return tuple(StreamInfo(p.stream, p.worker, p.begins or 0) for p in places)

    def missing(self, besides: int = -1) -> tuple[int, ...]:
        """The consumers of coordinated reads that are not here."""
        wanted = range(self.options.consumers)
        return tuple(c for c in wanted if c != besides and c not in self.consumers)


@dataclass
class JobRecord:
    """A name, and what all its readers agree on."""

    options: JobOptions
    dataset: DatasetInfo
    iterations: dict[int, str] = field(default_factory=dict)
    programs: dict[str, None] = field(default_factory=dict)
    """The processes that ever read it."""
    over: Ranges = field(default_factory=Ranges)
    """Repetitions that were read to their end and forgotten."""
