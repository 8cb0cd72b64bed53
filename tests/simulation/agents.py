"""The agent of one simulated client: speaks with the dispatcher, beside the one who reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import NotFoundError, OpError, UnavailableError
from penstock.service.host.agent import Forgotten, Reported, Told
from penstock.service.protocol.messages import (
    PROTOCOL,
    Address,
    ClientBeat,
    ClientBeaten,
    Hello,
    IterationOpened,
    Lease,
    Leased,
    Leave,
    OpenIteration,
)
from tests.simulation.kernel import Bell, Process, Program
from tests.simulation.network import Network

BEAT = 0.5
AWAY = 300.0
LEAVE = 2.0
VALID = 0.75


class Agent:
    """Beats, leases and leaves; what happens becomes an event and rings `wake`."""

    def __init__(
        self,
        network: Network,
        owner: Process,
        opening: OpenIteration,
        opened: IterationOpened,
        wake: Bell,
        reopen: Callable[[], Program],
    ) -> None:
        self.events: deque[Any] = deque()
        self._network = network
        self._world = network.world
        self._opening = opening
        self._version = opened.version
        self._leased = opened.leased
        self._complete = (opened.ready, opened.missing)
        self._dispatcher = opened.work.job.rpartition("/")[0]
        self._wake = wake
        self._reopen = reopen
        self._told = Told()
        self._changed = Bell()
        self._flying = Told()
        self._valid = VALID * opened.lease_seconds
        self._heard = self._world.now
        self._stopped = False
        self._number = 0
        self._beaten = self._world.now
        owner.spawn(self._run())

    def tell(
        self, consumed: list[Address], ended: dict[int, int], elements: int, want: int = 0
    ) -> None:
        self._told.consumed += consumed
        self._told.ended.update(ended)
        self._told.elements += elements
        if want and not self._told.want:
            self._told.want = want
            self._changed.ring()

    def lost(self, worker: str) -> None:
        self._told.lost.add(worker)
        self._changed.ring()

    @property
    def client(self) -> str:
        return self._opening.client

    def entitled(self) -> bool:
        """Whether what was leased is still this reader's."""
        return not self._leased or self._world.now - self._heard < self._valid

    def commit(self) -> Program:
        """Waits until the dispatcher knows what was told, or has forgotten who told it."""
        name = self.client
        beat = ClientBeat(name, self._version, (), *self._everything())
        try:
            yield from self._patiently(beat)
        except NotFoundError as error:
            yield from self._forgotten(name, error)

    def _everything(self) -> Reported:
        consumed, ended = self._flying.consumed, self._flying.ended
        told = self._told.taken()
        return (*consumed, *told[0]), (*ended.items(), *told[1])

    def _taken(self) -> Reported:
        consumed, ended = self._told.taken()
        self._flying = Told(list(consumed), dict(ended))
        return consumed, ended

    def become(self, opening: OpenIteration, opened: IterationOpened) -> None:
        """The reader goes on under another name."""
        self._opening, self._version, self._number = opening, opened.version, 0
        self._told.consumed, self._flying = [], Told()
        self._heard = self._world.now
        self.events = deque(e for e in self.events if not isinstance(e, Leased | Forgotten))

    def sync(self) -> Program:
        try:
            beat = ClientBeat(self._opening.client, self._version)
            self._happened((yield from self._network.call(beat, LEAVE)))
        except OpError:
            pass

    def stop(self) -> Program:
        """Leaves; gives whether the dispatcher knows."""
        self._stopped = True
        try:
            yield from self._network.call(Leave(self.client, *self._everything()), LEAVE)
        except OpError:
            return False
        return True

    def _run(self) -> Program:
        while not self._stopped:
            due = self._due()
            if due > 0 and not self._told.want and not self._told.lost:
                yield self._changed, max(due, 1e-6)
            want, self._told.want = self._told.want, 0
            if not self._stopped:
                yield from self._speak(want)

    def _due(self) -> float:
        return self._beaten + BEAT - self._world.now

    def _speak(self, want: int) -> Program:
        name = self.client
        try:
            if want:
                yield from self._lease(want)
            if self._told.lost or self._due() <= 0:
                yield from self._beat()
        except NotFoundError as error:
            yield from self._forgotten(name, error)
        except OpError as error:
            if name == self.client:
                self._happened(error)

    def _lease(self, want: int) -> Program:
        self._number += 1
        request = Lease(self.client, self._number, want, *self._taken())
        leased = yield from self._patiently(request)
        if request.client == self.client:
            self._flying = Told()
            self._happened(leased)

    def _beat(self) -> Program:
        now = self._world.now
        consumed, ended = self._taken()
        beat = ClientBeat(
            *(self.client, self._version, tuple(self._told.lost), consumed, ended),
            *(self._told.elements, 0.0, now - self._beaten),
        )
        self._told, self._beaten = Told(want=self._told.want), now
        beaten = yield from self._patiently(beat)
        if beat.client == self.client:
            self._flying = Told()
        self._happened(beaten)

    def _patiently(self, request: Any) -> Program:
        until = self._world.now + AWAY
        while True:
            said = self._world.now
            try:
                answer = yield from self._network.call(request)
                self._answered(said)
                return answer
            except UnavailableError:
                if self._stopped or self._world.now > until:
                    raise

    def _answered(self, said: float) -> None:
        waited = not self.entitled()
        self._heard = max(self._heard, said)
        if waited:
            self._wake.ring()

    def _forgotten(self, name: str, error: NotFoundError) -> Program:
        try:
            if not self._leased:
                self._happened((yield from self._reopen()))
                return
            welcome = yield from self._network.call(Hello(PROTOCOL, "", ""))
            same = welcome.dispatcher == self._dispatcher
            if name == self.client:
                self._happened(Forgotten() if same else error)
        except OpError as failure:
            self._happened(failure)

    def _happened(self, event: Any) -> None:
        if isinstance(event, ClientBeaten | IterationOpened):
            self._version = event.version
        if isinstance(event, ClientBeaten):
            # A consumer may have come and gone meanwhile: as many are missing, and all were there.
            before, self._complete = self._complete, (event.ready, event.missing)
            if event.workers is None and event.streams is None and before == self._complete:
                return
        self.events.append(event)
        self._wake.ring()
