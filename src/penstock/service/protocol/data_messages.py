"""Messages on a data connection: a client's fetches, and the worker's answers and failures.

A worker answers the requests of one connection one after the other, in order. Every message about a
request carries its number. Raw bytes may follow a message (see `frames`).

An exception travels as text: its class (one of `penstock.errors`), its message and its traceback.
A client never runs or unpickles received bytes to make an exception.
"""

from __future__ import annotations

import builtins
import traceback
from dataclasses import dataclass

from penstock import errors
from penstock.errors import OpError, UnknownError, kind_of
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


_MOST_TEXT = 1 << 14
"""Characters of a message or traceback; longer texts travel without their middle."""

_ELSEWHERE = (
    errors.NotFoundError,
    errors.UnavailableError,
    errors.ResourceExhaustedError,
    errors.PermissionDeniedError,
    errors.DataLossError,
    errors.DeadlineExceededError,
    errors.FailedPreconditionError,
)
"""Errors that may be due to one machine: another may have the file, the memory or the module."""


@dataclass(frozen=True)
class Fault:
    """An exception as text, without references to frames."""

    kind: str
    message: str
    remote: str = ""
    cause: tuple[str, str] = ("", "")

    @property
    def nbytes(self) -> int:
        return len(self.message) + len(self.remote) + len(self.cause[1])


def fault_of(error: BaseException, worker: str) -> Fault:
    """Returns an exception, raised on the worker at `worker`, as text."""
    kind = kind_of(error)
    text = str(error) if isinstance(error, OpError) else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    message = f"{_shorten(text)} (on worker {worker})"
    return Fault(_nearest_class(kind).__name__, message, _shorten(trace), _cause_of(error))


def _cause_of(error: BaseException) -> tuple[str, str]:
    cause = error.__cause__ if isinstance(error, OpError) else error
    if cause is None:
        return "", ""
    arguments = cause.args
    text = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], str) else str(cause)
    return type(cause).__name__, _shorten(text)


def to_failed(
    request: int,
    ordinal: int,
    fault: Fault,
    began: int | None = None,
    place: int | None = None,
) -> Failed:
    """Returns the message for one element that could not be computed."""
    return Failed(
        request=request,
        ordinal=ordinal,
        kind=fault.kind,
        message=fault.message,
        remote=fault.remote,
        cause=fault.cause,
        began=began,
        place=place,
    )


def from_failed(failed: Failed) -> OpError:
    """Returns the exception for the user, with the remote traceback as a note."""
    error = _find_class(failed.kind)(failed.message)
    if failed.remote:
        error.add_note(f"Traceback on the worker:\n{failed.remote.rstrip()}")
    error.__cause__ = _make_cause(*failed.cause)
    return error


def _make_cause(name: str, text: str) -> Exception | None:
    """Returns what the function raised, if its class is a builtin or one of `penstock.errors`."""
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return UnknownError(f"{name}: {text}") if name else None
    try:
        return found(text)
    except TypeError:  # Its constructor needs more than a text.
        return UnknownError(f"{name}: {text}")


def to_impossible(request: int, error: BaseException, worker: str) -> Impossible:
    """Returns the message for a request that cannot be answered at all."""
    fault = fault_of(error, worker)
    return Impossible(request, fault.kind, fault.message, isinstance(error, _ELSEWHERE))


def from_impossible(impossible: Impossible) -> OpError:
    """Returns the exception for the user, for the case that no other worker can answer."""
    return _find_class(impossible.kind)(impossible.message)


def _find_class(kind: str) -> type[OpError]:
    found = getattr(errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, OpError) else UnknownError


def _nearest_class(kind: type[OpError]) -> type[OpError]:
    """Returns the class itself, or for a subclass of a user its nearest base in our errors."""
    return next(base for base in kind.__mro__ if _find_class(base.__name__) is base)


def _shorten(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
