"""The command line of `scripts/bench`: makes environments, measures, prints, writes if asked."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from benchmarks import alone, control, figures, record, report, scaling
from benchmarks.data import DATA
from benchmarks.distribute import DISTRIBUTE
from benchmarks.environments import PEERS, PENSTOCK, ROOT, install
from benchmarks.machine import OtherWork
from benchmarks.processes import unwind_on_signals
from benchmarks.rounds import Choir, Result, measure
from benchmarks.service import SERVICE
from benchmarks.workloads import SUBJECT, TRUTH, Suite, Workload

SUITES = {suite.name: suite for suite in (DATA, DISTRIBUTE, SERVICE)}
ALONE: dict[str, tuple[str, Callable[[bool], tuple[list[report.Row], bool]]]] = {
    "resume": ("Resume", alone.resume),
    "memory": ("Memory", alone.memory),
    "import": ("Import", alone.importing),
    "figures": ("Service in figures", alone.figures),
}
COMMANDS = {
    "data": "the pipelines beside their peers, interleaved, as ratios",
    "distribute": "steps of a distributed dataset on 1 to 8 replicas, beside tf.distribute",
    "service": "elements from a worker to its client, beside tf.data service; then the figures",
    "workloads": "functions on all cores beside their peers and a bare pool; or AUTOTUNE by a grid",
    "control": "what a dispatcher costs with many readers and workers",
    "scaling": "how 1 to 8 workers follow a load that triples and falls; with this Python",
    "formats": "files to batches, packing, mixing, beside what this Python has of the peers",
    "examples": "the examples beside their DataLoader versions: lines and speed; with this Python",
    "resume": "time to go on from a saved state",
    "memory": "memory of a shuffle over a huge memory-mapped file",
    "import": "time of `import penstock`",
    "figures": "waits, pauses and counts of a data service",
    "all": "everything above, except control, scaling and examples",
}
PROGRAMS = {"formats": "benchmarks.formats", "examples": "benchmarks.examples"}
"""Commands that are programs of their own."""

WITH_THIS_PYTHON = (*PROGRAMS, "scaling")
"""Commands that measure the penstock of this Python, not that of an environment of their own."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line; wrong arguments end the program with a usage message."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures penstock beside tf.data, tf.distribute, tf.data service, Grain, "
        "torch's DataLoader, Ray Data and bare NumPy, each in its own environment under .bench/ "
        "(made when missing).",
        epilog="The exit status is 1 when a program fails or penstock misses a ratio it owes.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        _describe(name, commands.add_parser(name, help=text, description=text))
    chosen = parser.parse_args(words)
    _refuse_nonsense(parser, chosen)
    return chosen


def _describe(name: str, parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(workloads=[], peers=[], rounds=None, quick=False, write=False)
    if name == "control":
        control.add_options(parser)
        return
    if name == "scaling":
        scaling.add_options(parser)
        return
    if suite := SUITES.get(name):
        listed = f"of {', '.join(suite.names)} (default: all)"
        parser.add_argument("workloads", nargs="*", metavar="workload", help=listed)
        only = f"only these, by comma, of {', '.join(suite.peers)}"
        parser.add_argument("--peers", type=lambda text: text.split(","), help=only)
    if name == "workloads":
        parser.add_argument("workloads", nargs="*", metavar="workload", help="only these")
        parser.add_argument("--grid", action="store_true", help="AUTOTUNE beside a grid")
        parser.add_argument("--here", action="store_true", help="with this Python, without network")
    if name in PROGRAMS:
        parser.add_argument("workloads", nargs="*", metavar="workload", help="only these")
    if suite or name == "all":
        often = "how often each peer runs (default 5, with --quick 2)"
        parser.add_argument("--rounds", type=int, help=often)
    parser.add_argument("--quick", action="store_true", help="less of all: a look, not a claim")
    parser.add_argument(
        "--write", action="store_true", help="update docs/benchmarks.md, its figures and their JSON"
    )


def _refuse_nonsense(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    if suite := SUITES.get(chosen.command):
        for name in chosen.workloads:
            if name not in suite.names:
                known = ", ".join(suite.names)
                parser.error(f"{suite.name}: no workload {name!r}; there are {known}")
        for name in chosen.peers:
            if name not in suite.peers:
                parser.error(f"--peers: no peer {name!r}; there are {', '.join(suite.peers)}")
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error(f"--rounds: must be at least 1, got {chosen.rounds}")
    is_here = vars(chosen).get("here", chosen.command in WITH_THIS_PYTHON)
    if is_here and find_spec("penstock") is None:
        words = f"{chosen.command} --here" if "here" in chosen else chosen.command
        parser.error(
            f"{words}: this Python has no penstock; scripts/test makes one that has: "
            f"PYTHON=.venv/bin/python scripts/bench {words}"
        )
    if chosen.write and chosen.command in PROGRAMS:
        parser.error(f"--write: {chosen.command} are only printed")
    if chosen.write and (chosen.quick or chosen.workloads or chosen.peers):
        parser.error("--write: only for complete runs; leave out workloads, --quick and --peers")


def missing_peers(wanted: set[str]) -> dict[str, str]:
    """Installs the environments; returns the reason for each peer that is missing."""
    environments = dict.fromkeys(PEERS[name].environment for name in PEERS if name in wanted)
    problems = {environment: install(environment) for environment in environments}
    missing = {}
    for peer in PEERS.values():
        if problem := problems.get(peer.environment):
            missing[peer.name] = problem
            print(f"{peer.label} is missing: {problem}", flush=True)
    return missing


def compare(suite: Suite, chosen: argparse.Namespace) -> bool:
    """Runs the workloads and prints each; returns whether penstock reaches all ratios."""
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    peers = {*chosen.peers, SUBJECT, TRUTH} if chosen.peers else set(suite.peers)
    measured: list[tuple[Workload, list[Result]]] = []
    missing, others = missing_peers(peers), OtherWork()
    with Choir(missing) as choir:
        for workload in suite.workloads:
            if workload.name in (chosen.workloads or suite.names):
                results = measure(choir, workload.only(peers), rounds, chosen.quick)
                measured.append((workload, results))
                print(report.terminal(suite, workload, results), flush=True)
    around = report.circumstances(others, choir.versions)
    print(around)
    if chosen.write:
        figures.draw_file(record.write_record(record.record(suite, measured, around)))
        figure = f"![{figures.CAPTION}](benchmarks/{suite.name}.svg)"
        body = report.section(suite, measured, rounds)
        report.write_section(suite.heading, f"{figure}\n\n{around}\n\n{body}")
    return not any(report.has_failed(results) for _, results in measured)


def probe(name: str, chosen: argparse.Namespace) -> bool:
    """One of the measurements of penstock alone."""
    heading, run = ALONE[name]
    if problem := install(PENSTOCK):
        print(f"penstock is missing: {problem}")
        return False
    others = OtherWork()
    try:
        table, well = run(chosen.quick)
    except alone.ProbeError as failure:
        print(failure)
        return False
    around = report.circumstances(others, {})
    print(report.columns(table), around, sep="\n", flush=True)
    if chosen.write:
        body = (around, str(run.__doc__), report.markdown(table))
        report.write_section(heading, "\n\n".join(body))
    return well


def measure_functions(chosen: argparse.Namespace) -> int:
    """Runs in a process of its own: this process needs only the standard library."""
    if not chosen.here and (problem := install(PENSTOCK)):
        print(f"penstock is missing: {problem}")
        return 1
    python = sys.executable if chosen.here else str(PENSTOCK.python)
    flags = [f"--{name}" for name in ("quick", "write", "grid", "here") if vars(chosen)[name]]
    words = [*chosen.workloads, *flags]
    return subprocess.call([python, "-m", "benchmarks.functions", *words], cwd=ROOT)


def main() -> int:
    chosen = arguments()
    unwind_on_signals()
    if chosen.command == "workloads":
        return measure_functions(chosen)
    if chosen.command in PROGRAMS:
        # In a process of its own: this one needs only the standard library.
        words = [*chosen.workloads, *["--quick"] * chosen.quick]
        return subprocess.call([sys.executable, "-m", PROGRAMS[chosen.command], *words], cwd=ROOT)
    if chosen.command == "control":
        return 0 if control.run(chosen) else 1
    if chosen.command == "scaling":
        return 0 if scaling.run(chosen) else 1
    names = (*SUITES, *ALONE) if chosen.command == "all" else (chosen.command,)
    well = [carry_out(name, chosen) for name in names]
    return 0 if all(well) else 1


def carry_out(name: str, chosen: argparse.Namespace) -> bool:
    """Runs one command; returns whether it succeeded."""
    if name not in SUITES:
        return probe(name, chosen)
    suite = SUITES[name]
    well = compare(suite, chosen)
    if suite.then and chosen.command == name and not (chosen.workloads or chosen.peers):
        well &= probe(suite.then, chosen)
    return well


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nscripts/bench: interrupted")
