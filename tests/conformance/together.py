"""Runs programs in several processes at once, as the workers of one strategy.

One set of processes runs all programs in turn; the answer of a program is the list of
its workers' answers. If a program crashes a process, a new set runs the rest.
"""

import faulthandler
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from penstock.errors import DisagreementError
from tests.conformance.apart import death, run_by_turns
from tests.conformance.cases import Case, load
from tests.conformance.programs import Outcome, run
from tests.integration.chaos.cluster import free_port
from tests.programs import ForkedProgram


def run_together(cases: Sequence[Case], seconds: float = 0) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome; all cases must be for the same number of workers."""
    return run_by_turns(cases, lambda left: _one_team(left, seconds))


def _one_team(cases: list[Case], seconds: float) -> Iterator[Outcome]:
    """Outcomes until a child ends; if a program crashed it, the last outcome says so."""
    workers = cases[0].workers
    addresses = [f"localhost:{free_port()}" for _ in range(workers)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        words = ["-m", __name__, folder, str(seconds), *(case.id for case in cases)]
        children = [
            stack.enter_context(
                ForkedProgram(words, ["penstock", "torch"], TF_CONFIG=_describe(addresses, index))
            )
            for index in range(workers)
        ]
        for _ in cases:
            lines = [child.stdout.readline() for child in children]
            if "" in lines:
                ended = children[lines.index("")]
                yield death(ended.returncode, ended.read_errors())
                return
            yield _merge_outcomes([Outcome(*json.loads(line)) for line in lines])


def _describe(addresses: list[str], index: int) -> str:
    return json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    )


def _merge_outcomes(outcomes: list[Outcome]) -> Outcome:
    traces = [f"worker {i}:\n{one.trace}" for i, one in enumerate(outcomes) if one.failed]
    return Outcome({"workers": [one.answer for one in outcomes]}, "\n".join(traces))


def _child(folder: Path, seconds: float, ids: list[str]) -> None:
    # Programs print; what they print must not mix with the outcomes.
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    strategy = MultiWorkerMirroredStrategy()
    cases = {case.id: case for case in load()}
    for number, case_id in enumerate(ids):
        if seconds:
            faulthandler.dump_traceback_later(seconds, exit=True)
        given = _build_arguments(strategy, folder / str(number))
        outcome = run(cases[case_id], **given)
        print(json.dumps([outcome.answer, outcome.trace]), file=outcomes, flush=True)
        _meet(strategy)
        faulthandler.cancel_dump_traceback_later()
    # A thread that a program left behind must not delay the answers.
    os._exit(0)


def _build_arguments(strategy: MultiWorkerMirroredStrategy, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    replicas = strategy._replicas
    place = {"W": replicas.workers, "worker_index": replicas.worker}
    return {"strategy": strategy, "shared_dir": str(folder), **place}


def _meet(strategy: MultiWorkerMirroredStrategy) -> None:
    """Waits for the other processes; a process that failed early meets them at this step."""
    collectives = strategy._replicas.collectives
    assert collectives is not None
    while True:
        try:
            return collectives.barrier()
        except DisagreementError:
            continue


if __name__ == "__main__":
    _child(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
