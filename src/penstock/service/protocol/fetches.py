"""Fetches: what a client says to a worker on a data connection, and what comes back.

Requests of one connection are answered one after the other, in order; all that belongs to one of
them carries its number. What a message carries beside itself are raw bytes (see `frames`).
"""

from __future__ import annotations

from penstock.service.protocol.messages import Message, Plain, Work


class Mark(Plain, frozen=True):
    """A stream's saved state before element `ordinal`: where another worker may begin."""

    ordinal: int
    state: bytes


# From the client


class OpenTask(Message, frozen=True):
    """What `task` stands for in the fetches that follow."""

    task: int
    work: Work


class Fetch(Message, frozen=True):
    """Elements `start` to `stop` of a task; `mark` is a place before them, if one is known."""

    request: int
    task: int
    start: int
    stop: int
    mark: Mark | None = None


class Cancel(Message, frozen=True):
    """Nobody waits for a request any more; its answer may end at once (with `Done`)."""

    request: int


class Release(Message, frozen=True):
    """Pieces of shared memory that nobody reads any more."""

    segments: tuple[int, ...]


class CloseTask(Message, frozen=True):
    """No more fetches of a task."""

    task: int


# From the worker


class Rows(Message, frozen=True):
    """Elements from `start` on; their columns are described, their bytes follow the message."""

    request: int
    start: int
    count: int
    columns: bytes
    """What `frames` needs to make columns of the bytes."""
    segment: int = -1
    """The piece of shared memory that holds the bytes; -1: they follow."""
    nbytes: int = 0
    packed: str = ""
    """How the bytes are compressed; empty if they are not."""
    mark: Mark | None = None
    seconds: float = 0.0
    """What it took to make them."""
    structure: str = ""
    """Of each element; empty for a bare leaf."""
    check: int | None = None
    """The checksum of the bytes that follow; None where the way they take needs none."""
    began: int | None = None
    """Where the part of a file began that the stream is, if that had to be found out."""


class Failed(Message, frozen=True):
    """Element `ordinal` could not be made; the ones behind it follow.

    `place` is its place among the inputs of an `interleave`, where the client takes turns.
    """

    request: int
    ordinal: int
    kind: str
    message: str
    remote: str = ""
    """The traceback, as text."""
    cause: tuple[str, str] = ("", "")
    """The class of what a function raised, and its text."""
    began: int | None = None
    place: int | None = None


class Done(Message, frozen=True):
    """All of a request was sent, up to the end of the stream if `length` says where that is."""

    request: int
    length: int | None = None
    began: int | None = None
    ended: int | None = None
    """Where the part of a file began and ended that the stream is; see `Work.begin`."""
    lengths: tuple[int, ...] | None = None
    """Of all inputs that the stream has, where the client takes turns between them: how many
    elements each has before operators behind `interleave` change that; -1 for one that failed."""


class Impossible(Message, frozen=True):
    """A request that cannot be answered here: the plan cannot be read, a module is missing."""

    request: int
    kind: str
    message: str
    elsewhere: bool = False
    """Whether another worker might be able to."""


class Progress(Message, frozen=True):
    """A request is being worked on, for longer than usual."""

    request: int
    """The one that is worked on; 0 if the worker does something else first."""
    where: str = ""
    """The user's function that is called, as "f at train.py:2"; empty if there is none."""


class Closing(Message, frozen=True):
    """The last word on a connection that the worker ends, for a reason that is no answer."""

    reason: str


ToWorker = OpenTask | Fetch | Cancel | Release | CloseTask
ToClient = Rows | Failed | Done | Impossible | Progress | Closing
