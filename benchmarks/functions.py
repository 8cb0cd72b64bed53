"""Functions on all cores: penstock in threads and processes beside DataLoader and a bare pool.

`PYTHON=.venv/bin/python scripts/bench workloads` runs every way in a process of its own, all with
that interpreter, so it needs no network. A way whose package is missing is left out, and said so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.functions_work import WORKS, Work

LIMIT = "bare pool"


def threads(work: Work, items: Any) -> Iterable[Any]:
    return _penstock(work, items, "threads", os.cpu_count() or 1)


def processes(work: Work, items: Any) -> Iterable[Any]:
    return _penstock(work, items, "processes", os.cpu_count() or 1)


def autotune(work: Work, items: Any) -> Iterable[Any]:
    return _penstock(work, items, "auto", -1)


def _penstock(work: Work, items: Any, executor: Any, calls: int) -> Iterable[Any]:
    from penstock.data import AUTOTUNE, Dataset, Options

    options = Options()
    options.executor = executor
    dataset = Dataset.from_tensor_slices(items).map(work.function, num_parallel_calls=calls)
    return dataset.batch(work.batch).prefetch(AUTOTUNE).with_options(options)


def loader(work: Work, items: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(
        _Mapped(work.function, items),  # type: ignore[arg-type]
        batch_size=work.batch,
        num_workers=os.cpu_count() or 1,
        persistent_workers=True,
    )


class _Mapped:
    """A map-style dataset: a function of each item."""

    def __init__(self, function: Callable[[Any], Any], items: Any) -> None:
        self.function, self.items = function, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.items[index])


class BarePool:
    """A pool of processes that returns results in order; each batch is stacked here."""

    def __init__(self, work: Work, items: Any) -> None:
        import multiprocessing

        self.work, self.items = work, items
        self.pool = multiprocessing.get_context("fork").Pool()

    def __iter__(self) -> Iterator[Any]:
        import numpy as np

        batch: list[Any] = []
        share = max(1, self.work.batch // 8)
        for result in self.pool.imap(self.work.function, self.items, share):
            batch.append(result)
            if len(batch) == self.work.batch:
                yield np.stack(batch)
                batch = []
        if batch:
            yield np.stack(batch)


WAYS: dict[str, Callable[[Work, Any], Iterable[Any]]] = {
    LIMIT: BarePool,
    "DataLoader": loader,
    "penstock, threads": threads,
    "penstock, processes": processes,
    "penstock, AUTOTUNE": autotune,
}


def measure(work: Work, way: str, count: int) -> float:
    """Elements per second of a second pass: by then all processes run."""
    pipeline = WAYS[way](work, work.items(count))
    for _ in pipeline:
        pass
    started, elements = perf_counter(), 0
    for batch in pipeline:
        elements += len(batch)
    assert elements == count, f"{way}: {elements} elements of {count}"
    return elements / (perf_counter() - started)


def ask(name: str, way: str, count: int) -> float | str:
    """Measures in a process of its own; the reason if it could not."""
    command = [sys.executable, "-m", "benchmarks.functions", name, way, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return float(json.loads(done.stdout.splitlines()[-1]))


def compare(quick: bool) -> bool:
    """Prints a table for each workload; answers whether penstock could always be measured."""
    well = True
    for name, work in WORKS.items():
        found: dict[str, list[float]] = {}
        for _ in range(1 if quick else 3):
            for way in WAYS:
                answer = ask(name, way, work.quick if quick else work.count)
                if isinstance(answer, float):
                    found.setdefault(way, []).append(answer)
                else:
                    print(f"{name}, {way}: not measured: {answer}")
                    well &= not (way.startswith("penstock") and LIMIT in found)
        print(table(name, work, {way: median(rates) for way, rates in found.items()}), flush=True)
    return well


def table(name: str, work: Work, rates: dict[str, float]) -> str:
    """One line for each way: elements per second, and ratios to the pool and to DataLoader."""
    lines = [f"{name}: {work.text}, batch({work.batch}), {os.cpu_count()} cores"]
    lines.append(f"  {'way':22}{'elements/s':>12}{'by pool':>10}{'by DataLoader':>15}")
    for way, rate in rates.items():
        ratios = [
            f"{rate / rates[key]:.2f}x" if key in rates else "" for key in (LIMIT, "DataLoader")
        ]
        lines.append(f"  {way:22}{rate:>12,.0f}{ratios[0]:>10}{ratios[1]:>15}")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    if len(words) == 3:
        print(json.dumps(measure(WORKS[words[0]], words[1], int(words[2]))))
        return 0
    return 0 if compare("--quick" in words) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
