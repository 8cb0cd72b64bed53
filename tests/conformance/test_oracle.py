"""penstock runs every program of the oracle."""

from collections.abc import Iterable

import pytest

from tests.conformance.apart import run_apart
from tests.conformance.cases import Case, load
from tests.conformance.deviations import faults, read_deviations, read_pins
from tests.conformance.programs import Outcome, run
from tests.conformance.report import describe
from tests.conformance.together import run_together

ROWS, PINNED = read_deviations(), read_pins()
CASES = load()
ALONE = [case for case in CASES if case.workers == 1]


def wrong_with(case: Case, outcome: Outcome) -> str:
    """The faults of an answer as text; empty if there are none."""
    wrong = faults(case, outcome, ROWS, PINNED)
    return describe(case, outcome, wrong) if wrong else ""


def check(outcomes: Iterable[tuple[Case, Outcome]]) -> None:
    wrong = [wrong_with(case, outcome) for case, outcome in outcomes]
    if any(wrong):
        pytest.fail("\n\n".join(filter(None, wrong)), pytrace=False)


@pytest.mark.parametrize("case", [c for c in ALONE if not c.own_process], ids=lambda case: case.id)
def test_answers_as_tensorflow_did(case: Case) -> None:
    check([(case, run(case))])


@pytest.mark.parametrize("area", sorted({case.area for case in ALONE if case.own_process}))
def test_answers_in_another_process_as_tensorflow_did(area: str) -> None:
    """All programs of an area that may crash or hang share a process, because starts are slow."""
    check(run_apart([case for case in ALONE if case.own_process and case.area == area]))


@pytest.mark.parametrize("workers", sorted({case.workers for case in CASES} - {1}))
def test_several_processes_answer_as_tensorflow_did(workers: int) -> None:
    """All programs for so many processes share these, because starts are slow."""
    check(run_together([case for case in CASES if case.workers == workers]))
