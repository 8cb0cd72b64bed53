"""Uploads: a client sends parts of its arrays to the dispatcher when workers ask for them there.

Workers of the client's own machine share the client's memory and ask for nothing. The dispatcher
cannot call a client, so the client asks what is wanted, at growing intervals while nothing is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

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
        name, total, sent = share.reference.name, share.reference.nbytes, False
        # A dispatcher that is gone, or was started anew and does not know the dataset, is asked
        # again after a pause.
        with contextlib.suppress(OpError):
            wanted = self._put(PutArray(name, total))
            while wanted >= 0 and not self._closed:
                part = bytes(share.read(wanted, min(wanted + PART, total)))
                wanted, sent = self._put(PutArray(name, total, wanted, part)), True
        return sent

    def _put(self, request: PutArray) -> int:
        wanted: int = self._session.call(request).wanted
        return wanted
