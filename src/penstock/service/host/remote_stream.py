"""`RemoteStream`: what workers make, as a stream of the engine.

It reads in the thread that pulls; only talking to the dispatcher and connecting to workers happens
elsewhere, and arrives as events. Every wait is for a message, an event, or a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from penstock.element.chunk import Chunk, describe
from penstock.element.nest import Tree, text_of
from penstock.engine.contract import Claims, Later, State, Stream
from penstock.engine.endings import Ending
from penstock.errors import (
    AbortedError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from penstock.plan.shape import Shape
from penstock.service.host.agent import Agent, Forgotten
from penstock.service.host.failures import from_failed, from_impossible
from penstock.service.host.links import Connect, Link, Links
from penstock.service.host.runtime import MACHINE, Bell, Runtime
from penstock.service.host.session import Session
from penstock.service.logic.client import Reading
from penstock.service.logic.client_states import claimed
from penstock.service.logic.crashes import describe_exit
from penstock.service.logic.feeds import Failure, Feed, Piece
from penstock.service.logic.fetching import Ask
from penstock.service.logic.interleave_order import InputFeed, Placed
from penstock.service.logic.recovery import describe_addresses
from penstock.service.logic.request_sizes import Limits
from penstock.service.protocol import timing
from penstock.service.protocol.fetches import Closing, Done, Failed, Impossible, Progress, Rows
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    ClientHeartbeatReply,
    LeaseReply,
    OpenIteration,
    OpenIterationReply,
    Work,
)

_LOOKS = 8
"""How many times within the worker timeout a reader looks for silent workers."""


MOST_DAMAGED = 4
"""Chunks in a row that may arrive damaged before the connection is given up."""

_LOG = logging.getLogger("penstock.service")


@dataclass(frozen=True)
class Opening:
    """What a stream is opened with; `again` opens at a dispatcher that may not know the dataset."""

    session: Session
    request: OpenIteration
    opened: OpenIterationReply
    again: Callable[[OpenIteration], OpenIterationReply]
    shape: Shape
    tree: Tree
    limits: Limits
    ordered: bool
    connect: Connect
    extra: dict[str, Any]
    """Goes into the state as it is."""
    runtime: Runtime = MACHINE


class RemoteStream(Stream):
    """Elements of one iteration, from the workers."""

    def __init__(
        self, opening: Opening, state: dict[str, Any] | None, leave: Callable[[], None]
    ) -> None:
        self._opening = opening
        self._now = opening.runtime.now
        self._work = self._mine(opening.opened.work)
        self._reading = Reading(
            *(opening.opened, opening.shape, opening.limits, opening.ordered, state),
            consumer=opening.request.consumer,
        )
        self._bell = opening.runtime.bell()
        self._links = Links(opening.connect, self._bell, opening.runtime)
        wake = partial(_wake, self._links, self._bell)
        self._agent = Agent(
            *(opening.session, opening.request, opening.opened, wake),
            *(partial(_reopen, opening), opening.runtime),
            lap=self._reading.lap if self._reading.extendable else None,
        )
        self._end = Ending(self, _close, self._agent, self._links, self._bell, leave)
        self._ready, self._missing = opening.opened.ready, opening.opened.missing
        self._structures = Structures(opening.tree)
        self._names: tuple[str, ...] = (opening.request.client,)
        """The client ids under which this reader has read."""
        self._failure: OpError | None = None
        self._broken: dict[str, None] = {}
        """Workers whose connection broke, until it is known whether they can be reached."""
        self._losses: dict[str, int] = {}
        """The last loss of a process that each worker told of, by its number."""
        self._interrupted = False
        self._waited = 0.0
        self._wrong = 0
        """How often something arrived damaged."""
        self._trying = 0.0
        """When those who took nothing on are asked again."""
        self._sure = False
        """Whether the dispatcher was asked for more since all was handed out."""
        self._workers(opening.opened)

    def pull(self, limit: int) -> Chunk:
        piece = self._arrived(limit) if self._failure is None else None
        if piece is None:
            piece = self._awaited(limit)
        self._handed_out(len(piece))
        if isinstance(piece, Failure):
            raise piece.error
        assert isinstance(piece, Chunk)
        self._structures.check(piece)
        return piece

    def _arrived(self, limit: int) -> Piece | None:
        """Elements that are here, and still this reader's."""
        now = self._now()
        if not self._ready or not self._agent.entitled(now):
            return None
        if self._reading.extendable and not self._agent.may_enter(self._reading.lap):
            return None
        if not self._reading.takes_turns:
            return self._reading.take(limit, now)
        parts = self._reading.take_turns(limit)
        if len(parts) < 2:
            return parts[0] if parts else None
        for part in parts:
            assert isinstance(part, Chunk)
            self._structures.check(part)
        return Chunk.join(cast(list[Chunk], parts))

    def _awaited(self, limit: int) -> Any:
        """Waits for elements; StopIteration at the end."""
        started = self._now()
        try:
            if (piece := self._wait(lambda: self._arrived(limit))) is None:
                raise StopIteration
        finally:
            self._waited += self._now() - started
        return piece

    def _wait(self, what: Callable[[], Any]) -> Any:
        """Works until `what` gives something; None at the end of the data."""
        started, due = self._now(), timing.WAIT_WARNING
        while True:
            now = self._now()  # Before anybody decides that it is too early for something.
            self._attend()
            if (found := what()) is not None:
                return found
            if self._over():
                return None
            if self._interrupted:
                self._interrupted = False
                raise CancelledError("distribute: reading was stopped while it waited")
            if now - started > due:
                due = min(2 * due, due + timing.WAIT_WARNING_LONGEST)
                self._complain(now - started)
            self._exchange(self._until(now))

    def interrupt(self) -> None:
        self._interrupted = True
        self._bell.ring()

    @property
    def claims(self) -> Claims:
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
        """Takes notice of what happened, and asks for what is needed."""
        while self._agent.events:
            self._notice(self._agent.events.popleft())
        self._agent.release()
        for worker in self._links.connected():
            self._reading.fetcher.join(worker)
            self._hear(worker)
        self._see_after_broken()
        self._raise_failure()
        self._try_again()
        self._links.dial()
        self._reading.fetcher.expects = self._links.expects
        self._tell()
        if self._ready:
            self._ask()

    def _hear(self, worker: str) -> None:
        """What a worker says of the process that made elements here before."""
        loss, before = self._links[worker].connection.process_loss, self._losses.get(worker)
        self._losses[worker] = loss.number
        if before is None:
            return
        if loss.number != before:
            how = describe_exit(loss.code)
            _LOG.warning("distribute: a process of worker %s %s and was replaced", worker, how)
            self._reading.fetcher.blame.explain(worker, how)

    def _see_after_broken(self) -> None:
        """Tells the dispatcher of workers that cannot be reached any more."""
        for worker in [w for w in self._broken if not self._links.awaits(w)]:
            del self._broken[worker]
            if worker in self._links.unreachable:
                self._agent.lost(worker)

    def _raise_failure(self) -> None:
        """Raises what went wrong."""
        if (failure := self._failure or self._opening.session.failure) is not None:
            self._failure = None
            raise failure
        blame = self._reading.fetcher.blame
        # Workers that come back tell how they lost their processes.
        if blame.is_certain and not any(map(self._links.awaits, blame.workers)):
            raise blame.verdict()

    def _notice(
        self, event: ClientHeartbeatReply | LeaseReply | OpenIterationReply | Forgotten | OpError
    ) -> None:
        match event:
            case OpError():
                self._failure = event
                self._reading.unanswered()
            case LeaseReply():
                self._reading.granted(event, self._now())
            case Forgotten():
                self._rejoin()
            case _:
                if isinstance(event, OpenIterationReply):
                    self._work = self._mine(event.work)
                self._ready, self._missing = event.ready, event.missing
                self._workers(event)

    def _rejoin(self) -> None:
        """Goes on as one who comes back: what it has handed out is its own, and nothing else.

        Under a new name, so that nothing that is late is taken for its word.
        """
        with suppress(NotFoundError):  # Only lost; it is an error if another went on instead.
            self._opening.session.call(ClientHeartbeat(self._agent.client, 0))
        with suppress(NotFoundError, AbortedError):  # It knows the first name.
            # Else it has lost facts, and must know whose reading this one went on with.
            first = msgspec.structs.replace(self._opening.request, last=self._agent.last)
            self._opening.again(first)
        self._reading.forget_leases()
        request, opened = self._reopened()
        self._work = self._mine(opened.work)
        self._agent.become(request, opened)
        self._workers(opened)
        if opened.repeated:
            _LOG.warning(
                "distribute: other readers have got what this one handed out, too: %s",
                describe_addresses(opened.repeated),
            )

    def _reopened(self) -> tuple[OpenIteration, OpenIterationReply]:
        while True:
            request = msgspec.structs.replace(
                self._opening.request,
                client=self._opening.runtime.name(),
                # The job's, which may be those of a reader in another process.
                key=self._work.key,
                epoch=self._work.epoch,
                # All later names go on from the first one, which is known even if they are not.
                resumes=(self._opening.request.client,),
                last=self._agent.last,
                names=self._names,
                **claimed(self._reading.state()),
            )
            self._names = (*self._names, request.client)
            try:
                return request, self._opening.again(request)
            except NotFoundError:
                # Taken for dead once more, before the answer came; or the dispatcher is another.
                if self._opening.session.dispatcher() != self._agent.dispatcher:
                    raise

    def _workers(self, news: ClientHeartbeatReply | OpenIterationReply) -> None:
        if news.workers is not None:
            for worker in self._links.want(news.workers):
                self._lose(worker, broken=False)
        if news.streams is not None:
            self._reading.streams(news.streams)

    def _mine(self, work: Work) -> Work:
        """The work as this consumer of coordinated reads sees it."""
        return msgspec.structs.replace(work, consumer=self._opening.request.consumer)

    def _tell(self, elements: int = 0) -> None:
        want = self._reading.want(self._now()) if self._ready else 0
        consumed, ended = self._reading.report()
        if want or consumed or ended or elements:
            self._agent.tell(consumed, ended, elements, self._waited, want)
            self._waited = 0.0

    def _tell_everything(self, unused: int = 0) -> None:
        """Also what was handed out last, and may be in use."""
        consumed, ended = self._reading.report(everything=True, unused=unused)
        self._agent.tell(consumed, ended, 0, 0.0)

    def _handed_out(self, count: int) -> None:
        """Before the user works on it, the workers are asked for what comes next."""
        self._sure = False
        self._tell(count)
        if self._agent.events or self._reading.fetcher.hungry:
            try:
                self._attend()
            except OpError as error:
                self._failure = error  # For the next pull: what was taken must reach the user.

    def _ask(self) -> None:
        for ask in self._reading.fetcher.asks():
            self._send(ask)

    def _send(self, ask: Ask) -> None:
        work = self._work_of(ask.feed)
        try:
            link = self._links[ask.worker]
            link.fetch(ask.request, work, ask.start, ask.stop, ask.mark)
        except (KeyError, UnavailableError):
            self._lose(ask.worker)
        except DeadlineExceededError as error:
            self._leave(link, error.message)

    def _work_of(self, feed: Feed) -> Work:
        """What a worker makes for a feed."""
        work = msgspec.structs.replace(self._work, stream=feed.stream, begin=feed.begin)
        if not isinstance(feed, InputFeed):
            return work
        return msgspec.structs.replace(work, form="turns", inputs=feed.inputs)

    def _exchange(self, timeout: float) -> None:
        for link in self._links.ready(timeout):
            try:
                message, columns = link.connection.receive()
            except UnavailableError:
                self._lose(link.worker)
            except DataLossError as error:
                self._give_up(link, error.message)
            except DeadlineExceededError as error:
                self._leave(link, error.message)
            else:
                self._receive(link, message, columns)
        self._leave_silent()

    def _leave_silent(self) -> None:
        """Asks others for what workers owe that do not even say what they are doing."""
        reader = self._reading.fetcher
        timeout = timing.WORKER_SILENCE * self._opening.opened.worker_timeout
        for link in self._links.silent(timeout):
            silence = link.silence(self._now())
            if silence > reader.patience(link.worker, timeout):
                reader.fall_silent(link.worker)
                self._leave(
                    link, f"it has said nothing for {silence:.0f} s, not even that it lives"
                )

    def _leave(self, link: Link, reason: str) -> None:
        """Asks others for what a worker owes that cannot be reached, though it may live."""
        others = len(self._links) - 1
        _LOG.warning(
            "distribute: %s: %s; what it owes is asked of others (%d are connected), and this one "
            "is tried again",
            *(link.connection.peer, reason, others),
        )
        self._lose(link.worker, broken=False, reason=f"{link.connection.peer}: {reason}")

    def _receive(self, link: Link, message: Any, columns: list[Any] | None) -> None:
        reader = self._reading.fetcher
        match message:
            case Rows() if columns is None:
                self._discard(link, message)
            case Rows():
                assert columns is not None
                self._links.received(link)
                self._arrive(message, columns)
                if message.mark is not None:
                    reader.mark(message.request, message.mark)
            case Failed():
                failure: Piece = Failure(from_failed(message))
                if self._reading.takes_turns:
                    failure = Placed(failure, [message.place])
                reader.arrive(message.request, message.ordinal, failure, began=message.began)
            case Progress(_, where):
                link.where = where
            case Done():
                link.answered(message.request)
                ends = (message.length, message.began, message.ended, message.lengths)
                if (feed := reader.done(message.request, *ends)) is not None:
                    self._forget(link, feed)
            case Impossible():
                link.answered(message.request)
                reader.refuse(message.request, from_impossible(message), message.elsewhere)
                self._trying = self._now() + timing.WORKER_REFUSAL
            case Closing(reason):
                self._give_up(link, reason)

    def _discard(self, link: Link, rows: Rows) -> None:
        """Takes no notice of a damaged chunk: what its request still owes at its end is asked for
        again, in smaller pieces. Where nothing arrives whole, the connection may be to blame.
        """
        link.damaged += 1
        self._reading.fetcher.sizes.shrunk()
        elements = f"elements {rows.start} to {rows.start + rows.count - 1} arrived damaged"
        if link.damaged >= MOST_DAMAGED:
            self._give_up(link, f"{elements}, as {link.damaged - 1} chunks before them")
        else:
            self._warn_of(link, f"{elements}; they are asked for again")

    def _give_up(self, link: Link, reason: str) -> None:
        """Ends a connection that carries nothing whole; the worker at its end may be well."""
        self._warn_of(link, f"{reason}; what it owes is asked for again")
        self._lose(link.worker, broken=False, reason=f"{link.connection.peer}: {reason}")

    def _warn_of(self, link: Link, what: str) -> None:
        """The more often something is wrong, the less often it is said."""
        self._wrong += 1
        if self._wrong & (self._wrong - 1) == 0:
            times = f" ({self._wrong} such events so far)" if self._wrong > 1 else ""
            _LOG.warning("distribute: %s: %s%s", link.connection.peer, what, times)

    def _arrive(self, rows: Rows, columns: list[Any]) -> None:
        at = rows.start
        places = columns.pop() if self._reading.takes_turns else None
        for piece in self._structures.pieces(rows, columns):
            came: Piece = piece
            if places is not None:
                came = Placed(piece, places[at - rows.start :][: len(piece)])
            self._reading.fetcher.arrive(rows.request, at, came, rows.seconds, rows.began)
            at += len(piece)

    def _try_again(self) -> None:
        """Who took nothing on may have been in trouble for a moment, and not about to stop."""
        reader = self._reading.fetcher
        if reader.leaving and self._now() >= self._trying:
            for worker in tuple(reader.leaving):
                reader.join(worker)

    def _forget(self, link: Link, feed: Feed) -> None:
        if self._work.form == "split":
            link.close_task(self._work_of(feed))

    def _lose(self, worker: str, broken: bool = True, reason: str = "") -> None:
        """A worker that is asked for nothing more, until it is connected again."""
        self._links.drop(worker, reason)
        if broken:
            self._broken[worker] = None
        self._reading.fetcher.lose(worker, broken)

    def _over(self) -> bool:
        if not self._ready or not self._reading.over:
            return False
        if self._reading.leased:
            return self._is_settled()
        if self._work.form != "whole" or self._work.consumers:
            return self._agent.may_end()
        # A worker that joined meanwhile has a share of its own; none at all: one is waited for.
        if not self._sure:
            self._sure = True
            self._agent.sync()
            return False
        return self._reading.begun

    def _is_settled(self) -> bool:
        """Whether the dispatcher knows what was handed out, so that nobody gets it again."""
        if not self._sure:
            self._sure = True
            self._tell_everything()
            self._agent.commit()
            return False
        return True

    def _until(self, now: float) -> float:
        """How long to wait for a message at most."""
        retry = self._reading.retry - now
        longest = min(timing.LONGEST_LOOK, self._opening.opened.worker_timeout / _LOOKS)
        return min(retry if retry > 0 else longest, self._links.pause(now), longest)

    def _complain(self, seconds: float) -> None:
        """Says what is being waited for; an error once that has taken too long."""
        if not self._ready:
            who, have = ("consumer", "has") if len(self._missing) == 1 else ("consumers", "have")
            missing = f"{', '.join(map(str, self._missing))} of {self._work.consumers}"
            what = f"{who} {missing} {have} not begun to read"
            error: type[OpError] = DeadlineExceededError
        elif not len(self._links) and (whys := self._links.missing()):
            reasons = "; ".join(whys)
            what, error = f"no worker can be reached from here ({reasons})", UnavailableError
            if seconds > timing.UNREACHABLE and self._links.unreachable and not self._links.ever:
                raise UnavailableError(f"distribute: {what}")
        elif not len(self._links):
            address = self._opening.session.address
            what = (
                f"dispatcher {address} has no workers; start one with: "
                f"penstock worker --dispatcher {address}"
            )
            error = UnavailableError
        else:
            _LOG.warning("distribute: waiting for %.0f s for %s", seconds, self._what_is_awaited())
            return
        if seconds > timing.WAIT_LIMIT:
            raise error(f"distribute: waited {seconds:.0f} s, and {what}")
        _LOG.warning("distribute: waiting for %.0f s: %s", seconds, what)

    def _what_is_awaited(self) -> str:
        """The element that comes next, who makes it, and which function it is in."""
        if not self._agent.may_enter(self._reading.lap):
            return "all consumers to agree on the round from which on new workers take part"
        ask = self._reading.fetcher.owed_next()
        if ask is None:
            return "elements that this reader may read: " + (
                "others have leased what is left" if self._reading.leased else "none was asked for"
            )
        stream = "" if self._work.streams == 1 else f" of stream {ask.feed.stream}"
        link = self._links[ask.worker]
        where = f", in {link.where}" if link.where else ""
        silence = link.silence(self._now())
        says = (
            f", which has said nothing for {silence:.0f} s" if silence > timing.QUIET_WORKER else ""
        )
        return f"element {ask.at}{stream}{where} ({link.connection.peer}{says})"

    def save(self) -> State:
        if not self._reading.replays:
            # What comes next must be set aside before it is handed out, to be in the state.
            self._wait(lambda: self._reading.sure() or None)
        # `extra` has the first name of this reader, from which all its later ones go on.
        return {"own": {**self._opening.extra, **self._reading.state(Later)}, "inputs": []}

    def commit(self, unused: int = 0) -> None:
        if self._reading.leased:
            self._tell_everything(unused)
            self._agent.commit()
            # Forgotten meanwhile, it claims what it handed out, which is as good.
            self._attend()

    def unused(self, count: int) -> None:
        self._reading.unused(count)

    def close(self) -> None:
        # Whoever closes has used what it was given; others must not get it again.
        self._tell_everything()
        if not self._agent.stop() and self._reading.leased:
            with suppress(OpError):  # As good as the dispatcher is: it says what it does not know.
                self._rejoin()
                self._agent.leave()
        self._end()


def _reopen(opening: Opening, begins: tuple[int, ...]) -> OpenIterationReply:
    """Opens once more; `begins` are the laps in which the streams of coordinated reads begin."""
    request = opening.request
    streams = max(request.streams, len(begins))
    return opening.again(msgspec.structs.replace(request, streams=streams, begins=begins))


def _wake(links: Links, bell: Bell, event: Any) -> None:
    if isinstance(event, ClientHeartbeatReply) and event.workers is not None:
        links.abort_others(event.workers)
    bell.ring()


def _close(agent: Agent, links: Links, bell: Bell, leave: Callable[[], None]) -> None:
    agent.stop()
    links.close()
    bell.close()
    leave()


_REMEDY = (
    "every element must have the same structure and dtypes; say what the function returns with "
    "map(..., output_signature=...)"
)


class Structures:
    """What the elements of one reader must look like: `tree`, and the dtypes of the first ones."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kind: Any = None
        self._first = ""

    def pieces(self, rows: Rows, columns: list[Any]) -> list[Chunk | Failure]:
        """What arrived: one chunk, or as many failures as it has elements."""
        if rows.structure == text_of(self._tree):
            return [Chunk(self._tree, columns, rows.count)]
        error = InvalidArgumentError(
            f"distribute: an element has the structure {_shown(rows.structure)}, but that of "
            f"element_spec is {_shown(text_of(self._tree))}; {_REMEDY}"
        )
        return [Failure(error)] * rows.count

    def check(self, chunk: Chunk) -> None:
        """Raises InvalidArgumentError unless the dtypes are those of the first elements."""
        kind = chunk.kind
        if kind == self._kind:
            return
        words = describe(chunk.rows(0, 1).elements()[0])
        if self._kind is not None:
            raise InvalidArgumentError(
                f"distribute: elements are {self._first} at first, but {words} later; {_REMEDY}"
            )
        self._kind, self._first = kind, words


def _shown(structure: str) -> str:
    """The text of a structure as a user would write it; each leaf is a star."""
    return structure.removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0] or "*"
