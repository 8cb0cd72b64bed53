"""Facts: the events that change the state of a dispatcher, named in the past tense.

The dispatcher journals a durable fact before it applies it; replaying the journal gives the same
state. Fleeting facts (heartbeats, throughput) are only applied: after a restart, clients and
workers report them again.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from penstock.service.protocol.messages import (
    ClientHeartbeat,
    DatasetInfo,
    JobOptions,
    Plain,
    StreamRange,
    Work,
    WorkerHeartbeat,
    WorkerInfo,
)


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="t", omit_defaults=True):
    """The base of all facts; the name of its class is its tag in the journal."""

    durable: ClassVar[bool] = True


class FleetingEvent(Event, frozen=True):
    """The base of facts that are not journalled."""

    durable: ClassVar[bool] = False


class StreamPlace(Plain, frozen=True):
    """A stream, the worker that makes it, and the address of the worker that it belongs to."""

    stream: int
    worker: str | None = None
    home: str = ""
    begins: int | None = None
    """The lap in which it has its first turn, or UNDECIDED. None: unchanged, or 0 if it is new."""


class DispatcherStarted(Event, frozen=True):
    """A dispatcher started. Its name is that of the first start, also after restarts."""

    dispatcher: str
    times: int = 1
    lives: tuple[tuple[str, int], ...] = ()
    """In a snapshot: the latest starts, and how many facts came before each."""


class NumbersGiven(Event, frozen=True):
    """How many dataset ids and iteration names the dispatcher has assigned so far."""

    datasets: int
    iterations: int
    facts: int = 0
    """How many facts there were so far, including this one, which is the last of a snapshot."""


class DatasetStored(Event, frozen=True):
    """A dataset got an id. `request` is the name of the registration."""

    info: DatasetInfo
    request: str = ""
    numbered: bool = False
    """Whether the dispatcher chose the id: the next number."""
    lasting: bool = True
    """False: the dispatcher removes it with its last iteration."""


class DatasetForgotten(Event, frozen=True):
    """A dataset without readers was removed."""

    dataset_id: str


class WorkerJoined(Event, frozen=True):
    """A worker registered, for the first time or with other properties."""

    info: WorkerInfo


class WorkerGone(Event, frozen=True):
    """A worker stopped, or sent no heartbeat for too long."""

    worker: str


class IterationBegun(Event, frozen=True):
    """The first reader of an iteration opened it."""

    name: str | None
    repetition: int
    dataset_id: str
    options: JobOptions
    work: Work
    leased: bool
    length: int = -2
    ready: bool = False
    by_id: bool = False
    """Whether the user passed a dataset id: the same name with another id is another job."""


class StreamsPlaced(Event, frozen=True):
    """From now on these workers make these streams of an iteration."""

    job: str
    places: tuple[StreamPlace, ...]


class ClientJoined(Event, frozen=True):
    """A client opened an iteration. `origin` is a digest of the saved states that it resumes."""

    client: str
    job: str
    group: str = ""
    host: str = ""
    consumer: int = -1
    resumes: tuple[str, ...] = ()
    origin: str = ""
    program: str = ""
    """The id of the process that reads."""


class ClientGone(Event, frozen=True):
    """A client stopped reading; its leases are free. `how`: left, lost or superseded."""

    client: str
    how: str


class ClientRewound(Event, frozen=True):
    """Another client resumed a saved state of this one: all that it held or consumed is free."""

    client: str


class RangesLeased(Event, frozen=True):
    """The dispatcher leased these to a client, in reply to its request `number`.

    Empty grants are journalled too; otherwise a late duplicate of the request could be granted
    elements that its client never learns about.
    """

    client: str
    number: int
    ranges: tuple[StreamRange, ...]


class RangesConsumed(Event, frozen=True):
    """A client handed these out, of what it had leased, and reached the ends of these streams."""

    client: str
    ranges: tuple[StreamRange, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()


class RangesClaimed(Event, frozen=True):
    """Saved states, or a client whose leases had expired, report that these were consumed.

    The client gets only ranges that no other client holds or has consumed since.
    """

    client: str
    ranges: tuple[StreamRange, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()


class RangesSetAside(Event, frozen=True):
    """Saved states continue with these: a client leased what no other client got since."""

    client: str
    ranges: tuple[StreamRange, ...]


class IterationRemoved(Event, frozen=True):
    """An iteration without readers was removed; a reader of its job begins it anew."""

    job: str


# Facts that occur only in snapshots


class RepetitionsOver(Event, frozen=True):
    """These repetitions of the job of this iteration were read to their end and removed."""

    job: str
    over: tuple[tuple[int, int], ...]
    programs: tuple[str, ...] = ()


class StreamsEnded(Event, frozen=True):
    """These streams ended: (stream, length)."""

    job: str
    ended: tuple[tuple[int, int], ...]


class LengthsKept(Event, frozen=True):
    """The known lengths of the streams of an iteration, packed."""

    job: str
    lengths: bytes


class ConsumptionKept(Event, frozen=True):
    """All that a client has consumed, packed: complete streams, and parts of other streams."""

    client: str
    whole: bytes
    parts: tuple[tuple[int, bytes], ...] = ()


class GroupReached(Event, frozen=True):
    """Which streams a group has begun, and the first element of each that was not leased yet."""

    job: str
    group: str
    begun: int
    reached: tuple[tuple[int, int], ...]


class LeasesKept(Event, frozen=True):
    """All that a client has leased, and the reply to its latest request."""

    client: str
    ranges: tuple[StreamRange, ...]
    number: int
    answer: tuple[StreamRange, ...]


# Fleeting facts


class ClientHeard(FleetingEvent, frozen=True):
    """The dispatcher got a request of a client, perhaps with what heartbeats report."""

    client: str
    heartbeat: ClientHeartbeat | None = None


class ClientWaits(FleetingEvent, frozen=True):
    """A client asked for elements, and other clients hold all that are left."""

    client: str


class WorkerHeard(FleetingEvent, frozen=True):
    """The dispatcher got a request of a worker."""

    heartbeat: WorkerHeartbeat


class WorkerSuspected(FleetingEvent, frozen=True):
    """A client cannot reach a worker; it gets no new streams until it sends a heartbeat."""

    worker: str


Fact = (
    DispatcherStarted
    | NumbersGiven
    | DatasetStored
    | DatasetForgotten
    | RepetitionsOver
    | WorkerJoined
    | WorkerGone
    | IterationBegun
    | StreamsPlaced
    | ClientJoined
    | ClientGone
    | ClientRewound
    | RangesLeased
    | RangesConsumed
    | RangesSetAside
    | RangesClaimed
    | IterationRemoved
    | StreamsEnded
    | GroupReached
    | ConsumptionKept
    | LengthsKept
    | LeasesKept
    | ClientHeard
    | ClientWaits
    | WorkerHeard
    | WorkerSuspected
)
