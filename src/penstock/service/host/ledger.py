"""The ledger: the state of a dispatcher, and the journal of the facts that changed it.

Every request is decided, journalled and applied under one lock; nothing else may change the state.
Before a reply is sent, its facts are on disk. The thread waits for the disk without the lock, so
requests that arrive together share one wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import Any

import msgspec

from penstock.errors import ResourceExhaustedError, UnavailableError
from penstock.service.host.journal import Journal
from penstock.service.logic.dispatcher import decide, status, tick
from penstock.service.logic.facts import ClientHeard, DispatcherStarted, Fact, WorkerHeard
from penstock.service.logic.recovery import describe_unrecorded, lost_facts, snapshot, stamp_reply
from penstock.service.logic.state import Settings, State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Reply, Request

_SLACK = 2000
_TIMES = 4
"""A journal is compacted when it has more than `_SLACK + _TIMES * n` facts, where n would do."""


_LOG = logging.getLogger("penstock.service")

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)


class Ledger:
    """The state of a dispatcher. Thread-safe.

    Args:
        settings: The settings of the logic.
        path: The file of the journal; None to keep the state in memory only.
    """

    def __init__(self, settings: Settings, path: str | None) -> None:
        self._lock = threading.Lock()
        self._clock = AwakeClock()
        #: guarded by _lock
        self._state = State(dataclasses.replace(settings, started=self._clock.now()))
        self._full = 0  #: guarded by _lock; compacts when the journal has more facts
        self._closed = False  #: guarded by _lock
        self._reported: set[str] = set()
        """The log lines about lost facts so far; guarded by _lock."""
        self._journal: Journal[Fact] | None = None
        if path is not None:
            self._journal = Journal(path, _encode, _decoder.decode)
        try:
            self._recover(settings)
        except BaseException:
            self.close()
            raise

    def _recover(self, settings: Settings) -> None:
        if self._journal is not None:
            for fact in self._journal.replay():
                self._state.apply(fact, self._clock.now())
        self._commit((DispatcherStarted(settings.dispatcher),))
        self._compact()

    @property
    def name(self) -> str:
        """The id of the dispatcher, which stays the same through restarts."""
        return self._state.dispatcher

    def answer(self, request: Request) -> Reply:
        """Decides about a request, and returns the reply once its facts are on disk.

        Raises UnavailableError while the disk is full: the state is unchanged, and the client
        repeats the request.
        """
        with self._lock:
            self._check_open()
            self._report_loss(request)
            decision = decide(self._state, request, self._clock.now())
            try:
                self._commit(decision.facts)
            except ResourceExhaustedError as error:
                self._apply_heard(decision.facts)
                raise UnavailableError(error.message) from None
            reply = stamp_reply(self._state, decision.reply)
        if self._journal is not None:
            self._journal.sync()
        return reply

    def _report_loss(self, request: Request) -> None:
        """Logs that the journal lost facts that a client knows, once for each reader."""
        lost = lost_facts(self._state, request)
        if lost is not None and lost not in self._reported:
            self._reported.add(lost)
            _LOG.error("%s", lost)
            for doubt in describe_unrecorded(self._state):
                _LOG.error("elements that readers may get twice: %s", doubt)

    def tick(self) -> None:
        """Applies what follows from the time alone, such as expired leases; skips a full disk."""
        with self._lock, contextlib.suppress(ResourceExhaustedError, UnavailableError):
            self._check_open()
            if self._journal is not None and not self._journal.is_trusted:
                self._journal.compact(snapshot(self._state))
            self._commit(tick(self._state, self._clock.now()))

    def has_plan(self, digest: str) -> bool:
        """Whether a dataset has the plan with this digest."""
        with self._lock:
            return self._state.has_plan(digest)

    def take_orphans(self) -> list[str]:
        """Returns the plans that have lost their last dataset since the last call.

        The facts are on disk before it returns: else a restarted dispatcher could miss a plan.
        """
        with self._lock:
            found, self._state.orphans = list(self._state.orphans), {}
        if found and self._journal is not None:
            self._journal.sync()
        return found

    def status(self) -> dict[str, Any]:
        """Datasets, jobs, workers and clients, as plain data."""
        with self._lock:
            return status(self._state, self._clock.now())

    def close(self) -> None:
        """Closes the journal; may be called again."""
        with self._lock:
            self._closed = True
            if self._journal is not None:
                self._journal.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the dispatcher was stopped; make a new one")

    def _commit(self, facts: tuple[Fact, ...]) -> None:
        """Journals facts, then applies them: durable first, visible second. Needs `_lock`."""
        if self._journal is not None:
            self._journal.append(fact for fact in facts if fact.durable)
        for fact in facts:
            self._state.apply(fact, self._clock.now())
        if self._journal is not None and len(self._journal) > self._full > 0:
            self._compact()

    def _apply_heard(self, facts: tuple[Fact, ...]) -> None:
        """Renews the leases of a client, and a worker's registration, while the disk is full."""
        for fact in facts:
            if isinstance(fact, ClientHeard | WorkerHeard):
                self._state.apply(fact, self._clock.now())

    def _compact(self) -> None:
        if self._journal is None:
            return
        facts = snapshot(self._state)
        # On a full disk the long journal is kept, and compacted later.
        with contextlib.suppress(ResourceExhaustedError):
            self._journal.compact(facts)
        self._full = max(_SLACK + _TIMES * len(facts), _SLACK + len(self._journal))


class AwakeClock:
    """A monotonic clock that stops while this process is suspended.

    After a suspension, the heartbeats of clients and workers wait in the sockets. If the clock had
    advanced, their leases would expire before these are read. Not thread-safe: the ledger reads
    it under its lock.
    """

    def __init__(self) -> None:
        self._last, self._slept = time.monotonic(), 0.0

    def now(self) -> float:
        """The time, without gaps of more than `timing.SUSPENSION` between two calls."""
        time_now = time.monotonic()
        if time_now - self._last > timing.SUSPENSION:
            self._slept += time_now - self._last - timing.SUSPENSION
        self._last = time_now
        return time_now - self._slept
