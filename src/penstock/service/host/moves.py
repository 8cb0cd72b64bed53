"""Moves: how a worker that leaves hands its streams to the workers that continue.

The successor needs time to load the plan, and a state that holds the elements of a buffer takes
long to travel. So the worker that leaves makes further elements meanwhile. A small state then
travels through the client. A large state is sent to the successor several times, each time without
the elements that the successor already has. When little is left to send, the worker begins no
element until the rest has arrived. The client does nothing for this: with the last element it
learns which worker continues.

Nothing depends on a move. If one fails or takes too long, the state travels through the client, or
another worker computes the stream from an earlier mark.
"""

from __future__ import annotations

import logging
import math
import selectors
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from penstock.element.chunk import Chunk
from penstock.engine.contract import State, copy_state
from penstock.engine.state_values import SentElements, encode
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
)
from penstock.service.host.data_connection import Connection
from penstock.service.host.runtime import Runtime
from penstock.service.host.worker_streams import (
    CachedElements,
    WorkerStream,
    encode_state,
    is_plain,
    measure_state,
)
from penstock.service.logic.worker import Cursor
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    MOST_STATE,
    AddState,
    CachedPart,
    Done,
    Impossible,
    Mark,
    OpenTask,
    from_impossible,
)
from penstock.service.protocol.messages import Work, WorkerInfo
from penstock.version import MOVED_STATES

_LOG = logging.getLogger("penstock.service")

PART = 4 << 20
"""About the bytes of elements that are sent at once."""

_MOST_COPIES = 6
"""The most times that a state is saved and sent, if that takes long each time."""

ConnectTo = Callable[[WorkerInfo, Work], Connection]
"""Connects to another worker, to the process of the plan of some work."""


class SavedState(NamedTuple):
    """The state of a stream before element `ordinal`, and what its caches hold."""

    ordinal: int
    state: State
    cached: list[CachedElements]
    encoded: bytes = b""
    """The state, if it is small: then it travels through the client, too."""


class Move:
    """Moves one stream to `successor`, until the time `until`.

    `run` runs in a thread of its own.
    """

    def __init__(
        self,
        stream: WorkerStream,
        work: Work,
        successor: WorkerInfo,
        connect: ConnectTo,
        runtime: Runtime,
        until: float,
    ) -> None:
        self._stream, self._work, self._successor = stream, work, successor
        self._connect, self._runtime, self._until = connect, runtime, until
        self._changed = runtime.condition()
        """Guards the fields below."""
        self.is_pending = True
        """Whether the worker makes further elements meanwhile. Read without the lock: it changes
        once."""
        self.mark: Mark | None = None
        """Once it is not pending: the mark from which the successor continues; None if there is
        none."""
        self._has_failed = False
        self._connection: Connection | None = None
        """While it is open: that to the successor."""
        self._step_until = until
        """When the step that is under way takes too long."""

    def allows_element(self, seconds: float) -> bool:
        """Whether another element may be begun; the caller made its last one in `seconds`.

        If not, the move has ended. The client gets the state with the element that was made.
        """
        with self._changed:
            if self._has_failed or self._runtime.now() + seconds > self._until:
                self._end(None)
            return self.is_pending

    def _end(self, mark: Mark | None) -> None:
        """Ends the move, once; the caller holds the lock."""
        if self.is_pending:
            self.is_pending, self.mark = False, mark
            self._changed.notify_all()

    def give_up(self, now: float) -> None:
        """Ends the connection to the successor if a step takes too long.

        Another thread calls this: a successor that does not read blocks the thread that sends.
        """
        with self._changed:
            if self._connection is not None and now > self._step_until:
                self._connection.abort()

    def run(self) -> None:
        """Moves the stream; returns when the move is no longer pending."""
        try:
            connection = self._connect(self._successor, self._work)
            with (
                closing(StateSender(connection, self._runtime)) as sender,
                self._let_give_up_end(connection),
            ):
                sender.open(self._work, self._until)
                self._copy(sender)
        except (OpError, OSError) as error:
            self._log_failure(error)
            self._wait_for_element()
        finally:
            with self._changed:
                self._end(None)

    @contextmanager
    def _let_give_up_end(self, connection: Connection) -> Iterator[None]:
        """Lets `give_up` end the connection during the block."""
        with self._changed:
            self._connection = connection
        try:
            yield
        finally:
            with self._changed:
                self._connection = None

    def _log_failure(self, error: Exception) -> None:
        worker = self._stream.worker
        _LOG.warning(
            "worker %s: worker %s did not take over the state of a stream (%s)",
            worker,
            self._successor.address,
            error,
            extra={"event": "unmoved", "worker": worker, "job": self._stream.job},
        )

    def _wait_for_element(self) -> None:
        """Waits until a thread has made another element, with which the client gets the state."""
        with self._changed:
            self._has_failed = True
            self._changed.wait_for(lambda: not self.is_pending, timing.SWITCH)

    def _copy(self, sender: StateSender) -> None:
        """Copies a large state until little has changed since the last time, then hands over."""
        newest, seconds = self._stream.production.marks.newest, math.inf
        if not newest.small:
            cached = self._stream.list_cached()
            saved = SavedState(newest.ordinal, newest.state, cached)
            seconds = sender.send(saved, self._until)
        for left in reversed(range(_MOST_COPIES)):
            with self._stream.between_elements(self._until) as cursor:
                if cursor is None or (state := self._save(cursor)) is None:
                    return
                saved = state
                if seconds <= timing.SHORT_COPY or not left:
                    self._step_until = self._runtime.now() + timing.SWITCH
                    sender.send(saved, self._step_until)
                    self._hand_over(Mark(saved.ordinal, saved.encoded, self._successor.worker))
                    return
            seconds = sender.send(saved, self._until)

    def _save(self, cursor: Cursor) -> SavedState | None:
        """What to send ahead. If nothing is large, the client continues elsewhere at once."""
        try:
            state = copy_state(cursor.stream.save())
            encoded = encode_state(cursor.at, state)
        except Exception as error:
            self._stream.warn_of_state(type(error).__name__)
            return None
        cached = self._stream.list_cached()
        if encoded is None or any(cache.chunks for cache in cached):
            return SavedState(cursor.at, state, cached, encoded or b"")
        self._hand_over(Mark(cursor.at, encoded, self._successor.worker))
        return None

    def _hand_over(self, mark: Mark) -> None:
        with self._changed:
            if self.is_pending:
                self._stream.is_handed_over = True
                self._end(mark)


class StateSender:
    """Sends states of one stream to another worker, each element of a list or cache only once."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self._connection, self._runtime = connection, runtime
        self._selector = runtime.selector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._sent = SentElements()
        self._sent_cached: dict[int, CacheSent] = {}
        """By the number of the cache in the plan."""
        self._cached_until = math.inf
        """When sending caches ends: the state needs time, too."""
        self._requests = 0

    def open(self, work: Work, until: float) -> None:
        """Says which stream it is; returns when the other worker has loaded the plan.

        Raises FailedPreconditionError if that worker is too old.
        """
        if self._connection.protocol < MOVED_STATES:
            raise FailedPreconditionError("it has an earlier version of penstock")
        self._connection.send(OpenTask(1, work))
        self._request(until)
        self._cached_until = (self._runtime.now() + until) / 2

    def close(self) -> None:
        self._selector.close()
        self._connection.close()

    def send(self, saved: SavedState, until: float) -> float:
        """Sends a state; returns after how many seconds the other worker had it.

        Raises DeadlineExceededError at `until`.
        """
        began = self._runtime.now()
        for number, cache in enumerate(saved.cached):
            self._send_cached(number, cache, until)
        state, new = self._sent.take_new(saved.state)
        *first, last = [*cut_parts(new, PART)] or [[]]
        for part in first:
            self._request(until, _pack(encode(part, as_text=False)))
        mark = Mark(saved.ordinal, _pack(state))
        self._request(until, _pack(encode(last, as_text=False)), mark)
        return self._runtime.now() - began

    def _send_cached(self, number: int, cache: CachedElements, until: float) -> None:
        """Sends the elements that the other worker does not have.

        Every pass through the cache records the same ones. A cache that cannot move stays behind;
        the state of the stream moves without it.
        """
        sent = self._sent_cached.setdefault(number, CacheSent())
        if sent.is_over:
            return
        try:
            for part in cut_chunks(cache.chunks, sent.count, PART):
                packed = self._pack_cached(part)
                self._request(until, cached=CachedPart(number, sent.count, packed))
                sent.count += len(part)
            if cache.is_full:
                self._request(until, cached=CachedPart(number, sent.count, is_full=True))
                sent.is_over = True
        except (InvalidArgumentError, ResourceExhaustedError) as error:
            sent.is_over = True
            self._warn_of_cache(error)

    def _pack_cached(self, part: Chunk) -> bytes:
        if self._runtime.now() > self._cached_until:
            raise ResourceExhaustedError("sending it takes too long")
        packed = _pack(encode(part, as_text=False))
        if len(packed) > MOST_STATE:
            raise ResourceExhaustedError(f"an element has {part.nbytes / 1e6:.0f} MB")
        return packed

    def _warn_of_cache(self, error: Exception) -> None:
        _LOG.warning(
            "%s: does not get what cache() holds in memory (%s); it computes these elements again, "
            "and the reader waits meanwhile",
            self._connection.peer,
            error,
        )

    def _request(
        self,
        until: float,
        elements: bytes = b"",
        mark: Mark | None = None,
        cached: CachedPart | None = None,
    ) -> None:
        self._requests += 1
        self._connection.send(AddState(self._requests, 1, elements, mark, cached))
        while True:
            match self._receive(until):
                case Done():
                    return
                case Impossible() as impossible:
                    raise from_impossible(impossible)

    def _receive(self, until: float) -> Any:
        left = until - self._runtime.now()
        if left <= 0 or not (self._connection.pending() or self._selector.select(left)):
            raise DeadlineExceededError("it takes too long")
        return self._connection.receive()[0]


@dataclass
class CacheSent:
    """How many elements of a cache were sent, and whether these are all."""

    count: int = 0
    is_over: bool = False


def cut_chunks(chunks: Sequence[Chunk], start: int, nbytes: int) -> Iterator[Chunk]:
    """The elements from `start` on, in chunks of about so many bytes, or of one larger element."""
    part: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if start >= len(chunk):
            start -= len(chunk)
            continue
        step = max(1, nbytes * len(chunk) // max(1, chunk.nbytes))
        for first in range(start, len(chunk), step):
            part.append(chunk.rows(first, first + step))
            size += part[-1].nbytes
            if size >= nbytes:
                yield Chunk.join(part)
                part, size = [], 0
        start = 0
    if part:
        yield Chunk.join(part)


def cut_parts(elements: list[Any], nbytes: int) -> Iterator[list[Any]]:
    """Cuts a list into parts of about so many bytes."""
    start = size = 0
    for stop, element in enumerate(elements, 1):
        size += measure_state(element, nbytes)
        if size >= nbytes or stop == len(elements):
            yield elements[start:stop]
            start, size = stop, 0


def _pack(encoded: State) -> bytes:
    if not is_plain(encoded):
        raise InvalidArgumentError(
            "it has elements that are not arrays in tuples and dicts, such as objects"
        )
    return msgspec.msgpack.encode(encoded)
