"""Trouble: the random faults in the first part of a history."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.service.logic.client import merge_states
from tests.simulation.clients import Client
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import World
from tests.simulation.network import DISPATCHER, Network, Weather
from tests.simulation.plans import Dataset
from tests.simulation.trainers import MERGED, READING, SavedState, Trainer
from tests.simulation.workers import Worker

TROUBLE = 15.0
"""Seconds in which faults happen."""

HEALED = 45.0

LYING = 0.1
"""The share of histories in which the dispatcher's disk loses confirmed facts."""


class Trouble:
    """The part of a history in which faults happen."""

    world: World
    network: Network
    weather: Weather
    dispatcher: Dispatcher
    plans: dict[str, Dataset]
    addresses: tuple[str, ...]
    fixed: bool
    workers: list[Worker]
    trainers: list[Trainer]
    clients: list[Client]
    _kept: int
    _calm: float

    def _start(self, trainer: Trainer, seconds: float) -> None:
        raise AssertionError("whoever has trouble says how a trainer starts")

    def _note_failure(self, trainer: Trainer) -> None:
        raise AssertionError("a subclass says what becomes of a trainer that failed")

    def _plan_trouble(self) -> None:
        random = self.world.random
        for _ in range(random.choice((0, 1, 2, 4, 8))):
            what = random.choice(
                (
                    *(self._kill_worker, self._kill_worker, self._lose_host, self._drain),
                    *(self._join, self._pause_worker, self._kill_dispatcher),
                    *(self._pause_dispatcher, self._kill_client, self._kill_client),
                    *(
                        self._pause_client,
                        self._cut,
                        self._sever,
                        self._replace_client,
                        self._compact,
                        self._merge,
                        self._lose_power,
                        self._fill_disk,
                        self._crowd_port,
                    ),
                )
            )
            when = random.random() * random.choice((1.0, 4.0, TROUBLE))
            self.world.at(when, partial(self._unless_calm, what))
        if random.random() < LYING:
            self.world.at(random.random() * TROUBLE, partial(self._unless_calm, self._lose_facts))
        self.world.at(HEALED, self._heal)

    def _unless_calm(self, what: Callable[[], None]) -> None:
        if self.world.now >= self._calm:
            what()

    def _heal(self) -> None:
        self.world.tell("from now on nothing goes wrong")
        self.weather.clear()
        self.dispatcher.failing, self.dispatcher.full_until = False, 0.0
        if not self.dispatcher.process.alive:
            self.dispatcher.start()
        for where in self.addresses[:2]:
            if not self._living(where):
                self._worker(where)

    def _living(self, where: str) -> list[Worker]:
        return [w for w in self.workers if w.alive and not w.draining and w.info.address == where]

    def _some_worker(self) -> Worker | None:
        living = [worker for worker in self.workers if worker.alive]
        return self.world.random.choice(living) if living else None

    def _worker(self, where: str) -> None:
        if not self._living(where):
            name = f"w{len(self.workers)}"
            host = self.world.random.choice(("h0", "h1"))
            self.workers.append(Worker(self.network, name, where, host, self.plans, self._kept))

    def _later(self, seconds: float, where: str) -> None:
        self.world.at(seconds, lambda: self._worker(where))

    def _elsewhere(self) -> str:
        """Where a worker may be started."""
        if self.fixed or self.world.random.random() < 0.5:
            return self.world.random.choice(self.addresses)
        return f"b{len(self.workers)}"

    def _kill_worker(self, silently: bool = False) -> None:
        worker = self._some_worker()
        if worker is None:
            return
        worker.crash(silently)
        match self.world.random.randrange(3):
            case 0:
                self._later(self.world.random.random() * 3, worker.info.address)
            case 1:
                self._later(self.world.random.random() * 20, self._elsewhere())

    def _lose_host(self) -> None:
        self._kill_worker(silently=True)

    def _drain(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.drain()

    def _join(self) -> None:
        self._worker(self._elsewhere())

    def _pause_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.pause(self.world.random.choice((1.0, 5.0, 20.0)))

    def _kill_dispatcher(self) -> None:
        if self.dispatcher.process.alive:
            self.dispatcher.crash()
            self.world.at(self.world.random.random() * 10, self._revive)

    def _revive(self) -> None:
        if not self.dispatcher.process.alive:
            self.dispatcher.start()

    def _lose_power(self) -> None:
        """The next facts of the dispatcher do not reach its disk."""
        if self.dispatcher.process.alive:
            self.dispatcher.failing = True
            self.world.at(5.0 + self.world.random.random() * 10, self._restore_power)

    def _restore_power(self) -> None:
        self.dispatcher.failing = False
        self._revive()

    def _fill_disk(self) -> None:
        self.dispatcher.full_until = self.world.now + self.world.random.choice((1.0, 5.0, 20.0))

    def _lose_facts(self) -> None:
        """The dispatcher's disk loses facts. Readers that have ended do not report theirs again."""
        # Consumers would wait for a consumer that has ended, and that the dispatcher forgot.
        coordinated = any(trainer.job.options.consumers for trainer in self.trainers)
        if coordinated or not self.dispatcher.process.alive or not self.dispatcher.keeps:
            return
        self.dispatcher.lose_facts()
        self.world.at(self.world.random.random() * 10, self._revive_without_facts)

    def _revive_without_facts(self) -> None:
        self._revive()
        for trainer in self.trainers:
            trainer.outlived = True
            if not trainer.running:
                trainer.doubtful |= set(trainer.history)
                trainer.untold = True

    def _pause_dispatcher(self) -> None:
        self.dispatcher.process.pause(self.world.random.choice((1.0, 5.0, 20.0)))

    def _compact(self) -> None:
        if self.dispatcher.process.alive:
            self.dispatcher.compact()

    def _some_client(self) -> Client | None:
        running = [t.client for t in self.trainers if t.client is not None and t.client.alive]
        return self.world.random.choice(running) if running else None

    def _kill_client(self) -> None:
        client = self._some_client()
        if client is not None:
            client.crash()
            self._note_failure(client.trainer)

    def _pause_client(self) -> None:
        client = self._some_client()
        if client is not None:
            client.pause(self.world.random.choice((1.0, 5.0, 20.0)))

    def _replace_client(self) -> None:
        """A client that is only suspended counts as dead, and is started again on another host."""
        client = self._some_client()
        if client is not None and client.trainer.saved is not None and client.stream is not None:
            client.pause(self.world.random.choice((5.0, 20.0)))
            client.trainer.returns = True
            self._start(client.trainer, 1.0)

    def _merge(self) -> None:
        """All readers of a group stop; more or fewer new readers resume from their states."""
        random = self.world.random
        groups: dict[tuple[str, int, str], list[Trainer]] = {}
        for trainer in self.trainers:
            job = trainer.job
            if job.name is not None and not job.options.consumers and trainer.status == READING:
                groups.setdefault((job.name, job.repetition, trainer.group), []).append(trainer)
        ready = [g for g in groups.values() if all(t.saved and not t.merged for t in g)]
        process = self.dispatcher.process
        if ready and process.alive and process.paused_until <= self.world.now:
            self._replace_all(random.choice(ready))

    def _replace_all(self, old: list[Trainer]) -> None:
        random = self.world.random
        saved = [trainer.saved for trainer in old if trainer.saved is not None]
        history = {value for one in saved for value in one.history}
        merged = SavedState(merge_states([one.state for one in saved]), tuple(history))
        self.world.tell("merged:", [trainer.name for trainer in old])
        # Wait until all have started: a late reader looks like a reader that returns.
        self.weather.clear()
        self._calm = self.world.now + 6.0
        for trainer in old:
            trainer.status = MERGED
        for client in self.clients:
            if client.trainer in old and client.alive:
                client.crash()
        for number in range(random.randint(1, 3)):
            first = old[0]
            more = first.another(f"{first.name}m{number}", first.job, merged)
            self._start(more, random.random() * 2)

    def _crowd_port(self) -> None:
        """Foreign connections flood a port: new ones often fail, existing ones continue."""
        where = self.world.random.choice((DISPATCHER, *self.network.listeners))
        seconds = self.world.random.choice((1.0, 5.0, 20.0))
        self.world.tell(f"strangers crowd the port of {where} for {seconds:g} s")
        self.weather.crowds[where] = self.world.now + seconds

    def _sever(self) -> None:
        """A client and a worker cannot reach each other, in one or both directions."""
        client, worker, random = self._some_client(), self._some_worker(), self.world.random
        if client is None or worker is None:
            return
        ways = [(client.name, worker.name), (worker.name, client.name)]
        seconds = random.choice((1.0, 5.0, 20.0))
        for way in random.sample(ways, random.choice((1, 2, 2))):
            self.network.sever(*way, seconds)

    def _cut(self) -> None:
        worker = self._some_worker()
        if worker is not None and worker.connections:
            self.world.random.choice(worker.connections).cut()
