"""Tracebacks that show the frames of the user's functions, and not those of penstock.

Errors are folded where they leave penstock: in the methods that users call, and before their text
is sent to another process. An error that means a fault of penstock itself keeps all its frames.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TypeVar

from penstock.errors import InternalError, OpError

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The frames of penstock are those of files in this folder."""

_Error = TypeVar("_Error", bound=BaseException)


FULL = "PENSTOCK_TRACEBACK=full"
"""The setting in the environment with which nothing is folded."""


def fold(error: _Error, unless: str = FULL) -> _Error:
    """Removes frames of penstock from the tracebacks of an error and of its causes.

    A method that users call raises what `fold` returns, and so is itself the frame that is left.
    It writes out `unless`, the setting that prevents this, because tracebacks show that line:

    >>> import traceback
    >>> from penstock import Dataset
    >>> try:
    ...     list(Dataset.range(3).batch(2).map(int))
    ... except ValueError as error:
    ...     [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    ['<module>', '__next__']
    """
    if _may_fold(error, unless):
        for each in _chain(error):
            each.__traceback__ = _without_own_frames(each.__traceback__)
    return error


def users_level() -> int:
    """The `stacklevel` of a warning of this function's caller that leads to the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(OWN_FOLDER):
        level, frame = level + 1, frame.f_back
    return level


def show_frames_of_cause(error: _Error) -> _Error:
    """Puts the frames of the cause behind those of the error, for programs that drop causes."""
    cause = error.__cause__
    if cause is not None and _may_fold(error, FULL):
        fold(error).__traceback__ = cause.__traceback__
    return error


def format_for_others(error: BaseException) -> str:
    """The traceback as text for another process, which knows the message of the error.

    Of a folded error the text is that of its cause; it is empty if the error has none.
    """
    if not _may_fold(error, FULL):
        return "".join(traceback.format_exception(error)).rstrip()
    cause = fold(error).__cause__
    return "" if cause is None else "".join(traceback.format_exception(cause)).rstrip()


def _may_fold(error: BaseException, unless: str) -> bool:
    variable, _, value = unless.partition("=")
    if os.environ.get(variable) == value:
        return False
    return isinstance(error, OpError) and not isinstance(error, InternalError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all errors that are printed with it."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The frames of other code; where it calls penstock, also that of the function it calls.

    As in pytest, a frame with the variable `__tracebackhide__` does not count: it is a decorator's.
    """
    kept: list[TracebackType] = []
    is_called_by_others = False
    while trace is not None:
        is_own = trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER)
        if not is_own or "__tracebackhide__" not in trace.tb_frame.f_locals:
            if is_called_by_others or not is_own:
                kept.append(trace)
            is_called_by_others = not is_own
        trace = trace.tb_next
    folded: TracebackType | None = None
    for each in reversed(kept):
        folded = TracebackType(folded, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return folded
