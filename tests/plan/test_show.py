"""`explain()` shows the plan as written and as run, and what prevents random access."""

from __future__ import annotations

import re

from penstock.data import Dataset


def double(x):
    return x * 2


def test_every_operator_has_a_line_with_its_settings_and_function():
    text = Dataset.range(10).map(double, num_parallel_calls=2).batch(4).explain()
    batch, mapped, calls, source = (line.strip() for line in text.splitlines()[1:5])
    assert batch.startswith("batch(size=4)  [3 elements; random access]")
    assert re.match(r"map\(double at test_show.py:\d+, parallel=2\)  \[10 elements", mapped)
    assert calls == "- calls run in threads, and move to processes if threads do not scale"
    assert source.startswith("range(start=0, stop=10, step=1)")


def test_the_plan_that_is_run_is_shown_if_it_differs():
    assert "run as written" in Dataset.range(10).map(double).explain()
    text = Dataset.range(10).map(double).shuffle(10, seed=1).explain()
    written, run = text.split("as it is run:")
    assert written.index("shuffle(") < written.index("map(")
    assert run.index("map(") < run.index("shuffle(")


def test_random_access_is_affirmed():
    assert "random access: yes" in Dataset.range(10).shuffle(5).repeat().batch(2).explain()


def test_the_operator_that_blocks_random_access_is_named_with_the_reason():
    text = Dataset.range(10).filter(lambda x: x > 3).batch(2).explain()
    assert "random access: no, because of filter: how many elements pass" in text
    lines = text.splitlines()
    assert "unknown number of elements; stream]" in lines[1]
    assert "stream (how many elements pass is not known" in lines[2]
    assert "[10 elements; random access]" in lines[3]


def test_an_endless_dataset_and_a_single_element_are_counted_in_words():
    assert "[endless; random access]" in Dataset.range(3).repeat().explain()
    assert "[1 element; random access]" in Dataset.range(1).explain()


def test_explaining_calls_no_function():
    called = []
    Dataset.range(3).map(called.append).batch(2).explain()
    assert called == []
