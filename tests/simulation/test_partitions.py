"""Partial partitions: a reader and one of two workers cannot connect; all other processes can."""

import logging

import pytest

from penstock.plan.shape import Shape
from penstock.service.logic.feeds import Limits
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import JobOptions
from tests.simulation.clients import Client
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import World
from tests.simulation.network import Network, Weather
from tests.simulation.plans import Dataset
from tests.simulation.trainers import ENDED, Job, Trainer
from tests.simulation.workers import Worker

TIMEOUT = 10.0
CUT = 5.0
"""When the connection is cut: in the middle of reading."""

FORMS = {
    "random": Dataset("plan", Shape("random", 1, 600), (600,), 0.05),
    "single": Dataset("plan", Shape("single", 1), (600,), 0.05),
    "split": Dataset("plan", Shape("split", 6), (100,), 0.05),
}


class Scene:
    """A dispatcher, two workers and a reader, all well."""

    def __init__(self, plan: Dataset) -> None:
        self.world = World(7)
        self.network = Network(self.world, Weather())
        self.dispatcher = Dispatcher(self.network, Settings(worker_timeout=TIMEOUT))
        plans = {plan.digest: plan}
        self.workers = [
            Worker(self.network, f"w{i}", f"a{i}", "h0", plans, 1 << 20) for i in range(2)
        ]
        job = Job(None, plan, JobOptions(1), True, Limits())
        self.trainer = Trainer("reader", job, saves=0.0, returns=False)
        self.times: list[float] = []
        self.client = Client(self.network, self.trainer, "h1", lambda _: None)

    def run(self, until: float) -> None:
        """Lets time pass; notes when elements are handed out."""
        while self.world.now < until and self.trainer.status != ENDED:
            before = len(self.trainer.history)
            self.world.run(self.world.now + 0.1, lambda: self.trainer.status == ENDED)
            self.times += [self.world.now] * (len(self.trainer.history) - before)

    def close(self) -> None:
        self.client.kill()
        self.world.close()

    @property
    def longest_wait(self) -> float:
        return max(b - a for a, b in zip([0.0, *self.times], self.times, strict=False))

    def busy(self) -> Worker:
        """The worker that makes the element that is read next."""
        stream = self.client.stream
        assert stream is not None
        owed = stream._reading.fetcher.owed_next()
        return next(w for w in self.workers if owed is not None and w.name == owed.worker)


WAYS = [("client", "worker"), ("worker", "client")]


@pytest.mark.parametrize("ways", [WAYS, WAYS[:1], WAYS[1:]], ids=["both", "requests", "answers"])
@pytest.mark.parametrize("form", FORMS)
def test_another_worker_is_asked_within_the_worker_timeout(
    form: str, ways: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(FORMS[form])
    scene.run(CUT)
    worker = scene.busy()
    names = {"client": scene.client.name, "worker": worker.name}
    for one, other in ways:
        scene.network.sever(names[one], names[other], 1000.0)
    with caplog.at_level(logging.WARNING):
        scene.run(400.0)
    scene.close()
    assert scene.trainer.status == ENDED, scene.trainer.errors
    assert len(scene.trainer.history) == len(set(scene.trainer.history)) == 600
    assert scene.longest_wait <= TIMEOUT
    assert f"{worker.name}: it has said nothing for" in caplog.text
    assert worker.alive


def test_a_worker_that_can_be_reached_again_is_used_again() -> None:
    scene = Scene(Dataset("plan", Shape("random", 1, 2000), (2000,), 0.05))
    scene.run(CUT)
    worker = scene.busy()
    scene.network.sever(scene.client.name, worker.name, 15.0)
    scene.run(CUT + 14.0)
    assert scene.client.stream is not None
    reader = scene.client.stream._reading.fetcher
    assert worker.name not in reader.workers
    scene.run(CUT + 30.0)
    assert worker.name in reader.workers
    scene.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_function_that_takes_minutes_is_left_alone(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = FORMS[form]
    slow = Dataset(plan.digest, Shape(plan.shape.kind, 1, 3), (3,), 200.0)
    scene = Scene(slow)
    with caplog.at_level(logging.WARNING):
        scene.run(2000.0)
    scene.close()
    assert scene.trainer.status == ENDED, scene.trainer.errors
    assert sorted(scene.trainer.history) == [0, 1, 2]
    assert scene.world.now < 700.0
    assert "said nothing" not in caplog.text
    assert "waiting for 10 s for element 0 (" in caplog.text
    assert caplog.text.count("waiting for") < 25, "it does not say so all the time"
