"""How long a reader waits when the worker that computes its stream in order gets SIGTERM.

    python -m benchmarks.leaving --rounds 5
    python -m benchmarks.leaving --megabytes 0 20 100 --jobs anonymous --readers busy
    python -m benchmarks.leaving --plans cache cached generator --megabytes 1

Two workers run; the first one computes a stream in order, and gets SIGTERM. Plans: a shuffle
*buffer* that holds so many megabytes; a *cache* in memory in its first pass; one that is full, in
its second pass (*cached*); and a slow *generator*. A *busy* reader takes elements as fast as they
come. An *idle* one holds some elements and reads nothing until the worker has ended. Each line has
the longest time between two elements before the signal and after it, and how long the worker took
to end. The elements are compared with those of a local iterator.
"""

from __future__ import annotations

import argparse
import itertools
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
from typing import Any

import numpy as np

from penstock.data import Dataset
from penstock.data.experimental import service

PLANS = ("buffer", "cache", "cached", "generator")

BEFORE, AFTER = 30, 60
"""Elements that are read before and after the signal."""


@dataclass(frozen=True)
class Case:
    """What is measured: a plan, the megabytes that it holds, the kind of job, and its reader."""

    plan: str
    megabytes: float
    job: str
    reader: str


@dataclass(frozen=True)
class Gaps:
    """Seconds: the longest between two elements, and until the worker had ended."""

    before: float
    after: float
    leaving: float


def make_dataset(case: Case, element_bytes: int, seconds: float) -> Dataset:
    """A plan that one worker computes in order, with elements of `seconds` each."""
    held = max(1, round(case.megabytes * 1e6 / element_bytes))
    size = element_bytes // 8 if case.megabytes else 1

    def enlarge(x: Any) -> Any:
        return np.full(size, x)

    def slow(x: Any) -> Any:
        time.sleep(seconds)
        return x

    def generate() -> Iterator[int]:
        for x in range(10 * (BEFORE + AFTER)):
            time.sleep(seconds)
            yield x

    def count_up(count: int) -> Dataset:
        return Dataset.range(count).scan(np.int64(0), lambda total, x: (total + x, x))

    match case.plan:
        case "buffer":
            numbers = count_up(held + 10 * (BEFORE + AFTER)).map(enlarge)
            return numbers.shuffle(held, seed=7).map(lambda x: slow(x)[0])
        case "cache":
            return count_up(BEFORE + AFTER).map(slow).map(enlarge).cache().repeat().map(_first)
        case "cached":
            passed = count_up(BEFORE // 2).map(slow).map(enlarge).cache().repeat()
            return passed.map(lambda x: slow(x)[0])
        case "generator":
            return Dataset.from_generator(generate, output_signature=Dataset.range(1).element_spec)
    raise ValueError(case.plan)


def _first(x: Any) -> Any:
    return x[0]


@contextmanager
def start_command(*words: str) -> Iterator[subprocess.Popen[str]]:
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
    """Runs one round, and returns its times."""
    dataset = make_dataset(case, element_bytes, seconds)
    expected = [int(x) for x in make_dataset(case, element_bytes, 0.0).take(2 * BEFORE + AFTER)]
    with service.DispatchServer() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        job = f"job{number}" if case.job == "named" else None
        remote = dataset.apply(
            service.distribute("distributed_epoch", dispatcher.target, job_name=job)
        )
        with start_command("worker", "--dispatcher", address) as first, iter(remote) as iterator:
            found = [int(next(iterator))]
            with ExitStack() as others:
                for _ in range(staying):
                    others.enter_context(start_command("worker", "--dispatcher", address))
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
    parser.add_argument("--plans", nargs="+", default=["buffer"], choices=PLANS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--jobs", nargs="+", default=["anonymous", "named"])
    parser.add_argument("--readers", nargs="+", default=["busy", "idle"])
    options = parser.parse_args()
    with suppress(OSError):
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, seconds: median (range)")
    print("| plan | job | reader | before | after SIGTERM | worker ended after |")
    print("|---|---|---|---|---|---|")
    number = 0
    asked = (options.plans, options.megabytes, options.jobs, options.readers)
    for case in itertools.starmap(Case, itertools.product(*asked)):
        rounds = []
        for _ in range(options.rounds):
            number += 1
            rounds.append(
                measure(case, options.element_bytes, options.seconds, number, options.workers - 1)
            )
        columns = zip(*((r.before, r.after, r.leaving) for r in rounds), strict=True)
        before, after, leaving = map(_describe, columns)
        print(
            f"| {case.plan} {case.megabytes:g} MB | {case.job} | {case.reader} "
            f"| {before} | {after} | {leaving} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
