"""The agent: speaks with the dispatcher for one reader, in a thread of its own.

It never waits for the reader, and the reader never waits for it: what happens outside becomes
events, which the reader collects when it has time. The thread does not know the reader, so that
one which was dropped is collected.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import NotFoundError, OpError, UnavailableError
from penstock.service.host.session import Session
from penstock.service.protocol.messages import (
    Address,
    ClientBeat,
    ClientBeaten,
    IterationOpened,
    Lease,
    Leased,
    Leave,
    OpenIteration,
)

BEAT_SECONDS = 0.5
_LEAVE_SECONDS = 2.0
_AWAY_SECONDS = 300.0
"""How long a dispatcher may be away while somebody waits for it."""


@dataclass
class Told:
    """What the reader tells the agent, to be passed on."""

    consumed: list[Address] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    want: int = 0
    elements: int = 0
    waited: float = 0.0

    def taken(self) -> tuple[tuple[Address, ...], tuple[tuple[int, int], ...]]:
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
        opened: IterationOpened,
        wake: Callable[[Any], None],
        reopen: Callable[[], IterationOpened],
    ) -> None:
        self.events: deque[ClientBeaten | Leased | IterationOpened | Forgotten | OpError] = deque()
        self._session = session
        self._opening = opening
        self._version = opened.version
        self._leased = opened.leased
        self._missing = opened.missing
        self._dispatcher = opened.work.job.rpartition("/")[0]
        self._wake = wake
        self._reopen = reopen
        self._told = Told()
        self._changed = threading.Condition()
        self._stopped = False
        self._number = 0
        self._beaten = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="penstock-agent", daemon=True)
        self._thread.start()

    @property
    def client(self) -> str:
        return self._opening.client

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

    def commit(self) -> None:
        """Waits until the dispatcher knows what was told; a saved state depends on it."""
        with self._changed:
            consumed, ended = self._told.taken()
        self._session.call(ClientBeat(self.client, self._version, (), consumed, ended))

    def sync(self) -> None:
        """Asks for news now; they become an event. A dispatcher that is away has none."""
        with contextlib.suppress(OpError):
            beat = ClientBeat(self.client, self._version)
            self._happened(self._session.call(beat, _LEAVE_SECONDS))

    def stop(self) -> None:
        """Leaves; twice is fine."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            consumed, ended = self._told.taken()
            self._changed.notify()
        with contextlib.suppress(OpError):  # The dispatcher will find out by itself.
            self._session.call(Leave(self.client, consumed, ended), _LEAVE_SECONDS)

    def _run(self) -> None:
        while not self._stopped:
            with self._changed:
                due = self._beaten + BEAT_SECONDS - time.monotonic()
                if due > 0 and not self._told.want and not self._told.lost:
                    self._changed.wait(due)
                want, self._told.want = self._told.want, 0
            if not self._stopped:
                self._speak(want)

    def _speak(self, want: int) -> None:
        try:
            if want:
                self._lease(want)
            if self._told.lost or time.monotonic() - self._beaten >= BEAT_SECONDS:
                self._beat()
        except NotFoundError as error:
            self._forgotten(error)
        except OpError as error:
            self._happened(error)

    def _lease(self, want: int) -> None:
        with self._changed:
            consumed, ended = self._told.taken()
        self._number += 1
        request = Lease(self.client, self._number, want, consumed, ended)
        self._happened(self._patiently(request))

    def _beat(self) -> None:
        with self._changed:
            now = time.monotonic()
            consumed, ended = self._told.taken()
            beat = ClientBeat(
                *(self.client, self._version, tuple(self._told.lost), consumed, ended),
                *(self._told.elements, self._told.waited, now - self._beaten),
            )
            self._told, self._beaten = Told(want=self._told.want), now
        self._happened(self._patiently(beat))

    def _patiently(self, request: Any) -> Any:
        """A request may be repeated, so a dispatcher that is away is waited for."""
        until = time.monotonic() + _AWAY_SECONDS
        while True:
            try:
                return self._session.call(request)
            except UnavailableError:
                if self._stopped or time.monotonic() > until:
                    raise

    def _forgotten(self, error: NotFoundError) -> None:
        """The dispatcher took this reader for dead, or came back without its memory.

        A reader that decides alone what it reads can tell the dispatcher all that it must know.
        """
        try:
            if not self._leased:
                self._happened(self._reopen())
            elif self._session.dispatcher() == self._dispatcher:
                self._happened(Forgotten())
            else:
                self._happened(error)
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
        self._wake(event)
