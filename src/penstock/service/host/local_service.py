"""`local://N`: a dispatcher in the reader's process, and workers in processes of their own."""

from __future__ import annotations

import atexit
import os
import secrets

from penstock.errors import OpError
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.local_workers import LocalWorkers
from penstock.service.host.server_setup import DispatcherConfig
from penstock.service.host.session import Session


class LocalService:
    """Serves until it is closed, or this program ends; it closes `workers`."""

    def __init__(self, workers: LocalWorkers) -> None:
        self._workers = workers
        token = secrets.token_hex(16)
        self._dispatcher = dispatcher = Dispatcher(DispatcherConfig(token=token))
        _RUNNING.add(self)
        dispatcher.start()
        self.session = Session(
            dispatcher.address,
            dispatcher.security,
            lambda request, _=0: dispatcher.handle(request),
            local=True,
        )
        workers.begin(dispatcher.address, token, self._fail)

    def _fail(self, error: OpError) -> None:
        self.session.failure = error

    def close(self) -> None:
        """Ends the workers; may be repeated."""
        self._workers.close()
        self._dispatcher.stop()
        _RUNNING.discard(self)  # Last: `_close_all` closes what an exception left here.


_RUNNING: set[LocalService] = set()


@atexit.register
def _close_all() -> None:
    for service in list(_RUNNING):
        service.close()


os.register_at_fork(after_in_child=_RUNNING.clear)  # They belong to the parent.
