"""The agent: speaks with the dispatcher for one reader, in a thread of its own.

It never waits for the reader, and the reader never waits for it: what happens outside becomes
events, which the reader collects when it has time. The thread does not know the reader, so that
one which was dropped is collected.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import InternalError, NotFoundError, OpError, UnavailableError
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.session import Session
from penstock.service.logic.laps import Laps
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    Address,
    ClientHeartbeat,
    ClientHeartbeatReply,
    LastFact,
    Lease,
    LeaseReply,
    Leave,
    OpenIteration,
    OpenIterationReply,
)

_LOG = logging.getLogger("penstock.service")


Reported = tuple[tuple[Address, ...], tuple[tuple[int, int], ...]]
"""Addresses consumed, and streams that ended with their length."""


@dataclass
class Told:
    """What the reader tells the agent, to be passed on."""

    consumed: list[Address] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    want: int = 0
    elements: int = 0
    waited: float = 0.0

    def taken(self) -> Reported:
        consumed, ended = tuple(self.consumed), tuple(self.ended.items())
        self.consumed, self.ended = [], {}
        return consumed, ended


class Forgotten:
    """The dispatcher gave what this reader held to others."""


class Agent:
    """Beats, leases and leaves for the reader that opened `opening`."""

    def __init__(
        self,
        session: Session,
        opening: OpenIteration,
        opened: OpenIterationReply,
        wake: Callable[[Any], None],
        reopen: Callable[[tuple[int, ...]], OpenIterationReply],
        runtime: Runtime = MACHINE,
        lap: int | None = None,
    ) -> None:
        self.events: deque[
            ClientHeartbeatReply | LeaseReply | OpenIterationReply | Forgotten | OpError
        ] = deque()
        self._now = runtime.now
        self._session = session
        self._opening = opening
        self._version = opened.version
        self._leased = opened.leased
        self._complete = (opened.ready, opened.missing)
        self._served = bool(opened.workers)
        self.dispatcher = opened.work.job.rpartition("/")[0]
        self._wake = wake
        self._reopen = reopen
        self._told = Told()
        self._changed = runtime.condition()
        self._flying: Told = Told()
        """What was told, and is not known to have arrived; saying it twice does no harm."""
        self._valid = timing.LEASE_TRUST * opened.lease_seconds
        self._heard = self._now()
        """When the last thing was said that was answered."""
        self._last = opened.last if opened.leased else None
        """The last fact that an answer to this reader rests on."""
        self._stopped = False
        self._number = 0
        self._waits = False
        """Whether leases were asked for in vain."""
        self._beaten = self._now()
        self._laps = None if lap is None else Laps(opened, lap)
        """Of coordinated reads that streams may join; guarded by `_changed`."""
        self._thread = runtime.start(self._run, "penstock-agent")

    @property
    def _interval(self) -> float:
        """Seconds between two beats: less while all wait for a consumer, for any worker, or for an
        agreement."""
        waits = not (self._complete[0] and self._served) or self._is_joining
        heartbeat = timing.CLIENT_HEARTBEAT
        return timing.EAGER_HEARTBEAT * heartbeat if waits else heartbeat

    @property
    def _is_joining(self) -> bool:
        return self._laps is not None and self._laps.joining

    @property
    def _limit(self) -> int | None:
        return None if self._laps is None else self._laps.limit

    def may_enter(self, lap: int) -> bool:
        """Whether a consumer of a coordinated read may hand out elements of a lap."""
        laps = self._laps
        if laps is None or laps.lap == lap:
            return True
        with self._changed:
            return laps.enter(lap)

    def may_end(self) -> bool:
        """Whether a consumer of a coordinated read may end; no stream joins from then on."""
        if self._laps is None:
            return True
        with self._changed:
            return self._laps.end()

    def release(self) -> None:
        """The reader knows of all events: it may go beyond its limit, unless more streams join."""
        if self._limit is not None and self._laps is not None:
            with self._changed:
                if not self.events:
                    self._laps.release()

    @property
    def client(self) -> str:
        return self._opening.client

    @property
    def last(self) -> LastFact | None:
        """The last fact that the dispatcher told this reader of."""
        return self._last

    def tell(
        self,
        consumed: list[Address],
        ended: dict[int, int],
        elements: int,
        waited: float,
        want: int = 0,
    ) -> None:
        """What the reader handed out and saw, and how many elements it wants leased."""
        with self._changed:
            self._told.consumed += consumed
            self._told.ended.update(ended)
            self._told.elements += elements
            self._told.waited += waited
            if want and not self._told.want:
                self._told.want = want
                self._changed.notify()

    def lost(self, worker: str) -> None:
        """A worker cannot be reached."""
        with self._changed:
            self._told.lost.add(worker)
            self._changed.notify()

    def holds_leases(self, now: float) -> bool:
        """Whether what was leased is still this reader's, and nobody else's."""
        return not self._leased or now - self._heard < self._valid

    def commit(self) -> None:
        """Waits until the dispatcher knows what was told, or has forgotten who told it."""
        name = self.client
        beat = ClientHeartbeat(name, self._version, (), *self._everything(), last=self._last)
        try:
            self._say(beat)
        except NotFoundError as error:
            self._forgotten(name, error)

    def _everything(self) -> Reported:
        """The same as `_taken`, for whoever does not hold the lock."""
        with self._changed:
            return self._taken()

    def _taken(self) -> Reported:
        """What was told, and is on its way from now on, with all that may have got lost there."""
        consumed, ended = self._told.taken()
        self._flying.consumed += consumed
        self._flying.ended.update(ended)
        return tuple(self._flying.consumed), tuple(self._flying.ended.items())

    def _say(self, request: Lease | ClientHeartbeat) -> Any:
        """Passes on what was told; a dispatcher that refuses it has heard it, too."""
        try:
            answer = self._patiently(request)
        except (NotFoundError, UnavailableError):
            raise
        except OpError:
            self._arrived(request, None)
            raise
        self._arrived(request, answer)
        return answer

    def _arrived(
        self, said: Lease | ClientHeartbeat, answer: LeaseReply | ClientHeartbeatReply | None
    ) -> None:
        """The dispatcher knows what was said, unless it was under another name."""
        with self._changed:
            if said.client == self.client:
                self._remember(answer)
                known, flying = set(said.consumed), self._flying
                flying.consumed = [at for at in flying.consumed if at not in known]
                for stream, _ in said.ended:
                    flying.ended.pop(stream, None)

    def _remember(self, answer: LeaseReply | ClientHeartbeatReply | None) -> None:
        """Numbers only grow, unless the dispatcher has lost facts; then `become` begins anew."""
        last = answer.last if answer is not None and self._leased else None
        if last is not None and (self._last is None or last.number >= self._last.number):
            self._last = last

    def become(self, opening: OpenIteration, opened: OpenIterationReply) -> None:
        """The reader goes on under another name; what was said under the old one is void."""
        with self._changed:
            self._opening, self._version, self._number = opening, opened.version, 0
            self._told.consumed, self._flying = [], Told()
            self._heard, self._last = self._now(), opened.last
            # They are for the old name, whatever they say.
            for event in [e for e in self.events if isinstance(e, LeaseReply | Forgotten)]:
                self.events.remove(event)

    def sync(self) -> None:
        """Asks for news now; they become an event. A dispatcher that is away has none."""
        with contextlib.suppress(OpError):
            beat = ClientHeartbeat(self.client, self._version)
            self._happened(self._session.call(beat, timing.CLIENT_CALL))

    def stop(self) -> bool:
        """Leaves; twice is fine. False if the dispatcher does not know what this reader had got."""
        with self._changed:
            if self._stopped:
                return True
            self._stopped = True
            self._changed.notify()
        return self.leave()

    def leave(self) -> bool:
        """Tells the dispatcher that this reader reads no more; gives whether that was known."""
        try:
            leave = Leave(self.client, *self._everything(), last=self._last)
            self._session.call(leave, timing.CLIENT_CALL)
        except NotFoundError:
            return False
        except OpError:
            pass  # The dispatcher will find out by itself.
        return True

    def _run(self) -> None:
        while not self._stopped:
            with self._changed:
                due = self._due()
                if due > 0 and not self._told.want and not self._told.lost:
                    self._changed.wait(due)
                want, self._told.want = self._told.want, 0
            if not self._stopped:
                self._speak(want)

    def _due(self) -> float:
        """Seconds until the next beat."""
        return self._beaten + self._interval - self._now()

    def _speak(self, want: int) -> None:
        name = self.client
        try:
            waited = self._waits
            if want:
                self._lease(want)
            # Others may wait in vain, too, and for a sign of life of this one.
            if self._told.lost or self._due() <= 0 or (self._waits and not waited):
                self._beat()
        except NotFoundError as error:
            self._forgotten(name, error)
        except OpError as error:
            if name == self.client:
                self._happened(error)
        except Exception as error:
            # The reader would wait for ever for somebody who is not there any more.
            self._happened(InternalError(f"distribute: {type(error).__name__}: {error}"))

    def _lease(self, want: int) -> None:
        with self._changed:
            number = self._number + 1
            request = Lease(self.client, number, want, *self._taken(), last=self._last)
        leased = self._say(request)
        if request.client == self.client:
            # Not before: what was granted without an answer is granted again to the same number.
            self._number = request.number
            self._waits = not (leased.grants or leased.finished)
            self._happened(leased)

    def _beat(self) -> None:
        with self._changed:
            now = self._now()
            consumed, ended = self._taken()
            beat = ClientHeartbeat(
                *(self.client, self._version, tuple(sorted(self._told.lost)), consumed, ended),
                *(self._told.elements, self._told.waited, now - self._beaten),
                last=self._last,
                limit=self._limit,
            )
            self._told, self._beaten = Told(want=self._told.want), now
            if self._laps is not None:
                self._laps.beat()
        beaten = self._say(beat)
        self._happened(beaten)
        if beaten.version != beat.version and beaten.workers is None:
            # Others wait for a sign of life: who says the new version has lived since.
            with self._changed:
                sign = ClientHeartbeat(self.client, self._version, limit=self._limit)
            self._happened(self._patiently(sign))

    def _patiently(self, request: Any) -> Any:
        """A request may be repeated, so a dispatcher that is away is waited for."""
        until = self._now() + timing.DISPATCHER_ABSENCE
        while True:
            said = self._now()
            try:
                answer = self._session.call(request)
                self._answered(said)
                return answer
            except UnavailableError:
                if self._stopped or self._now() > until:
                    raise

    def _answered(self, said: float) -> None:
        waited = not self.holds_leases(self._now())
        self._heard = max(self._heard, said)
        if waited:
            self._wake(None)

    def _forgotten(self, name: str, error: NotFoundError) -> None:
        """The dispatcher took this reader for dead, or came back without its memory.

        A reader that decides alone what it reads can tell the dispatcher all that it must know.
        """
        try:
            if not self._leased:
                self._happened(self._reopen(() if self._laps is None else self._laps.begins))
                return
            same = self._session.dispatcher() == self.dispatcher
            if name == self.client:
                _LOG.warning("distribute: %s", error.message)
                self._happened(Forgotten() if same else error)
        except OpError as failure:
            self._happened(failure)

    def _happened(self, event: Any) -> None:
        with self._changed:
            noted = self._note(event)
            if noted:
                self.events.append(event)
        if noted:
            self._wake(event)

    def _note(self, event: Any) -> bool:
        """Takes notice of what the dispatcher said; gives whether the reader must know of it."""
        if not isinstance(event, ClientHeartbeatReply | OpenIterationReply):
            return True
        before = (*self._complete, self._is_joining)
        self._version = event.version
        if self._laps is not None:
            self._laps.hear(event)
        if event.workers is not None:
            self._served = bool(event.workers)
        if isinstance(event, OpenIterationReply):
            return True
        # A consumer may have come and gone meanwhile: as many are missing, and all were there.
        self._complete = (event.ready, event.missing)
        now = (*self._complete, self._is_joining)
        return event.workers is not None or event.streams is not None or before != now
