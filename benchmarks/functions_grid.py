"""AUTOTUNE beside a grid of settings: which executor, how many calls, and how far to prefetch.

Each setting runs in a process of its own, in turns. The rate is that of some seconds after the
first three; AUTOTUNE must come within a tenth of the best one, and settle within these three.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.environments import PENSTOCK, child_variables, install
from benchmarks.functions_work import WORKS
from benchmarks.machine import OtherWork

NAMES = ("jpeg", "tokenise", "rows", "wait")
EXECUTORS, CALLS, DEPTHS = ("threads", "processes"), (1, 2, 4, 8), (1, 2, 8)
ITEMS = {"jpeg": 512, "tokenise": 4096, "rows": 20_000, "wait": 4096}
LEAST, SETTLED_BY = 0.9, 3.0


class Setting(NamedTuple):
    executor: str
    calls: int
    depth: int

    def __str__(self) -> str:
        if self.executor == "auto":
            return "AUTOTUNE"
        return f"{self.executor}, {self.calls} calls, prefetch {self.depth}"


AUTO = Setting("auto", -1, -1)
GRID = [Setting(*each) for each in itertools.product(EXECUTORS, CALLS, DEPTHS)]


def streams_below(stream: Any) -> Iterator[Any]:
    yield stream
    for below in stream.inputs:
        yield from streams_below(below)


def setting_of(iterator: Any) -> tuple[Any, ...]:
    """Where calls run, how many there are at once, and how far it prefetches, at this moment."""
    found: list[Any] = []
    for stream in streams_below(iterator._stream):
        if (calling := getattr(stream, "_calling", None)) is not None:
            found.append("threads" if calling._processes is None else "processes")
            found.append(calling.tasks)
        elif (ahead := getattr(stream, "_ahead", None)) is not None:
            found.append(ahead.depth.elements)
    return tuple(found)


def measure(name: str, setting: Setting, warm: float, seconds: float) -> dict[str, Any]:
    """The rate after `warm` seconds; when the setting changed last, and what it was at the end."""
    from penstock.data import Dataset, Options

    work = WORKS[name]
    dataset = Dataset.from_tensor_slices(work.items(ITEMS[name])).repeat()
    dataset = dataset.map(work.function, num_parallel_calls=setting.calls).batch(work.batch)
    dataset = dataset.prefetch(setting.depth).with_options(Options(executor=setting.executor))
    iterator = iter(dataset)
    next(iterator)
    started = changed = now = perf_counter()
    elements, last, since = 0, setting_of(iterator), 0.0
    while not now > since > 0.0 or now - started < warm + seconds:
        batch = next(iterator)
        now = perf_counter()
        if now - started >= warm:
            since = since or now
            elements += len(batch) if now > since else 0
        if (current := setting_of(iterator)) != last:
            changed, last = now, current
    return {
        "rate": elements / (now - since),
        "settled": changed - started,
        "setting": last,
    }


def ask(python: str, name: str, setting: Setting, times: tuple[float, float]) -> dict[str, Any]:
    words = [name, json.dumps(setting), json.dumps(times)]
    command = [python, "-m", "benchmarks.functions_grid", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=child_variables())
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare_with_grid(quick: bool, here: bool, names: Sequence[str]) -> bool:
    """Prints a table; returns whether AUTOTUNE is near the best setting and settles in time."""
    if not here and (problem := install(PENSTOCK)):
        print(f"penstock is missing: {problem}")
        return False
    python = sys.executable if here else str(PENSTOCK.python)
    others = OtherWork()
    rows: list[report.Row] = [HEADINGS]
    for name in names or NAMES:
        rows.append(row_of(python, name, quick))
        print(report.columns([HEADINGS, rows[-1]]), flush=True)
    print(report.markdown(rows), report.circumstances(others, {}), sep="\n\n")
    return not any("MISS" in row[-1] for row in rows)


HEADINGS = ("workload", "best of the grid", "elements/s", "AUTOTUNE", "of best", "last", "verdict")


def row_of(python: str, name: str, quick: bool) -> report.Row:
    times = (1.0, 0.5) if quick else (SETTLED_BY, 2.0)
    found: dict[Setting, list[dict[str, Any]]] = {}
    for _ in range(1 if quick else 3):
        for setting in (AUTO, *GRID):
            found.setdefault(setting, []).append(ask(python, name, setting, times))
    rates = {setting: median(each["rate"] for each in runs) for setting, runs in found.items()}
    best = max(GRID, key=rates.__getitem__)
    settled = median(each["settled"] for each in found[AUTO])
    ratio = rates[AUTO] / rates[best]
    missed = [f"{LEAST:g} of the best"] if ratio < LEAST else []
    missed += [f"settled by {SETTLED_BY:g} s"] if settled > SETTLED_BY else []
    tuned = ", ".join(map(str, found[AUTO][-1]["setting"]))
    return (
        name,
        f"{rates[best]:,.0f} ({best})",
        f"{rates[AUTO]:,.0f}",
        tuned,
        f"{ratio:.2f}",
        f"{settled:.1f} s",
        "MISS: " + ", ".join(missed) if missed else "ok",
    )


if __name__ == "__main__":
    name, setting, times = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    print(json.dumps(measure(name, Setting(*setting), *times)))
