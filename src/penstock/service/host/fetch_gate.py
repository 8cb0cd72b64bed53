"""`FetchGate`: what all connections of a worker share: which fetches it accepts, and what moves.

A worker that leaves closes the gate. From then on it accepts only fetches of streams whose states
are on their way to other workers, and it ends when the last fetch and the last move have ended.
"""

from __future__ import annotations

from typing import Protocol

from penstock.service.host.moves import ConnectTo, Move
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.tasks import Task
from penstock.service.host.worker_streams import WorkerStream
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Work, WorkerInfo


class Reporting(Protocol):
    """Has a `report` to send, at regular intervals, and requests to hand back."""

    def report(self) -> None: ...

    def hand_back(self) -> None: ...

    def begin_moves(self) -> None: ...

    def give_up(self, before: float) -> None: ...


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

    @property
    def servers(self) -> tuple[Reporting, ...]:
        with self._changed:
            return tuple(self._servers)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(timing.PROGRESS)
                if not self._servers:
                    self._runs = False
                    return
                servers = tuple(self._servers)
            for server in servers:
                server.report()


class FetchGate:
    """Shared by all connections: counts accepted fetches, and accepts no more while draining."""

    def __init__(self, runtime: Runtime = MACHINE) -> None:
        self.reporter = ProgressReporter(runtime)
        self._runtime = runtime
        self._changed = runtime.condition()
        """Guards the fields below."""
        self._inside = 0
        """Fetches, moves, and what `close` has begun."""
        self.draining = False
        self._moves: dict[WorkerStream, Move] = {}
        self._until = 0.0
        """When moves are given up."""

    def enter(self, is_moving: bool = False) -> bool:
        """Counts one more fetch; returns False if it is not accepted.

        `is_moving`: of a stream whose state is on its way to another worker.
        """
        with self._changed:
            accepts = is_moving or not self.draining
            self._inside += accepts
            return accepts

    def leave(self) -> None:
        """Ends an accepted fetch."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def find_move(self, task: Task) -> Move | None:
        """The move of the stream of a task, if there is one."""
        stream = task.moving_stream
        return None if stream is None else self._moves.get(stream)

    def move(self, stream: WorkerStream, work: Work, successor: WorkerInfo, to: ConnectTo) -> None:
        """Begins to move the state of a stream to another worker, unless that has begun."""
        with self._changed:
            if stream in self._moves:
                return
            move = Move(stream, work, successor, to, self._runtime, self._until)
            self._moves[stream] = move
            self._inside += 1

        def run() -> None:
            try:
                move.run()
                for server in self.reporter.servers:
                    server.hand_back()  # Clients that wait for nothing learn of it, too.
            finally:
                self.leave()

        self._runtime.start(run, "penstock-move")

    def close(self, seconds: float | None = None) -> None:
        """Accepts no more fetches, and hands back the accepted ones that were not begun.

        `seconds`: the grace period of the worker.
        """
        with self._changed:
            starts, self.draining = not self.draining, True
            if starts:
                grace = timing.DRAIN if seconds is None else seconds
                self._until = self._runtime.now() + timing.MOVE * grace
                self._inside += 1
        if starts:
            self._runtime.start(self._hand_back, "penstock-hand-back")

    def _hand_back(self) -> None:
        """Repeats it until all fetches have ended: some may still be on their way."""
        try:
            servers = self.reporter.servers
            for server in servers:
                server.begin_moves()
            for server in servers:
                server.hand_back()
        finally:
            self.leave()
        while not self.wait(timing.HAND_BACK):
            now = self._runtime.now()
            for server in self.reporter.servers:
                server.hand_back()
                if now > self._until:
                    server.give_up(now - timing.SWITCH)

    def wait(self, timeout: float | None) -> bool:
        """Blocks until every accepted fetch has ended; returns False after `timeout`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, timeout)
