"""Failures: how an exception travels from the worker where it happened to the user who waits.

On the way it is text: its class (one of `penstock.errors`), its message and its traceback. Nothing
that came over a wire is ever run or unpickled to make an exception.
"""

from __future__ import annotations

import builtins
import traceback
from dataclasses import dataclass

from penstock import errors
from penstock.errors import OpError, UnknownError, kind_of
from penstock.service.protocol.fetches import Failed, Impossible

_MOST_TEXT = 1 << 14
"""Characters of a message or a traceback that travel; of longer ones the middle is left out."""

_ELSEWHERE = (
    errors.NotFoundError,
    errors.UnavailableError,
    errors.ResourceExhaustedError,
    errors.PermissionDeniedError,
    errors.DataLossError,
    errors.DeadlineExceededError,
    errors.FailedPreconditionError,
)
"""What may be the fault of one machine: another one may have the file, the memory or the module."""


@dataclass(frozen=True)
class Fault:
    """An exception as text; holds none of the frames that it came through."""

    kind: str
    message: str
    remote: str = ""
    cause: tuple[str, str] = ("", "")

    @property
    def nbytes(self) -> int:
        return len(self.message) + len(self.remote) + len(self.cause[1])


def fault_of(error: BaseException, worker: str) -> Fault:
    """What is told of an exception that was raised on the worker at `worker`."""
    kind = kind_of(error)
    text = str(error) if isinstance(error, OpError) else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    message = f"{_short(text)} (on worker {worker})"
    return Fault(_known(kind).__name__, message, _short(trace), _cause_of(error))


def _cause_of(error: BaseException) -> tuple[str, str]:
    cause = error.__cause__ if isinstance(error, OpError) else error
    if cause is None:
        return "", ""
    told = cause.args[0] if len(cause.args) == 1 and isinstance(cause.args[0], str) else str(cause)
    return type(cause).__name__, _short(told)


def to_failed(
    request: int,
    ordinal: int,
    fault: Fault,
    began: int | None = None,
    place: int | None = None,
) -> Failed:
    """For one element that could not be made."""
    what = (fault.kind, fault.message, fault.remote, fault.cause)
    return Failed(request, ordinal, *what, began, place)


def from_failed(failed: Failed) -> OpError:
    """The exception for the user, with the remote traceback as a note."""
    error = _class(failed.kind)(failed.message)
    if failed.remote:
        error.add_note(f"Traceback on the worker:\n{failed.remote.rstrip()}")
    error.__cause__ = _cause(*failed.cause)
    return error


def _cause(name: str, text: str) -> Exception | None:
    """What a function raised, if that is one of Python's own or of ours."""
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return UnknownError(f"{name}: {text}") if name else None
    try:
        return found(text)
    except TypeError:  # It wants more than a text.
        return UnknownError(f"{name}: {text}")


def to_impossible(request: int, error: BaseException, worker: str) -> Impossible:
    """For a request of which nothing can be answered."""
    fault = fault_of(error, worker)
    return Impossible(request, fault.kind, fault.message, isinstance(error, _ELSEWHERE))


def from_impossible(impossible: Impossible) -> OpError:
    """The exception for the user, if no other worker could answer."""
    return _class(impossible.kind)(impossible.message)


def _class(kind: str) -> type[OpError]:
    found = getattr(errors, kind, None)
    return found if isinstance(found, type) and issubclass(found, OpError) else UnknownError


def _known(kind: type[OpError]) -> type[OpError]:
    """The class itself, or for one of somebody else the nearest of ours."""
    return next(base for base in kind.__mro__ if _class(base.__name__) is base)


def _short(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
