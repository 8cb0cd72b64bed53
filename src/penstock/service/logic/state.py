"""`State`: all that a dispatcher knows, and the intervals at which clients and workers call it.

Only `State.apply` changes a state, by one fact at a time. A fact says what happened; `State`
derives the consequences, in the same way for a fact that was just decided and for a fact that is
read from the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.service.logic import facts
from penstock.service.logic.dispatcher_records import (
    HERE,
    SUPERSEDED,
    ClientRecord,
    IterationRecord,
    JobRecord,
    Roster,
)
from penstock.service.logic.facts import Fact
from penstock.service.logic.leases import ConsumedRanges, Group
from penstock.service.protocol import timing
from penstock.service.protocol.messages import FEW_CLIENTS, DatasetInfo, Intervals, LastFact, Reply

_CALL_BITS = 12
"""How many low bits of a version count calls. If calls overflow them, clients get the lists again,
which does no harm."""

_LIVES = 64
"""How many starts are kept; the leases of a reader that knows only older ones expired long ago."""


def job_key(name: str, dataset_id: str, by_id: bool) -> tuple[str, str]:
    """The key of a job: its name, and the dataset id if the user passed one."""
    return name, dataset_id if by_id else ""


def _key_of(record: IterationRecord) -> tuple[str, str]:
    begun = record.begun
    return job_key(begun.name or "", begun.dataset_id, begun.by_id)


@dataclass(frozen=True)
class Settings:
    """The settings of a dispatcher; times are in seconds."""

    dispatcher: str = ""
    """A unique name. If the journal has a name, that one is used instead."""
    python: str = ""
    """The Python version that workers must run; empty: any."""
    worker_addresses: tuple[str, ...] = ()
    """The only addresses that workers may have; empty: any."""
    worker_timeout: float = timing.WORKER_TIMEOUT
    lease_seconds: float = timing.LEASE
    """The leases of a client that sends no request for longer expire."""
    job_gc_timeout: float | None = None
    """A named iteration is removed after this time without clients; None or 0: never."""
    forget_after: float = timing.FINISHED_ITERATION
    """A named iteration that was read to its end is removed after this time without clients."""
    started: float | None = None
    """When it started: for a while it does not know which iterations have readers."""


@dataclass(frozen=True)
class Decision:
    """The facts that a request causes, and the reply to send once they are applied."""

    facts: tuple[Fact, ...]
    reply: Reply


class State:
    """The state of a dispatcher. It has no lock: the host serializes all use of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.dispatcher = settings.dispatcher
        self.starts = 0
        self.facts = 0
        """How many durable facts were applied, including facts that a snapshot replaced."""
        self.lives: dict[str, int] = {}
        """The latest starts by their names, and how many facts came before each."""
        self.datasets: dict[str, DatasetInfo] = {}
        self.requests: dict[str, str] = {}
        """Ids of datasets by the names of their registrations."""
        self.spare: dict[str, float] = {}
        """Datasets that may be removed and that no iteration uses, and since when."""
        self.orphans: dict[str, None] = {}
        """Digests of plans that no dataset uses; the host removes their bytes and clears this."""
        self._passing: set[str] = set()
        """Datasets that are removed with their last iteration."""
        self._uses: dict[str, int] = {}
        """How many iterations use a dataset."""
        self._digests: dict[str, int] = {}
        """How many datasets have a plan."""
        self.dataset_numbers = 0
        self.iteration_numbers = 0
        self.roster = Roster()
        self.jobs: dict[tuple[str, str], JobRecord] = {}
        """By `job_key`."""
        self.iterations: dict[str, IterationRecord] = {}
        self.clients: dict[str, ClientRecord] = {}
        self.silent: dict[str, None] = {}
        """Clients that read, the longest silent client first."""
        self.active: dict[str, None] = {}
        """Iterations with clients."""
        self.idle: dict[str, None] = {}
        """Iterations without clients, the longest idle iteration first."""
        self._active_jobs: tuple[str, ...] | None = None

    def apply(self, fact: Fact, now: float) -> None:
        """Changes the state by one fact. `now` is the time of this call, also in a replay."""
        self.facts += fact.durable
        _APPLY[type(fact)](self, fact, now)

    def version(self, record: IterationRecord) -> int:
        """The version of what clients know. It only grows, also across restarts."""
        lists = self.roster.version + record.places.version
        return (self.starts << 40) + (lists << _CALL_BITS) + record.calls

    def lists_since(self, record: IterationRecord, version: int) -> bool:
        """Whether the lists of workers and streams have changed since `version`."""
        return self.version(record) >> _CALL_BITS != version >> _CALL_BITS

    def active_jobs(self) -> tuple[str, ...]:
        """The names of the iterations that have clients."""
        if self._active_jobs is None:
            self._active_jobs = tuple(self.active)
        return self._active_jobs

    def group(self, client: ClientRecord) -> Group:
        return self.iterations[client.job].groups[client.group]

    def job_of(self, record: IterationRecord) -> JobRecord | None:
        """The named job of an iteration; None if it is anonymous."""
        return self.jobs[_key_of(record)] if record.begun.name is not None else None

    def knows(self, fact: LastFact) -> bool:
        """Whether a fact that a reader knows of was not lost."""
        return fact.number <= self.last_known_fact(fact.life)

    def last_known_fact(self, life: str) -> int:
        """The number of the last known fact of one start of the dispatcher; 0 if it is unknown."""
        lives = list(self.lives)
        if life not in lives:
            return 0
        later = lives[lives.index(life) + 1 :]
        return self.lives[later[0]] if later else self.facts

    # The dispatcher, datasets and workers

    def _dispatcher_started(self, fact: facts.DispatcherStarted, now: float) -> None:
        self.dispatcher = self.dispatcher if self.starts else fact.dispatcher
        self.starts += fact.times
        self.lives |= dict(fact.lives or ((fact.dispatcher, self.facts - 1),))
        while len(self.lives) > _LIVES:
            del self.lives[next(iter(self.lives))]

    def _numbers_given(self, fact: facts.NumbersGiven, now: float) -> None:
        self.dataset_numbers, self.iteration_numbers = fact.datasets, fact.iterations
        self.facts = fact.facts or self.facts

    def _dataset_stored(self, fact: facts.DatasetStored, now: float) -> None:
        dataset_id, digest = fact.info.dataset_id, fact.info.digest
        self.datasets[dataset_id] = fact.info
        self.dataset_numbers += fact.numbered
        if fact.request:
            self.requests[fact.request] = dataset_id
        self._digests[digest] = self._digests.get(digest, 0) + 1
        self.orphans.pop(digest, None)
        if not fact.lasting:
            self._passing.add(dataset_id)
            self.spare[dataset_id] = now

    def _dataset_forgotten(self, fact: facts.DatasetForgotten, now: float) -> None:
        info = self.datasets.pop(fact.dataset_id)
        self.spare.pop(fact.dataset_id, None)
        self._passing.discard(fact.dataset_id)
        for request in [r for r, found in self.requests.items() if found == fact.dataset_id]:
            del self.requests[request]
        self._digests[info.digest] -= 1
        if not self._digests[info.digest]:
            del self._digests[info.digest]
            self.orphans[info.digest] = None

    def has_plan(self, digest: str) -> bool:
        """Whether a dataset has the plan with this digest."""
        return digest in self._digests

    def is_lasting(self, dataset_id: str) -> bool:
        return dataset_id not in self._passing

    def _worker_joined(self, fact: facts.WorkerJoined, now: float) -> None:
        self.roster.join(fact.info, now)

    def _worker_gone(self, fact: facts.WorkerGone, now: float) -> None:
        record = self.roster.leave(fact.worker)
        for job, stream in record.streams if record is not None else ():
            self.iterations[job].places.vacate(stream, self.roster)

    def _worker_heard(self, fact: facts.WorkerHeard, now: float) -> None:
        self.roster.apply_heartbeat(fact.heartbeat, now)
        for status in fact.heartbeat.jobs:
            if status.job in self.iterations:
                making = self.iterations[status.job].making
                making.add(status.elements, status.seconds, nbytes=status.nbytes)

    def _worker_suspected(self, fact: facts.WorkerSuspected, now: float) -> None:
        self.roster.suspect(fact.worker)

    # Iterations

    def _iteration_begun(self, fact: facts.IterationBegun, now: float) -> None:
        record = self.iterations[fact.work.job] = IterationRecord(fact)
        self.iteration_numbers += 1
        self._uses[fact.dataset_id] = self._uses.get(fact.dataset_id, 0) + 1
        self.spare.pop(fact.dataset_id, None)
        record.idle_since = now
        self.idle[fact.work.job] = None
        if fact.name is not None:
            dataset = self.datasets[fact.dataset_id]
            key = job_key(fact.name, fact.dataset_id, fact.by_id)
            job = self.jobs.setdefault(key, JobRecord(fact.options, dataset))
            job.iterations[fact.repetition] = fact.work.job

    def _iteration_removed(self, fact: facts.IterationRemoved, now: float) -> None:
        record = self.iterations.pop(fact.job)
        record.places.clear(self.roster)
        for client in record.members.values():
            if self.clients.get(client.client) is client:
                del self.clients[client.client]
                self.silent.pop(client.client, None)
        self._set_active(fact.job, False)
        self.idle.pop(fact.job, None)
        if (job := self.job_of(record)) is not None:
            self._remove_repetition(job, record)
        self._release(record.begun.dataset_id, now)

    def _remove_repetition(self, job: JobRecord, record: IterationRecord) -> None:
        repetition = record.begun.repetition
        del job.iterations[repetition]
        # Each new group of readers of a cached job gets all elements.
        if record.begun.leased and record.is_finished and not record.options.cached:
            job.over.add(repetition, repetition + 1)
        if not job.iterations:
            del self.jobs[_key_of(record)]

    def _release(self, dataset_id: str, now: float) -> None:
        """One iteration of a dataset was removed."""
        self._uses[dataset_id] -= 1
        if not self._uses[dataset_id]:
            del self._uses[dataset_id]
            if dataset_id in self._passing:
                self._dataset_forgotten(facts.DatasetForgotten(dataset_id), now)

    def _repetitions_over(self, fact: facts.RepetitionsOver, now: float) -> None:
        job = self.job_of(self.iterations[fact.job])
        assert job is not None
        for start, stop in fact.over:
            job.over.add(start, stop)
        job.programs.update(dict.fromkeys(fact.programs))

    def _streams_placed(self, fact: facts.StreamsPlaced, now: float) -> None:
        record = self.iterations[fact.job]
        for place in fact.places:
            record.places.put(place, self.roster)
        self._ask_for_limits(record)

    def _ask_for_limits(self, record: IterationRecord) -> None:
        """Starts or stops asking the consumers of a coordinated read for limits.

        A limit is valid only if its consumer knew the version `asked_since` when it promised the
        limit. Limits from before are void, and all limits once the dispatcher stops asking.
        """
        if record.can_extend != (record.asked_since is not None):
            record.calls += 1
            record.asked_since = self.version(record) if record.can_extend else None

    def _streams_ended(self, fact: facts.StreamsEnded, now: float) -> None:
        self._end(self.iterations[fact.job], fact.ended)

    def _end(self, record: IterationRecord, ended: tuple[tuple[int, int], ...]) -> None:
        for stream, length in ended:
            record.ends[stream] = length
            for member in record.members.values():
                member.consumed.settle(stream)
            for group in record.groups.values():
                group.end(stream, length)
                self._vacate_if_done(record, group, stream)

    def _vacate_if_done(self, record: IterationRecord, group: Group, stream: int) -> None:
        """Takes a stream from its worker once every group has consumed it."""
        if stream not in group.done or record.has_owned_streams or stream not in record.places:
            return
        if all(stream in other.done for other in record.groups.values()):
            record.places.vacate(stream, self.roster)

    # Clients

    def _client_joined(self, fact: facts.ClientJoined, now: float) -> None:
        record = self.iterations[fact.job]
        known = record.members.get(fact.client)
        consumed = ConsumedRanges(record.ends) if known is None else known.consumed
        client = ClientRecord(fact, consumed)
        if not record.clients:
            record.read_since = now
        self.clients[fact.client] = record.members[fact.client] = client
        record.clients[fact.client] = None
        record.hosts[fact.host] = record.hosts.get(fact.host, 0) + 1
        record.groups.setdefault(fact.group, Group(record.ends))
        if fact.consumer >= 0:
            record.consumers[fact.consumer] = fact.client
        if fact.program and (job := self.job_of(record)) is not None:
            job.programs[fact.program] = None
        record.ready = record.ready or not record.missing()
        self._ask_for_limits(record)
        self._note_heard(client, now)
        self._set_active(fact.job, True)

    def _client_gone(self, fact: facts.ClientGone, now: float) -> None:
        client = self.clients[fact.client]
        record = self.iterations[client.job]
        record.groups[client.group].give_back(fact.client)
        was_here, client.standing = client.standing == HERE, fact.how
        if was_here:
            self._depart(client, record, now)

    def _depart(self, client: ClientRecord, record: IterationRecord, now: float) -> None:
        self.silent.pop(client.client, None)
        del record.clients[client.client]
        record.hosts[client.host] -= 1
        if not record.hosts[client.host]:
            del record.hosts[client.host]
        if record.consumers.get(client.consumer) == client.client:
            del record.consumers[client.consumer]
            self._ask_for_limits(record)
        if not record.clients:
            record.idle_since = now
            self._set_active(client.job, False)
            record.places.clear(self.roster)

    def _set_active(self, job: str, active: bool) -> None:
        here, there = (self.active, self.idle) if active else (self.idle, self.active)
        there.pop(job, None)
        here.setdefault(job)
        self._active_jobs = None

    def _client_rewound(self, fact: facts.ClientRewound, now: float) -> None:
        client = self.clients[fact.client]
        group = self.group(client)
        for stream, ranges in client.consumed.items():
            group.undo(stream, ranges)
        client.consumed = ConsumedRanges(self.iterations[client.job].ends)
        self._client_gone(facts.ClientGone(fact.client, SUPERSEDED), now)

    def _client_heard(self, fact: facts.ClientHeard, now: float) -> None:
        client = self.clients.get(fact.client)
        if client is not None and client.standing == HERE:
            if fact.heartbeat is not None:
                client.note(fact.heartbeat)
            self._ask_for_limits(self.iterations[client.job])
            self._note_heard(client, now)

    def _note_heard(self, client: ClientRecord, now: float) -> None:
        client.heard = now
        self.silent.pop(client.client, None)
        self.silent[client.client] = None
        self.group(client).note_call(client.client)

    def _client_waits(self, fact: facts.ClientWaits, now: float) -> None:
        client = self.clients[fact.client]
        if client.waits_since is None:
            record = self.iterations[client.job]
            record.calls += 1
            client.waits_since = self.version(record)

    # Leases

    def _ranges_leased(self, fact: facts.RangesLeased, now: float) -> None:
        client = self.clients[fact.client]
        client.number, client.answer = fact.number, fact.ranges
        client.waits_since = None if fact.ranges else client.waits_since
        group = self.group(client)
        for at in fact.ranges:
            group.lease(fact.client, at.stream, at.start, at.stop)

    def _leases_kept(self, fact: facts.LeasesKept, now: float) -> None:
        self._ranges_leased(facts.RangesLeased(fact.client, fact.number, fact.ranges), now)
        self.clients[fact.client].answer = fact.answer

    def _ranges_consumed(
        self, fact: facts.RangesConsumed | facts.RangesClaimed, now: float
    ) -> None:
        client = self.clients[fact.client]
        record, group = self.iterations[client.job], self.group(client)
        consume = group.claim if isinstance(fact, facts.RangesClaimed) else group.consume
        self._end(record, fact.ended)
        for at in fact.ranges:
            client.consumed.add(at.stream, consume(fact.client, at.stream, at.start, at.stop))
            self._vacate_if_done(record, group, at.stream)

    def _ranges_set_aside(self, fact: facts.RangesSetAside, now: float) -> None:
        group = self.group(self.clients[fact.client])
        for at in fact.ranges:
            group.set_aside(fact.client, at.stream, at.start, at.stop)

    def _group_reached(self, fact: facts.GroupReached, now: float) -> None:
        record = self.iterations[fact.job]
        group = record.groups.setdefault(fact.group, Group(record.ends))
        members = [m.consumed for m in record.members.values() if m.group == fact.group]
        consumed = {
            stream: [part[stream] for part in members if stream in part]
            for stream, _ in fact.reached
        }
        group.restore(fact.begun, dict(fact.reached), consumed)

    def _lengths_kept(self, fact: facts.LengthsKept, now: float) -> None:
        self.iterations[fact.job].ends.unpack(fact.lengths)

    def _consumption_kept(self, fact: facts.ConsumptionKept, now: float) -> None:
        self.clients[fact.client].consumed.unpack(fact.whole, fact.parts)


_APPLY: dict[type[Any], Callable[[State, Any, float], None]] = {
    facts.DispatcherStarted: State._dispatcher_started,
    facts.NumbersGiven: State._numbers_given,
    facts.DatasetStored: State._dataset_stored,
    facts.DatasetForgotten: State._dataset_forgotten,
    facts.RepetitionsOver: State._repetitions_over,
    facts.WorkerJoined: State._worker_joined,
    facts.WorkerGone: State._worker_gone,
    facts.WorkerHeard: State._worker_heard,
    facts.WorkerSuspected: State._worker_suspected,
    facts.IterationBegun: State._iteration_begun,
    facts.IterationRemoved: State._iteration_removed,
    facts.StreamsPlaced: State._streams_placed,
    facts.StreamsEnded: State._streams_ended,
    facts.ClientJoined: State._client_joined,
    facts.ClientGone: State._client_gone,
    facts.ClientRewound: State._client_rewound,
    facts.ClientHeard: State._client_heard,
    facts.ClientWaits: State._client_waits,
    facts.RangesLeased: State._ranges_leased,
    facts.LeasesKept: State._leases_kept,
    facts.RangesConsumed: State._ranges_consumed,
    facts.RangesClaimed: State._ranges_consumed,
    facts.RangesSetAside: State._ranges_set_aside,
    facts.GroupReached: State._group_reached,
    facts.LengthsKept: State._lengths_kept,
    facts.ConsumptionKept: State._consumption_kept,
}


# Intervals: how often clients and workers call the dispatcher, as its replies say.
# One dispatcher handles only so many requests per second. With few clients it hears each of them
# often. With many, each calls less often, so that all together send about as many requests. No
# interval is longer than `timing` allows, where the inequalities say why.


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
