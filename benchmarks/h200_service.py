"""Scaling of a data service: `python benchmarks/h200_service.py`, on a machine with many cores.

A function of pure Python, which keeps the interpreter to itself, on 1 to 14 worker processes, and
in as many processes that only call it: virtual cores share real ones, so that even those do not
double with their number. Prints a table in Markdown: elements per second, and how well the workers
are used. On two cores, `--workers 1,2 --seconds 1` is enough to see that it works.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import penstock as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers.elements import busy

WORKERS = (1, 2, 4, 8, 12, 14)
OWED = 0.85
"""How well 14 workers must be used."""


def rate(iterator: Iterator[Any], seconds: float) -> float:
    """Elements per second, after a warm-up."""
    for _ in islice(iterator, 512):
        pass
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in islice(iterator, 32):
            count += 1
    return count / elapsed


def bare(processes: int, seconds: float) -> float:
    """Elements per second of so many processes without any service."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(alone, [0.5] * processes))  # By then, all of them have started.
        return sum(pool.map(alone, [seconds] * processes))


def alone(seconds: float) -> float:
    """The work of one process."""
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        busy(count)
        count += 1
    return count / elapsed


def measure_service(workers: int, seconds: float) -> float:
    dataset = tf.data.Dataset.range(1 << 40).map(busy)
    reading = tf.data.experimental.service.distribute("distributed_epoch", f"local://{workers}")
    with iter(dataset.apply(reading)) as iterator:
        return rate(iterator, seconds)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = ",".join(map(str, WORKERS))
    parser.add_argument("--workers", default=numbers, help=f"by comma (default: {numbers})")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each row (default: 8)")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {platform.system()}, Python {platform.python_version()}\n")
    print("| workers | elements/s | by one | efficiency | bare loops/s | by bare loops | owed |")
    print("|---|---|---|---|---|---|---|")
    one = 0.0
    for workers in map(int, chosen.workers.split(",")):
        loops = bare(workers, chosen.seconds / 2)
        found = measure_service(workers, chosen.seconds)
        one = one or found / workers
        used = found / (one * workers)
        owed = f"{OWED}, {'ok' if used >= OWED else 'MISS'}" if workers == max(WORKERS) else ""
        cells = (f"{workers}", f"{found:,.0f}", f"{found / one:.2f}x", f"{used:.2f}")
        more = (f"{loops:,.0f}", f"{found / loops:.2f}", owed)
        print(f"| {' | '.join((*cells, *more))} |", flush=True)


if __name__ == "__main__":
    main()
