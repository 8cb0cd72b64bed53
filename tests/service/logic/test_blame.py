"""Blame: which elements cost one process after the other."""

from penstock.service.logic.blame import Blame


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


def test_a_verdict_tells_how_a_process_was_lost() -> None:
    blame = Blame()
    for _ in range(3):
        blame.add("w:1/abc", 0, 5, 9)
    blame.explain("somebody:1/def", "exited with code 3")
    blame.explain("w:1/abc", "was killed by signal 9 (killed)")
    verdict = "stream 0; the process of worker w:1 was killed by signal 9 (killed); a function"
    assert verdict in blame.verdict().message
