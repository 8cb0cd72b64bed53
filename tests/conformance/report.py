"""Prints which programs penstock answers as TensorFlow did, and where it differs.

Run from the repository root: `python -m tests.conformance.report [id-substring]`. Every program
runs in a child process; a crash or a hang is reported and does not end the report.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.conformance import deviations
from tests.conformance.apart import run_apart
from tests.conformance.cases import Case, load
from tests.conformance.programs import Outcome
from tests.conformance.together import run_together


def main(arguments: list[str] | None = None) -> int:
    """Runs the chosen cases, prints a line for each; the exit status is 1 if any failed."""
    options = _parser().parse_args(arguments)
    rows, pins = deviations.read_deviations(), deviations.read_pins()
    counts: Counter[str] = Counter()
    answers: dict[str, Any] = {}
    chosen = [case for case in load() if options.substring in case.id]
    for case, outcome in _outcomes(chosen, options.seconds):
        faults = deviations.faults(case, outcome, rows, pins)
        word = _word(outcome, faults)
        counts[word] += 1
        answers[case.id] = outcome.answer
        _show(word, case, outcome, faults, options.verbose)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())), "of", len(chosen))
    if options.pin:
        for line in deviations.pin_missing(answers, rows, pins):
            print("pinned", line)
    return int(counts["pass"] < len(chosen))


def _outcomes(cases: list[Case], seconds: float) -> Iterator[tuple[Case, Outcome]]:
    yield from run_apart([case for case in cases if case.workers == 1], seconds)
    for workers in sorted({case.workers for case in cases} - {1}):
        yield from run_together([case for case in cases if case.workers == workers], seconds)


def describe(case: Case, outcome: Outcome, faults: list[str]) -> str:
    """A failure in full: the program, what differs where, and the traceback if there is one."""
    got = json.dumps(outcome.answer, ensure_ascii=False)
    expected = json.dumps(case.expected, ensure_ascii=False)
    parts = [case.id, "", case.source, "", *faults, "", f"expected {expected}", f"got {got}"]
    return "\n".join([*parts, "", outcome.trace])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.report", description=__doc__)
    parser.add_argument("substring", nargs="?", default="", help="only cases whose id contains it")
    parser.add_argument("--seconds", type=float, default=20, help="on one program; 0 for no limit")
    parser.add_argument("--verbose", "-v", action="store_true", help="show failures in full")
    parser.add_argument("--pin", action="store_true", help="pin listed deviations without a pin")
    return parser


def _word(outcome: Outcome, faults: list[str]) -> str:
    if isinstance(outcome.answer, dict) and outcome.failed:
        for word in ("hang", "crash"):
            if word in outcome.answer:
                return word
    return "FAIL" if faults else "pass"


def _show(word: str, case: Case, outcome: Outcome, faults: list[str], verbose: bool) -> None:
    print(f"{word:5} {case.id}", flush=True)
    if verbose and faults:
        print(describe(case, outcome, faults))
        return
    for fault in faults:
        print(f"        {fault}")
    if outcome.failed and faults:
        lines = outcome.trace.strip().splitlines()
        shown = lines[-3:] if word == "FAIL" else lines[:12]
        print("        " + "\n        ".join(shown))


if __name__ == "__main__":
    sys.exit(main())
