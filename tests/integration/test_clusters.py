"""The functions with which tests of clusters wait."""

import threading

import pytest

from tests.integration import clusters


def test_until_may_wait_for_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: pauses.append(seconds))
    assert clusters.until(lambda: len(pauses) == 2000)
    assert max(pauses) == 0.05


def test_until_says_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="not true after 0 s: <function .*lambda"):
        clusters.until(lambda: False)
