"""The agent of one simulated client: speaks with the dispatcher, beside the one who reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import NotFoundError, OpError, UnavailableError
from penstock.service.host.agent import Forgotten, Told
from penstock.service.protocol.messages import (
    PROTOCOL,
    Address,
    ClientBeat,
    ClientBeaten,
    Hello,
    IterationOpened,
    Lease,
    Leave,
    OpenIteration,
)
from tests.simulation.kernel import Bell, Process, Program
from tests.simulation.network import Network

BEAT = 0.5
AWAY = 300.0
LEAVE = 2.0


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
        self._missing = opened.missing
        self._dispatcher = opened.work.job.rpartition("/")[0]
        self._wake = wake
        self._reopen = reopen
        self._told = Told()
        self._changed = Bell()
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

    def commit(self) -> Program:
        """Waits until the dispatcher knows what was told."""
        consumed, ended = self._told.taken()
        yield from self._network.call(
            ClientBeat(self._opening.client, self._version, (), consumed, ended)
        )

    def sync(self) -> Program:
        try:
            beat = ClientBeat(self._opening.client, self._version)
            self._happened((yield from self._network.call(beat, LEAVE)))
        except OpError:
            pass

    def stop(self) -> Program:
        """Leaves; gives whether the dispatcher knows."""
        self._stopped = True
        consumed, ended = self._told.taken()
        try:
            yield from self._network.call(Leave(self._opening.client, consumed, ended), LEAVE)
        except OpError:
            return False
        return True

    def _run(self) -> Program:
        while not self._stopped:
            due = self._beaten + BEAT - self._world.now
            if due > 0 and not self._told.want and not self._told.lost:
                yield self._changed, max(due, 1e-6)
            want, self._told.want = self._told.want, 0
            if not self._stopped:
                yield from self._speak(want)

    def _speak(self, want: int) -> Program:
        try:
            if want:
                yield from self._lease(want)
            if self._told.lost or self._world.now - self._beaten >= BEAT:
                yield from self._beat()
        except NotFoundError as error:
            yield from self._forgotten(error)
        except OpError as error:
            self._happened(error)

    def _lease(self, want: int) -> Program:
        consumed, ended = self._told.taken()
        self._number += 1
        request = Lease(self._opening.client, self._number, want, consumed, ended)
        self._happened((yield from self._patiently(request)))

    def _beat(self) -> Program:
        consumed, ended = self._told.taken()
        now = self._world.now
        beat = ClientBeat(
            *(self._opening.client, self._version, tuple(self._told.lost), consumed, ended),
            *(self._told.elements, 0.0, now - self._beaten),
        )
        self._told, self._beaten = Told(want=self._told.want), now
        self._happened((yield from self._patiently(beat)))

    def _patiently(self, request: Any) -> Program:
        until = self._world.now + AWAY
        while True:
            try:
                return (yield from self._network.call(request))
            except UnavailableError:
                if self._stopped or self._world.now > until:
                    raise

    def _forgotten(self, error: NotFoundError) -> Program:
        try:
            if not self._leased:
                self._happened((yield from self._reopen()))
                return
            welcome = yield from self._network.call(Hello(PROTOCOL, "", ""))
            same = welcome.dispatcher == self._dispatcher
            self._happened(Forgotten() if same else error)
        except OpError as failure:
            self._happened(failure)

    def _happened(self, event: Any) -> None:
        if isinstance(event, ClientBeaten | IterationOpened):
            self._version = event.version
        if isinstance(event, ClientBeaten):
            missing, self._missing = self._missing, event.missing
            if event.workers is None and event.streams is None and missing == event.missing:
                return
        self.events.append(event)
        self._wake.ring()
