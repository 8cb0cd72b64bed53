"""Runs many histories, or runs one of them again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from functools import partial

from tests.simulation import fleet
from tests.simulation.capacity import measure
from tests.simulation.histories import HistoryFailedError, run, run_many

_PIECE = 50


def main() -> int:
    options = _options()
    if options.capacity:
        print(measure(options.workers, options.clients))
        return 0
    if options.fleet:
        print(fleet.run(options.workers, options.clients, deaths=options.deaths))
        return 0
    if options.seed is not None:
        return _again(options.seed, options.kind)
    return _many(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Whole services on a virtual clock: processes die, messages are lost, late "
        "and twice; every element must reach its readers once.",
    )
    parser.add_argument("--histories", type=int, default=100_000, help="how many (100000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="only this one, with its story")
    kinds = {
        "joining": "coordinated reads that workers join",
        "leaving": "workers leave whose streams hold much",
    }
    for kind, text in kinds.items():
        parser.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    parser.set_defaults(kind="")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="all cores")
    parser.add_argument(
        "--capacity", action="store_true", help="measure what one dispatcher carries"
    )
    parser.add_argument(
        "--fleet", action="store_true", help="readers of one job, of which some die"
    )
    both = "of --capacity and --fleet (1000)"
    parser.add_argument("--workers", type=int, default=1000, help=both)
    parser.add_argument("--clients", type=int, default=1000, help=both)
    parser.add_argument("--deaths", type=int, default=2, help="per second, of --fleet (2)")
    return parser.parse_args()


def _again(seed: int, kind: str) -> int:
    try:
        outcome = run(seed, story=True, kind=kind)
    except HistoryFailedError as error:
        print(error)
        return 1
    print(outcome)
    return 0


def _many(options: argparse.Namespace) -> int:
    """Every failed history is printed at once; Ctrl-C prints how many there were."""
    done = failed = answered = 0
    started, count = time.monotonic(), options.histories
    live = partial(run_many, kind=options.kind)
    pieces = _pieces(options.first, count)
    try:
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            for size, requests, stories in pool.imap_unordered(live, pieces):
                done, answered = done + size, answered + requests
                failed += len(stories)
                for story in stories:
                    print(story, "\n", flush=True)
                _progress(done, count, failed, time.monotonic() - started)
    except KeyboardInterrupt:
        print(f"\nstopped after {done} of {count} histories", file=sys.stderr)
    print(f"\n{done} histories, {answered} requests to dispatchers, {failed} failed")
    return 1 if failed or done < count else 0


def _pieces(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, _PIECE):
        yield range(start, min(start + _PIECE, first + count))


def _progress(done: int, count: int, failed: int, seconds: float) -> None:
    left = seconds / done * (count - done)
    line = f"\r{done}/{count} histories, {failed} failed, {left:.0f} s left   "
    print(line, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
