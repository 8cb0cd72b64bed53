"""Requests to servers of files: how many at once, which failures are repeated, and their count.

Coroutines run in the event loop of fsspec, which has a thread of its own. Only that thread uses a
`RequestLimit`, except for `is_hungry`.
"""

from __future__ import annotations

import contextvars
import errno
import logging
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.engine.formats.file_cache import FileCache

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")

ATTEMPTS = 5
"""How often a request is sent before its failure is an error."""

FIRST_PAUSE = 0.1
"""Seconds before the second attempt; before each further one twice as many."""

_LEAST, _MOST = 2, 32
"""How many requests may be under way at once, for each server."""

_LEARNED = 2048
"""After so many requests the latency is learned anew, because it may have changed."""

_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_PASSING_ERRNO = {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE}

log = logging.getLogger("penstock")


class RetryCount:
    """How many requests were repeated. Only the thread of fsspec's loop adds."""

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True)
class RemoteUse:
    """How a program reads remote files: what counts its retries, and which cache it uses."""

    retries: RetryCount = field(default_factory=RetryCount)
    cache: FileCache | None = None


remote_use: contextvars.ContextVar[RemoteUse] = contextvars.ContextVar(
    "remote_use",
    default=RemoteUse(),  # noqa: B039 (not changed, but for its count)
)
"""How the calling thread uses remote files. The threads of an iterator inherit it."""


class ShortAnswerError(ConnectionError):
    """A server sent fewer bytes than were asked for."""


class ChangedFileError(OSError):
    """A file is another one than when it was opened; the text says what differs."""


async def repeat(request: Callable[[], Awaitable[Result]], path: str) -> Result:
    """The result of a request, which is sent again after failures that may pass."""
    import asyncio

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await request()
        except Exception as error:
            cause = _origin(error)
            if not is_passing(cause):
                raise as_os_error(cause) from error
            if attempt == ATTEMPTS:
                raise ConnectionError(f"{_text(cause)}, after {ATTEMPTS} attempts") from error
            log.info("%s: attempt %d failed (%s); it is repeated", path, attempt, cause)
            remote_use.get().retries.count += 1
            await asyncio.sleep(FIRST_PAUSE * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def begin(system: Any, request: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Begins a coroutine in the event loop of a file system."""
    import asyncio

    return asyncio.run_coroutine_threadsafe(request, system.loop)


_CLIENTS = ("aiohttp", "httpx", "httpx2")
"""The packages whose errors are failures of HTTP, but not all OSErrors."""


def _origin(error: Exception) -> Exception:
    """The cause: fsspec reports each failed description of a web address as a missing file."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        is_missing = _status(cause) in (404, 410, None)
        if not is_missing or isinstance(cause, ConnectionError | TimeoutError):
            return cause
    return error


def _status(error: BaseException | None) -> int | None:
    """The status of an HTTP answer; 0 for other failures of its client."""
    if error is None or type(error).__module__.partition(".")[0] not in _CLIENTS:
        return None
    answer = getattr(error, "response", None)  # Of httpx, which huggingface_hub uses.
    return int(getattr(error, "status", getattr(answer, "status_code", 0)))


def is_passing(error: Exception) -> bool:
    """Whether a request that failed in this way may succeed later."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    status = _status(error)
    if status is not None:
        return status == 0 or status in _PASSING_STATUS
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNO


def as_os_error(error: Exception) -> Exception:
    """A failure of an HTTP client as the OSError that fits; other errors as they are."""
    status = _status(error)
    if status in (401, 403):
        return PermissionError(_text(error))
    return error if status is None else ConnectionError(_text(error))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class RequestLimit:
    """How many requests to a server are under way at once: as many as its latency needs.

    While a reader waits for bytes and a request takes hardly longer than the fastest one did, the
    link has room, and one more request may run. If requests take much longer, they queue in the
    link, and more of them would only fill memory.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, depth: int = _LEAST) -> None:
        self._loop = loop
        self.depth = depth
        self.is_hungry = False
        """Whether a reader waits for bytes. Readers set it, in their threads."""
        self._busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._fastest = float("inf")
        self._count = 0

    async def enter(self) -> float:
        """Waits for its turn; returns the time."""
        if self._busy >= self.depth or self._queue:
            turn = self._loop.create_future()
            self._queue.append(turn)
            try:
                await turn
            except BaseException:  # Cancelled: the file was closed.
                if turn.done() and not turn.cancelled():
                    self.leave()
                raise
        else:
            self._busy += 1
        return time.perf_counter()

    def adapt(self, began: float) -> None:
        """Learns from a request of the usual size that has succeeded."""
        seconds = time.perf_counter() - began
        self._count += 1
        if self._count % _LEARNED == 0:
            self.depth, self._fastest = _LEAST, seconds
        self._fastest = min(seconds, self._fastest)
        if self.is_hungry and seconds < 2 * self._fastest:
            self.depth = min(self.depth + 1, _MOST)

    def leave(self) -> None:
        self._busy -= 1
        while self._queue and self._busy < self.depth:
            turn = self._queue.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)


class RequestLimits(NamedTuple):
    """How many requests of a kind are under way at once."""

    large: RequestLimit
    small: RequestLimit
    """Of requests for a few bytes, which hardly use the link: as many as there may be."""


_limits: weakref.WeakKeyDictionary[Any, RequestLimits] = weakref.WeakKeyDictionary()


def limits_of(system: Any) -> RequestLimits:
    """The limits that all files of a file system share. If two threads make them, one wins."""
    found = _limits.get(system)
    if found is None:
        made = RequestLimits(RequestLimit(system.loop), RequestLimit(system.loop, _MOST))
        found = _limits.setdefault(system, made)
    return found
