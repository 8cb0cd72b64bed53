"""Histories: from a seed, a service with its readers, and all that happens to it.

For a while there are faults. Then the network is sound, a dispatcher and workers run, and every
reader must end.
"""

from __future__ import annotations

import logging
import math
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

from penstock.service.host import moves, worker_streams
from penstock.service.logic.feeds import Limits
from penstock.service.logic.state import Settings
from penstock.service.protocol import timing
from penstock.service.protocol.messages import JobOptions
from tests.service.logic.invariants import check
from tests.simulation.accounts import describe, settle
from tests.simulation.clients import Client
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import Process, Violation, World
from tests.simulation.network import Network, Weather
from tests.simulation.plans import Dataset, dataset
from tests.simulation.trainers import DEAD, ENDED, READING, Job, Trainer
from tests.simulation.trouble import TROUBLE, Trouble
from tests.simulation.workers import Worker

PATIENCE = 900.0
"""Seconds in which all clients must end."""

ENOUGH = 60.0
"""Seconds of CPU time after which a history counts as endless; few need even one second."""

CHECKED = 8
"""In one of so many histories, the dispatcher's state is checked after every step."""


class HistoryFailedError(AssertionError):
    """A history that broke a rule, with its story."""


@dataclass
class Outcome:
    """How much happened in a history."""

    steps: int
    answered: int
    seconds: float


def run(seed: int, story: bool = False, kind: str = "") -> Outcome:
    """Runs one history; raises HistoryFailedError with its story if it breaks a rule.

    `kind`: one of `KINDS`.
    """
    history = KINDS[kind](seed)
    try:
        with _set_intervals(seed), _limit_work(history.world):
            outcome = history.run()
    except Exception as error:
        raise HistoryFailedError(_describe_history(history, error)) from error
    finally:
        history.close()
    if story:
        print(_describe_history(history, None))
    return outcome


@contextmanager
def _set_intervals(seed: int) -> Iterator[None]:
    """Lets short streams have marks, and turns the reports of waiting clients off.

    In one of four histories intervals are as long as with thousands of clients.
    """
    log = logging.getLogger("penstock.service")
    disabled, log.disabled = log.disabled, True
    scale = 1e-3 if seed % 4 == 3 else 1.0
    try:
        with (
            patch.object(worker_streams, "_MARK_FRAMES", 3),
            patch.object(moves, "PART", 8 << 10),
            patch.object(timing, "HEARTBEATS", scale * timing.HEARTBEATS),
            patch.object(timing, "LEASES", scale * timing.LEASES),
        ):
            yield
    finally:
        log.disabled = disabled


@contextmanager
def _limit_work(world: World) -> Iterator[None]:
    """Ends a history in which a thread works without end, and names it."""

    def enough(_: int, frame: object) -> None:
        where = "".join(traceback.format_stack(frame, limit=10))  # type: ignore[arg-type]
        world.report_violation(f"it has not ended after {ENOUGH:g} s of work:\n{where}")

    before = signal.signal(signal.SIGVTALRM, enough)
    # Again and again: the thread may ignore exceptions.
    signal.setitimer(signal.ITIMER_VIRTUAL, ENOUGH, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def run_many(seeds: range, kind: str = "") -> tuple[int, int, list[str]]:
    """Runs several histories; returns how many, their requests, and the failures."""
    answered, stories = 0, []
    with suppress(KeyboardInterrupt):
        for seed in seeds:
            try:
                answered += run(seed, kind=kind).answered
            except HistoryFailedError as error:
                stories.append("\n".join(str(error).splitlines()[-60:]))
    return len(seeds), answered, stories


def _describe_history(history: History, error: Exception | None) -> str:
    lines = [
        *history.world.story,
        "",
        *(describe(job) for job in history.jobs),
        *(f"{t.name}: {t.status}, {len(t.history)} elements, {t.errors}" for t in history.trainers),
        f"{history.dispatcher.settings}, keeps={history.dispatcher.keeps}",
        f"seed {history.seed}: {type(error).__name__}: {error}" if error else "all is well",
        f"again with: scripts/simulate --seed {history.seed}{history.option}",
    ]
    return "\n".join(lines)


class History(Trouble):
    """One service, from its start to its end."""

    option = ""
    """The arguments with which `scripts/simulate` runs a history of this class."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        random = self.world.random
        self.world.shaky = random.choice((0.0, 0.0, 0.0, 0.05))
        rough = random.choice((0.0, 0.0, 0.01, 0.05))
        cut, damage = (rough * random.choice((0, 0.2, 1)) for _ in range(2))
        self.weather = Weather(rough, rough, rough, cut, damage)
        self.network = Network(self.world, self.weather)
        self.plans: dict[str, Dataset] = {}
        self.addresses = tuple(f"a{i}" for i in range(random.randint(1, 5)))
        self.fixed = random.random() < 0.15
        self.keeps = random.random() < 0.85
        self.jobs = [self._job(i) for i in range(random.choice((1, 1, 1, 2, 3)))]
        self.dispatcher = self._dispatcher()
        self.workers: list[Worker] = []
        self.trainers: list[Trainer] = []
        self.clients: list[Client] = []
        self._calm = 0.0
        self._kept = random.choice((80, 1 << 20))
        for where in self.addresses[: random.randint(0 if random.random() < 0.1 else 1, 5)]:
            self._later(random.choice((0.0, 0.0, random.random())), where)
        for job in self.jobs:
            self._readers(job)
        self._plan_trouble()
        Process(self.world, "users").spawn(self._start_next)

    def _start_next(self) -> None:
        """Starts the next iteration of each trainer that has ended one."""
        while True:
            self.world.wait(0.5)
            for trainer in [t for t in self.trainers if t.status == ENDED and t.then]:
                then, trainer.then = trainer.then, None
                if then is not None:
                    self._start(then, 0.0)

    def _dispatcher(self) -> Dispatcher:
        random = self.world.random
        settings = Settings(
            worker_addresses=self.addresses if self.fixed else (),
            worker_timeout=random.choice((3.0, 10.0, 60.0)),
            lease_seconds=random.choice((3.0, 10.0)),
        )
        return Dispatcher(self.network, settings, self.keeps, self.seed % CHECKED == 0)

    # The readers and their plans

    def _job(self, number: int) -> Job:
        random = self.world.random
        named = self.keeps and random.random() < 0.65
        plan = dataset(random, f"plan{number}", random.choice(("random", "split", "single")))
        if len(self.addresses) > 1 and random.random() < 0.15:
            plan = replace(plan, absent=random.choice(self.addresses))
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
            nbytes=random.choice((80, 400, 8 << 10)),
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
            twice = job.name is not None and enough is None and random.random() < 0.15
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
                    random.random() < 0.3,
                )
                if twice:
                    again = replace(job, repetition=1)
                    trainer.then = trainer.another(f"{trainer.name}+", again)
                self._start(trainer, random.choice((0.0, 0.5, 5.0)) * random.random())

    def _without_end(self, job: Job) -> bool:
        return job.plan.endless

    def _share(self, job: Job, enough: int | None) -> int | None:
        return None if enough is None else self.world.random.randint(0, enough)

    def _start(self, trainer: Trainer, seconds: float) -> None:
        if trainer not in self.trainers:
            self.trainers.append(trainer)
        host = self.world.random.choice(("h0", "h1"))
        trainer.starts += 1
        self.world.at(seconds, partial(self._begin, trainer, host, trainer.starts))

    def _begin(self, trainer: Trainer, host: str, number: int) -> None:
        """Starts a client unless a later start is planned: two clients would replace each other."""
        if trainer.status == READING and number == trainer.starts:
            self.clients.append(Client(self.network, trainer, host, self._note_failure))

    def _note_failure(self, trainer: Trainer) -> None:
        """Starts the client of a trainer again, if the trainer returns."""
        if trainer.returns:
            self._start(trainer, self.world.random.choice((0.1, 1.0, 12.0, 25.0)))
        else:
            trainer.status = DEAD

    # The end

    def run(self) -> Outcome:
        self.world.run(PATIENCE, self._over)
        late = [trainer.name for trainer in self.trainers if trainer.status == READING]
        if late:
            raise Violation(f"{', '.join(late)} did not come to an end in {PATIENCE:g} s")
        if not self.dispatcher.process.alive:
            self.dispatcher.start()
        self.weather.clear()
        self._calm = math.inf
        for client in self.clients:
            client.kill()
        longest = 2 * self.dispatcher.settings.lease_seconds + 20.0
        awake = max(p.paused_until for p in (self.dispatcher.process, *self.workers))
        self.world.run(max(self.world.now, awake) + longest, lambda: False)
        for worker in self.workers:
            if worker.alive:
                worker.check_idle()
        self.dispatcher.check_replay()
        check(self.dispatcher.state)
        settle(self.dispatcher, self.trainers)
        return Outcome(self.world.steps, self.dispatcher.answered, self.world.now)

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        self.world.close()

    def _over(self) -> bool:
        return not any(
            trainer.status == READING
            or trainer.running
            or (trainer.status == ENDED and trainer.then)
            for trainer in self.trainers
        )


class JoiningHistory(History):
    """A history in which many workers join coordinated reads."""

    option = " --joining"

    def _job(self, number: int) -> Job:
        random, job = self.world.random, super()._job(number)
        self.fixed, self.keeps = False, True
        options = JobOptions(0, random.choice((1, 2, 2, 3)))
        return replace(job, name=f"job{number}", options=options)

    def _plan_trouble(self) -> None:
        super()._plan_trouble()
        random = self.world.random
        for _ in range(random.choice((1, 2, 4))):
            self._later(random.random() * random.choice((1.0, 4.0, TROUBLE)), f"c{random.random()}")


class LeavingHistory(History):
    """A history in which workers with large states leave, and other processes fail meanwhile."""

    option = " --leaving"

    def _job(self, number: int) -> Job:
        random, job = self.world.random, super()._job(number)
        plan = dataset(random, job.plan.digest, random.choice(("single", "single", "split")), 300)
        plan = replace(plan, holds=False, buffers=True, seconds=random.choice((0.001, 0.01, 0.05)))
        self.plans[plan.digest] = plan
        return replace(job, plan=plan)

    def _plan_trouble(self) -> None:
        super()._plan_trouble()
        random = self.world.random
        for _ in range(random.choice((1, 2, 4))):
            self._later(random.random(), self._elsewhere())
        for _ in range(random.choice((1, 2, 4, 8))):
            when = random.random() * random.choice((1.0, 4.0, TROUBLE))
            self.world.at(when, partial(self._unless_calm, self._leave))

    def _leave(self) -> None:
        """A worker leaves, another one comes, and perhaps something fails while a state moves."""
        random = self.world.random
        self._drain()
        self._later(random.random() * 2, self._elsewhere())
        if random.random() < 0.5:
            what = random.choice((self._kill_worker, self._lose_host, self._cut, self._drain))
            self.world.at(random.random() * 0.3, partial(self._unless_calm, what))


KINDS = {"": History, "joining": JoiningHistory, "leaving": LeavingHistory}
"""Classes of histories, by the names of their options."""
