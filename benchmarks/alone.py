"""The measurements of penstock alone: resume, memory, import, figures of the service.

Each returns a table, and whether all its figures are good enough.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environments import HOME, LOGS, PENSTOCK, ROOT, child_variables, last_words
from benchmarks.processes import child
from benchmarks.report import Row

RESUME_LIMIT_MS = 50.0
STATE_LIMIT_BYTES = 1024
MEMORY_LIMIT_MB = 200.0
IMPORT_LIMIT_S = 0.15
COLUMNS = 150_528
FIRST_LIMIT_S = 0.1
LOCAL_LIMIT_S = 1.5
PAUSE_LIMIT_S = 1.0
SHARING_LIMIT = 1.2
BEATS_PER_SECOND = 2
"""The fewest requests of a client per second; workers send half as many."""
LEASES_PER_SECOND = 8
"""The most requests for leases that a busy reader of a named job sends in addition."""


class ProbeError(Exception):
    """A probe ended without an answer; the text says why."""


def resume(quick: bool) -> tuple[list[Row], bool]:
    """Milliseconds to continue from 10%, 50% and 90% of a shuffled epoch."""
    n = 1_000_000 if quick else 10_000_000
    table: list[Row] = [("pipeline", "n", "at", "ms", "limit", "state, bytes", "limit", "verdict")]
    well = True
    for found in _probe("resume", str(n)):
        good = found["ms"] < RESUME_LIMIT_MS and found["bytes"] < STATE_LIMIT_BYTES
        well &= good
        time = f"{found['ms']:.2f}", f"{RESUME_LIMIT_MS:g}"
        size = f"{found['bytes']:,}", f"{STATE_LIMIT_BYTES:,}"
        table.append((found["plan"], f"{n:,}", f"{found['share']:.0%}", *time, *size, _word(good)))
    return table, well


def memory(quick: bool) -> tuple[list[Row], bool]:
    """Megabytes held while 200 batches of 32 come out of a shuffle over a sparse file of 150 GB."""
    rows, batches = 1_000_000, 20 if quick else 200
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        path = Path(folder) / "rows"
        with path.open("wb") as file:
            file.truncate(rows * COLUMNS)
        found = _probe("memory", str(path), str(rows), str(batches))
    table: list[Row] = [("megabytes", "before", "at worst", "limit", "verdict")]
    good = found["peak"]["anonymous"] < MEMORY_LIMIT_MB
    for name, worst in found["peak"].items():
        judged = (f"{MEMORY_LIMIT_MB:g}", _word(good)) if name == "anonymous" else ("", "")
        table.append((name, f"{found['before'][name]:.0f}", f"{worst:.0f}", *judged))
    return table, good


def importing(quick: bool) -> tuple[list[Row], bool]:
    """Seconds for `import penstock` beyond those for NumPy, median of five fresh processes."""
    found = [_probe("importing") for _ in range(2 if quick else 5)]
    seconds = median(run["seconds"] for run in found)
    uninvited = sorted({name for run in found for name in run["uninvited"]})
    good = seconds < IMPORT_LIMIT_S and not uninvited
    table: list[Row] = [
        ("import penstock, seconds beyond NumPy", "limit", "frameworks imported", "verdict")
    ]
    named = ", ".join(uninvited) or "none"
    table.append((f"{seconds:.3f}", f"{IMPORT_LIMIT_S:g}", named, _word(good)))
    return table, good


def figures(quick: bool) -> tuple[list[Row], bool]:
    """Waits, pauses and counts of a data service whose servers are processes of their own."""
    found = _probe("service", *["quick"] * quick)
    calls = found["many"] / found["one"]
    table: list[Row] = [("figure", "measured", "limit", "verdict")]
    judged = (
        ("first element from a service that runs, s", found["again"], FIRST_LIMIT_S),
        ('call to first element on "local://2", s', found["local"], LOCAL_LIMIT_S),
        ("pause when one of two workers is killed, s", found["pause"], PAUSE_LIMIT_S),
        ("function calls for 8 trainers, by those for 1", calls, SHARING_LIMIT),
    )
    for name, measured, limit in judged:
        table.append((name, f"{measured:.3f}", f"{limit:g}", _word(measured <= limit)))
    readers = found["leases"] / (LEASES_PER_SECOND + BEATS_PER_SECOND)
    for name, text in (
        ("the very first element of a process, s", f"{found['first']:.3f}"),
        ("longest gap when no process is killed, s", f"{found['gap']:.3f}"),
        ("leases per second, with a journal", f"{found['leases']:,.0f}"),
        ("busy readers of named jobs that this is enough for", f"{readers:,.0f}"),
        ("or readers of jobs of their own", f"{found['leases'] / BEATS_PER_SECOND:,.0f}"),
    ):
        table.append((name, text, "", ""))
    return table, all(measured <= limit for _, measured, limit in judged)


def _word(good: bool) -> str:
    return "ok" if good else "MISS"


def _probe(name: str, *arguments: str) -> Any:
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    command = [str(PENSTOCK.python), "-m", f"benchmarks.probes.{name}", *arguments]
    options = {"cwd": ROOT, "env": child_variables(), "stdout": subprocess.PIPE}
    with log.open("wb") as sink, child(command, stderr=sink, **options) as process:
        answer, _ = process.communicate()
    if process.returncode:
        where = log.relative_to(ROOT)
        raise ProbeError(f"scripts/bench {name}: {last_words(log)} (all of it: {where})")
    return json.loads(answer)
