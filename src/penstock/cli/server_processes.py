"""Servers in a process of their own: the first signal ends them cleanly, the second at once."""

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
from penstock.service.protocol import timing

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE = 1.0
"""Seconds for a clean end after the parent process has ended."""


class StoppedAtOnce(BaseException):
    """Raised in the main thread by the second signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = 128 + number


DRAIN_SECONDS = timing.DRAIN
"""How long a worker may take to finish the elements that it makes, before it leaves anyway."""


def run_dispatcher(server: DispatchServer) -> int:
    """Serves until a signal stops it, or until another dispatcher has its work_dir."""
    with server:
        address = server.target.removeprefix("grpc://")
        print(
            f"penstock dispatcher at {server.target}; "
            f"start workers with: penstock worker --dispatcher {address}",
            flush=True,
        )
        _print_metrics_url(server)
        if (link := server.dashboard_link()) is not None:
            print(f"dashboard at {link} (valid once, for an hour)", flush=True)
        return _serve_until_signal(server.join, server.stop) or int(server.failed)


def run_worker(
    server: WorkerServer, quiet: bool, with_stdin: bool, drain_seconds: float = DRAIN_SECONDS
) -> int:
    """Serves until a signal; `with_stdin` also stops it when its parent closes the pipe.

    What the parent sends through the pipe asks it to finish its requests, and to leave.
    """
    server.isolate()  # Before there is any thread: it forks.
    started = threading.Event()
    if with_stdin:
        # The parent decides when to stop; Ctrl-C reaches the parent as well.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _run_in_thread(lambda: _end_with_stdin(server, started))

    def leave() -> None:
        if not quiet:
            with contextlib.suppress(OSError):  # The reader of the pipe may be gone.
                print("penstock worker leaves; once more to stop it at once", flush=True)
        server.drain(drain_seconds)

    with server:
        started.set()
        if not quiet:
            print(f"penstock worker at {server.address}", flush=True)
            _print_metrics_url(server)
        return _serve_until_signal(server.join, leave) or int(server.failed)


def _print_metrics_url(server: DispatchServer | WorkerServer) -> None:
    if server.metrics_url is not None:
        print(f"metrics at {server.metrics_url}", flush=True)


def _serve_until_signal(join: Callable[[], None], finish: Callable[[], None]) -> int:
    """Blocks until the server has stopped; the first signal calls `finish`, the second exits."""
    received: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise StoppedAtOnce(number)
        # A handler interrupts anything, so it must not wait for a lock.
        _run_in_thread(finish)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        join()
    except StoppedAtOnce as stopped:
        sys.stdout.flush()
        os._exit(stopped.status)
    return 0


def _run_in_thread(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, name="penstock-end", daemon=True)
    thread.start()
    return thread


def _end_with_stdin(server: WorkerServer, started: threading.Event) -> None:
    # Not by sys.stdin, whose lock would be held while the interpreter ends.
    while os.read(0, 4096):
        if started.wait(_PATIENCE):
            _run_in_thread(lambda: server.drain(DRAIN_SECONDS))
    # The server may still wait for a dispatcher, or for a function that does not return.
    if started.wait(_PATIENCE):
        _run_in_thread(server.stop).join(_PATIENCE)
    os._exit(0)


def allow_files() -> None:
    """Raises the limit of open files to what the system allows: each connection is one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a higher limit than they allow.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def load_token(path: str) -> bytes:
    """Reads the token in a file."""
    from penstock.service.host.security import read_token

    return read_token(path, "--token-file")


def print_metrics_token(certificates: str | None) -> int:
    """Prints the metrics token of the service whose token this process finds."""
    from penstock.service.host.http_pages import make_metrics_token
    from penstock.service.host.security import find_token

    folder = certificates or os.environ.get("PENSTOCK_CERTIFICATES") or None
    print(make_metrics_token(find_token(folder=folder).token).decode())
    return 0


def print_dashboard_link(url: str, certificates: str | None) -> int:
    """Prints a new link to a dashboard, with the token that this process finds."""
    from penstock.service.host.http_pages import make_link
    from penstock.service.host.security import find_token

    folder = certificates or os.environ.get("PENSTOCK_CERTIFICATES") or None
    print(make_link(url if "://" in url else f"http://{url}", find_token(folder=folder).token))
    return 0


def make_certificates(folder: str, hosts: Sequence[str], days: int) -> int:
    """Writes certificates and a token, and prints what to do with them."""
    from penstock.cli import certificates

    certificates.make_certificates(folder, hosts, days)
    print(f"certificates and a token are in {folder}; copy it to every machine of the service")
    return 0
