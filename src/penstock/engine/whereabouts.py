"""Whereabouts: which user's function a thread is in, or waits for, seen from another thread.

Nothing is recorded while functions run: `whereabouts` reads the stacks of the threads.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NamedTuple

from penstock.engine.calling import Calling
from penstock.engine.contract import Stream
from penstock.engine.pool import Pool
from penstock.engine.tracebacks import OWN_FOLDER
from penstock.engine.user_calls import Calls

_LIBRARIES = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
"""Where the standard library is, and installed packages."""


class Whereabouts(NamedTuple):
    """A call of a user's function that is not over."""

    function: str = ""
    """As "f at train.py:2"; empty if there is none."""
    element: int | None = None
    """The number of its element, as errors of the function count; None if that is not known."""


def whereabouts(thread: int) -> Whereabouts:
    """The function that a thread calls or waits for.

    A thread that pulls from a stream with a pool waits for the pool's threads.
    """
    return _search(thread, sys._current_frames(), set())


def _search(thread: int, frames: dict[int, FrameType], seen: set[int]) -> Whereabouts:
    seen.add(thread)
    waits: list[int] = []
    outside, frame = "", frames.get(thread)
    while frame is not None:
        # An object that is being made lacks some of its fields.
        is_made = frame.f_code.co_name != "__init__"
        owner = frame.f_locals.get("self") if is_made else None
        if isinstance(owner, Calls):
            return Whereabouts(str(owner.function), _element_of(owner, frame))
        if isinstance(owner, Calling) and owner.function_elsewhere:
            return Whereabouts(owner.function_elsewhere)
        if isinstance(owner, Stream) and isinstance(pool := vars(owner).get("_pool"), Pool):
            waits += pool.idents
        name = frame.f_code.co_filename
        if name.startswith(OWN_FOLDER):
            if outside:
                return Whereabouts(outside)
        elif not name.startswith((_LIBRARIES, "<frozen")):
            code = frame.f_code
            outside = f"{code.co_name} at {os.path.basename(name)}:{code.co_firstlineno}"
        frame = frame.f_back
    found = (_search(other, frames, seen) for other in waits if other not in seen)
    return next((call for call in found if call.function), Whereabouts())


def _element_of(calls: Calls, frame: FrameType | None) -> int | None:
    """The number of the element, which a method of `calls` in this frame or around it knows."""
    while frame is not None and frame.f_locals.get("self") is calls:
        ordinal = frame.f_locals.get("ordinal")
        if ordinal is not None:
            return int(ordinal) + len(frame.f_locals.get("results", ()))
        frame = frame.f_back
    return None
