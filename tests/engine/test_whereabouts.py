"""Whereabouts: the function that a thread is in is found, through pools and generators."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.data import Dataset, Options
from penstock.engine import calling
from penstock.engine.whereabouts import whereabouts
from tests.integration.clusters import until

GATE = threading.Event()


def hang(x: int) -> int:
    GATE.wait()
    return x


def hang_once(x: int) -> bool:
    GATE.wait()
    return True


def numbers() -> Iterator[int]:
    GATE.wait()
    yield 1


SPEC = Dataset.range(1).element_spec
DATASETS = {
    "map": (lambda: Dataset.range(3).map(hang), hang),
    "parallel map": (lambda: Dataset.range(3).map(hang, num_parallel_calls=2), hang),
    "filter": (lambda: Dataset.range(3).filter(hang_once), hang_once),
    "prefetch": (lambda: Dataset.range(3).map(hang).prefetch(2), hang),
    "several pools": (lambda: Dataset.range(9).map(hang, 2).batch(3).prefetch(1), hang),
    "generator": (lambda: Dataset.from_generator(numbers, output_signature=SPEC), numbers),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_thread_that_hangs_says_where(name: str) -> None:
    make, function = DATASETS[name]
    GATE.set()
    dataset = make()
    assert dataset.element_spec is not None  # Functions are called for it.
    GATE.clear()
    reading = threading.Thread(target=lambda: list(dataset))
    reading.start()
    line = function.__code__.co_firstlineno  # type: ignore[attr-defined]
    expected = f"{function.__name__} at test_whereabouts.py:{line}"  # type: ignore[attr-defined]
    assert reading.ident is not None
    until(lambda: whereabouts(reading.ident or 0).function == expected)
    GATE.set()
    reading.join()


@pytest.mark.parametrize("calls", [None, 2])
@pytest.mark.parametrize("result", [int, lambda x: [x]], ids=["numbers", "lists"])
def test_a_call_has_the_number_of_its_element(calls: int | None, result: Any) -> None:
    def hang_at_five(x: int) -> Any:
        if x == 25:
            GATE.wait()
        return result(x)

    GATE.set()
    dataset = Dataset.range(20, 40).map(hang_at_five, num_parallel_calls=calls)
    assert len(list(dataset)) == 20
    GATE.clear()
    reading = threading.Thread(target=lambda: list(dataset))
    reading.start()
    until(lambda: whereabouts(reading.ident or 0).element == 5)
    GATE.set()
    reading.join()


def test_a_thread_that_waits_for_a_process_says_for_which_function(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def wait_for_gate(x: int) -> int:
        with open(gate, "rb") as file:
            file.read()
        return x

    dataset = Dataset.range(1).map(wait_for_gate, num_parallel_calls=2)
    elsewhere = dataset.with_options(Options(executor="processes"))
    reading = threading.Thread(target=lambda: list(elsewhere))
    reading.start()
    until(
        lambda: whereabouts(reading.ident or 0).function.startswith(
            "wait_for_gate at test_whereabouts"
        )
    )
    gate.write_bytes(b"open")
    reading.join()


def test_a_thread_may_be_making_what_calls_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object that it makes does not have all its fields yet."""
    waits, over = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        waits.set()
        over.wait()

    monkeypatch.setattr(calling, "_ThreadCalls", wait)
    dataset = Dataset.range(1).map(abs, num_parallel_calls=2)
    reading = threading.Thread(target=lambda: next(iter(dataset)), daemon=True)
    with monkeypatch.context() as quiet:
        quiet.setattr(threading, "excepthook", lambda _: None)  # No calls were made.
        reading.start()
        waits.wait()
        assert whereabouts(reading.ident or 0).function.startswith("wait at test_whereabouts")
        over.set()
        reading.join()


def test_a_thread_that_is_nowhere_says_nothing() -> None:
    over = threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    assert whereabouts(waiting.ident or 0) == ("", None)
    over.set()
    waiting.join()
    assert whereabouts(waiting.ident or 0) == ("", None)
