"""Facts: all that ever changes what a dispatcher knows, in the past tense.

Durable ones are journalled before they are applied, and a journal replayed gives the same state.
Fleeting ones (who was heard of, how fast) are only applied; after a restart they come anew.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from penstock.service.protocol.messages import (
    Address,
    DatasetInfo,
    JobOptions,
    Plain,
    Work,
    WorkerInfo,
    WorkStatus,
)


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="t", omit_defaults=True):
    """Something that happened; its class is its tag in the journal."""

    durable: ClassVar[bool] = True


class FleetingEvent(Event, frozen=True):
    """Something that need not be known after a restart."""

    durable: ClassVar[bool] = False


class StreamPlace(Plain, frozen=True):
    """A stream, the worker that makes it, and the address of the worker that it belongs to."""

    stream: int
    worker: str | None = None
    home: str = ""
    begins: int | None = None
    """The lap in which it has its first turn, or UNDECIDED; None: as before, at first 0."""


class DispatcherStarted(Event, frozen=True):
    """A dispatcher came up, for the first time or again; the first one gives the name."""

    dispatcher: str
    times: int = 1
    lives: tuple[tuple[str, int], ...] = ()
    """In a snapshot: the last starts, and how many facts there were before each."""


class NumbersGiven(Event, frozen=True):
    """How many ids of datasets and names of iterations were ever given."""

    datasets: int
    iterations: int
    facts: int = 0
    """How many facts there ever were, this one included; it is the last one of a snapshot."""


class DatasetStored(Event, frozen=True):
    """A dataset has an id. `request` names the registration."""

    info: DatasetInfo
    request: str = ""
    numbered: bool = False
    """Whether the id is the next running number."""
    lasting: bool = True
    """False: it is forgotten with the last iteration of it."""


class DatasetForgotten(Event, frozen=True):
    """A dataset was registered, and nobody has read it for a while."""

    dataset_id: str


class WorkerJoined(Event, frozen=True):
    """A worker is there, or there again with other properties."""

    info: WorkerInfo


class WorkerGone(Event, frozen=True):
    """A worker makes nothing any more."""

    worker: str


class IterationBegun(Event, frozen=True):
    """The first reader of an iteration came."""

    name: str | None
    repetition: int
    dataset_id: str
    options: JobOptions
    work: Work
    leased: bool
    length: int = -2
    ready: bool = False
    by_id: bool = False
    """Whether the job belongs to this dataset id alone."""


class StreamsPlaced(Event, frozen=True):
    """Streams of an iteration are made by these workers from now on."""

    job: str
    places: tuple[StreamPlace, ...]


class ClientJoined(Event, frozen=True):
    """A client reads an iteration. `origin` is the state that it goes on from, as a digest."""

    client: str
    job: str
    group: str = ""
    host: str = ""
    consumer: int = -1
    resumes: tuple[str, ...] = ()
    origin: str = ""
    program: str = ""
    """The process that reads."""


class ClientGone(Event, frozen=True):
    """A client reads no more; what it had leased is free. `how`: left, lost or superseded."""

    client: str
    how: str


class ClientRewound(Event, frozen=True):
    """Another client goes on from a saved state of this one: all that it had is free again."""

    client: str


class RangesLeased(Event, frozen=True):
    """A client may read these, in answer to its request `number`.

    Nothing is an answer, too: were it forgotten, the request could come again late, and be
    granted what its client will never know of.
    """

    client: str
    number: int
    addresses: tuple[Address, ...]


class RangesConsumed(Event, frozen=True):
    """A client has handed these out, of what was leased to it, and saw these streams end."""

    client: str
    addresses: tuple[Address, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()


class RangesClaimed(Event, frozen=True):
    """Saved states, or one who was lost, say that these were consumed.

    What others have got since stays theirs.
    """

    client: str
    addresses: tuple[Address, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()


class RangesSetAside(Event, frozen=True):
    """Saved states go on with these: a client holds what of them nobody else has got since."""

    client: str
    addresses: tuple[Address, ...]


class IterationRemoved(Event, frozen=True):
    """Nobody reads an iteration any more, and its name is free."""

    job: str


# A whole state, in few words


class RepetitionsOver(Event, frozen=True):
    """Repetitions of the job that this iteration is one of were read to their end and forgotten."""

    job: str
    over: tuple[tuple[int, int], ...]
    programs: tuple[str, ...] = ()


class StreamsEnded(Event, frozen=True):
    """The lengths of streams."""

    job: str
    ended: tuple[tuple[int, int], ...]


class LengthsKept(Event, frozen=True):
    """The lengths of all streams of an iteration that are known, packed."""

    job: str
    lengths: bytes


class ConsumptionKept(Event, frozen=True):
    """All that a client has consumed: streams as a whole, and parts of other streams, packed."""

    client: str
    whole: bytes
    parts: tuple[tuple[int, bytes], ...] = ()


class GroupReached(Event, frozen=True):
    """How far a group has come: which streams were begun, and where each of those goes on."""

    job: str
    group: str
    begun: int
    reached: tuple[tuple[int, int], ...]


class LeasesKept(Event, frozen=True):
    """All that a client has leased, and the answer to its latest request."""

    client: str
    addresses: tuple[Address, ...]
    number: int
    answer: tuple[Address, ...]


# Fleeting


class ClientHeard(FleetingEvent, frozen=True):
    """A client said something."""

    client: str
    elements: int = 0
    waited: float = 0.0
    seconds: float = 0.0
    version: int = 0
    """What it knew when it said so: it lived after that version was made."""
    limit: int | None = None
    """As in `ClientHeartbeat`."""


class ClientWaits(FleetingEvent, frozen=True):
    """A client asked for elements in vain, because others hold all that is left."""

    client: str


class WorkerHeard(FleetingEvent, frozen=True):
    """A worker said something."""

    worker: str
    jobs: tuple[WorkStatus, ...] = ()
    draining: bool = False
    restarts: int = 0


class WorkerSuspected(FleetingEvent, frozen=True):
    """A client cannot reach a worker; it gets nothing new until it is heard of."""

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
