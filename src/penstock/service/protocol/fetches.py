"""Messages on a data connection: a client's fetches, and the worker's answers.

A worker answers the requests of one connection one after the other, in order. Every message about a
request carries its number. Raw bytes may follow a message (see `frames`).
"""

from __future__ import annotations

from penstock.service.protocol.messages import Message, Plain, Work


class Mark(Plain, frozen=True):
    """A stream's saved state before element `ordinal`, from which any worker can continue."""

    ordinal: int
    state: bytes


# From the client


class OpenTask(Message, frozen=True):
    """Says which work `task` means in the fetches that follow."""

    task: int
    work: Work


class Fetch(Message, frozen=True):
    """Asks for elements `start` to `stop` of a task; `mark` is before them, if one is known."""

    request: int
    task: int
    start: int
    stop: int
    mark: Mark | None = None


class Release(Message, frozen=True):
    """Segments of shared memory that the client no longer reads."""

    segments: tuple[int, ...]


class CloseTask(Message, frozen=True):
    """The client sends no more fetches of a task."""

    task: int


# From the worker


class Rows(Message, frozen=True):
    """`count` elements from `start` on. The bytes of their columns follow the message."""

    request: int
    start: int
    count: int
    columns: bytes
    """The description by which `frames` makes columns of the bytes."""
    segment: int = -1
    """The segment of shared memory that holds the bytes; -1: they follow the message."""
    nbytes: int = 0
    packed: str = ""
    """The compression of the bytes; empty for none."""
    mark: Mark | None = None
    seconds: float = 0.0
    """The time that it took to compute them."""
    structure: str = ""
    """The structure of each element; empty for a bare leaf."""
    check: int | None = None
    """The checksum of the bytes that follow; None if the connection needs none."""
    began: int | None = None
    """For a stream that is a part of a file: where it began, if the worker had to find that out."""


class Failed(Message, frozen=True):
    """Element `ordinal` could not be computed; the elements behind it follow.

    `place` is its place among the inputs of an `interleave`, if the client merges them.
    """

    request: int
    ordinal: int
    kind: str
    message: str
    remote: str = ""
    """The traceback, as text."""
    cause: tuple[str, str] = ("", "")
    """The class and the text of the exception that a function raised."""
    began: int | None = None
    place: int | None = None


class Done(Message, frozen=True):
    """A request is answered, up to the end of the stream if `length` says where that is."""

    request: int
    length: int | None = None
    began: int | None = None
    ended: int | None = None
    """For a stream that is a part of a file: where it began and ended; see `Work.begin`."""
    lengths: tuple[int, ...] | None = None
    """If the client merges the inputs of an `interleave`: the number of elements of each input of
    the stream, before operators behind the `interleave` change it; -1 for an input that failed."""


class Impossible(Message, frozen=True):
    """This worker cannot answer a request: it cannot decode the plan, or lacks a module."""

    request: int
    kind: str
    message: str
    elsewhere: bool = False
    """Whether another worker may be able to."""


class Progress(Message, frozen=True):
    """The worker still computes the answer to a request, which takes long."""

    request: int
    """The number of the request; 0 if the worker does something else first."""
    where: str = ""
    """The user's function that runs, as "f at train.py:2"; empty if none does."""


class Closing(Message, frozen=True):
    """The last message on a connection that the worker closes, with the reason."""

    reason: str


ToWorker = OpenTask | Fetch | Release | CloseTask
ToClient = Rows | Failed | Done | Impossible | Progress | Closing
