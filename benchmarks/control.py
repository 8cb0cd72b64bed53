"""`scripts/bench control`: the cost of a dispatcher that serves many readers and many workers.

The dispatcher is a process of its own with a journal on disk; its CPU time is that of the process.
The clients are light (`light_clients.py`), in a few processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.processes import child

CORES = 1.0
"""The most cores that a dispatcher may use for 1,000 readers of one job and 1,000 workers."""
PROGRESS = 0.97
"""The least part of the elements that users would consume without waiting."""


class Fleet:
    """The processes of the light clients."""

    def __init__(self, stack: ExitStack, address: str, words: argparse.Namespace) -> None:
        self._processes = []
        for number in range(words.processes):
            command = [sys.executable, "-m", "benchmarks.light_clients", address]
            command += ["--name", str(number), "--rate", str(words.rate)]
            command += ["--job", "" if words.apart else "job"]
            for kind, count in (("--readers", words.readers), ("--workers", words.workers)):
                share = count // words.processes + (number < count % words.processes)
                command += [kind, str(share)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            pipes["cwd"] = ROOT
            self._processes.append(stack.enter_context(child(command, **pipes)))
        self._hear()
        self._tell()
        self._hear()

    def count(self) -> dict[str, float]:
        """What all clients have done so far."""
        self._tell()
        total: dict[str, float] = {}
        for line in self._hear():
            for key, value in json.loads(line).items():
                total[key] = total.get(key, 0) + value
        return total

    def _tell(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()

    def _hear(self) -> list[bytes]:
        lines = []
        for process in self._processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
            if not lines[-1]:
                raise SystemExit("scripts/bench control: a process of clients has ended")
        return lines


class DispatcherProcess:
    """The operating system's figures on the dispatcher's process (on Linux)."""

    def __init__(self, process: int) -> None:
        self._folder = Path(f"/proc/{process}")

    def read(self) -> dict[str, float]:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        lines = (self._folder / "io").read_text().splitlines()
        # Messages on sockets do not count as writes: these are the journal's.
        io = {key: int(value) for key, _, value in (line.partition(": ") for line in lines)}
        return {
            "user": int(fields[11]) / ticks,
            "system": int(fields[12]) / ticks,
            "threads": float(fields[17]),
            "journal_writes": float(io["syscw"]),
            "journal_bytes": float(io["wchar"]),
        }


def measure(words: argparse.Namespace) -> dict[str, float]:
    """Per second, of a window of `words.seconds`."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address, process = _start_dispatcher(stack, folder)
        fleet, dispatcher = Fleet(stack, address, words), DispatcherProcess(process)
        time.sleep(words.warm_up)
        started, before = time.monotonic(), {**fleet.count(), **dispatcher.read()}
        time.sleep(words.seconds)
        seconds, after = time.monotonic() - started, {**fleet.count(), **dispatcher.read()}
        found = {key: (after[key] - before.get(key, 0.0)) / seconds for key in after}
        return {**found, "threads": after["threads"], "errors": after.get("errors", 0.0)}


def _start_dispatcher(stack: ExitStack, folder: str) -> tuple[str, int]:
    command = [sys.executable, "-m", "penstock", "dispatcher", "--port", "0"]
    process = stack.enter_context(child([*command, "--work-dir", folder], stdout=subprocess.PIPE))
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    return line.split()[3].rstrip(";").removeprefix("grpc://"), process.pid


REQUESTS = ("Lease", "ClientHeartbeat", "WorkerHeartbeat")


def table(words: argparse.Namespace, found: dict[str, float]) -> str:
    """The figures, one line each."""
    cores = found["user"] + found["system"]
    heads, requests = words.readers + words.workers, sum(found.get(k, 0.0) for k in REQUESTS)
    progress = found.get("elements", 0.0) / max(1.0, words.readers * words.rate)
    kinds = ", ".join(f"{found.get(kind, 0.0):,.0f} {kind}" for kind in REQUESTS)
    rows = (
        ("dispatcher, cores", f"{cores:.3f} ({found['system']:.3f} in the system)"),
        ("dispatcher, ms per client and second", f"{1e3 * cores / max(1, heads):.3f}"),
        ("requests per second", f"{requests:,.0f} ({kinds})"),
        ("dispatcher, us per request", f"{1e6 * cores / max(1.0, requests):.0f}"),
        ("writes to the journal per second", f"{found['journal_writes']:,.0f}"),
        ("kilobytes to the journal per second", f"{found['journal_bytes'] / 1e3:,.0f}"),
        ("ms until a reply, as clients see it", f"{1e3 * found['waited'] / max(1, requests):.0f}"),
        ("threads of the dispatcher", f"{found['threads']:.0f}"),
        ("progress, of the ideal", f"{progress:.1%}"),
        ("readers that failed", f"{found['errors']:.0f}"),
        ("light clients, cores", f"{found['cpu']:.2f}"),
    )
    return "\n".join(f"{name:40} {value}" for name, value in rows)


def is_well(words: argparse.Namespace, found: dict[str, float]) -> bool:
    progress = found.get("elements", 0.0) / max(1.0, words.readers * words.rate)
    waits = words.readers > 0 and progress < PROGRESS
    return not waits and not found["errors"] and found["user"] + found["system"] <= CORES


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readers", type=int, default=192, help="of one named job (192)")
    parser.add_argument("--workers", type=int, default=192, help="(192)")
    parser.add_argument("--rate", type=float, default=100.0, help="elements/s of a reader (100)")
    parser.add_argument("--seconds", type=float, default=15.0, help="to measure for (15)")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before that (5)")
    parser.add_argument("--processes", type=int, default=2, help="of light clients (2)")
    parser.add_argument("--apart", action="store_true", help="each reader has a job of its own")


def run(chosen: argparse.Namespace) -> bool:
    """Measures and prints; returns whether the dispatcher keeps up with at most one core."""
    print(f"{chosen.readers} readers, {chosen.workers} workers, {chosen.rate:g} elements/s each")
    found = measure(chosen)
    print(table(chosen, found))
    return is_well(chosen, found)
