"""A worker that joins a coordinated read is used, even if a process is killed at that moment."""

from typing import Any

import pytest

from penstock.plan.shape import Shape
from penstock.service.logic.feeds import Limits
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import JobOptions, Work
from tests.effort import times
from tests.simulation.accounts import settle
from tests.simulation.clients import Client
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import World
from tests.simulation.network import Network, Weather
from tests.simulation.plans import FOREVER, Dataset, address
from tests.simulation.trainers import LEFT, Job, Trainer
from tests.simulation.workers import Worker

PLAN = Dataset("plan", Shape("single", 1, -1), (FOREVER,), 0.01)
JOIN = 3.0
ENOUGH = 200


class Scene:
    """Two consumers read from two workers; a third joins at JOIN."""

    def __init__(self, seed: int, keeps: bool = True) -> None:
        self.world = World(seed)
        self.network = Network(self.world, Weather())
        settings = Settings(worker_timeout=3.0, lease_seconds=3.0)
        self.dispatcher = Dispatcher(self.network, settings, keeps)
        self.opened: dict[int, set[str]] = {}
        """The workers that made a stream."""
        self.workers = [self.worker(i) for i in range(2)]
        job = Job("job", PLAN, JobOptions(0, 2), True, Limits())
        self.trainers = [
            Trainer(f"reader{i}", job, consumer=i, enough=ENOUGH, think=0.05) for i in range(2)
        ]
        self.clients = [self.start(trainer) for trainer in self.trainers]
        self.world.at(JOIN, lambda: self.workers.append(self.worker(2)))

    def worker(self, number: int) -> Worker:
        name, kept = f"w{number}", 1 << 20
        worker = Worker(self.network, name, f"a{number}", "h0", {"plan": PLAN}, kept)
        make = worker.tasks.open

        def open_task(work: Work) -> Any:
            self.opened.setdefault(work.stream, set()).add(name)
            return make(work)

        worker.tasks.open = open_task  # type: ignore[method-assign]
        return worker

    def start(self, trainer: Trainer) -> Client:
        client = Client(self.network, trainer, "h1", lambda _: None)
        self.clients = [*getattr(self, "clients", ()), client]
        return client

    def kill(self, victim: str) -> None:
        match victim:
            case "a consumer":
                self.clients[0].crash()
                self.world.at(0.3, lambda: self.start(self.trainers[0]))
            case "an old worker":
                self.workers[0].crash()
            case "the dispatcher":
                self.dispatcher.crash()
                self.world.at(0.3, self.dispatcher.start)

    def run(self) -> list[list[int]]:
        """What the consumers got, as the numbers of the streams."""
        self.world.run(100.0, lambda: all(t.status == LEFT for t in self.trainers))
        for client in self.clients:
            client.kill()
        self.world.run(self.world.now + 20.0, lambda: False)
        settle(self.dispatcher, self.trainers)
        made = [[address(value)[0] for value in trainer.history] for trainer in self.trainers]
        self.world.close()
        return made


@pytest.mark.parametrize("victim", ["nobody", "a consumer", "an old worker", "the dispatcher"])
def test_a_worker_that_joins_is_used(victim: str) -> None:
    for seed in range(times(3)):
        check_use(Scene(seed), victim, JOIN + 0.4 * seed)


def test_a_dispatcher_without_a_journal_learns_what_was_agreed_on() -> None:
    for seed in range(times(3)):
        check_use(Scene(seed, keeps=False), "the dispatcher", JOIN + 1.2 + 0.3 * (seed % 8))


def check_use(scene: Scene, victim: str, when: float) -> None:
    """The third stream is used soon, and from then on in every lap."""
    scene.world.at(when, lambda: scene.kill(victim))
    first, second = scene.run()
    assert first == second
    assert len(first) == ENOUGH
    begin = first.index(2)
    assert begin < ENOUGH * 3 // 4
    assert first[begin::3] == [2] * len(first[begin::3])
    assert "w2" in scene.opened[2]
