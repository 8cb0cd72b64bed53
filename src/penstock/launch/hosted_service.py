"""A service that this process hosts: a dispatcher here, and workers that this process starts.

`local://` starts the workers as processes of this machine, `ray://` as actors of Ray. With a range
of workers, a thread starts as many of them as the readers can use. Any program of this user reads
from a service that `launch.local` has started, by its URL.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from penstock.engine.processes import boot
from penstock.engine.processes.fork_server import ForkServer, ProcessExit, start_program
from penstock.engine.tuning import cores
from penstock.errors import InternalError, InvalidArgumentError, OpError
from penstock.service.host.runtime import MACHINE
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig, check_dispatcher
from penstock.service.host.services import Session
from penstock.service.host.sockets import on_error, shut
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetStatus, GetStatusReply

if TYPE_CHECKING:
    from penstock.service.host.dispatcher_server import Dispatcher

_LOG = logging.getLogger("penstock.service")
_NAME = "penstock-scaling"


class WorkerRange(NamedTuple):
    """The fewest and the most workers of a service."""

    least: int
    most: int


def read_range(text: str) -> WorkerRange | None:
    """The range that `4` (from four to four) or `1..8` names; None if it names none."""
    first, dots, last = text.partition("..")
    try:
        least = int(first)
        most = int(last) if dots else least
    except ValueError:
        return None
    return WorkerRange(least, most) if 1 <= least <= most else None


class WorkerScaling:
    """Chooses how many workers run: it grows at once, at most to twice as many, and shrinks later.

    One high figure, such as that of a reader that has just begun to wait, at most doubles the
    workers for `SHRINK_AFTER` seconds. A load that falls for a moment changes nothing.
    """

    def __init__(self, allowed: WorkerRange) -> None:
        self.allowed = allowed
        self._recent: deque[tuple[float, int]] = deque()
        """How many workers readers could use, and when, in the last `SHRINK_AFTER` seconds."""

    def choose(self, now: float, wanted: int, running: int) -> int:
        """The number of workers from now on: readers can use `wanted`, and `running` run."""
        self._recent.append((now, wanted))
        while self._recent[0][0] < now - timing.SHRINK_AFTER:
            self._recent.popleft()
        if wanted > running:
            target = min(wanted, max(2 * running, 1))
        else:
            target = min(running, max(count for _, count in self._recent))
        return min(max(target, self.allowed.least), self.allowed.most)


class WorkerGroup(Protocol):
    """The workers of one service: how they are started, replaced and ended."""

    def begin(self, config: WorkerConfig, fail: Callable[[OpError], None]) -> None:
        """Lets the workers register; `fail` is called if workers cannot run."""

    def __len__(self) -> int:
        """The number of workers that stay."""

    def resize(self, count: int) -> None:
        """Starts workers, or lets the latest ones leave, until there are `count`."""

    def close(self) -> None:
        """Ends all workers; may be repeated."""


class HostedService:
    """Serves until it is closed, or this program ends; it closes `workers`."""

    def __init__(
        self, config: DispatcherConfig, workers: WorkerGroup, allowed: WorkerRange
    ) -> None:
        # Imported while the workers start: only a hosted service needs a dispatcher here.
        from penstock.service.host.dispatcher_server import Dispatcher

        self._workers = workers
        self._closed = threading.Event()
        self.dispatcher = dispatcher = Dispatcher(config)
        _RUNNING.add(self)
        dispatcher.start()
        if (link := dispatcher.make_dashboard_link()) is not None:
            print(f"penstock dashboard at {link}", file=sys.stderr, flush=True)
        self.session = Session(
            dispatcher.address,
            dispatcher.security,
            lambda request, _=0: dispatcher.handle(request),
            local=True,
        )
        workers.begin(WorkerConfig(dispatcher.address, token=config.token), self._fail)
        if allowed.most > allowed.least:
            scaling = WorkerScaling(allowed)
            MACHINE.start(partial(_follow_load, dispatcher, workers, scaling, self._closed), _NAME)

    def _fail(self, error: OpError) -> None:
        self.session.failure = error

    def close(self) -> None:
        """Ends the workers; may be repeated."""
        self._closed.set()
        self._workers.close()
        self.dispatcher.stop()
        _RUNNING.discard(self)  # Last: `_close_all` closes what an exception left here.


def _follow_load(
    dispatcher: Dispatcher, workers: WorkerGroup, scaling: WorkerScaling, closed: threading.Event
) -> None:
    """Starts and ends workers as readers can use them, until the service is closed."""
    while not closed.wait(timing.SCALING):
        reply = dispatcher.handle(GetStatus())
        assert isinstance(reply, GetStatusReply)
        wanted, running = reply.status["wanted_workers"], len(workers)
        count = scaling.choose(MACHINE.now(), wanted, running)
        if count != running and not closed.is_set():
            _LOG.info("from %d to %d workers, which readers can use", running, count)
            workers.resize(count)


_RUNNING: set[HostedService] = set()


@atexit.register
def _close_all() -> None:
    for service in list(_RUNNING):
        service.close()


os.register_at_fork(after_in_child=_RUNNING.clear)  # They belong to the parent.


def start_local(rest: str) -> HostedService:
    """Starts the service that `local://rest` names, for the readers of one dataset."""
    allowed, dashboard_port = parse_local(rest)
    workers = LocalWorkers(allowed.least, allowed.most)
    with on_error(workers.close):
        config = DispatcherConfig(token=secrets.token_hex(16), dashboard_port=dashboard_port)
        return HostedService(config, workers, allowed)


def launch_here(workers: Any, config: DispatcherConfig) -> LocalService:
    """Starts a dispatcher in this process, and its workers as processes of this machine."""
    allowed = _parse_workers(workers)
    check_dispatcher(config)
    group = LocalWorkers(allowed.least, allowed.most)
    with on_error(group.close):
        hosted = HostedService(config, group, allowed)
    with on_error(hosted.close):
        _await_workers(hosted, allowed.least)
    return LocalService(hosted)


def _await_workers(hosted: HostedService, count: int) -> None:
    """Waits until the workers have registered, so that all first readers know all of them."""
    while len(hosted.dispatcher.status()["workers"]) < count:
        if hosted.session.failure is not None:
            raise hosted.session.failure
        time.sleep(0.01)


def _parse_workers(workers: Any) -> WorkerRange:
    if workers is None:
        workers = os.cpu_count() or 1
    is_number = isinstance(workers, int) and not isinstance(workers, bool)
    found = read_range(str(workers)) if is_number or isinstance(workers, str) else None
    if found is None:
        raise InvalidArgumentError(
            "launch.local: workers must be a number of processes, like 4, or the fewest and the "
            f'most of them, like "1..8", got {workers!r}'
        )
    return found


class LocalService:
    """A service on this machine; `close`, or the end of this program, ends it."""

    def __init__(self, hosted: HostedService) -> None:
        self._hosted = hosted

    @property
    def url(self) -> str:
        """The `service` argument of `distribute`, in any program of this user."""
        return f"grpc://{self._hosted.dispatcher.address}"

    def close(self) -> None:
        """Ends the dispatcher and its workers; may be repeated."""
        self._hosted.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Workers on this machine: processes, which are replaced when they end.
# `local://` has all of its workers here, and every worker actor of `ray://` has one.
# They are forked from one program, which imports what workers need once for all of them, while this
# process makes the dispatcher. The kernel kills the program with this process, and the workers with
# the program, also after kill -9.


LEAVE = b"leave"
"""The message that makes a worker finish the elements that it makes, and end."""

_MOST_EARLY_ENDS = 3
"""If so many workers in a row end soon after their start, the service fails."""


class _Worker:
    """One worker process and its successors; the lock of `LocalWorkers` guards all fields."""

    def __init__(self) -> None:
        self.number = 0
        self.channel: socket.socket | None = None
        """Closed by this process to end the worker; None if the process has ended."""
        self.started = 0.0
        self.early_ends = 0
        self.leaves = False
        """Whether it finishes its last elements, and is not replaced."""

    def leave(self) -> None:
        self.leaves = True
        if self.channel is not None:
            with contextlib.suppress(OSError):  # It has ended.
                self.channel.send(LEAVE)

    def shut(self) -> None:
        if self.channel is not None:
            shut(self.channel)

    def note_end(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        early = time.monotonic() - self.started < timing.EARLY_CRASH
        self.early_ends = self.early_ends + 1 if early else 0


class LocalWorkers:
    """A `WorkerGroup` of processes, and a thread that starts and replaces them.

    The thread starts the program at once, and the workers after `begin`.
    """

    def __init__(self, count: int, most: int) -> None:
        """Starts with `count` workers; there are never more than `most`."""
        self._changed = threading.Condition()
        """Guards all fields below; no worker is started once `_closed` is set."""
        self._closed = False
        self._first_message = b""
        self._threads = max(1, cores() // most)
        """How many threads each native library uses in a worker."""
        self._fail: Callable[[OpError], None] = _LOG.error
        self._numbers = 0
        self._workers = [_Worker() for _ in range(count)]
        self._server: ForkServer | None = None
        self._thread = MACHINE.start(self._run, "penstock-local")

    def __len__(self) -> int:
        with self._changed:
            return sum(not worker.leaves for worker in self._workers)

    def resize(self, count: int) -> None:
        with self._changed:
            staying = [worker for worker in self._workers if not worker.leaves]
            for worker in staying[count:]:
                worker.leave()
            for _ in range(len(staying), count):
                worker = _Worker()
                self._workers.append(worker)
                if self._server is not None:
                    self._start(worker, self._server)

    def begin(self, config: WorkerConfig, fail: Callable[[OpError], None]) -> None:
        with self._changed:
            self._fail = fail
            self._first_message = json.dumps(config._asdict()).encode()
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        """Blocks until all workers that were asked to leave have ended, and none is left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._workers or self._closed)

    def close(self) -> None:
        """Ends all workers, and kills workers that do not end soon; may be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for worker in self._workers:
                worker.shut()
            self._changed.wait_for(
                lambda: all(worker.channel is None for worker in self._workers),
                timing.LOCAL_WORKER_END,
            )
            if self._server is not None:
                self._server.close()
        self._thread.join()

    # These run in the thread. It ends after the program, which the kernel kills with the thread.

    def _run(self) -> None:
        while not self._closed:
            try:
                code = self._run_program()
            except OSError as error:
                self._stop(f"{sys.executable!r} cannot be started ({error})")
                return
            with self._changed:
                for worker in self._workers:
                    self._record_end(worker, code)

    def _run_program(self) -> int:
        """Runs one program until it ends, or `close` is called; returns its exit code."""
        requests, asked = ForkServer.socketpair()
        with requests, asked:
            program = start_program(boot.WORKERS, asked, self._threads)
            asked.close()
            server = ForkServer(requests)
            self._start_all(server)
            while (ended := server.wait_exit()) is not None:
                self._replace(ended, server)
            return _wait(program)

    def _replace(self, ended: ProcessExit, server: ForkServer) -> None:
        with self._changed:
            for worker in [w for w in self._workers if w.number == ended.number]:
                if worker.leaves:
                    worker.note_end()
                    self._workers.remove(worker)
                    self._changed.notify_all()
                else:
                    self._record_end(worker, ended.code)
                    self._start(worker, server)

    def _start_all(self, server: ForkServer) -> None:
        with self._changed:
            self._server = server
            self._changed.wait_for(lambda: self._first_message or self._closed)
            self._workers = [worker for worker in self._workers if not worker.leaves]
            for worker in self._workers:
                self._start(worker, server)
            if self._closed:
                server.close()

    def _start(self, worker: _Worker, server: ForkServer) -> None:
        if self._closed:
            return
        self._numbers += 1
        worker.number, worker.started = self._numbers, time.monotonic()
        with contextlib.suppress(OSError):  # The program has ended, which `wait_exit` reports.
            worker.channel = server.start(worker.number)
            worker.channel.send(self._first_message)

    def _record_end(self, worker: _Worker, code: int) -> None:
        worker.note_end()
        self._changed.notify_all()
        if self._closed:
            return
        if worker.early_ends >= _MOST_EARLY_ENDS:
            self._stop(
                f"worker processes end soon after they start (exit code {code}): they cannot run "
                "here, or a function ends its process; see what they print, or try: "
                f"{sys.executable} -m penstock worker --help"
            )
        else:
            _LOG.warning("local://: a worker process ended (exit code %s); starting another", code)

    def _stop(self, reason: str) -> None:
        """Starts no more workers."""
        with self._changed:
            self._changed.wait_for(lambda: self._first_message or self._closed)
            self._closed = True
            self._fail(InternalError(f"local://: {reason}"))


def _wait(program: subprocess.Popen[bytes]) -> int:
    """Waits for a program that was asked to end; kills it after a while."""
    try:
        return program.wait(timing.LOCAL_WORKER_END)
    except subprocess.TimeoutExpired:
        program.kill()
        return program.wait()


def parse_local(rest: str) -> tuple[WorkerRange, int | None]:
    """The fewest and the most workers, and the port of the dashboard, that `local://rest` names."""
    count, _, query = rest.partition("?")
    found = read_range(count or str(os.cpu_count() or 1))
    if found is None:
        raise InvalidArgumentError(
            f"service.distribute: local://{count} must name a number of worker processes, like "
            "local://4, or the fewest and the most of them, like local://1..8"
        )
    if not query:
        return found, None
    name, _, port = query.partition("=")
    if name != "dashboard_port" or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgumentError(
            f"service.distribute: local://{rest} may only add a port for its dashboard, like "
            "local://4?dashboard_port=8080, or ?dashboard_port=0 for a free one"
        )
    return found, int(port)
