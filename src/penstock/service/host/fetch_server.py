"""Answers the fetches on one data connection of a worker, from its first message to its last.

Requests are answered one after the other, in order. Between two chunks the server reads what has
arrived, so that it notices a client that is gone. While a function runs for long, another thread
reports where it is. Without these reports, a client could not distinguish a slow function from a
network that carries nothing.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
from collections import deque
from typing import Protocol

from penstock.engine.trail import with_turns
from penstock.engine.user_calls import CONTAINED
from penstock.engine.whereabouts import whereabouts
from penstock.errors import DataLossError, InvalidArgumentError, OpError, UnavailableError
from penstock.service.host.data_connection import Connection
from penstock.service.host.failures import to_failed, to_impossible
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.tasks import Fetched, FetchedChunk, Task, Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.fetches import (
    CloseTask,
    Done,
    Fetch,
    OpenTask,
    Progress,
    ToClient,
    ToWorker,
)

_LOG = logging.getLogger("penstock.service")

_MOST_WAITING = 1024
"""Messages that are read before their turn; further ones stay in the socket."""


class Reporting(Protocol):
    """Has a `report` to send, at regular intervals."""

    def report(self) -> None: ...


class ProgressReporter:
    """Calls `report` of all fetch servers in a thread, which runs while there are any."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        """Guards the fields below."""
        self._servers: dict[Reporting, None] = {}
        self._runs = False

    def add(self, server: Reporting) -> None:
        with self._changed:
            self._servers[server] = None
            starts, self._runs = not self._runs, True
        if starts:
            self._runtime.start(self._run, "penstock-progress")

    def remove(self, server: Reporting) -> None:
        with self._changed:
            self._servers.pop(server, None)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(timing.PROGRESS)
                if not self._servers:
                    self._runs = False
                    return
                servers = list(self._servers)
            for server in servers:
                server.report()


class FetchGate:
    """Shared by all connections: counts accepted fetches, and accepts no more while draining."""

    def __init__(self, runtime: Runtime = MACHINE) -> None:
        self.reporter = ProgressReporter(runtime)
        self._changed = runtime.condition()
        """Guards the fields below."""
        self._inside = 0
        self.draining = False

    def enter(self) -> bool:
        """Counts one more fetch; returns False if it is not accepted."""
        with self._changed:
            self._inside += not self.draining
            return not self.draining

    def leave(self) -> None:
        """Ends an accepted fetch."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Accepts no more fetches."""
        with self._changed:
            self.draining = True

    def wait(self, timeout: float | None) -> bool:
        """Blocks until every accepted fetch has ended; returns False after `timeout`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, timeout)


def serve(connection: Connection, tasks: Tasks, gate: FetchGate) -> None:
    """Answers a client until its connection ends."""
    CONTAINED.set(True)
    server = FetchServer(connection, tasks, gate)
    gate.reporter.add(server)
    try:
        server.run()
    except DataLossError as error:
        _warn(connection, error)
    except (OpError, OSError):
        pass  # The client is gone.
    finally:
        gate.reporter.remove(server)
        server.close()


class FetchServer:
    """The worker's side of one connection. One thread uses it; `report` runs in another."""

    def __init__(self, connection: Connection, tasks: Tasks, gate: FetchGate) -> None:
        self._connection = connection
        self._owner = tasks
        self._gate = gate
        self._tasks: dict[int, Task] = {}
        self._waiting: deque[ToWorker] = deque()
        """Messages that were read and not yet handled."""
        self._accepted: set[int] = set()
        """Requests that the gate counts."""
        self._lost = False
        self._thread = threading.get_ident()
        self._doing: int | None = None
        """The request that is answered; 0 during other messages, None between messages.

        `report` reads this and `_sent` without a lock: a stale value costs one report at most.
        """
        self._sent = 0
        """How many messages were sent."""
        self._reported: tuple[int | None, int] = (None, 0)
        self._hangup = tasks.pool.runtime.poll()
        self._hangup.register(connection, getattr(select, "POLLRDHUP", 0))

    def run(self) -> None:
        """Handles messages until the connection ends, which raises."""
        while True:
            while not self._waiting:
                self._receive()
            self._doing = 0
            self._handle(self._waiting.popleft())
            self._doing = None

    def report(self) -> None:
        """Sends `Progress` if a request is answered and nothing was sent since the last call.

        Another thread calls this; it never blocks.
        """
        turn = (self._doing, self._sent)
        if turn[0] is not None and turn == self._reported:
            with contextlib.suppress(OSError, ValueError):  # The connection has ended.
                self._connection.offer(Progress(turn[0], whereabouts(self._thread)))
        self._reported = turn

    def _receive(self) -> None:
        message, _ = self._connection.receive()
        match message:
            case Fetch(request):
                if request not in self._accepted and self._gate.enter():
                    self._accepted.add(request)
                self._waiting.append(message)
            case OpenTask() | CloseTask():
                self._waiting.append(message)
            case _:
                pass

    def _handle(self, message: ToWorker) -> None:
        match message:
            case OpenTask(number, work):
                self._close_task(number)
                self._tasks[number] = self._owner.open(work)
            case CloseTask(number):
                self._close_task(number, finished=True)
            case Fetch(request):
                self._doing = request
                try:
                    self._connection.send(self._answer(message))
                finally:
                    self._end_request(request)

    def _end_request(self, request: int) -> None:
        if request in self._accepted:
            self._accepted.discard(request)
            self._gate.leave()

    def _answer(self, fetch: Fetch) -> ToClient:
        """Sends the elements of a fetch; returns the last message about it."""
        try:
            task = self._find_task(fetch)
            self._receive_arrived()
            parts = task.fetch(
                fetch.start,
                fetch.stop,
                mark=fetch.mark,
                horizon=self._horizon(fetch),
                is_cancelled=self._is_client_gone,
            )
            for part in parts:
                self._send(fetch.request, part, task.trail.began)
            length = None if self._is_client_gone() else task.length(fetch.stop)
            lengths = None if length is None else task.trail.lengths
            return Done(fetch.request, length, task.trail.began, task.trail.ended, lengths)
        except BaseException as error:
            # Users' functions raise anything. If the client is gone, sending the answer raises.
            return to_impossible(fetch.request, error, self._owner.address)

    def _find_task(self, fetch: Fetch) -> Task:
        if fetch.request not in self._accepted:
            raise UnavailableError("distribute: this worker is about to stop; ask another one")
        task = self._tasks.get(fetch.task)
        if task is None or not 0 <= fetch.start <= fetch.stop:
            raise InvalidArgumentError(
                f"distribute: cannot fetch elements {fetch.start} to {fetch.stop} of task "
                f"{fetch.task}; open the task first, and ask for a range"
            )
        return task

    def _horizon(self, fetch: Fetch) -> int:
        """Returns where the waiting requests end that continue this one."""
        horizon = fetch.stop
        for message in self._waiting:
            if isinstance(message, Fetch) and message.task == fetch.task:
                if message.start != horizon:
                    break
                horizon = message.stop
        return horizon

    def _is_client_gone(self) -> bool:
        self._receive_arrived()
        # The end of a connection is no message, so `_receive_arrived` does not notice it.
        return self._lost or bool(self._hangup.poll(0))

    def _receive_arrived(self) -> None:
        """Receives the messages that have arrived, without blocking."""
        try:
            while len(self._waiting) < _MOST_WAITING and self._connection.poll():
                self._receive()
        except (OpError, OSError) as error:
            # The next message to the client raises, too.
            self._lost = True
            if isinstance(error, DataLossError):
                _warn(self._connection, error)

    def _send(self, request: int, part: Fetched, began: int | None) -> None:
        self._sent += 1
        if isinstance(part, FetchedChunk):
            self._connection.send_rows(
                request,
                part.start,
                with_turns(part.chunk),
                mark=part.mark,
                seconds=part.seconds,
                began=began,
            )
        else:
            self._connection.send(to_failed(request, part.ordinal, part.fault, began, part.place))

    def _close_task(self, number: int, finished: bool = False) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.close(finished)

    def close(self) -> None:
        """Closes all tasks and ends all requests."""
        for number in list(self._tasks):
            self._close_task(number)
        for request in list(self._accepted):
            self._end_request(request)
        self._connection.close()


def _warn(connection: Connection, error: DataLossError) -> None:
    _LOG.warning("worker: %s: %s; the connection ends", connection.peer, error.message)
