"""`RemoteStream`: what workers compute, as a stream of the engine.

It reads in the thread that pulls. Other threads call the dispatcher and connect to workers; their
results arrive as events. Every wait is for a message, an event or a time. The stream reports which
consumers, workers or elements it waits for; a wait for consumers or workers becomes an error after
`timing.WAIT_LIMIT`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from penstock.element.chunk import Chunk
from penstock.element.nest import Tree
from penstock.engine.contract import LazyState, Remote, State, Stream
from penstock.engine.endings import Ending
from penstock.engine.figures import WorkerFigures
from penstock.engine.pool import check_process
from penstock.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from penstock.plan.shape import Form, Shape
from penstock.service.host.agent import Agent, LeasesLost
from penstock.service.host.data_client import Connect, Link, Links
from penstock.service.host.deliveries import Deliveries
from penstock.service.host.runtime import MACHINE, Bell, Runtime
from penstock.service.host.services import Session
from penstock.service.host.telemetry import ReaderTraces
from penstock.service.logic.client import Reading, claims_of
from penstock.service.logic.feeds import Ask, Failure, FeedChunk, Limits
from penstock.service.logic.leases import describe_ranges
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    Bottleneck,
    ClientHeartbeat,
    ClientHeartbeatReply,
    LeaseReply,
    OpenIteration,
    OpenIterationReply,
    Work,
)

_LOOKS = 8
"""How many times within the worker timeout a reader looks for silent workers."""

_LOG = logging.getLogger("penstock.service")


@dataclass(frozen=True)
class Opening:
    """How a stream was opened: the request, the dispatcher's reply, and what the plan decides."""

    session: Session
    request: OpenIteration
    opened: OpenIterationReply
    again: Callable[[OpenIteration], OpenIterationReply]
    """Opens the iteration once more; registers the dataset if the dispatcher has forgotten it."""
    shape: Shape
    tree: Tree
    limits: Limits
    ordered: bool
    connect: Connect
    extra: dict[str, Any]
    """Added to every saved state."""
    runtime: Runtime = MACHINE
    figures: WorkerFigures | None = None
    """Receives what the operators on the workers do."""
    take_signs: Callable[[], Bottleneck] = Bottleneck
    """What heartbeats say about the bottleneck."""


class RemoteStream(Stream):
    """The elements of one iteration, from the workers."""

    def __init__(
        self, opening: Opening, state: dict[str, Any] | None, leave: Callable[[], None]
    ) -> None:
        self._opening = opening
        self._process_id = os.getpid()
        self._now = opening.runtime.now
        self._reading = Reading(
            opening.opened,
            opening.shape,
            opening.limits,
            ordered=opening.ordered,
            state=state,
            consumer=opening.request.consumer,
        )
        self._bell = opening.runtime.bell()
        self._links = Links(opening.connect, self._bell, opening.runtime)
        self._agent = self._start_agent()
        self._end = Ending(self, _close, self._agent, self._links, self._bell, leave)
        self._traces = ReaderTraces.of_job(opening.opened.work.job, opening.request.job)
        self._deliveries = Deliveries(
            work=self._own_work(opening.opened),
            fetcher=self._reading.fetcher,
            links=self._links,
            agent=self._agent,
            tree=opening.tree,
            worker_timeout=opening.opened.worker_timeout,
            now=self._now,
            traces=self._traces,
            figures=opening.figures,
        )
        self._ready, self._missing = opening.opened.ready, opening.opened.missing
        self._names: tuple[str, ...] = (opening.request.client,)
        """The client ids under which this reader has read."""
        self._failure: OpError | None = None
        """Raised by the next call that waits."""
        self._ended = False
        """Whether elements that cannot be computed have ended the stream."""
        self._interrupted = False
        """Set by any thread, read and cleared by the thread that pulls."""
        self._waited = 0.0
        """Seconds of waiting that were not reported yet."""
        self._confirmed = False
        """Whether the dispatcher was asked for news since the last element was handed out."""
        self._update_workers(opening.opened)

    def _start_agent(self) -> Agent:
        """Starts the thread that calls the dispatcher; it holds no reference to this stream."""
        opening = self._opening
        return Agent(
            opening.session,
            opening.request,
            opening.opened,
            wake=partial(_wake, self._links, self._bell),
            reopen=partial(_open_once_more, opening),
            runtime=opening.runtime,
            lap=self._reading.lap if self._reading.extendable else None,
            take_signs=opening.take_signs,
        )

    @property
    def _work(self) -> Work:
        return self._deliveries.work

    def pull(self, limit: int) -> Chunk:
        check_process(self._process_id)
        if self._traces is None:
            return self._pull(limit)
        started = self._now()
        try:
            return self._pull(limit)
        finally:
            self._traces.note_pull(self._now() - started)

    def _pull(self, limit: int) -> Chunk:
        chunk = None
        if self._failure is None and not self._ended:
            chunk = self._take_arrived(limit)
        if chunk is None:
            chunk = self._wait_for_elements(limit)
        self._prepare_next(len(chunk))
        if isinstance(chunk, Failure):
            raise chunk.error
        assert isinstance(chunk, Chunk)
        self._deliveries.structures.check(chunk)
        return chunk

    def _take_arrived(self, limit: int) -> FeedChunk | None:
        """Takes elements that have arrived; None if none may be handed out now."""
        now = self._now()
        if not self._ready or not self._agent.holds_leases(now):
            return None
        if self._reading.extendable and not self._agent.may_enter(self._reading.lap):
            return None
        if not self._reading.fetcher.takes_turns:
            return self._reading.take(limit, now)
        parts = self._reading.take_turns(limit)
        if len(parts) < 2:
            return parts[0] if parts else None
        for part in parts:
            assert isinstance(part, Chunk)
            self._deliveries.structures.check(part)
        return Chunk.join(cast(list[Chunk], parts))

    def _wait_for_elements(self, limit: int) -> Any:
        """Waits for elements; raises StopIteration at the end of the data."""
        counted = self._now()

        def take() -> FeedChunk | None:
            nonlocal counted
            found, now = self._take_arrived(limit), self._now()
            self._waited += now - counted
            counted = now
            if found is None and self._waited > timing.WAIT_REPORT:
                # The wait may be long: the dispatcher learns of it before it ends.
                self._agent.report([], {}, 0, self._waited)
                self._waited = 0.0
                self._note_call()
            return found

        try:
            if (chunk := self._wait(take)) is None:
                raise StopIteration
            return chunk
        finally:
            if self._opening.figures is not None:
                self._opening.figures.call = ""

    def _note_call(self) -> None:
        """Notes the call on a worker that this stream waits for, for profiles."""
        ask, figures = self._reading.fetcher.owed_next(), self._opening.figures
        if figures is not None:
            figures.call = "" if ask is None else describe_call(ask, self._links[ask.worker])

    def _wait(self, what: Callable[[], Any]) -> Any:
        """Sends and receives until `what` returns a value; returns None at the end of the data."""
        if self._ended and self._failure is None:
            return None
        try:
            return self._wait_until(what)
        except OpError as error:
            error.takes_element = False
            raise

    def _wait_until(self, what: Callable[[], Any]) -> Any:
        started, due = self._now(), timing.WAIT_WARNING
        while True:
            # Read before `_attend`, so that a retry that it finds too early is due within the wait.
            now = self._now()
            self._attend()
            if (found := what()) is not None:
                return found
            if self._is_over():
                return None
            if self._interrupted:
                self._interrupted = False
                raise CancelledError("distribute: reading was stopped while it waited")
            if now - started > due:
                due = min(2 * due, due + timing.WAIT_WARNING_LONGEST)
                self._report_wait(now - started)
            self._deliveries.receive(self._longest_wait(now))

    def interrupt(self) -> None:
        self._interrupted = True
        self._bell.ring()

    @property
    def remote(self) -> Remote:
        return self

    @property
    def replays(self) -> bool:
        return self._reading.replays

    @property
    def shared_end(self) -> bool:
        return self._reading.shared_end

    def sure(self, limit: int) -> int:
        return limit if self.replays else max(1, min(limit, self._reading.sure()))

    def _attend(self) -> None:
        """Processes events and new connections, and sends the requests that are needed now."""
        while self._agent.events:
            self._process(self._agent.events.popleft())
        self._agent.release()
        self._deliveries.update_workers()
        self._raise_failure()
        self._deliveries.connect()
        self._report()
        if self._ready:
            self._deliveries.request_elements()

    def _raise_failure(self) -> None:
        """Raises what went wrong in the agent, in the session, or repeatedly on workers."""
        if (failure := self._failure or self._opening.session.failure) is not None:
            self._failure = None
            raise failure
        if (blame := self._deliveries.find_blame()) is not None:
            self._ended = blame.is_final
            raise blame.verdict()

    def _process(
        self, event: ClientHeartbeatReply | LeaseReply | OpenIterationReply | LeasesLost | OpError
    ) -> None:
        match event:
            case OpError():
                self._failure = event
                self._reading.requests.is_waiting = False
            case LeaseReply():
                self._reading.add_grants(event, self._now())
            case LeasesLost():
                self._rejoin()
            case _:
                if isinstance(event, OpenIterationReply):
                    self._deliveries.work = self._own_work(event)
                self._ready, self._missing = event.ready, event.missing
                self._update_workers(event)

    def _rejoin(self) -> None:
        """Continues under a new client id with what it has handed out, and without its leases.

        The new id keeps late messages of the old one from being taken for this reader's.
        """
        # NotFoundError: the client was only lost. Another error: a reader has continued from its
        # state, so that this one must not.
        with suppress(NotFoundError):
            self._opening.session.call(ClientHeartbeat(self._agent.client, 0))
        # A dispatcher that knows the first id refuses it. A dispatcher that has lost facts learns
        # here which iteration this reader had opened.
        with suppress(NotFoundError, AbortedError):
            first = msgspec.structs.replace(self._opening.request, last=self._agent.last)
            self._opening.again(first)
        self._reading.forget_leases()
        if self._traces is not None:
            self._traces.close()
        request, opened = self._open_again()
        self._deliveries.work = self._own_work(opened)
        self._agent.become(request, opened)
        self._update_workers(opened)
        if opened.repeated:
            _LOG.warning(
                "distribute: other readers have got what this one handed out, too: %s",
                describe_ranges(opened.repeated),
            )

    def _open_again(self) -> tuple[OpenIteration, OpenIterationReply]:
        while True:
            request = msgspec.structs.replace(
                self._opening.request,
                client=self._opening.runtime.name(),
                # The key and the epoch of the job, which another reader may have chosen.
                key=self._work.key,
                epoch=self._work.epoch,
                # The dispatcher knows the first id, even if it has forgotten later ones.
                resumes=(self._opening.request.client,),
                last=self._agent.last,
                names=self._names,
                **claims_of(self._reading.state()),
            )
            self._names = (*self._names, request.client)
            try:
                return request, self._opening.again(request)
            except NotFoundError:
                # The new client expired before the reply came; retry, unless the dispatcher was
                # replaced by one without its journal.
                if self._opening.session.dispatcher() != self._agent.dispatcher:
                    raise

    def _update_workers(self, news: ClientHeartbeatReply | OpenIterationReply) -> None:
        if news.workers is not None:
            self._deliveries.set_workers(news.workers)
        if news.streams is not None:
            self._reading.set_streams(news.streams)

    def _own_work(self, opened: OpenIterationReply) -> Work:
        """The work with the number of this consumer of a coordinated read."""
        return msgspec.structs.replace(opened.work, consumer=self._opening.request.consumer)

    def _report(self, elements: int = 0) -> None:
        """Passes what was consumed, and how many elements to lease, to the agent."""
        want = self._reading.want(self._now()) if self._ready else 0
        consumed, ended = self._reading.report()
        if want or consumed or ended or elements:
            self._agent.report(consumed, ended, elements, self._waited, want)
            self._waited = 0.0

    def _report_everything(self, unused: int = 0) -> None:
        """Reports also what was handed out last, which the user may still be working on."""
        consumed, ended = self._reading.report(everything=True, unused=unused)
        self._agent.report(consumed, ended, 0, 0.0)

    def _prepare_next(self, count: int) -> None:
        """Requests what comes next, before the user works on the `count` elements taken."""
        self._confirmed = False
        self._report(count)
        if self._agent.events or self._reading.fetcher.hungry:
            try:
                self._attend()
            except OpError as error:
                self._failure = error  # For the next pull: what was taken must reach the user.

    def _is_over(self) -> bool:
        if not self._ready or not self._reading.over:
            return False
        if self._reading.leased:
            return self._is_reported()
        if self._work.form != Form.WHOLE or self._work.consumers:
            return self._agent.may_end()
        # A worker that joined meanwhile has a stream of its own. Without any worker, the stream
        # waits for the first one.
        if not self._confirmed:
            self._confirmed = True
            self._agent.sync()
            return False
        return self._reading.begun

    def _is_reported(self) -> bool:
        """Whether the dispatcher knows what was handed out, so that it leases none of it again."""
        if not self._confirmed:
            self._confirmed = True
            self._report_everything()
            self._agent.commit()
            return False
        return True

    def _longest_wait(self, now: float) -> float:
        """Seconds to wait for a message at most: until the next retry, or look at the links."""
        retry = self._reading.requests.retry - now
        longest = min(timing.LONGEST_LOOK, self._opening.opened.worker_timeout / _LOOKS)
        return min(retry if retry > 0 else longest, self._links.pause(now), longest)

    def _report_wait(self, seconds: float) -> None:
        """Logs what this stream waits for; raises after too long."""
        if not self._ready:
            report_obstacle(missing_consumers(self._missing, self._work.consumers), seconds)
        elif not len(self._links):
            report_obstacle(missing_workers(self._links, self._opening.session, seconds), seconds)
        else:
            _LOG.warning("distribute: waiting for %.0f s for %s", seconds, self._describe_wait())

    def _describe_wait(self) -> str:
        if not self._agent.may_enter(self._reading.lap):
            return "all consumers to agree on the round from which on new workers take part"
        ask = self._reading.fetcher.owed_next()
        if ask is not None:
            link = self._links[ask.worker]
            return describe_request(ask, link, self._work.streams, self._now())
        silence = self._agent.silence(self._now())
        if silence > timing.SEVERAL * timing.CLIENT_HEARTBEAT:
            return f"leases of the dispatcher, which has not answered for {silence:.0f} s"
        return "elements that this reader may read: " + (
            "other readers have leased what is left"
            if self._reading.leased
            else "none was asked for"
        )

    def save(self) -> State:
        if not self._reading.replays:
            # The state says which elements come next, so they must be chosen first.
            self._wait(lambda: self._reading.sure() or None)
        # `extra` has the first client id of this reader, which the dispatcher knows the longest.
        return {"own": {**self._opening.extra, **self._reading.state(LazyState)}, "inputs": []}

    def commit(self, unused: int = 0) -> None:
        if self._reading.leased:
            self._report_everything(unused)
            self._agent.commit()
            # If the dispatcher has forgotten this client, `_attend` opens the iteration again and
            # claims what was handed out.
            self._attend()

    def give_back(self, count: int) -> None:
        self._reading.give_back(count)

    def close(self) -> None:
        if self._traces is not None:
            self._traces.close()
        # The caller has used what it was given; no other reader may get it again.
        self._report_everything()
        if not self._agent.stop() and self._reading.leased:
            with suppress(OpError):  # The stream closes, whether or not the dispatcher replies.
                self._rejoin()
                self._agent.leave()
        self._end()


def _open_once_more(opening: Opening, begins: tuple[int, ...]) -> OpenIterationReply:
    """Opens once more; `begins` are the laps in which streams of a coordinated read begin."""
    request = opening.request
    streams = max(request.streams, len(begins))
    return opening.again(msgspec.structs.replace(request, streams=streams, begins=begins))


def _wake(links: Links, bell: Bell, event: Any) -> None:
    """Called by the agent's thread. A connection to a removed worker may block the thread that
    pulls in the middle of a message; aborting it from here ends that."""
    if isinstance(event, ClientHeartbeatReply) and event.workers is not None:
        links.abort_others(event.workers)
    bell.ring()


def _close(agent: Agent, links: Links, bell: Bell, leave: Callable[[], None]) -> None:
    agent.stop()
    links.close()
    bell.close()
    leave()


def report_obstacle(obstacle: OpError, seconds: float) -> None:
    """Logs why nothing can arrive; raises it once the wait has taken too long."""
    if seconds > timing.WAIT_LIMIT:
        raise type(obstacle)(f"distribute: waited {seconds:.0f} s, and {obstacle.message}")
    _LOG.warning("distribute: waiting for %.0f s: %s", seconds, obstacle.message)


def missing_consumers(missing: tuple[int, ...], consumers: int) -> OpError:
    """The consumers of a coordinated read that have not begun."""
    who, have = ("consumer", "has") if len(missing) == 1 else ("consumers", "have")
    return DeadlineExceededError(
        f"{who} {', '.join(map(str, missing))} of {consumers} {have} not begun to read"
    )


def missing_workers(links: Links, session: Session, seconds: float) -> OpError:
    """Why no worker is connected; raises it early if none was ever reached."""
    reasons = links.missing()
    if not reasons:
        return UnavailableError(session.no_workers)
    what = f"no worker can be reached from here ({'; '.join(reasons)})"
    if seconds > timing.UNREACHABLE and links.unreachable and not links.ever:
        raise UnavailableError(f"distribute: {what}")
    return UnavailableError(what)


def describe_call(ask: Ask, link: Link) -> str:
    """The function that a worker runs for a request, and the worker; empty if none is known."""
    if not link.where:
        return ""
    return f"{describe_function(ask, link)} on {link.connection.peer}"


def describe_function(ask: Ask, link: Link) -> str:
    """The function that a worker runs, and its element if the reader waits for another one."""
    is_other = link.element not in (None, ask.at)
    return f"{link.where} for its element {link.element}" if is_other else link.where


def describe_request(ask: Ask, link: Link, streams: int, now: float) -> str:
    """The element that comes next, the worker that computes it, and the function it runs."""
    stream = "" if streams == 1 else f" of stream {ask.feed.stream}"
    where = f", in {describe_function(ask, link)}" if link.where else ""
    silence = link.silence(now)
    says = f", which has said nothing for {silence:.0f} s" if silence > timing.QUIET_WORKER else ""
    return f"element {ask.at}{stream}{where} ({link.connection.peer}{says})"
