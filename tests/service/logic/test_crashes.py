"""Crashes: the pauses before a worker restarts a process, and when a reader gives up."""

from penstock.engine.call_watch import RecordedCall
from penstock.service.logic.crashes import (
    AT_ONCE,
    MOST_ALONE,
    MOST_CRASHES,
    Blame,
    Crashes,
)
from penstock.service.protocol import timing

PLAN, OTHER = b"a plan", b"another one"


def test_processes_are_replaced_at_once_until_too_many_were_lost_soon() -> None:
    crashes, now = Crashes(), 100.0
    pauses = []
    for _ in range(12):
        now += 1.0
        crashes.add(PLAN, -11, now - 1.0, now)
        pauses.append(crashes.pause(PLAN, now))
        now += pauses[-1]
    assert pauses[:7] == [0.0, 0.0, 0.0, 0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == 30.0
    assert crashes.pause(PLAN, now) == crashes.pause(OTHER, now) == 0.0
    assert AT_ONCE > MOST_CRASHES  # So that a reader comes to its verdict without pauses.
    assert AT_ONCE > MOST_ALONE + 1  # So that a worker finds the call without pauses.


def test_a_process_that_has_lived_is_replaced_at_once() -> None:
    crashes = Crashes()
    for at in (0.5, 1.0, 2.0, 3.0):
        crashes.add(PLAN, -11, at - 1.0, at)
    crashes.add(PLAN, -11, 4.0, 4.0 + timing.EARLY_CRASH)
    assert crashes.pause(PLAN, 4.0 + timing.EARLY_CRASH) == 0.0


def test_losses_are_numbered_and_forgotten() -> None:
    crashes = Crashes()
    crashes.add(PLAN, -11, 0.0, 1.0)
    crashes.add(OTHER, 3, 0.0, 2.0)
    last = crashes.last(OTHER)
    assert last is not None
    assert (last.number, last.code, crashes.count) == (2, 3, 2)
    crashes.forget(1.5 + timing.CRASH_MEMORY)
    assert crashes.last(PLAN) is None
    assert crashes.last(OTHER) is last
    assert crashes.count == 2


def test_only_losses_with_the_same_elements_in_hand_count() -> None:
    blame = Blame()
    for start in (5, 5, 6, 6):
        blame.add("w/1", 0, start, start + 4)
        assert not blame.is_certain
    blame.add("w/1", 1, 6, 10)
    assert not blame.is_certain
    blame.add("v/1", 1, 6, 8)
    blame.add("w/1", 1, 6, 7)
    assert blame.is_certain
    assert blame.workers == ["w/1", "v/1", "w/1"]
    assert (
        "3 workers were lost one after the other while they computed elements 6 to 6 of stream 1"
        in (blame.verdict().message)
    )
    assert not blame.is_certain


def test_a_verdict_says_how_a_process_was_lost() -> None:
    blame = Blame()
    for _ in range(3):
        blame.add("w:1/abc", 0, 5, 9)
    blame.explain("somebody:1/def", "exited with code 3")
    blame.explain("w:1/abc", "was killed by signal 9 (killed)", "Dataset.from_generator: f")
    assert (
        "3 plan processes crashed one after the other while they computed elements 5 to 8 of "
        "stream 0, in Dataset.from_generator: f, the last one because it was killed by signal 9 "
        "(killed); no call of a function is known to cause this, so no element can be passed over "
        "and reading ends here"
    ) in blame.verdict().message


def test_a_crash_whose_call_a_worker_searches_for_does_not_count() -> None:
    blame = Blame()
    for _ in range(2):
        blame.add("w:1/abc", 0, 5, 9)
    for _ in range(3):
        blame.add("w:1/abc", 0, 5, 9)
        blame.acquit("w:1/abc")
    blame.acquit("v:1/abc")
    assert not blame.is_certain
    blame.add("w:1/abc", 0, 5, 9)
    assert blame.is_certain


def test_after_a_call_was_found_there_is_no_pause_and_it_is_refused() -> None:
    crashes, calls = Crashes(), [RecordedCall(b"key", "Dataset.map: f")]
    first = crashes.add(PLAN, -11, 0.0, 1.0)
    assert (first.is_traced, first.function) == (True, "")
    second = crashes.add(PLAN, -11, 1.0, 2.0, calls)
    assert (second.is_traced, second.function, second.early) == (True, "Dataset.map: f", 2)
    assert not crashes.search(PLAN).refused
    third = crashes.add(PLAN, -11, 2.0, 3.0, calls)
    assert (third.is_traced, third.early) == (True, 0)
    assert list(crashes.search(PLAN).refused) == [b"key"]
    assert not crashes.search(OTHER).refused
    assert not crashes.add(PLAN, -11, 3.0, 4.0, []).is_traced
    assert crashes.add(PLAN, -11, 3.0, 200.0).watch == 394.0
    crashes.forget(201.0 + timing.CRASH_MEMORY)
    assert not crashes.search(PLAN).refused
