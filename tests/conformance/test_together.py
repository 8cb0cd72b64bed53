"""The harness itself, where programs run in several processes."""

from tests.conformance.cases import Case, load
from tests.conformance.programs import Outcome
from tests.conformance.together import _merge_outcomes, run_together


def test_the_id_says_how_many_processes() -> None:
    found = {case.id: case.workers for case in load()}
    assert found["multiworker/3w/attributes"] == 3
    assert {workers for name, workers in found.items() if "multiworker" not in name} == {1}


def test_answers_of_workers_are_one_answer() -> None:
    merged = _merge_outcomes([Outcome([1]), Outcome({"raised": {}}, "Traceback")])
    assert merged == Outcome({"workers": [[1], {"raised": {}}]}, "worker 1:\nTraceback")
    assert not _merge_outcomes([Outcome(1), Outcome(2)]).failed


def test_a_crash_is_an_answer_and_the_other_programs_continue() -> None:
    unknown = Case("multiworker/2w/no_such_case", "", None, "exact", workers=2)
    known = next(case for case in load() if case.id == "multiworker/2w/empty_everywhere")
    (first, died), (second, answered) = run_together([unknown, known])
    assert (first, second) == (unknown, known)
    assert died.answer == {"crash": True, "rc": 1}
    assert "KeyError: 'multiworker/2w/no_such_case'" in died.trace
    assert answered == Outcome(known.expected)
