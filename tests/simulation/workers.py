"""Workers: processes that register, send heartbeats, keep elements, drain and crash.

All of it is the real code, except for the engine, the connections and the clock.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.errors import UnavailableError
from penstock.service.host.worker_server import RunningWorker
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Reply, Request, Work, WorkerInfo
from tests.simulation.endpoints import Endpoint, Peer
from tests.simulation.machines import Machine
from tests.simulation.makers import Making, NumberTasks
from tests.simulation.network import Network
from tests.simulation.plans import Dataset

_DRAIN = 10.0


class Worker(Peer):
    """A worker process, from its registration to its end."""

    def __init__(
        self,
        network: Network,
        name: str,
        where: str,
        host: str,
        plans: dict[str, Dataset],
        kept: int,
    ) -> None:
        super().__init__(network, name)
        self.info = WorkerInfo(name, where, host, {"tcp": where})
        self.draining = False
        self._late_pulls = 0
        machine = Machine(self)
        running = self.running = RunningWorker(machine.event(), runtime=machine)  # type: ignore[arg-type]
        running.control = running.listener = self  # type: ignore[assignment]
        running.info = self.info
        self.tasks = running.tasks = NumberTasks(
            self.world, plans, where, kept, machine, self._connect
        )
        network.listeners[where] = self
        self.world.tell(f"{name} starts at {where}")
        self.spawn(self._live)

    def call(self, request: Request, timeout: float | None = None) -> Reply:
        """Sends a request to the dispatcher, as the real worker does."""
        return self.network.call(request, 30.0 if timeout is None else timeout)

    def close(self) -> None:
        """Does nothing: here are no control connection and no listener to close."""

    def _connect(self, info: WorkerInfo, work: Work) -> Endpoint:
        return self.network.connect(self, info.transfers["tcp"])

    def accept(self, end: Endpoint) -> None:
        self.spawn(lambda: self.running.serve(end))  # type: ignore[arg-type]

    def _live(self) -> None:
        registered = False
        while not registered:
            with suppress(UnavailableError):
                self.running.register()
                registered = True
        self.running.start_heartbeats()

    def crash(self, silently: bool = False) -> None:
        """Kills it. `silently`: its host crashes as well, so that its peers get no signal."""
        self.world.tell(f"{self.name} dies{' silently' * silently}")
        self.kill(silently)
        if self.network.listeners.get(self.info.address) is self:
            del self.network.listeners[self.info.address]

    def check_idle(self) -> None:
        """Checks that without readers the worker keeps nothing."""
        self.tasks.check_idle()
        if inside := self.running._gate._inside:
            self.world.report_violation(
                f"{self.name} thinks that it has {inside} fetches to answer"
            )

    def _note_late_pull(self, making: Making) -> None:
        """Counts elements that are begun while it leaves, except those of streams that move."""
        gate = self.running._gate
        moves = (m for stream, m in gate._moves.items() if stream.plan is making)  # type: ignore[comparison-overlap]
        move = next(moves, None)
        if move is not None and move.mark is not None:
            self.world.report_violation(
                f"{self.name} makes more of a stream that it has handed over"
            )
        is_early = self.tasks.pool.runtime.now() < gate._until + timing.SWITCH
        self._late_pulls += not (is_early and move is not None and move.is_pending)

    def drain(self) -> None:
        """Finishes what it is making, hands back the rest, says goodbye and ends."""
        self.world.tell(f"{self.name} drains")
        self.draining = True
        self.spawn(self._leave)

    def _leave(self) -> None:
        self.running._gate.close(_DRAIN)  # Elements that it begins before this do not count.
        readers = len(self.connections)
        self.tasks.note_pull = self._note_late_pull
        self.running.drain(_DRAIN)
        # One thread for each reader may be about to begin an element.
        if self._late_pulls > readers:
            self.world.report_violation(
                f"{self.name} works on for {readers} readers, though it leaves"
            )
        self.running.stop()
        self.crash()
