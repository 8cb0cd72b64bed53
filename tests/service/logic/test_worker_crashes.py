"""Crashes: the pauses before a worker restarts a process, and the calls that it refuses."""

from penstock.engine.call_watch import RecordedCall
from penstock.service.logic.fetching import MOST_CRASHES
from penstock.service.logic.worker import AT_ONCE, MOST_ALONE, Crashes
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
    assert AT_ONCE > MOST_CRASHES  # Without pauses, a reader gives its verdict at once.
    assert AT_ONCE > MOST_ALONE + 1  # Without pauses, a worker finds the call at once.


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
