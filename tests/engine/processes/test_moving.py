"""Calls move to processes while an iteration runs, if they may and can.

`Relocation` decides whether threads scale, and has tests of its own. Here it always decides
that they do not.
"""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.data import AUTOTUNE, Dataset, Options
from penstock.engine import calling
from penstock.engine.processes import fork_server
from penstock.engine.tuning import Budget, Parallelism, Relocation
from penstock.engine.user_calls import Calls
from penstock.plan.functions import Function

HOME = os.getpid()


@pytest.fixture(autouse=True)
def _threads_do_not_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    def report_threads(self: Relocation, *_: Any) -> bool:
        self.reason = "in threads they used 1.0 of 2 cores"
        return True

    monkeypatch.setattr(Relocation, "note_threads", report_threads)
    monkeypatch.setattr(Relocation, "note_processes", lambda *_: False)


def where(dataset: Dataset) -> Iterator[tuple[int, int]]:
    for number, process in dataset:
        yield int(number), int(process)


def test_the_calls_move_and_the_elements_stay_the_same() -> None:
    dataset = Dataset.range(10**9).map(lambda x: (x, os.getpid()), num_parallel_calls=2)
    processes = set[int]()
    for expected, (number, process) in enumerate(where(dataset)):
        assert number == expected
        processes.add(process)
        if len(processes) == 3:
            break
    assert HOME in processes
    why = "calls run in processes: in threads they used 1.0 of 2 cores"
    assert why in dataset.explain()
    _, process = next(where(dataset))
    assert process != HOME, "the next iteration begins in processes"


def test_a_state_saved_in_threads_resumes_in_processes() -> None:
    dataset = Dataset.range(10**9).map(lambda x: (x, os.getpid()), num_parallel_calls=AUTOTUNE)
    iterator = iter(dataset)
    first, process = next(iterator)
    assert process == HOME
    state = iterator.state_dict()
    while next(iterator)[1] == HOME:
        pass
    resumed = iter(dataset)
    resumed.load_state_dict(state)
    number, process = next(resumed)
    assert (int(number), int(process) == HOME) == (int(first) + 1, False)


def wait_for_decision(dataset: Dataset) -> str:
    """Reads until the place of the calls is decided; returns the text of explain()."""
    iterator = iter(dataset)
    for _, process in iterator:
        assert process == HOME
        if "threads: " in (text := dataset.explain()) or "it cannot" in text:
            return str(iterator.profile())
    raise AssertionError


def test_a_function_that_changes_what_it_captures_stays() -> None:
    seen: list[int] = []

    def remember(x: Any) -> Any:
        seen.append(int(x))
        return x, os.getpid()

    text = wait_for_decision(Dataset.range(10**9).map(remember, num_parallel_calls=2))
    assert "map: calls run in threads: its calls change what it captures" in text


def test_a_function_that_cannot_travel_stays() -> None:
    lock = threading.Lock()

    def use_lock(x: Any) -> Any:
        with lock:
            return x, os.getpid()

    dataset = Dataset.range(10**9).map(use_lock, num_parallel_calls=2)
    iterator = iter(dataset)
    while "calls run in threads: it cannot be sent" not in str(iterator.profile()):
        assert next(iterator)[1] == HOME


def test_a_function_that_captures_much_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_MOST_CAPTURED", 100)
    dataset = Dataset.range(10**9).map(lambda x: (x, os.getpid()), num_parallel_calls=2)
    assert "it captures 0 MB" in wait_for_decision(dataset)


def searches(executor: str, calls: int = 2) -> bool:
    made = Calls("map", Function(abs))
    parallelism = Parallelism(calls, Budget(16, 1 << 20, True))
    return calling.Calling(made, parallelism, executor)._relocation is not None


def test_who_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    assert searches("auto")
    assert not searches("threads")
    assert not searches("auto", calls=1)
    token = calling.CONTAINED.set(True)
    assert not searches("auto"), "a worker of the service is one of many"
    calling.CONTAINED.reset(token)
    monkeypatch.setattr(fork_server, "is_child", True)
    assert not searches("auto")


def test_threads_stay_threads() -> None:
    dataset = Dataset.range(3000).map(lambda x: (x, os.getpid()), num_parallel_calls=2)
    found = {process for _, process in where(dataset.with_options(Options(executor="threads")))}
    assert found == {HOME}
