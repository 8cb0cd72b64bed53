"""Histories: from a seed, a service with its readers, and all that happens to it.

For a while things go wrong; then the network is well, a dispatcher and workers are there, and
everybody must come to an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from penstock.service.logic.dispatcher import Settings, check
from penstock.service.logic.reader import Limits
from penstock.service.protocol.messages import JobOptions
from tests.simulation.accounts import describe, recorded, settle
from tests.simulation.clients import DEAD, READING, Client, Job, Trainer
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import Violation, World
from tests.simulation.network import Network, Weather
from tests.simulation.plans import Dataset, dataset
from tests.simulation.workers import Worker

TROUBLE = 15.0
"""Seconds in which things go wrong."""

HEALED = 45.0
PATIENCE = 900.0
"""Seconds in which everybody must come to an end."""

CHECKED = 8
"""In one of so many histories the dispatcher is checked after every step."""


class HistoryFailedError(AssertionError):
    """A history that must not be, with its story."""


@dataclass
class Outcome:
    """What a history was made of."""

    steps: int
    answered: int
    seconds: float


def run(seed: int, story: bool = False) -> Outcome:
    """Lives through a history; raises HistoryFailedError with its story if it is a bad one."""
    history = History(seed)
    try:
        outcome = history.run()
    except Exception as error:
        raise HistoryFailedError(_told(history, error)) from error
    finally:
        history.world.close()
    if story:
        print(_told(history, None))
    return outcome


def _told(history: History, error: Exception | None) -> str:
    lines = [
        *history.world.story,
        "",
        *(describe(job) for job in history.jobs),
        *(f"{t.name}: {t.status}, {len(t.history)} elements, {t.errors}" for t in history.trainers),
        f"{history.dispatcher.settings}, keeps={history.dispatcher.keeps}",
        f"seed {history.seed}: {type(error).__name__}: {error}" if error else "all is well",
        f"again with: scripts/simulate --seed {history.seed}",
    ]
    return "\n".join(lines)


class History:
    """One service, from its start to its end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        random = self.world.random
        rough = random.choice((0.0, 0.0, 0.01, 0.05))
        self.weather = Weather(rough, rough, rough, rough * random.choice((0, 0.2, 1)))
        self.network = Network(self.world, self.weather)
        self.plans: dict[str, Dataset] = {}
        self.addresses = tuple(f"a{i}" for i in range(random.randint(1, 5)))
        self.fixed = random.random() < 0.15
        self.keeps = random.random() < 0.85
        self.jobs = [self._job(i) for i in range(random.choice((1, 1, 1, 2, 3)))]
        self.dispatcher = self._dispatcher()
        self.workers: list[Worker] = []
        self.trainers: list[Trainer] = []
        self._kept = random.choice((80, 1 << 20))
        for where in self.addresses[: random.randint(0 if random.random() < 0.1 else 1, 5)]:
            self._later(random.choice((0.0, 0.0, random.random())), where)
        for job in self.jobs:
            self._readers(job)
        self._plan_trouble()

    def _dispatcher(self) -> Dispatcher:
        random = self.world.random
        settings = Settings(
            worker_addresses=self.addresses if self.fixed else (),
            worker_timeout=random.choice((3.0, 10.0, 60.0)),
            lease_seconds=random.choice((3.0, 10.0)),
        )
        return Dispatcher(self.network, settings, self.keeps, self.seed % CHECKED == 0)

    # Who reads what

    def _job(self, number: int) -> Job:
        random = self.world.random
        named = self.keeps and random.random() < 0.65
        plan = dataset(random, f"plan{number}", random.choice(("random", "split", "single")))
        self.plans[plan.digest] = plan
        mode = random.choice((0, 1, 1, 1, 3)) if self.fixed else random.choice((0, 1, 1, 1))
        consumers = random.choice((0, 0, 1, 2, 3)) if named else 0
        options = JobOptions(
            mode,
            consumers,
            "AUTO",
            named and not consumers and random.random() < 0.25,
            mode == 1 and random.random() < 0.15,
        )
        limits = Limits(
            elements=random.choice((None, None, 1, 5, 40)),
            nbytes=random.choice((80, 400, 1 << 20)),
            request_rows=random.choice((1, 4, 16, 64)),
        )
        return Job(f"job{number}" if named else None, plan, options, random.random() < 0.8, limits)

    def _readers(self, job: Job) -> None:
        random, options = self.world.random, job.options
        groups = [f"g{i}" for i in range(random.randint(1, 3))] if options.cached else [""]
        for group in groups:
            count = options.consumers or (random.choice((1, 1, 2, 3)) if job.name else 1)
            enough = (
                random.randint(0, 150) if self._without_end(job) or random.random() < 0.1 else None
            )
            for reader in range(count):
                trainer = Trainer(
                    f"{job.name or job.plan.digest}.{group}{reader}",
                    job,
                    group,
                    reader if options.consumers else -1,
                    enough
                    if options.consumers or random.random() < 0.5
                    else self._share(job, enough),
                    random.choice((0.0, 0.01, 0.1)),
                    random.choice((0.0, 0.05, 0.3)),
                    bool(options.consumers) or random.random() < 0.7,
                )
                self._start(trainer, random.choice((0.0, 0.5, 5.0)) * random.random())

    def _without_end(self, job: Job) -> bool:
        return job.plan.endless

    def _share(self, job: Job, enough: int | None) -> int | None:
        return None if enough is None else self.world.random.randint(0, enough)

    def _start(self, trainer: Trainer, seconds: float) -> None:
        if trainer not in self.trainers:
            self.trainers.append(trainer)
        host = self.world.random.choice(("h0", "h1"))
        self.world.at(seconds, lambda: self._begin(trainer, host))

    def _begin(self, trainer: Trainer, host: str) -> None:
        if trainer.status == READING:
            Client(self.network, trainer, host, self._failed, partial(recorded, self.dispatcher))

    def _failed(self, trainer: Trainer) -> None:
        """A client came to a bad end, and somebody starts it again, or nobody does."""
        if trainer.returns:
            self._start(trainer, self.world.random.choice((0.1, 1.0, 12.0, 25.0)))
        else:
            trainer.status = DEAD

    # What goes wrong

    def _plan_trouble(self) -> None:
        random = self.world.random
        for _ in range(random.choice((0, 1, 2, 4, 8))):
            what = random.choice(
                (
                    *(self._kill_worker, self._kill_worker, self._lose_host, self._drain),
                    *(self._join, self._pause_worker, self._kill_dispatcher),
                    *(self._pause_dispatcher, self._kill_client, self._kill_client),
                    *(self._pause_client, self._cut, self._replace_client, self._compact),
                )
            )
            self.world.at(random.random() * random.choice((1.0, 4.0, TROUBLE)), what)
        self.world.at(HEALED, self._heal)

    def _heal(self) -> None:
        self.world.tell("from now on nothing goes wrong")
        self.weather.clear()
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
            self._failed(client.trainer)

    def _pause_client(self) -> None:
        client = self._some_client()
        if client is not None:
            client.pause(self.world.random.choice((1.0, 5.0, 20.0)))

    def _replace_client(self) -> None:
        """A client that only sleeps is taken for dead, and started again elsewhere."""
        client = self._some_client()
        if client is not None and client.trainer.saved is not None:
            client.pause(self.world.random.choice((5.0, 20.0)))
            client.trainer.returns = True
            self._start(client.trainer, 1.0)

    def _cut(self) -> None:
        worker = self._some_worker()
        if worker is not None and worker.connections:
            self.world.random.choice(worker.connections).cut()

    # The end

    def run(self) -> Outcome:
        self.world.run(PATIENCE, self._over)
        late = [trainer.name for trainer in self.trainers if trainer.status == READING]
        if late:
            raise Violation(f"{', '.join(late)} did not come to an end in {PATIENCE:g} s")
        if not self.dispatcher.process.alive:
            self.dispatcher.start()
        self.weather.clear()
        longest = 2 * self.dispatcher.settings.lease_seconds + 20.0
        self.world.run(self.world.now + longest, lambda: False)
        self.dispatcher.check_replay()
        check(self.dispatcher.state)
        settle(self.dispatcher, self.trainers)
        return Outcome(self.world.steps, self.dispatcher.answered, self.world.now)

    def _over(self) -> bool:
        return all(trainer.status != READING and not trainer.running for trainer in self.trainers)
