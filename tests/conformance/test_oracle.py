"""Every program of the oracle, asked of penstock."""

import pytest

from tests.conformance.apart import run_apart
from tests.conformance.cases import Case, load
from tests.conformance.deviations import faults, listed, pinned
from tests.conformance.programs import Outcome, run
from tests.conformance.report import describe

ROWS, PINNED = listed(), pinned()


def outcome_of(case: Case) -> Outcome:
    return next(run_apart([case]))[1] if case.own_process else run(case)


@pytest.mark.parametrize("case", load(), ids=lambda case: case.id)
def test_answers_as_tensorflow_did(case: Case) -> None:
    outcome = outcome_of(case)
    if wrong := faults(case, outcome, ROWS, PINNED):
        pytest.fail(describe(case, outcome, wrong), pytrace=False)
