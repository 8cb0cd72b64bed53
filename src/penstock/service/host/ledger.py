"""The ledger: what a dispatcher knows, changed by facts that are on disk before anybody sees them.

Every request is decided, journalled and applied under one lock; nothing else may change the state.
An answer waits for the disk without the lock: requests that arrive together share the wait.
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
from penstock.service.logic.recovery import in_doubt, lost_facts, snapshot, stamped
from penstock.service.logic.state import Settings, State
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Reply, Request

_SLACK = 2000
_TIMES = 4
"""A journal is compacted when it has so many times the facts that would do, and some more."""


_LOG = logging.getLogger("penstock.service")

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)


class Ledger:
    """The state of a dispatcher, for any number of threads.

    Args:
        settings: What the logic is told.
        path: The file of the journal; None to keep nothing.
    """

    def __init__(self, settings: Settings, path: str | None) -> None:
        self._lock = threading.Lock()
        self._clock = AwakeClock()
        self._state = State(dataclasses.replace(settings, started=self._clock.now()))
        self._full = 0
        self._closed = False
        self._reported: set[str] = set()
        """What was said about lost facts."""
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
        """Of the dispatcher; it stays through restarts."""
        return self._state.dispatcher

    def answer(self, request: Request) -> Reply:
        """Decides about a request; when the answer is out, all that it rests on is on disk.

        UnavailableError while the disk is full: nothing has changed, and clients ask again.
        """
        with self._lock:
            self._check_open()
            self._report_loss(request)
            decision = decide(self._state, request, self._clock.now())
            try:
                self._commit(decision.facts)
            except ResourceExhaustedError as error:
                self._hear(decision.facts)
                raise UnavailableError(error.message) from None
            reply = stamped(self._state, decision.reply)
        if self._journal is not None:
            self._journal.sync()
        return reply

    def _report_loss(self, request: Request) -> None:
        """Says in the log that facts were lost, once for each reader, and what may come of it."""
        lost = lost_facts(self._state, request)
        if lost is not None and lost not in self._reported:
            self._reported.add(lost)
            _LOG.error("%s", lost)
            for doubt in in_doubt(self._state):
                _LOG.error("readers that are gone may have got, and others now get, %s", doubt)

    def tick(self) -> None:
        """Notes what follows from the time alone; on a full disk, the next time."""
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
        """The plans that no dataset has any more, since the last time; on disk this is so, too."""
        with self._lock:
            found, self._state.orphans = list(self._state.orphans), {}
        if found and self._journal is not None:
            self._journal.sync()
        return found

    def status(self) -> dict[str, Any]:
        """What goes on, as plain data."""
        with self._lock:
            return status(self._state, self._clock.now())

    def close(self) -> None:
        """Twice is fine."""
        with self._lock:
            self._closed = True
            if self._journal is not None:
                self._journal.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the dispatcher was stopped; make a new one")

    def _commit(self, facts: tuple[Fact, ...]) -> None:
        """Durable first, visible second."""
        if self._journal is not None:
            self._journal.append(fact for fact in facts if fact.durable)
        for fact in facts:
            self._state.apply(fact, self._clock.now())
        if self._journal is not None and len(self._journal) > self._full > 0:
            self._compact()

    def _hear(self, facts: tuple[Fact, ...]) -> None:
        """Whoever repeats a request until the disk has room is alive, and keeps what it holds."""
        for fact in facts:
            if isinstance(fact, ClientHeard | WorkerHeard):
                self._state.apply(fact, self._clock.now())

    def _compact(self) -> None:
        if self._journal is None:
            return
        facts = snapshot(self._state)
        # A full disk keeps the long journal, and is not asked again at once.
        with contextlib.suppress(ResourceExhaustedError):
            self._journal.compact(facts)
        self._full = max(_SLACK + _TIMES * len(facts), _SLACK + len(self._journal))


class AwakeClock:
    """Seconds, as somebody counts them who does not notice that he slept.

    After this process was stopped for a while, messages of those who were thought silent are
    waiting to be read.
    """

    def __init__(self) -> None:
        self._last, self._slept = time.monotonic(), 0.0

    def now(self) -> float:
        """Called often; what is longer than a pause between two calls was sleep."""
        time_now = time.monotonic()
        if time_now - self._last > timing.SUSPENSION:
            self._slept += time_now - self._last - timing.SUSPENSION
        self._last = time_now
        return time_now - self._slept
