"""The programs of penstock's data service, whose servers are processes of their own.

Servers are started when first needed, and run until this process's group is killed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.peers import elements
from benchmarks.peers.elements import UnderWay, busy
from benchmarks.peers.serve import Program
from benchmarks.service import CONSUMERS, WORKERS
from penstock.data import Dataset
from penstock.data.experimental import service

NAP = 0.020
BOUNDS = (16, 32, 64, 128, 256)
LONGEST = 512
ROWS = 16
STEP_SECONDS_PER_TOKEN = 5e-5

_SERVERS: list[subprocess.Popen[str]] = []


def start_server(*words: str) -> str:
    """Starts a command of penstock, and returns its first line of output."""
    command = [sys.executable, "-m", "penstock", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    _SERVERS.append(process)
    return process.stdout.readline()


def dispatcher(*options: str) -> str:
    return start_server("dispatcher", *options).split()[3].rstrip(";")


@cache
def running(workers: int = 1) -> str:
    """The address of a dispatcher with so many workers."""
    target = dispatcher()
    begun = len(_SERVERS)
    for _ in range(workers):
        command = [sys.executable, "-m", "penstock", "worker", "--dispatcher", target]
        _SERVERS.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for process in _SERVERS[begun:]:
        assert process.stdout is not None
        process.stdout.readline()
    return target


def transfer(name: str, n: int) -> Iterable[Any]:
    way = name.rpartition("_")[2]
    dataset = Dataset.from_tensors(elements.PROGRAMS[name]()).repeat()
    remote = service.distribute("parallel_epochs", running(), data_transfer_protocol=way)
    return UnderWay(dataset.apply(remote), n)


def function(where: str | None, n: int) -> Iterable[Any]:
    # The first batches are read before the clock starts, because processes must start first.
    dataset = Dataset.range(n + 32).map(busy).batch(16)
    if where is not None:
        dataset = dataset.apply(service.distribute("distributed_epoch", where))
    return UnderWay(dataset, n // 16, ahead=2)


def nap(number: Any) -> Any:
    time.sleep(NAP)
    return np.ones(1, int)


def sleeping(workers: int, n: int) -> Iterable[Any]:
    dataset = Dataset.range(n + 2 * workers).map(nap)
    remote = service.distribute("distributed_epoch", running(workers))
    return UnderWay(dataset.apply(remote), n, ahead=2 * workers)


def bucket(tokens: Any) -> int:
    return int(np.searchsorted(BOUNDS, tokens.shape[-1]))


def lengths() -> Any:
    """Batches of 16 lists of tokens of about one length, padded; endless."""
    drawn = np.random.default_rng(1).exponential(100, 1 << 16).astype(int).clip(1, LONGEST)
    sizes = np.append(BOUNDS, LONGEST)
    keys = np.searchsorted(BOUNDS, drawn)
    tokens = Dataset.range(len(drawn)).repeat()
    batches = tokens.group_by_window(
        lambda i: keys[i], lambda _, window: window.batch(ROWS, drop_remainder=True), ROWS
    )
    return batches.map(lambda i: np.zeros((ROWS, sizes[keys[i[0]]]), np.int32))


class LockStep:
    """Consumers in lock step: each step takes as long as its longest batch.

    The iterators are made for the first pass, and continue in the next ones.
    """

    def __init__(self, datasets: list[Any], aligned: bool, n: int) -> None:
        self.datasets, self.aligned, self.n = datasets, aligned, n
        self.pool = ThreadPoolExecutor(len(datasets))
        self.iterators: list[Iterator[Any]] = []

    def begin(self) -> None:
        if not self.iterators:
            # Consumers of one round wait for one another, so each has a thread.
            self.iterators = list(self.pool.map(iter, self.datasets))
            list(self.pool.map(next, self.iterators))

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        for _ in range(self.n):
            lengths = [batch.shape[1] for batch in self.pool.map(next, self.iterators)]
            if self.aligned and len(set(lengths)) > 1:
                raise RuntimeError(f"one round has batches of lengths {lengths}")
            time.sleep(max(lengths) * STEP_SECONDS_PER_TOKEN)
            yield np.ones(len(lengths), int)


def coordinated(together: bool, n: int) -> Iterable[Any]:
    batches = lengths()
    name = f"lock-step-{together}-{n}-{time.monotonic_ns()}"
    if together:
        batches = batches.group_by_window(bucket, lambda _, window: window, CONSUMERS)
    readers = []
    for number in range(CONSUMERS):
        more = {"consumer_index": number, "num_consumers": CONSUMERS} if together else {}
        remote = service.distribute("parallel_epochs", running(), job_name=name, **more)
        readers.append(batches.apply(remote))
    return LockStep(readers, together, n)


PROGRAMS: dict[str, Program] = {
    **{name: partial(transfer, name) for name in elements.PROGRAMS},
    "function": partial(function, "local://2"),
    "function_alone": partial(function, None),
    "sleeping": partial(sleeping, WORKERS),
    "sleeping_one": partial(sleeping, 1),
    "coordinated": partial(coordinated, True),
    "coordinated_apart": partial(coordinated, False),
}
