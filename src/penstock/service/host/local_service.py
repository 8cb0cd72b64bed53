"""`local://N`: N worker processes on this machine, which run while a reader exists.

The dispatcher runs in the reader's own process. A worker process that ends is replaced. Workers end
when their standard input is closed, so none outlives a reader that was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time

from penstock.errors import InternalError, InvalidArgumentError
from penstock.service.host.configs import DispatcherConfig
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.session import Session
from penstock.service.protocol import timing

_MOST_EARLY_ENDS = 3
"""So many workers in a row may end soon after their start before that is an error."""


_LOG = logging.getLogger("penstock.service")


class LocalService:
    """A dispatcher in this process, and workers in processes of their own."""

    def __init__(self, rest: str) -> None:
        count = _parse_count(rest)
        token = secrets.token_hex(16)
        self._dispatcher = dispatcher = Dispatcher(DispatcherConfig(token=token))
        dispatcher.start()
        self.session = Session(
            dispatcher.address, dispatcher.security, lambda request, _=0: dispatcher.handle(request)
        )
        self._workers = [
            _WorkerProcess(dispatcher.address, token, self.session) for _ in range(count)
        ]
        _RUNNING.add(self)

    def close(self) -> None:
        """Ends the workers; may be repeated."""
        for worker in self._workers:
            worker.shut_input()
        for worker in self._workers:
            worker.wait()
        self._dispatcher.stop()
        _RUNNING.discard(self)  # Last: `_close_all` closes what an exception left here.

    @property
    def processes(self) -> list[int]:
        """The ids of the worker processes."""
        return [worker.process.pid for worker in self._workers]


class _WorkerProcess:
    """One worker process, which a thread replaces when it ends."""

    def __init__(self, address: str, token: str, session: Session) -> None:
        self._command = [sys.executable, "-m", "penstock", "worker", "--stop-with-stdin", "--quiet"]
        self._command += ["--dispatcher", address]
        self._environment = {**os.environ, "PENSTOCK_TOKEN": token, "PYTHONPATH": _module_paths()}
        self._session = session
        self._lock = threading.Lock()
        """Guards the two fields below; no process is started once `_closed` is set."""
        self._closed = False
        self._early_ends = 0
        self._start()
        threading.Thread(target=self._watch, name="penstock-local", daemon=True).start()

    def _start(self) -> None:
        self._started = time.monotonic()
        # A session of its own: Ctrl-C in the terminal reaches only the reader, which ends workers.
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=self._environment, start_new_session=True
        )

    def _watch(self) -> None:
        while True:
            code = self.process.wait()
            with self._lock:
                if self._closed:
                    return
                early = time.monotonic() - self._started < timing.EARLY_CRASH
                self._early_ends = self._early_ends + 1 if early else 0
                if self._early_ends >= _MOST_EARLY_ENDS:
                    self._session.failure = InternalError(
                        f"local://: worker processes end soon after they start (exit code {code}): "
                        "they cannot run here, or a function ends its process; see what they "
                        f"print, or try: {' '.join(self._command[:4])} --help"
                    )
                    return
                _LOG.warning(
                    "local://: a worker process ended (exit code %s); starting another", code
                )
                _close_input(self.process)
                self._start()

    def shut_input(self) -> None:
        """Ends the process by closing its input; it is not replaced."""
        with self._lock:
            self._closed = True
        _close_input(self.process)

    def wait(self) -> None:
        """Blocks until the process has ended; kills it after a while."""
        try:
            self.process.wait(timing.LOCAL_WORKER_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()


def _parse_count(rest: str) -> int:
    try:
        count = int(rest) if rest else os.cpu_count() or 1
    except ValueError:
        count = 0
    if count < 1:
        raise InvalidArgumentError(
            f"service.distribute: local://{rest} must name a number of worker processes, "
            "like local://4"
        )
    return count


def _module_paths() -> str:
    """Returns where this process finds modules: functions of modules travel by name."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path)


_RUNNING: set[LocalService] = set()


@atexit.register
def _close_all() -> None:
    for service in list(_RUNNING):
        service.close()
