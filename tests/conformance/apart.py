"""Runs programs in a child process, so that a crash or a hang is an answer too.

One child runs all programs; if it crashes or hangs in one of them, a new child runs the rest.
"""

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from tests.conformance.cases import Case, load
from tests.conformance.programs import Outcome, run


def run_apart(cases: Sequence[Case], seconds: float = 0) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome; a program hangs after `seconds` (0: it may take any time)."""
    return run_by_turns(cases, lambda left: _one_child(left, seconds))


def run_by_turns(
    cases: Sequence[Case], run_some: Callable[[list[Case]], Iterator[Outcome]]
) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome; `run_some` is called again with the cases that it left."""
    left = list(cases)
    while left:
        done = 0
        for outcome in run_some(left):
            yield left[done], outcome
            done += 1
        del left[:done]


def _one_child(cases: list[Case], seconds: float) -> Iterator[Outcome]:
    """Outcomes until the child ends; if a program crashed it, the last outcome says so."""
    command = [sys.executable, "-m", __name__, str(seconds), *(case.id for case in cases)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        with child:
            assert child.stdout is not None
            count = 0
            for line in child.stdout:
                yield Outcome(*json.loads(line))
                count += 1
        if count < len(cases):
            errors.seek(0)
            yield death(child.returncode, errors.read())


def death(status: int, errors: str) -> Outcome:
    """The outcome for a child that ended by itself with this status and this output."""
    if "Timeout (" in errors:
        return Outcome({"hang": True}, errors[errors.rindex("Timeout (") :])
    start = max(errors.rfind("Fatal Python error"), 0)
    return Outcome({"crash": True, "rc": status}, errors[start:] or "no output")


def _child(seconds: float, ids: list[str]) -> None:
    # Programs print; what they print must not mix with the outcomes.
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    cases = {case.id: case for case in load()}
    for case_id in ids:
        if seconds:
            faulthandler.dump_traceback_later(seconds, exit=True)
        outcome = run(cases[case_id])
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([outcome.answer, outcome.trace]), file=outcomes, flush=True)
    # A thread that a program left behind must not delay the answers.
    os._exit(0)


if __name__ == "__main__":
    _child(float(sys.argv[1]), sys.argv[2:])
