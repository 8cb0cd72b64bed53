"""Every program of the oracle, asked of penstock."""

import pytest

from tests.conformance.apart import run_apart
from tests.conformance.cases import Case, load
from tests.conformance.deviations import faults, listed, pinned
from tests.conformance.programs import Outcome, run
from tests.conformance.report import describe
from tests.conformance.together import run_together

ROWS, PINNED = listed(), pinned()
CASES = load()


def wrong_with(case: Case, outcome: Outcome) -> str:
    """What is wrong with an answer, in words; empty if nothing is."""
    wrong = faults(case, outcome, ROWS, PINNED)
    return describe(case, outcome, wrong) if wrong else ""


@pytest.mark.parametrize("case", [c for c in CASES if c.workers == 1], ids=lambda case: case.id)
def test_answers_as_tensorflow_did(case: Case) -> None:
    outcome = next(run_apart([case]))[1] if case.own_process else run(case)
    if wrong := wrong_with(case, outcome):
        pytest.fail(wrong, pytrace=False)


@pytest.mark.parametrize("workers", sorted({case.workers for case in CASES} - {1}))
def test_several_processes_answer_as_tensorflow_did(workers: int) -> None:
    """Of all programs for so many processes: these take long to start, and then run them all."""
    together = run_together([case for case in CASES if case.workers == workers])
    wrong = [wrong_with(case, outcome) for case, outcome in together]
    if any(wrong):
        pytest.fail("\n\n".join(filter(None, wrong)), pytrace=False)
