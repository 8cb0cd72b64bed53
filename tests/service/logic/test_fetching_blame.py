"""Blame: when a reader stops retrying elements that crash processes."""

from penstock.service.logic.fetching import Blame


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
    blame.explain("worker:1/def", "exited with code 3")
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
