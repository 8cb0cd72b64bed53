"""Crashes: the pauses before a worker restarts a process, and when a reader gives up."""

from penstock.service.logic.crashes import (
    AT_ONCE,
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
    assert pauses[:6] == [0.0, 0.0, 0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == 30.0
    assert crashes.pause(PLAN, now) == crashes.pause(OTHER, now) == 0.0
    assert AT_ONCE == MOST_CRASHES  # So that a reader comes to its verdict without pauses.


def test_a_process_that_has_lived_is_replaced_at_once() -> None:
    crashes = Crashes()
    for at in (1.0, 2.0, 3.0):
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
    assert "elements 6 to 6 of stream 1; a function may end" in blame.verdict().message
    assert not blame.is_certain


def test_a_verdict_says_how_a_process_was_lost() -> None:
    blame = Blame()
    for _ in range(3):
        blame.add("w:1/abc", 0, 5, 9)
    blame.explain("somebody:1/def", "exited with code 3")
    blame.explain("w:1/abc", "was killed by signal 9 (killed)")
    verdict = "stream 0; the process of worker w:1 was killed by signal 9 (killed); a function"
    assert verdict in blame.verdict().message
