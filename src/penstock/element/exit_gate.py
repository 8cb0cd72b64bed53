"""The exit gate: threads that would enter a C++ library while the program ends block instead.

Python before 3.14 ends a daemon thread that wants to run after the program's end by unwinding its
stack. A thread inside C++ code that called Python does not survive this: the C++ runtime aborts
the whole process ("terminate called without an active exception", exit status 134). A thread that
blocks is left alone, and ends with the process.

Joining all threads instead could wait for other machines. An exception in every thread would
reach the readers of a worker as an error of their dataset.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any

_EXIT_SECONDS = 2.0
"""The most seconds that the end of a program waits for threads inside the library."""


def guard(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call` for the calling thread; every other thread that calls it blocks for ever."""
    return functools.partial(_enter, threading.get_ident(), call)


def _enter(ident: int, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if threading.get_ident() != ident:
        threading.Event().wait()
    return call(*arguments, **options)


def wait_until_left(functions: Collection[Callable[..., Any]]) -> None:
    """Waits until no other thread runs one of the Python functions that call the library."""
    codes = {function.__code__ for function in functions}
    until = time.monotonic() + _EXIT_SECONDS
    while _has_thread_inside(codes) and time.monotonic() < until:
        time.sleep(0.0005)  # The other threads run meanwhile.


def _has_thread_inside(codes: set[CodeType]) -> bool:
    here = threading.get_ident()
    return any(
        ident != here and _is_inside(frame, codes) for ident, frame in sys._current_frames().items()
    )


def _is_inside(frame: FrameType | None, codes: set[CodeType]) -> bool:
    """Whether a thread is in one of the functions, and not blocked at the gate."""
    inside = False
    while frame is not None:
        if frame.f_code is _enter.__code__:
            return False
        inside = inside or frame.f_code in codes
        frame = frame.f_back
    return inside
