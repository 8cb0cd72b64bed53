"""Functions on all cores: penstock beside DataLoader, Grain, tf.data, Ray Data and a bare pool.

Every way runs in a process of its own, in turns. With `--here` all run with this interpreter, which
needs no network. A way whose library is missing, or that has no way of its own, is left out, and
reported as missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks import report
from benchmarks.environments import PEERS, Environment, child_variables, install
from benchmarks.functions_ways import LIMIT, WAYS
from benchmarks.functions_work import WORKS, Work
from benchmarks.machine import OtherWork

HEADING = "Functions on all cores"
LOADER, SHOWN = "DataLoader", "penstock, AUTOTUNE"
"""The rival that ratios are owed to, and the form of penstock that owes them."""

OWED = {"jpeg": {LIMIT: 0.95, LOADER: 1.1}, "tokenise": {LIMIT: 0.95, LOADER: 1.5}}
_OTHERS = {LIMIT: 0.95}

_PEERS = {"DataLoader": "torch_loader", "Grain": "grain", "tf.data": "tfdata", "Ray": "ray_data"}


class Rates(NamedTuple):
    """Elements per second by the clock, and by processor time of all processes of a way."""

    clock: float
    processor: float


def environment_of(way: str) -> Environment:
    name = next((_PEERS[word] for word in _PEERS if way.startswith(word)), "penstock")
    return PEERS[name].environment


class Measurements:
    """Measures ways, each in its own process; notes the ways that failed, and the reasons."""

    def __init__(self, here: bool) -> None:
        self.here = here
        self.missing: dict[str, str] = {}

    def rates(self, name: str, way: str, count: int, cores: int) -> Rates | None:
        """The output of `functions_ways`; None if it failed: `missing` has the reason."""
        if way in self.missing:
            return None
        python = sys.executable
        if not self.here:
            if problem := install(environment_of(way)):
                self.missing[way] = problem
                return None
            python = str(environment_of(way).python)
        command = [python, "-m", "benchmarks.functions_ways", name, way, str(count), str(cores)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, env=child_variables()
        )
        words = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
        try:
            return Rates(*map(float, words[-1].split()))
        except (IndexError, ValueError, TypeError):
            self.missing[f"{name}, {way}"] = (words or ["it said nothing"])[-1]
            return None


def numbers_of_cores() -> list[int]:
    available = len(os.sched_getaffinity(0))
    return sorted({1, min(2, available), available})


def compare(quick: bool, here: bool, write: bool, names: Sequence[str] = ()) -> bool:
    """Prints a table for each workload; returns whether penstock owes nothing."""
    measured, others, tables = Measurements(here), OtherWork(), []
    well = True
    for name in names or WORKS:
        for cores in numbers_of_cores():
            rates = _measure_in_turns(measured, name, cores, quick)
            rows = table(name, WORKS[name], cores, rates)
            tables.append(rows)
            well &= not any("MISS" in row[-1] for row in rows)
            print(report.columns(rows), flush=True)
    for what, reason in measured.missing.items():
        print(f"{what}: not measured: {reason}")
    around = report.circumstances(others, {})
    print(around)
    if write:
        report.write_section(HEADING, "\n\n".join((around, METHOD, report.markdown(_join(tables)))))
    return well


def _measure_in_turns(
    measured: Measurements, name: str, cores: int, quick: bool
) -> dict[str, Rates]:
    work, found = WORKS[name], dict[str, list[Rates]]()
    for _ in range(1 if quick else 3):
        for way in WAYS:
            if f"{name}, {way}" in measured.missing:
                continue
            rates = measured.rates(name, way, work.quick if quick else work.count, cores)
            if rates is not None:
                found.setdefault(way, []).append(rates)
    return {
        way: Rates(*(median(column) for column in zip(*rounds, strict=True)))
        for way, rounds in found.items()
    }


HEADINGS = (
    "workload",
    "cores",
    "way",
    "elements/s",
    "by pool",
    "by DataLoader",
    "elements/CPU s",
    "by pool",
    "verdict",
)


def table(name: str, work: Work, cores: int, rates: dict[str, Rates]) -> list[report.Row]:
    """One row for each way: by the clock, by processor time, and the verdict by the clock."""
    rows: list[report.Row] = [HEADINGS]
    for way, rate in rates.items():
        ratios = {key: rate.clock / rates[key].clock for key in (LIMIT, LOADER) if key in rates}
        texts = [f"{ratios[key]:.2f}x" if key in ratios else "" for key in (LIMIT, LOADER)]
        owed = OWED.get(name, _OTHERS) if way == SHOWN else {}
        missed = [key for key, least in owed.items() if ratios.get(key, least) < least]
        verdict = ", ".join(f"MISS: {owed[key]:g}x {key}" for key in missed) or "ok"
        spent = f"{rate.processor / rates[LIMIT].processor:.2f}x" if LIMIT in rates else ""
        first = (f"{name}: {work.text}", str(cores)) if len(rows) == 1 else ("", "")
        figures = (f"{rate.clock:,.0f}", *texts, f"{rate.processor:,.0f}", spent)
        rows.append((*first, way, *figures, verdict if owed else ""))
    return rows


def _join(tables: list[list[report.Row]]) -> list[report.Row]:
    return [tables[0][0], *(row for rows in tables for row in rows[1:])]


METHOD = """Elements per second of a second pass, median of 3 rounds; in each round every way runs
in turn, in a process of its own that may use so many cores. *by pool* and *by DataLoader* say how
many times as fast a way is. Elements per second of processor time, of all processes of a way
together, say more where the machine has other work. The form that the README shows, AUTOTUNE, owes
0.95 of the bare pool, and 1.1 times DataLoader for JPEG and 1.5 times for tokenising."""


def main(words: list[str]) -> int:
    flags = {word for word in words if word.startswith("--")}
    names = [word for word in words if word in WORKS]
    if "--grid" in flags:
        from benchmarks.functions_grid import compare_with_grid

        return 0 if compare_with_grid("--quick" in flags, "--here" in flags, names) else 1
    well = compare("--quick" in flags, "--here" in flags, "--write" in flags, names)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
