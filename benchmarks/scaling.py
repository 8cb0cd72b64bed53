"""`scripts/bench scaling`: how workers follow a load that triples and falls again.

A program reads in steps: it takes an element and sleeps, as if it trained. The function of the
dataset sleeps as well, so two cores are enough for eight workers. A load of 1.6 means that workers
must make 1.6 elements at a time to keep up. The best fixed number of a load is the smallest with
which the program hardly waits; it is found by trying `local://1`, `local://2` and so on. With
`--ray`, the workers are actors of a Ray with three nodes on this machine, or of the Ray that
RAY_ADDRESS names.
"""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

ELEMENT_SECONDS = 0.2
"""How long a worker takes to make an element of 1 MB."""
LOADS = (1.6, 4.8, 1.6)
MOST = 8
WAIT = 0.02
"""The largest part of the time that the program may wait, after the workers were adapted."""
WORKER_SECONDS = 1.15
"""All phases together may take so many times the worker-seconds of the best fixed numbers."""


@dataclass
class Phase:
    """The record of one load; times are seconds since the phase began."""

    load: float
    seconds: float
    steps: list[tuple[float, float, float]] = field(default_factory=list)
    """When each step began, how long it waited for its element, and how long it took in all."""
    workers: list[tuple[float, int]] = field(default_factory=list)
    """How many workers there were, from a time on."""

    def wait(self, after: float = 0.0) -> float:
        """The part of the time that the program waited, in the steps that began later."""
        steps = [step for step in self.steps if step[0] >= after]
        return sum(step[1] for step in steps) / max(sum(step[2] for step in steps), 1e-9)

    @property
    def worker_seconds(self) -> float:
        ends = [at for at, _ in self.workers[1:]] + [self.seconds]
        counted = zip(self.workers, ends, strict=True)
        return sum(count * (end - at) for (at, count), end in counted)

    def history(self, places: int = 12) -> str:
        """The number of workers at as many times, from the first to the last second."""
        times = [self.seconds * place / (places - 1) for place in range(places)]
        return " ".join(str([n for at, n in self.workers if at <= now][-1]) for now in times)


def make_element(number: Any) -> Any:
    import numpy as np

    time.sleep(ELEMENT_SECONDS)
    return np.full((256, 1024), number, np.float32)


@contextmanager
def start_ray() -> Iterator[None]:
    """A Ray with three nodes on this machine, unless the environment names another one."""
    if "RAY_ADDRESS" in os.environ:
        yield
        return
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ.update(secret, RAY_TMPDIR=folder, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": MOST, "object_store_memory": 80 << 20}
        cluster = Cluster(
            initialize_head=True, head_node_args={**node, "include_dashboard": False}, connect=True
        )
        try:
            for _ in range(2):
                cluster.add_node(**node)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextmanager
def start_service(workers: str, on_ray: bool) -> Iterator[tuple[str, Callable[[], int]]]:
    """A service with so many workers: its address, and a function that counts the workers."""
    import penstock
    from penstock.data.experimental import service
    from penstock.launch import hosted_service

    if on_ray:
        with penstock.launch.ray("scaling", workers=workers, cpus=0.01, wait=60) as launched:
            yield launched.url, lambda: len(service.status(launched.url)["workers"])
        return
    try:
        yield (
            f"local://{workers}",
            lambda: sum(len(one.dispatcher.status()["workers"]) for one in hosted_service._RUNNING),
        )
    finally:
        hosted_service._close_all()


@contextmanager
def read_from(workers: str, on_ray: bool) -> Iterator[tuple[Callable[[], Any], Callable[[], int]]]:
    """Begins to read; returns a function for the next element, and one that counts the workers."""
    from penstock.data import Dataset
    from penstock.data.experimental import service

    numbers = Dataset.range(1 << 40).map(make_element)
    with (
        start_service(workers, on_ray) as (url, count_workers),
        iter(numbers.apply(service.distribute("parallel_epochs", url))) as iterator,
    ):
        next(iterator)
        yield lambda: next(iterator), count_workers


class Watch:
    """A thread that records how many workers there are, for the current phase."""

    def __init__(self, count_workers: Callable[[], int]) -> None:
        self._count = count_workers
        self._phase, self._started = Phase(0.0, 0.0), 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, phase: Phase) -> float:
        """Records into `phase` from now on; returns the time."""
        started = time.monotonic()
        phase.workers.append((0.0, self._count()))
        self._phase, self._started = phase, started
        return started

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            now, count = time.monotonic() - self._started, self._count()
            if self._phase.workers and now < self._phase.seconds:
                self._phase.workers.append((now, count))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def read_phases(workers: str, on_ray: bool, phases: list[Phase]) -> list[Phase]:
    """Reads with one load after the other."""
    with read_from(workers, on_ray) as (take, count_workers):
        watch = Watch(count_workers)
        for phase in phases:
            started = watch.begin(phase)
            while (began := time.monotonic() - started) < phase.seconds:
                take()
                waited = time.monotonic() - started - began
                time.sleep(ELEMENT_SECONDS / phase.load)
                phase.steps.append((began, waited, time.monotonic() - started - began))
        watch.close()
    return phases


def find_fixed(load: float, seconds: float, on_ray: bool) -> tuple[int, float]:
    """The best fixed number of workers for a load, and what the program waits with it."""
    for count in range(1, MOST + 1):
        # The first half starts the workers and empties or fills what the reader holds.
        [phase] = read_phases(str(count), on_ray, [Phase(load, seconds)])
        wait = phase.wait(seconds / 2)
        print(f"load {load:g}, {count} workers: input wait {wait:.1%}", flush=True)
        if wait < WAIT:
            break
    return count, wait


def table(phases: list[Phase], fixed: dict[float, tuple[int, float]], settle: float) -> str:
    """One line for each phase, and the sums."""
    lines = [
        f"{'load':>5} {'workers over time':24} {'input wait':>10} {f'after {settle:g} s':>10} "
        f"{'worker-seconds':>14} {'fixed':>6} {'ratio':>6}"
    ]
    for phase in phases:
        count = fixed[phase.load][0]
        lines.append(
            f"{phase.load:5g} {phase.history():24} {phase.wait():10.1%} {phase.wait(settle):10.1%} "
            f"{phase.worker_seconds:14.0f} {count:6} "
            f"{phase.worker_seconds / (count * phase.seconds):6.2f}"
        )
    return "\n".join(lines)


def compare_seconds(phases: list[Phase], fixed: dict[float, tuple[int, float]]) -> float:
    """The worker-seconds of all phases, as a ratio to those of the best fixed numbers."""
    best = sum(fixed[phase.load][0] * phase.seconds for phase in phases)
    return sum(phase.worker_seconds for phase in phases) / best


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--phase", type=float, default=60.0, help="seconds of each load (60)")
    parser.add_argument(
        "--settle", type=float, default=20.0, help="seconds that workers may take to follow (20)"
    )
    parser.add_argument(
        "--trial", type=float, default=20.0, help="seconds to try a fixed number for (20)"
    )
    parser.add_argument("--ray", action="store_true", help="workers are actors of Ray")


def run(chosen: argparse.Namespace) -> bool:
    """Measures and prints; returns whether the workers follow the load well enough."""
    with start_ray() if chosen.ray else nullcontext():
        return measure(chosen)


def measure(chosen: argparse.Namespace) -> bool:
    trial, on_ray = chosen.trial, chosen.ray
    fixed = {load: find_fixed(load, trial, on_ray) for load in dict.fromkeys(LOADS)}
    workers = f"1..{MOST}"
    phases = read_phases(workers, on_ray, [Phase(load, chosen.phase) for load in LOADS])
    ratio, worst = compare_seconds(phases, fixed), max(p.wait(chosen.settle) for p in phases)
    print(
        f"{workers} workers, {chosen.phase:g} s each", table(phases, fixed, chosen.settle), sep="\n"
    )
    print(f"worker-seconds: {ratio:.2f} times the best fixed numbers (at most {WORKER_SECONDS})")
    print(f"input wait after {chosen.settle:g} s: at most {worst:.1%} (less than {WAIT:.0%})")
    return ratio <= WORKER_SECONDS and worst < WAIT
