"""Failures: exceptions of a worker as messages, and messages as exceptions in the client.

An exception travels as text: its class (one of `penstock.errors`), its message and its traceback.
A client never runs or unpickles received bytes to make an exception.
"""

from __future__ import annotations

import builtins
import traceback
from dataclasses import dataclass

from penstock import errors
from penstock.errors import OpError, UnknownError, kind_of
from penstock.service.protocol.fetches import Failed, Impossible

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
