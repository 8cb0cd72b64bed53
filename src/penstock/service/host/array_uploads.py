"""Uploads: a client sends parts of its arrays to the dispatcher when workers ask for them there.

Workers of the client's own machine share the client's memory and ask for nothing. The dispatcher
cannot call a client, so the client asks what is wanted, at growing intervals while nothing is. A
client that registers a dataset for other clients sends everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from penstock.engine.processes.array_shares import ArrayShare
from penstock.errors import OpError
from penstock.service.host.array_store import PART
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.session import Session
from penstock.service.protocol import timing
from penstock.service.protocol.messages import PutArray


class ArrayUploads:
    """Sends parts of the arrays of one stream, in a thread, until it is closed."""

    def __init__(
        self, session: Session, shares: Sequence[ArrayShare], runtime: Runtime = MACHINE
    ) -> None:
        self._session, self._shares = session, shares
        self._closed = False
        self._woken = runtime.event()
        if shares:
            runtime.start(self._run, "penstock-uploads")

    def hurry(self) -> None:
        """Asks at once: a worker of another machine is about to need an array."""
        self._woken.set()

    def close(self) -> None:
        """May be repeated."""
        self._closed = True
        self._woken.set()

    def _run(self) -> None:
        pause = timing.ARRAY_PAUSE
        while not self._closed:
            sent = [self._send_wanted(share) for share in self._shares]
            pause = timing.ARRAY_PAUSE if any(sent) else min(2 * pause, timing.ARRAY_QUESTION)
            if self._woken.wait(pause):
                pause = timing.ARRAY_PAUSE
                self._woken.clear()

    def _send_wanted(self, share: ArrayShare) -> bool:
        """Sends what is wanted of one array; returns whether anything was."""
        sent = False
        # A dispatcher that is gone, or was started anew and does not know the dataset, is asked
        # again after a pause.
        with contextlib.suppress(OpError):
            for _ in _send_parts(self._session, share):
                sent = True
                if self._closed:
                    break
        return sent


def send_everything(session: Session, share: ArrayShare) -> None:
    """Sends an array to a dispatcher that has not got all of it."""
    for _ in _send_parts(session, share, everything=True):
        pass


def _send_parts(session: Session, share: ArrayShare, everything: bool = False) -> Iterator[int]:
    """Sends parts as long as any are wanted; yields the offset of each."""
    request = PutArray(share.reference.name, share.reference.nbytes, everything=everything)
    while (wanted := session.call(request).wanted) >= 0:
        part = bytes(share.read(wanted, min(wanted + PART, request.total)))
        request = msgspec.structs.replace(request, offset=wanted, data=part)
        yield wanted
