"""Moves: how a worker that leaves hands large states of its streams to the workers that continue.

A state that holds the elements of a buffer takes long to travel. So the worker sends it while it
makes further elements, again and again, each time without the elements that the other worker has.
When little is left to send, the next element is its last one, and what has changed travels before
that element. The reader needs to do nothing for this: it learns with the last element which worker
has the state.

Nothing depends on a move. If one fails or takes too long, the state travels through the client, or
another worker computes the stream from an earlier mark.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import msgspec

from penstock.engine.contract import State, copy_state
from penstock.engine.state_values import SentElements, encode
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
)
from penstock.service.host.data_connection import Connection
from penstock.service.host.runtime import Runtime
from penstock.service.host.worker_streams import WorkerStream, encode_state, is_plain, measure_state
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    AddState,
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

_ROUNDS = 5
"""How often a state is sent before the last time, if that takes long each time."""

ConnectTo = Callable[[WorkerInfo, Work], Connection]
"""Connects to another worker, to the process of the plan of some work."""


class NothingToMoveError(Exception):
    """The stream has ended, its clients are gone, or its state is small."""


class SavedState(NamedTuple):
    """The state of a stream before element `ordinal`."""

    ordinal: int
    state: State


class Move:
    """Moves the state of one stream to `successor`, until the time `until`.

    `run` runs in a thread of its own. Threads that make elements of the stream call `settle`.
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
        once, and a stale value costs one element more."""
        self.mark: Mark | None = None
        """Once it is not pending: the mark from which the successor continues; None if there is
        none."""
        self._wants_state = self._is_last = False
        """Whether the next state is to be saved, and whether no element is made after that."""
        self._given: SavedState | None = None
        self._is_unsure = not stream.production.marks.newest.ordinal
        """Whether the state may be small: before the first mark, its size is not known."""

    # Between two elements

    def settle(self, ordinal: int) -> None:
        """Called before element `ordinal` by a thread that has made the element before it.

        Saves the state if it is to be sent next. If it is the last one, blocks until the successor
        has it; the move is not pending any more then. If the state is small, no move is needed,
        and no further element is made.
        """
        with self._changed:
            is_wanted, is_unsure = self._wants_state, self._is_unsure
            if not self.is_pending or not (is_wanted or is_unsure):
                return
            self._wants_state = self._is_unsure = False
        with ExitStack() as held:
            saved = self._save(ordinal, held)
        with self._changed:
            self._is_unsure = is_unsure and saved is None
            if not is_wanted:
                return
            self._given, self._wants_state = saved, saved is None
            self._changed.notify_all()
            if saved is not None and self._is_last:
                self._changed.wait_for(lambda: not self.is_pending, timing.SWITCH)
                self._end(None)

    def _save(self, ordinal: int, held: ExitStack) -> SavedState | None:
        """None if no cursor is there, or if the move is given up because the state is small.

        No element is made until `held` is closed.
        """
        cursor = held.enter_context(self._stream.hold_cursor(ordinal))
        if cursor is None:
            return None
        try:
            saved = SavedState(ordinal, copy_state(cursor.stream.save()))
            if encode_state(*saved) is None:
                return saved
        except Exception as error:
            self._stream.warn_of_state(type(error).__name__)
        with self._changed:
            self._end(None)
        return None

    def _end(self, mark: Mark | None) -> None:
        """Ends the move, once; the caller holds the lock."""
        if self.is_pending:
            self.is_pending, self.mark = False, mark
            self._changed.notify_all()

    # In the thread of the move

    def run(self) -> None:
        """Copies the state; returns when the move is not pending any more."""
        try:
            self._copy()
        except NothingToMoveError:
            pass
        except (OpError, OSError) as error:
            self._log_failure(error)
        finally:
            with self._changed:
                self._end(None)

    def _log_failure(self, error: Exception) -> None:
        worker = self._stream.worker
        _LOG.warning(
            "worker %s: worker %s did not take over the state of a stream (%s)",
            worker,
            self._successor.address,
            error,
            extra={"event": "unmoved", "worker": worker, "job": self._stream.job},
        )

    def _copy(self) -> None:
        if not self._stream.has_cursors:
            raise NothingToMoveError
        saved = self._newest() or self._obtain()
        connection = self._connect(self._successor, self._work)
        with closing(StateSender(connection, self._runtime, self._until)) as sender:
            sender.open(self._work)
            rounds = 0
            while sender.send(saved) > timing.SHORT_COPY and rounds < _ROUNDS:
                saved, rounds = self._obtain(), rounds + 1
            with ExitStack() as held:
                saved = self._obtain(held)
                sender.send(saved)
                with self._changed:
                    self._end(Mark(saved.ordinal, b"", self._successor.worker))

    def _newest(self) -> SavedState | None:
        """The state of the last mark that the worker has kept, if it is large."""
        mark = self._stream.production.marks.newest
        return None if mark.small else SavedState(mark.ordinal, mark.state)

    def _obtain(self, held: ExitStack | None = None) -> SavedState:
        """Waits until a thread that makes elements saves a state, or saves it if there is none.

        The stream is idle if it is at one element for a while, between two of them. If it is the
        last state, no element is made until `held` is closed.
        """
        with self._changed:
            self._wants_state, self._is_last, self._given = True, held is not None, None
        before = None
        while self._runtime.now() < self._until:
            if (given := self._wait_for_state()) is not None:
                return given
            if not self.is_pending or not self._stream.has_cursors:
                raise NothingToMoveError
            at = self._stream.find_idle()
            if at is not None and at == before and (saved := self._save_idle(at, held)) is not None:
                return saved
            before = at
        raise DeadlineExceededError("it takes too long")

    def _wait_for_state(self) -> SavedState | None:
        with self._changed:
            self._changed.wait_for(self._has_news, timing.IDLE_CURSOR)
            return self._given

    def _has_news(self) -> bool:
        return self._given is not None or not self.is_pending

    def _save_idle(self, ordinal: int, held: ExitStack | None) -> SavedState | None:
        with self._changed:
            if not self._wants_state:
                return None  # A thread that has made an element is about to save the state.
            self._wants_state = False
        with ExitStack() as own:
            saved = self._save(ordinal, held or own)
        with self._changed:
            self._wants_state = saved is None
        return saved


class StateSender:
    """Sends states of one stream to another worker, each element of a list only once."""

    def __init__(self, connection: Connection, runtime: Runtime, until: float) -> None:
        self._connection, self._runtime, self._until = connection, runtime, until
        self._selector = runtime.selector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._sent = SentElements()
        self._requests = 0

    def open(self, work: Work) -> None:
        """Says which stream it is; raises FailedPreconditionError if the worker is too old."""
        if self._connection.protocol < MOVED_STATES:
            raise FailedPreconditionError("it has an earlier version of penstock")
        self._connection.send(OpenTask(1, work))

    def close(self) -> None:
        """Closes the connection."""
        self._selector.close()
        self._connection.close()

    def send(self, saved: SavedState) -> float:
        """Sends a state; returns after how many seconds the other worker had it."""
        began = self._runtime.now()
        state, new = self._sent.take_new(saved.state)
        *first, last = [*cut_parts(new, PART)] or [[]]
        for part in first:
            self._request(_pack(encode(part, as_text=False)))
        self._request(_pack(encode(last, as_text=False)), Mark(saved.ordinal, _pack(state)))
        return self._runtime.now() - began

    def _request(self, elements: bytes, mark: Mark | None = None) -> None:
        self._requests += 1
        self._connection.send(AddState(self._requests, 1, elements, mark))
        while True:
            match self._receive():
                case Done():
                    return
                case Impossible() as impossible:
                    raise from_impossible(impossible)

    def _receive(self) -> Any:
        left = self._until - self._runtime.now()
        if left <= 0 or not (self._connection.pending() or self._selector.select(left)):
            raise DeadlineExceededError("it takes too long")
        return self._connection.receive()[0]


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
        raise InvalidArgumentError("its state has objects that are not arrays")
    return msgspec.msgpack.encode(encoded)
