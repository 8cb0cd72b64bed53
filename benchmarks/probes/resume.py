"""How long a resume from a saved state takes: a fresh iterator, load the state, first element."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from penstock.data import Dataset

SHARES = (0.1, 0.5, 0.9)


def plans(n: int) -> dict[str, tuple[Any, int]]:
    """Each pipeline with the number of items it yields."""
    whole = Dataset.range(n).shuffle(n, seed=1)
    window = Dataset.range(n).shuffle(10_000, seed=1)
    batches = -(-n // 1024)
    return {
        "range(n).shuffle(n)": (whole, n),
        "range(n).shuffle(n).batch(1024)": (whole.batch(1024), batches),
        "range(n).shuffle(10_000).batch(1024)": (window.batch(1024), batches),
    }


def states(dataset: Any, items: int) -> Iterator[tuple[float, Any, Any]]:
    """One pass, stopped at each share: the state there and the item that comes next."""
    iterator, position = iter(dataset), 0
    for share in SHARES:
        target = int(items * share)
        deque(islice(iterator, target - position), maxlen=0)
        state = iterator.state_dict()
        yield share, state, next(iterator)
        position = target + 1


def milliseconds(dataset: Any, state: Any, expected: Any) -> float:
    start = perf_counter()
    iterator = iter(dataset)
    iterator.load_state_dict(state)
    found = next(iterator)
    elapsed = perf_counter() - start
    if not np.array_equal(found, expected):
        raise SystemExit(f"resume: got {found}, but without an interruption {expected} comes next")
    return elapsed * 1e3


def main(n: int) -> None:
    measured = []
    for name, (dataset, items) in plans(n).items():
        for share, state, expected in states(dataset, items):
            times = [milliseconds(dataset, state, expected) for _ in range(5)]
            size = len(json.dumps(state))
            measured.append({"plan": name, "share": share, "ms": median(times), "bytes": size})
    print(json.dumps(measured))


if __name__ == "__main__":
    main(int(sys.argv[1]))
