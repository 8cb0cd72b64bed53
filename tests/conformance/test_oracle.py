"""Every program of the oracle, asked of penstock."""

from functools import cache

import pytest

from tests.conformance.apart import run_apart
from tests.conformance.cases import Case, load
from tests.conformance.deviations import faults, listed, pinned
from tests.conformance.programs import Outcome, run
from tests.conformance.report import describe
from tests.conformance.together import run_together

ROWS, PINNED = listed(), pinned()


@cache
def outcomes_of(workers: int) -> dict[str, Outcome]:
    """Of all programs for so many processes: these take long to start, and then run them all."""
    cases = [case for case in load() if case.workers == workers]
    return {case.id: outcome for case, outcome in run_together(cases)}


def outcome_of(case: Case) -> Outcome:
    if case.workers > 1:
        return outcomes_of(case.workers)[case.id]
    return next(run_apart([case]))[1] if case.own_process else run(case)


@pytest.mark.parametrize("case", load(), ids=lambda case: case.id)
def test_answers_as_tensorflow_did(case: Case) -> None:
    outcome = outcome_of(case)
    if wrong := faults(case, outcome, ROWS, PINNED):
        pytest.fail(describe(case, outcome, wrong), pytrace=False)
