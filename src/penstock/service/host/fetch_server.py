"""Answers the fetches on one data connection of a worker, from its first message to its last.

Requests are answered one after the other, in order. Between two chunks the server reads what has
arrived, so that a cancelled request ends at once. While a function runs for long, another thread
reports where it is: without that, a client could not distinguish a slow function from a network
that carries nothing.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
from collections import deque
from functools import partial
from typing import Protocol

from penstock.engine.trail import with_places
from penstock.engine.user_calls import CONTAINED
from penstock.engine.whereabouts import whereabouts
from penstock.errors import DataLossError, InvalidArgumentError, OpError, UnavailableError
from penstock.service.host.data_connection import Connection
from penstock.service.host.failures import to_failed, to_impossible
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.tasks import Made, Missed, Task, Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.fetches import (
    Cancel,
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
"""Messages that are read before their turn; more of them stay in the socket."""


class Reporting(Protocol):
    """Somebody who has something to report."""

    def report(self) -> None: ...


class Reporter:
    """Has all who serve clients report, for as long as there are any."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._serving: dict[Reporting, None] = {}
        self._runs = False

    def add(self, serving: Reporting) -> None:
        with self._changed:
            self._serving[serving] = None
            starts, self._runs = not self._runs, True
        if starts:
            self._runtime.start(self._run, "penstock-progress")

    def remove(self, serving: Reporting) -> None:
        with self._changed:
            self._serving.pop(serving, None)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(timing.PROGRESS)
                if not self._serving:
                    self._runs = False
                    return
                serving = list(self._serving)
            for each in serving:
                each.report()


class Gate:
    """Counts the fetches that were taken on, and lets no more in once the worker drains."""

    def __init__(self, runtime: Runtime = MACHINE) -> None:
        self.reporter = Reporter(runtime)
        self._changed = runtime.condition()
        self._inside = 0
        self.draining = False

    def enter(self) -> bool:
        """Whether one more fetch is taken on."""
        with self._changed:
            self._inside += not self.draining
            return not self.draining

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Lets nobody in any more."""
        with self._changed:
            self.draining = True

    def wait(self, timeout: float | None) -> bool:
        """Waits until nobody is inside; whether that came to be."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, timeout)


def serve(connection: Connection, tasks: Tasks, gate: Gate) -> None:
    """Answers a client until it is gone."""
    CONTAINED.set(True)
    serving = Serving(connection, tasks, gate)
    gate.reporter.add(serving)
    try:
        serving.run()
    except DataLossError as error:
        _warn(connection, error)
    except (OpError, OSError):
        pass  # The client is gone: nobody is there to be told.
    finally:
        gate.reporter.remove(serving)
        serving.close()


class Serving:
    """What a worker knows of one client."""

    def __init__(self, connection: Connection, tasks: Tasks, gate: Gate) -> None:
        self._connection = connection
        self._owner = tasks
        self._gate = gate
        self._tasks: dict[int, Task] = {}
        self._waiting: deque[ToWorker] = deque()
        self._taken: set[int] = set()
        """Requests that were let in."""
        self._cancelled: set[int] = set()
        self._lost = False
        self._thread = threading.get_ident()
        self._doing: int | None = None
        """The request that is answered; 0 while something else is done, None between messages."""
        self._said = 0
        """How many messages were sent."""
        self._reported: tuple[int | None, int] = (None, 0)
        self._ends = tasks.depot.runtime.poll()
        self._ends.register(connection, getattr(select, "POLLRDHUP", 0))

    def run(self) -> None:
        while True:
            while not self._waiting:
                self._receive()
            self._doing = 0
            self._handle(self._waiting.popleft())
            self._doing = None

    def report(self) -> None:
        """Tells the client what is done for it, unless something was sent since the last time.

        Another thread calls this; it never waits.
        """
        turn = (self._doing, self._said)
        if turn[0] is not None and turn == self._reported:
            with contextlib.suppress(OSError, ValueError):  # The connection has ended.
                self._connection.offer(Progress(turn[0], whereabouts(self._thread)))
        self._reported = turn

    def _receive(self) -> None:
        message, _ = self._connection.receive()
        match message:
            case Cancel(request):
                if request in self._taken:
                    self._cancelled.add(request)
            case Fetch(request):
                if request not in self._taken and self._gate.enter():
                    self._taken.add(request)
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
                    self._connection.send(self._answered(message))
                finally:
                    self._leave(request)

    def _leave(self, request: int) -> None:
        self._cancelled.discard(request)
        if request in self._taken:
            self._taken.discard(request)
            self._gate.leave()

    def _answered(self, fetch: Fetch) -> ToClient:
        """Sends what a fetch asks for; gives the last word about it."""
        try:
            task = self._checked(fetch)
            self._look()
            quit, horizon = partial(self._is_over, fetch.request), self._horizon(fetch)
            for part in task.fetch(fetch.start, fetch.stop, fetch.mark, horizon, quit):
                self._send(fetch.request, part, task.trail.began)
            length = None if quit() else task.length(fetch.stop)
            lengths = None if length is None else task.trail.lengths
            return Done(fetch.request, length, task.trail.began, task.trail.ended, lengths)
        except BaseException as error:
            # Users' functions raise whatever they like. If the client is gone, the next word fails.
            return to_impossible(fetch.request, error, self._owner.address)

    def _checked(self, fetch: Fetch) -> Task:
        if fetch.request not in self._taken:
            raise UnavailableError("distribute: this worker is about to stop; ask another one")
        task = self._tasks.get(fetch.task)
        if task is None or not 0 <= fetch.start <= fetch.stop:
            raise InvalidArgumentError(
                f"distribute: cannot fetch elements {fetch.start} to {fetch.stop} of task "
                f"{fetch.task}; open the task first, and ask for a range"
            )
        return task

    def _horizon(self, fetch: Fetch) -> int:
        """Up to where the requests behind this one go on with it."""
        horizon = fetch.stop
        for message in self._waiting:
            if isinstance(message, Fetch) and message.task == fetch.task:
                if message.start != horizon or message.request in self._cancelled:
                    break
                horizon = message.stop
        return horizon

    def _is_over(self, request: int) -> bool:
        """Whether nobody waits for a request any more."""
        self._look()
        # The end of a connection is no message, so that looking for those does not see it.
        return request in self._cancelled or self._lost or bool(self._ends.poll(0))

    def _look(self) -> None:
        """Takes in what has arrived, without waiting for anything."""
        try:
            while len(self._waiting) < _MOST_WAITING and self._connection.poll():
                self._receive()
        except (OpError, OSError) as error:
            # Whoever sends next is told.
            self._lost = True
            if isinstance(error, DataLossError):
                _warn(self._connection, error)

    def _send(self, request: int, part: Made | Missed, began: int | None) -> None:
        self._said += 1
        if isinstance(part, Made):
            rows = (part.start, with_places(part.chunk), part.mark, part.seconds, began)
            self._connection.send_rows(request, *rows)
        else:
            self._connection.send(to_failed(request, part.ordinal, part.fault, began, part.place))

    def _close_task(self, number: int, finished: bool = False) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.close(finished)

    def close(self) -> None:
        """Leaves everything that was taken on."""
        for number in list(self._tasks):
            self._close_task(number)
        for request in list(self._taken):
            self._leave(request)
        self._connection.close()


def _warn(connection: Connection, error: DataLossError) -> None:
    _LOG.warning("worker: %s: %s; the connection ends", connection.peer, error.message)
