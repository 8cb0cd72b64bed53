"""`enable_debug_mode` keeps every call in the thread of the caller."""

import threading

import pytest

from penstock import Dataset
from penstock.data import experimental
from penstock.engine.context import DebugMode


@pytest.fixture
def debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DebugMode, "enabled", False)
    experimental.enable_debug_mode()


@pytest.mark.usefixtures("debug_mode")
def test_parallel_calls_run_in_the_callers_thread() -> None:
    threads = set()
    dataset = Dataset.range(20).map(
        lambda x: threads.add(threading.current_thread()) or x, num_parallel_calls=4
    )
    assert [int(x) for x in dataset.prefetch(2)] == list(range(20))
    assert threads == {threading.current_thread()}
