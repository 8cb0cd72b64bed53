"""Servers in a process of their own: they run until a signal, and end as well as it lets them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from penstock.data.experimental.service.servers import DispatchServer, WorkerServer

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE = 1.0
"""Seconds for a clean end when the parent is gone already."""


class StoppedAtOnce(BaseException):
    """A second signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = 128 + number


_DRAIN_SECONDS = 30.0
"""How long a worker finishes what it has begun, before it leaves anyway."""


def run_dispatcher(server: DispatchServer) -> int:
    """Serves until it is told to stop."""
    with server:
        address = server.target.removeprefix("grpc://")
        print(
            f"penstock dispatcher at {server.target}; "
            f"start workers with: penstock worker --dispatcher {address}",
            flush=True,
        )
        return _until_told(server.join, server.stop)


def run_worker(server: WorkerServer, quiet: bool, with_stdin: bool) -> int:
    """Serves until it is told to leave; `with_stdin` stops it when its parent closes the pipe."""
    server.isolate()  # Before there is any thread: it forks.
    started = threading.Event()
    if with_stdin:
        # Whoever holds the other end decides; Ctrl-C reaches it, too.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _in_thread(lambda: _end_with_stdin(server, started))

    def leave() -> None:
        if not quiet:
            with contextlib.suppress(OSError):  # Nobody may be there to read it.
                print("penstock worker leaves; once more to stop it at once", flush=True)
        server.drain(_DRAIN_SECONDS)

    with server:
        started.set()
        if not quiet:
            print(f"penstock worker at {server.address}", flush=True)
        return _until_told(server.join, leave) or int(server.failed)


def _until_told(join: Callable[[], None], finish: Callable[[], None]) -> int:
    """Waits for the end, which begins with the first signal and comes at once with the second."""
    told: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if len(told) > 1:
            raise StoppedAtOnce(number)
        # A handler interrupts anything, so it must not wait for a lock.
        _in_thread(finish)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        join()
    except StoppedAtOnce as stopped:
        sys.stdout.flush()
        os._exit(stopped.status)
    return 0


def _in_thread(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, name="penstock-end", daemon=True)
    thread.start()
    return thread


def _end_with_stdin(server: WorkerServer, started: threading.Event) -> None:
    # Not by sys.stdin, whose lock would be held while the interpreter ends.
    while os.read(0, 4096):
        pass
    # It may still wait for a dispatcher, or for a function that does not return.
    if started.wait(_PATIENCE):
        _in_thread(server.stop).join(_PATIENCE)
    os._exit(0)


def allow_files() -> None:
    """Lets this process open as many files as the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # Some systems say more than they allow.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def token_in(path: str) -> bytes:
    """The token in a file."""
    from penstock.service.host.tokens import read_token

    return read_token(path, "--token-file")


def make_certificates(folder: str, hosts: Sequence[str], days: int) -> int:
    """Writes a working set, and says what to do with it."""
    from penstock.service.host import certificates

    certificates.make_certificates(folder, hosts, days)
    print(f"certificates and a token are in {folder}; copy it to every machine of the service")
    return 0
