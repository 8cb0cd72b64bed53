"""How long a reader waits when the worker that computes its stream in order gets SIGTERM.

    python -m benchmarks.leaving --rounds 5
    python -m benchmarks.leaving --megabytes 0 20 100 --jobs anonymous --readers busy

Two workers run; the first one computes a stream whose shuffle buffer holds so many megabytes, and
gets SIGTERM. A *busy* reader takes elements as fast as they come. An *idle* one holds some elements
and reads nothing until the worker has ended. Each line has the longest time between two elements
before the signal and after it, and how long the worker took to end. The elements are compared with
those of a local iterator.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from penstock.data import Dataset
from penstock.data.experimental import service

BEFORE, AFTER = 30, 60
"""Elements that are read before and after the signal."""


@dataclass(frozen=True)
class Case:
    """What is measured: the megabytes that a stream holds, the kind of job, and its reader."""

    megabytes: float
    job: str
    reader: str


@dataclass(frozen=True)
class Gaps:
    """Seconds: the longest between two elements, and until the worker had ended."""

    before: float
    after: float
    leaving: float


def make_dataset(megabytes: float, element_bytes: int, seconds: float) -> Dataset:
    """Elements of `seconds` each, which one worker computes in order, behind a shuffle buffer."""
    count = max(1, round(megabytes * 1e6 / element_bytes))
    size = element_bytes // 8 if megabytes else 1

    def enlarge(x: Any) -> Any:
        return np.full(size, x)

    def slow(x: Any) -> Any:
        time.sleep(seconds)
        return x[0]

    numbers = Dataset.range(count + 10 * (BEFORE + AFTER))
    in_order = numbers.scan(np.int64(0), lambda total, x: (total + x, x))
    return in_order.map(enlarge).shuffle(count, seed=7).map(slow)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of penstock, from its first line of output on."""
    command = [sys.executable, "-m", "penstock", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} ended at once")
        yield process
    finally:
        process.kill()
        process.wait()


def measure(case: Case, element_bytes: int, seconds: float, number: int, staying: int = 1) -> Gaps:
    """One round."""
    dataset = make_dataset(case.megabytes, element_bytes, seconds)
    expected = [
        int(x) for x in make_dataset(case.megabytes, element_bytes, 0.0).take(2 * BEFORE + AFTER)
    ]
    with service.DispatchServer() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        job = f"job{number}" if case.job == "named" else None
        remote = dataset.apply(
            service.distribute("distributed_epoch", dispatcher.target, job_name=job)
        )
        with started("worker", "--dispatcher", address) as first, iter(remote) as iterator:
            found = [int(next(iterator))]
            with ExitStack() as others:
                for _ in range(staying):
                    others.enter_context(started("worker", "--dispatcher", address))
                return _read(case, first, iterator, found, expected)


def _read(
    case: Case, first: subprocess.Popen[str], iterator: Any, found: list[int], expected: list[int]
) -> Gaps:
    time.sleep(2.5)  # The reader learns of the second worker with a heartbeat.
    found += [int(next(iterator)) for _ in range(BEFORE)]
    before = _longest_gap(iterator, found, BEFORE - 1)
    if case.reader == "idle":
        time.sleep(2.0)
    sent = time.monotonic()
    first.send_signal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: first.wait() or time.monotonic())
        if case.reader == "idle":
            ended.result()
            time.sleep(1.0)
        after = _longest_gap(iterator, found, AFTER)
        leaving = ended.result() - sent
    assert found == expected[: len(found)], "the elements are not those of a local iterator"
    return Gaps(before, after, leaving)


def _longest_gap(iterator: Any, found: list[int], count: int) -> float:
    gaps, last = [], time.monotonic()
    for _ in range(count):
        found.append(int(next(iterator)))
        now = time.monotonic()
        gaps.append(now - last)
        last = now
    return max(gaps)


def _describe(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one element (0.05)")
    parser.add_argument("--element-bytes", type=int, default=1 << 18, help="in the buffer (256 KB)")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0, 1, 20, 50, 100, 200])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--jobs", nargs="+", default=["anonymous", "named"])
    parser.add_argument("--readers", nargs="+", default=["busy", "idle"])
    options = parser.parse_args()
    with suppress(OSError):
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, seconds: median (range)")
    print("| buffer | job | reader | before | after SIGTERM | worker ended after |")
    print("|---|---|---|---|---|---|")
    number = 0
    for megabytes, job, reader in product(options.megabytes, options.jobs, options.readers):
        case, rounds = Case(megabytes, job, reader), []
        for _ in range(options.rounds):
            number += 1
            rounds.append(
                measure(case, options.element_bytes, options.seconds, number, options.workers - 1)
            )
        columns = zip(*((r.before, r.after, r.leaving) for r in rounds), strict=True)
        before, after, leaving = map(_describe, columns)
        print(
            f"| {megabytes:g} MB | {job} | {reader} | {before} | {after} | {leaving} |", flush=True
        )


if __name__ == "__main__":
    main()
