"""A remote stream on the virtual clock: the real reading, fed by simulated links and an agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from penstock.errors import NotFoundError, OpError, UnavailableError
from penstock.service.host.agent import Forgotten
from penstock.service.host.control import refused_as
from penstock.service.logic.feeds import Failure
from penstock.service.logic.reader import DEPTH, KEPT_BLOCK, Limits
from penstock.service.logic.reading import Reading, claimed
from penstock.service.protocol.fetches import Done, Failed, Impossible, Rows
from penstock.service.protocol.messages import (
    ClientBeat,
    IterationOpened,
    Leased,
    OpenIteration,
    Refused,
    Shape,
    Work,
)
from tests.simulation.agents import Agent
from tests.simulation.elements import unpack
from tests.simulation.kernel import Bell, Process, Program, Violation
from tests.simulation.links import Link, Links
from tests.simulation.network import Network


class Missing(Exception):
    """An element that fails, as it was meant to."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class RemoteStream:
    """Elements of one iteration. Every method that may wait is a program."""

    def __init__(
        self,
        network: Network,
        owner: Process,
        request: OpenIteration,
        opened: IterationOpened,
        again: Callable[[], Program],
        shape: Shape,
        limits: Limits,
        ordered: bool,
        state: dict[str, Any] | None,
        renamed: Callable[[str], None],
    ) -> None:
        self._world = network.world
        self._limits = limits
        self._network = network
        self._renamed = renamed
        self._request = request
        self._work = self._mine(opened.work)
        self.reading = Reading(opened, shape, limits, ordered, state, request.consumer)
        self._bell = Bell()
        self.links = Links(network, owner, self._bell)
        self._agent = Agent(network, owner, request, opened, self._bell, again)
        self._ready = opened.ready
        self._failure: OpError | None = None
        self._sure = False
        self.forgotten = 0
        """How often others were given what it held."""
        self._workers(opened)

    def pull(self, limit: int) -> Program:
        """The next elements or a `Failure`; None at the end."""
        piece = self._arrived(limit)
        if piece is None:
            piece = yield from self._wait(lambda: self._arrived(limit))
        if piece is not None:
            yield from self._handed_out(len(piece))
        return piece

    def _arrived(self, limit: int) -> Any:
        if not self._ready or not self._agent.entitled():
            return None
        return self.reading.take(limit, self._world.now)

    def _wait(self, what: Callable[[], Any]) -> Program:
        while True:
            yield from self._attend()
            if (found := what()) is not None:
                return found
            if (yield from self._over()):
                return None
            yield from self._exchange()

    def _attend(self) -> Program:
        while self._agent.events:
            event = self._agent.events.popleft()
            if isinstance(event, Forgotten):
                yield from self._rejoin()
            else:
                self._notice(event)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for worker in self.links.connected():
            self.reading.reader.join(worker)
        self.links.dial()
        self._tell()
        if self._ready:
            self._ask()

    def _notice(self, event: Any) -> None:
        match event:
            case OpError():
                self._failure = event
            case Leased():
                self.reading.granted(event, self._world.now)
            case _:
                if isinstance(event, IterationOpened):
                    self._work = self._mine(event.work)
                self._ready = event.ready
                self._workers(event)

    def _rejoin(self) -> Program:
        self.forgotten += 1
        with suppress(NotFoundError):
            yield from self._network.call(ClientBeat(self._agent.client, 0))
        self.reading.forget_leases()
        opened, tries = None, 0
        while opened is None:
            tries += 1
            request = msgspec.structs.replace(
                self._request,
                client=f"{self._request.client}~{self.forgotten}.{tries}",
                resumes=(self._agent.client,),
                **claimed(self.reading.state()),
            )
            self._renamed(request.client)
            with suppress(NotFoundError):
                opened = yield from self._network.call(request)
        self._agent.become(request, opened)
        self._workers(opened)

    def _mine(self, work: Work) -> Work:
        return msgspec.structs.replace(work, consumer=self._request.consumer)

    def _workers(self, news: Any) -> None:
        if news.workers is not None:
            for worker in self.links.want(news.workers):
                self._lose(worker, report=False)
        if news.streams is not None:
            self.reading.streams(news.streams)

    def _tell(self, elements: int = 0) -> None:
        want = self.reading.want(self._world.now) if self._ready else 0
        consumed, ended = self.reading.report()
        if want or consumed or ended or elements:
            self._agent.tell(consumed, ended, elements, want)

    def _tell_everything(self) -> None:
        consumed, ended = self.reading.report(everything=True)
        self._agent.tell(consumed, ended, 0)

    def _handed_out(self, count: int) -> Program:
        self._sure = False
        self._tell(count)
        if self._agent.events or self.reading.reader.hungry:
            yield from self._attend()

    def _ask(self) -> None:
        for ask in self.reading.reader.asks():
            work = msgspec.structs.replace(self._work, stream=ask.feed.stream)
            try:
                self.links[ask.worker].fetch(ask.request, work, ask.start, ask.stop, ask.mark)
            except (KeyError, UnavailableError):
                self._lose(ask.worker)
        self._check_memory()

    def _check_memory(self) -> None:
        """What was asked for and not handed out is within limits."""
        reader, limits = self.reading.reader, self._limits
        waiting = reader._here + reader._owed
        if limits.elements is not None:
            most = limits.elements + DEPTH
        else:
            # Before the first one is there, nobody knows how large they are.
            most = (
                limits.nbytes // 8
                + KEPT_BLOCK * reader._in_blocks
                + 8 * max(limits.request_rows, DEPTH * len(reader.workers))
            )
        if waiting > most or reader._owed < 0 or reader._here < 0:
            raise Violation(
                f"{reader._here} elements are here and {reader._owed} are owed, "
                f"where {most} are allowed"
            )

    def _exchange(self) -> Program:
        if not self.links.ready():
            retry = self.reading.retry - self._world.now
            yield self._bell, min(retry, 1.0) if retry > 0 else 1.0
        for link in self.links.ready():
            try:
                self._receive(link)
            except UnavailableError:
                self._lose(link.worker)

    def _receive(self, link: Link) -> None:
        received = link.end.receive()
        if received is None:
            return
        reader, (message, body) = self.reading.reader, received
        match message:
            case Rows():
                chunk = unpack(message.columns, body, message.count)
                reader.arrive(message.request, message.start, chunk, message.seconds)
                if message.mark is not None:
                    reader.mark(message.request, message.mark)
            case Failed():
                failure = Failure(Missing(int(message.message)))
                reader.arrive(message.request, message.ordinal, failure)
            case Done():
                stream = reader.done(message.request, message.length)
                if stream is not None and self._work.form == "split":
                    link.close_task(self._work.job, stream)
            case Impossible():
                error = refused_as(Refused(message.kind, message.message))
                reader.refuse(message.request, error, message.elsewhere)

    def _lose(self, worker: str, report: bool = True) -> None:
        self.links.drop(worker)
        self.reading.reader.lose(worker)
        if report:
            self._agent.lost(worker)

    def _over(self) -> Program:
        if not self._ready or not self.reading.over:
            return False
        if self.reading.leased:
            if not self._sure:
                self._sure = True
                self._tell_everything()
                yield from self._agent.commit()
                return False
            return True
        if self._work.form != "whole" or self._work.consumers:
            return True
        if not self._sure:
            self._sure = True
            yield from self._agent.sync()
            return False
        return self.reading.begun

    def save(self) -> Program:
        if not self.reading.replays:
            yield from self._wait(lambda: self.reading.sure() or None)
        return self.reading.state()

    def commit(self) -> Program:
        if self.reading.leased:
            self._tell_everything()
            yield from self._agent.commit()
            yield from self._attend()

    @property
    def client(self) -> str:
        return self._agent.client

    def close(self) -> Program:
        """Gives whether the dispatcher knows all that was handed out."""
        self._tell_everything()
        known = yield from self._agent.stop()
        self.links.close()
        return known
