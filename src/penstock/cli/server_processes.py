"""Servers in a process of their own: how signals end them, and their logs on stderr.

The first signal ends a server cleanly, the second at once. Only the logger `penstock` is set up:
what users' functions log stays theirs. Processes that run plans inherit the setup, because they are
forked later.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from penstock.data.experimental.service.servers import DispatchServer, WorkerServer
from penstock.service.host.runtime import MACHINE
from penstock.service.protocol import timing

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ENDING = "penstock-end"
"""The name of the threads that end a server."""

_PATIENCE = 1.0
"""Seconds for a clean end after the parent process has ended."""


class StoppedAtOnce(BaseException):
    """Raised in the main thread by the second signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = 128 + number


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
    server: WorkerServer, quiet: bool, with_stdin: bool, drain_seconds: float = timing.DRAIN
) -> int:
    """Serves until a signal; `with_stdin` also stops it when its parent closes the pipe.

    What the parent sends through the pipe asks it to finish its requests, and to leave.
    """
    server.isolate()  # Before there is any thread: it forks.
    started = threading.Event()
    if with_stdin:
        # The parent decides when to stop; Ctrl-C reaches the parent as well.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        MACHINE.start(lambda: _end_with_stdin(server, started), _ENDING)

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
        MACHINE.start(finish, _ENDING)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        join()
    except StoppedAtOnce as stopped:
        sys.stdout.flush()
        os._exit(stopped.status)
    return 0


def _end_with_stdin(server: WorkerServer, started: threading.Event) -> None:
    # Not by sys.stdin, whose lock would be held while the interpreter ends.
    while os.read(0, 4096):
        if started.wait(_PATIENCE):
            MACHINE.start(lambda: server.drain(timing.DRAIN), _ENDING)
    # The server may still wait for a dispatcher, or for a function that does not return.
    if started.wait(_PATIENCE):
        MACHINE.start(server.stop, _ENDING).join(_PATIENCE)
    os._exit(0)


def allow_files() -> None:
    """Raises the limit of open files to what the system allows: each connection is one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems report a higher limit than they allow.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# Logs: a line for each event


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options about logs to the command of a server."""
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="debug: also readers and anonymous jobs that come and go; info: servers, named jobs "
        "and failing functions; warning: what needs attention (default: info)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="json: one object in each line, for programs (default: text)",
    )


def set_up_logs(given: argparse.Namespace, quiet: bool = False) -> None:
    """Logs as the options say; a `quiet` server logs what needs attention, if they say nothing."""
    logger = logging.getLogger("penstock")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if given.log_format == "json" else TextFormatter())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel((given.log_level or ("warning" if quiet else "info")).upper())


class TextFormatter(logging.Formatter):
    """`2026-01-31T08:15:00.123Z INFO dispatcher: joined: worker data1:5051`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time_of(record)


_FIELDS = ("event", "worker", "job", "job_name", "dataset")
"""What a line may be about: the event, the worker's address, and the job as in `status`."""


class JsonFormatter(logging.Formatter):
    """One object: `time`, `level`, `message`, what is known of `_FIELDS`, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        fields |= {name: vars(record)[name] for name in _FIELDS if name in vars(record)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _time_of(record: logging.LogRecord) -> str:
    """The time in UTC, as in RFC 3339."""
    time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
