"""Figures are added up operator by operator, and waiting does not count as working."""

from __future__ import annotations

import pytest

from penstock.engine.advice import advise_calls
from penstock.engine.figures import CallTimes, Figures, WorkerFigures, own_seconds


def row(operator, depth, elements=1, seconds=1.0, **more):
    return Figures(operator, "", depth, elements=elements, seconds=seconds, **more)


def test_reports_of_workers_are_added_up():
    tree = WorkerFigures()
    tree.add_report("a", [row("batch", 0, 2), row("map", 1, 8)])
    tree.add_report("b", [row("batch", 0, 3), row("map", 1, 12)])
    tree.add_report("a", [row("batch", 0, 1), row("map", 1, 4)])
    assert tree.count == 2
    assert [(r.operator, r.depth, r.elements, r.seconds) for r in tree.rows(3)] == [
        ("batch", 3, 6, 3.0),
        ("map", 4, 24, 3.0),
    ]


def test_inputs_with_one_name_stay_apart_and_other_plans_are_added():
    tree = WorkerFigures()
    tree.add([row("zip", 0), row("range", 1, 5), row("range", 1, 7)])
    tree.add([row("zip", 0), row("range", 1, 1), row("range", 1, 1)])
    tree.add([row("batch", 0), row("range", 1, 9)])
    assert [(r.operator, r.elements) for r in tree.rows()] == [
        ("zip", 2),
        ("range", 6),
        ("range", 8),
        ("batch", 1),
        ("range", 9),
    ]


def test_a_difference_is_what_happened_meanwhile():
    times = CallTimes("threads", 4, 3.0, 1.0), CallTimes("threads", 4, 5.0, 1.5)
    before, after = row("map", 0, 4, 1.0, calls=times[0]), row("map", 0, 9, 3.0, calls=times[1])
    meanwhile = after.plus(before, -1)
    assert (meanwhile.elements, meanwhile.seconds) == (5, 2.0)
    assert meanwhile.calls == CallTimes("threads", 4, 2.0, 0.5)


def test_the_time_below_is_not_an_operators_own():
    rows = [row("zip", 0, seconds=9), row("map", 1, seconds=5), row("range", 2, seconds=2)]
    rows += [row("range", 1, seconds=3)]
    assert own_seconds(rows) == [1.0, 3.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("calls", "waited", "expected"),
    [
        (CallTimes("threads", 4, 4.0, 1.0), 1.0, "f holds the interpreter's lock: use processes"),
        (CallTimes("threads", 4, 4.0, 0.1), 1.0, "f waits rather than computes: raise"),
        (CallTimes("threads", 4, 4.0, 3.9), 1.0, "its calls compute on 3.9 cores: divide"),
        (CallTimes("processes", 8, 8.0, 8.0), 1.0, "its calls run in 8 processes: divide"),
    ],
)
def test_advice_follows_from_the_times_of_calls(calls, waited, expected, monkeypatch):
    monkeypatch.setattr("penstock.engine.advice.cores", lambda: 4)
    assert advise_calls("f", calls, waited).startswith(expected)
