"""The agent: calls the dispatcher for one reader, in a thread of its own.

Neither thread waits for the other: replies of the dispatcher become events, which the reader
processes before its next wait. The agent's thread has no reference to the reader, so that a reader
which its owner dropped is garbage-collected.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import AbortedError, InternalError, NotFoundError, OpError, UnavailableError
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.services import Session
from penstock.service.logic.orders import Laps
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    Bottleneck,
    ClientHeartbeat,
    ClientHeartbeatReply,
    Lease,
    LeaseReply,
    Leave,
    OpenIteration,
    OpenIterationReply,
    StreamRange,
)

_LOG = logging.getLogger("penstock.service")


@dataclass
class Report:
    """What the reader reports to the dispatcher."""

    consumed: list[StreamRange] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Workers that cannot be reached."""
    want: int = 0
    """How many elements to lease."""
    elements: int = 0
    waited: float = 0.0
    held: int = 0
    budget: int = 0
    """See `ClientHeartbeat`."""


class LeasesLost:
    """An event: the dispatcher may have leased what this reader held to other readers."""


class Agent:
    """Sends heartbeats, requests leases and leaves, for the reader that opened `opening`."""

    def __init__(
        self,
        session: Session,
        opening: OpenIteration,
        opened: OpenIterationReply,
        wake: Callable[[Any], None],
        reopen: Callable[[tuple[int, ...]], OpenIterationReply],
        runtime: Runtime = MACHINE,
        lap: int | None = None,
        take_signs: Callable[[], Bottleneck] = Bottleneck,
    ) -> None:
        self._take_signs = take_signs
        self.events: deque[
            ClientHeartbeatReply | LeaseReply | OpenIterationReply | LeasesLost | OpError
        ] = deque()
        """Appended by the agent's thread, and by `commit` and `sync`; the reader removes them."""
        self.dispatcher = opened.work.job.rpartition("/")[0]
        self._now = runtime.now
        self._session = session
        self._wake = wake
        self._reopen = reopen
        self._leased = opened.leased
        self._valid = timing.LEASE_TRUST * opened.lease_seconds
        self._changed = runtime.condition()
        # Written with `_changed` held: the reader's thread and the agent's thread share them.
        self._opening = opening  #: guarded by _changed
        self._version = opened.version  #: guarded by _changed
        self._intervals = opened.intervals  #: guarded by _changed
        self._complete = (opened.ready, opened.missing)  #: guarded by _changed
        self._served = bool(opened.workers)  #: guarded by _changed
        self._stopped = False  #: guarded by _changed
        self._report = Report()  #: guarded by _changed
        self._unconfirmed = Report()  #: guarded by _changed
        """What was sent and not confirmed; sending it twice does no harm."""
        self.last = opened.last if opened.leased else None  #: guarded by _changed
        """The last fact that a reply to this reader rests on."""
        self._laps = None if lap is None else Laps(opened, lap)  #: guarded by _changed
        """Of a coordinated read that streams may join."""
        self._heard = self._now()
        """When the last request was sent that the dispatcher answered. Both threads write it
        without a lock: a lost update leaves an earlier time, which is safe."""
        self._number = 0
        """The number of the last request for leases that was answered."""
        self._waits = False
        """Whether the last request for leases was granted nothing."""
        self._beat_at = self._now()
        """When the last heartbeat was sent; the agent's thread alone uses it, as `_waits`."""
        self._thread = runtime.start(self._run, "penstock-agent")

    @property
    def _interval(self) -> float:
        """Seconds between two heartbeats: less while consumers wait for another consumer, for any
        worker, or for an agreement on new streams."""
        waits = not (self._complete[0] and self._served) or self._is_joining
        heartbeat = self._intervals.heartbeat * timing.CLIENT_HEARTBEAT
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
            return self._laps.try_end()

    def release(self) -> None:
        """Lifts the limit on laps, if the reader has processed all events and no streams join."""
        if self._limit is not None and self._laps is not None:
            with self._changed:
                if not self.events:
                    self._laps.release()

    @property
    def client(self) -> str:
        return self._opening.client

    def report(
        self,
        consumed: list[StreamRange],
        ended: dict[int, int],
        elements: int,
        waited: float,
        want: int = 0,
    ) -> None:
        """Adds to the next report what the reader handed out, and how many elements it wants."""
        with self._changed:
            self._report.consumed += consumed
            self._report.ended.update(ended)
            self._report.elements += elements
            self._report.waited += waited
            if want and not self._report.want:
                self._report.want = want
                self._changed.notify()

    def report_memory(self, held: int, budget: int) -> None:
        """Sets what the next heartbeat says about the bytes that the reader holds."""
        self._report.held, self._report.budget = held, budget

    def report_lost(self, worker: str) -> None:
        """Reports that a worker cannot be reached, at once."""
        with self._changed:
            self._report.lost.add(worker)
            self._changed.notify()

    def holds_leases(self, now: float) -> bool:
        """Whether what this reader holds is leased to no other reader.

        The time counts from sending the last answered request, which is before the dispatcher
        began to count; `LEASE_TRUST` leaves room for clocks that differ.
        """
        return not self._leased or self.silence(now) < self._valid

    def silence(self, now: float) -> float:
        """Seconds since this reader sent the last request that the dispatcher answered."""
        return now - self._heard

    def commit(self) -> None:
        """Waits until the dispatcher has what was reported, or says that it forgot this client."""
        name = self.client
        with self._changed:
            consumed, ended = self._take_report()
        beat = ClientHeartbeat(name, self._version, consumed=consumed, ended=ended, last=self.last)
        try:
            self._send(beat)
        except NotFoundError as error:
            self._note_lost_client(name, error)

    def _take_report(self) -> tuple[tuple[StreamRange, ...], tuple[tuple[int, int], ...]]:
        """The ranges consumed and the ends reached, with all that was sent without a reply.

        The caller holds `_changed`.
        """
        report, unconfirmed = self._report, self._unconfirmed
        unconfirmed.consumed += report.consumed
        unconfirmed.ended.update(report.ended)
        report.consumed, report.ended = [], {}
        return tuple(unconfirmed.consumed), tuple(unconfirmed.ended.items())

    def _send(self, request: Lease | ClientHeartbeat) -> Any:
        """Sends a request with a report. A dispatcher that refuses the request has the report.

        Repeats the request with the last known fact if that changed on the way and the reply came
        from another start of the dispatcher, which may have lost the fact.
        """
        while True:
            try:
                reply = self._call_with_retries(request)
            except (NotFoundError, UnavailableError):
                raise
            except OpError:
                self._confirm(request, None)
                raise
            if self._confirm(request, reply):
                return reply
            request = msgspec.structs.replace(request, last=self.last)

    def _confirm(
        self, sent: Lease | ClientHeartbeat, reply: LeaseReply | ClientHeartbeatReply | None
    ) -> bool:
        """The dispatcher has what was sent, unless it was sent under an earlier client id.

        Returns False, and changes nothing, if the request must be repeated.
        """
        with self._changed:
            if sent.client == self.client:
                if not self._remember(sent, reply):
                    return False
                known, unconfirmed = set(sent.consumed), self._unconfirmed
                unconfirmed.consumed = [at for at in unconfirmed.consumed if at not in known]
                for stream, _ in sent.ended:
                    unconfirmed.ended.pop(stream, None)
            return True

    def _remember(
        self, sent: Lease | ClientHeartbeat, reply: LeaseReply | ClientHeartbeatReply | None
    ) -> bool:
        """Keeps the newest fact; returns False if the reply does not prove that it is newer.

        Numbers grow while a dispatcher runs. A dispatcher that starts again may have lost facts; it
        detects this only by the fact that the request named. Meanwhile the reader's other thread
        may have learnt of a later fact. If the reader replaced that one by a fact of another start,
        it would never report again what the dispatcher had confirmed and then lost.
        """
        last = reply.last if reply is not None and self._leased else None
        if last is None:
            return True
        if self.last is not None and last.life != self.last.life and sent.last != self.last:
            return False
        if self.last is None or last.number >= self.last.number:
            self.last = last
        return True

    def become(self, opening: OpenIteration, opened: OpenIterationReply) -> None:
        """Continues under another client id; what was sent under the old one is void."""
        with self._changed:
            self._opening, self._version, self._number = opening, opened.version, 0
            self._report.consumed, self._unconfirmed = [], Report()
            self._heard, self.last = self._now(), opened.last
            # These are about the old client id. AbortedError: this reader itself has resumed it.
            about_old = LeaseReply | LeasesLost | AbortedError
            for event in [e for e in self.events if isinstance(e, about_old)]:
                self.events.remove(event)

    def sync(self) -> None:
        """Asks the dispatcher for news, which become an event; none if it does not reply."""
        with contextlib.suppress(OpError):
            beat = ClientHeartbeat(self.client, self._version)
            self._publish(self._session.call(beat, timing.CLIENT_CALL))

    def stop(self) -> bool:
        """Leaves and ends the thread; twice is fine. False if the dispatcher forgot this client."""
        with self._changed:
            if self._stopped:
                return True
            self._stopped = True
            self._changed.notify()
        return self.leave()

    def leave(self) -> bool:
        """Sends the last report; returns whether the dispatcher knows this client."""
        try:
            self._session.call(self._take_leave(), timing.CLIENT_CALL)
        except NotFoundError:
            return False
        except OpError:
            pass  # The client's leases expire.
        return True

    def _take_leave(self) -> Leave:
        with self._changed:
            consumed, ended = self._take_report()
            report, now = self._report, self._now()
            leave = Leave(
                self.client,
                consumed=consumed,
                ended=ended,
                last=self.last,
                elements=report.elements,
                waited=report.waited,
                seconds=now - self._beat_at,
            )
            report.elements, report.waited, self._beat_at = 0, 0.0, now
            return leave

    def _run(self) -> None:
        while not self._stopped:
            with self._changed:
                due = self._heartbeat_due()
                if due > 0 and not self._report.want and not self._report.lost:
                    self._changed.wait(due)
                want, self._report.want = self._report.want, 0
            if not self._stopped:
                self._call_dispatcher(want)

    def _heartbeat_due(self) -> float:
        """Seconds until the next heartbeat."""
        return self._beat_at + self._interval - self._now()

    def _call_dispatcher(self, want: int) -> None:
        name = self.client
        try:
            waited = self._waits
            if want:
                self._lease(want)
            # A reader that is granted nothing sends a heartbeat at once: other readers may wait for
            # the dispatcher to see that this one is alive.
            if self._report.lost or self._heartbeat_due() <= 0 or (self._waits and not waited):
                self._beat()
        except NotFoundError as error:
            self._note_lost_client(name, error)
        except OpError as error:
            self._publish(error, name)
        except Exception as error:
            # Without an event, the reader would wait for a thread that has ended.
            self._publish(InternalError(f"distribute: {type(error).__name__}: {error}"))

    def _lease(self, want: int) -> None:
        with self._changed:
            number = self._number + 1
            consumed, ended = self._take_report()
            request = Lease(self.client, number, want, consumed, ended, last=self.last)
        leased = self._send(request)
        if request.client == self.client:
            # Only now: if the reply is lost, the same number is granted the same elements again.
            self._number = request.number
            self._waits = not (leased.grants or leased.finished)
            self._publish(leased)

    def _beat(self) -> None:
        with self._changed:
            now = self._now()
            consumed, ended = self._take_report()
            beat = ClientHeartbeat(
                self.client,
                self._version,
                lost=tuple(sorted(self._report.lost)),
                consumed=consumed,
                ended=ended,
                elements=self._report.elements,
                waited=self._report.waited,
                seconds=now - self._beat_at,
                held=self._report.held,
                budget=self._report.budget,
                last=self.last,
                limit=self._limit,
                bottleneck=self._take_signs(),
            )
            self._report, self._beat_at = Report(want=self._report.want), now
            if self._laps is not None:
                self._laps.note_heartbeat()
        reply = self._send(beat)
        self._publish(reply)
        if reply.version != beat.version and reply.workers is None:
            # Other readers wait for this one. A heartbeat with the new version proves that this
            # client was alive after they began to wait.
            with self._changed:
                sign = ClientHeartbeat(self.client, self._version, limit=self._limit)
            self._publish(self._call_with_retries(sign))

    def _call_with_retries(self, request: Any) -> Any:
        """Repeats a request, which does no harm, while the dispatcher is unavailable."""
        until = self._now() + timing.DISPATCHER_ABSENCE
        while True:
            sent = self._now()
            try:
                reply = self._session.call(request)
                self._renew_leases(sent)
                return reply
            except UnavailableError:
                if self._stopped or self._now() > until:
                    raise

    def _renew_leases(self, sent: float) -> None:
        """The dispatcher replied to what was sent at a time; wakes a reader that waits for it."""
        waited = not self.holds_leases(self._now())
        self._heard = max(self._heard, sent)
        if waited:
            self._wake(None)

    def _note_lost_client(self, name: str, error: NotFoundError) -> None:
        """The dispatcher expired this client, or restarted without its journal.

        A reader without leases opens its iteration again with all that the dispatcher must know.
        """
        try:
            if not self._leased:
                self._publish(self._reopen(() if self._laps is None else self._laps.begins))
                return
            same = self._session.dispatcher() == self.dispatcher
            if name == self.client:
                _LOG.warning("distribute: %s", error.message)
                self._publish(LeasesLost() if same else error, name)
        except OpError as failure:
            self._publish(failure)

    def _publish(self, event: Any, about: str | None = None) -> None:
        """Adds an event and wakes the reader, unless the event changes nothing for it.

        `about`: the client id that it is about; the reader may have another one meanwhile.
        """
        with self._changed:
            relevant = about in (None, self.client) and self._apply(event)
            if relevant:
                self.events.append(event)
        if relevant:
            self._wake(event)

    def _apply(self, event: Any) -> bool:
        """Notes what the dispatcher said; returns whether the reader must know of it."""
        if isinstance(event, ClientHeartbeatReply | OpenIterationReply | LeaseReply):
            self._intervals = event.intervals
        if not isinstance(event, ClientHeartbeatReply | OpenIterationReply):
            return True
        before = (*self._complete, self._is_joining)
        self._version = event.version
        if self._laps is not None:
            self._laps.apply_reply(event)
        if event.workers is not None:
            self._served = bool(event.workers)
        if isinstance(event, OpenIterationReply):
            return True
        # Compares which consumers are missing, not only how many: one may have come, another gone.
        self._complete = (event.ready, event.missing)
        now = (*self._complete, self._is_joining)
        return event.workers is not None or event.streams is not None or before != now
