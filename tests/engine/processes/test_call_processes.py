"""Calls in processes give what calls in threads give: elements, order, states and failures.

All tests share the processes of this program. The functions are defined inside functions, so that
they travel whole and the processes need not import this module.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data import AUTOTUNE, Dataset, Options
from penstock.data.dataset import ENVIRONMENT
from penstock.engine import calling
from penstock.engine.context import Context
from penstock.engine.lower import open_plan
from penstock.engine.processes import call_processes
from penstock.engine.processes.call_processes import CallProcesses, CallTask
from penstock.errors import AbortedError, InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import Node
from tests.engine.driving import drain_stream, model, pulls, take_elements
from tests.engine.example_plans import SOURCES, fresh, plan_of
from tests.integration.clusters import until

PARALLEL = ["map parallel", "map autotuned", "map random parallel", "prefetch autotuned"]
PROCESSES = Options(executor="processes")
THREADS = Options(executor="threads")


def elsewhere(dataset: Dataset) -> Dataset:
    return dataset.with_options(PROCESSES)


def open_in_processes(plan: Node, state: Any = None) -> Any:
    return open_plan(plan, state, Context(ENVIRONMENT, key=7, options=PROCESSES.make_frozen()))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("operator", PARALLEL)
def test_the_stream_contract(operator: str, source: str) -> None:
    plan = plan_of(operator, source)
    expected = model(plan)
    assert drain_stream(open_in_processes(fresh(plan)), 7) == expected
    stream, count = open_in_processes(fresh(plan)), 0
    for pulled in pulls(stream, 3):
        count += len(pulled)
        if count % 5 == 0:
            assert (
                drain_stream(open_in_processes(fresh(plan), stream.save()), 100) == expected[count:]
            )
    stream.close()


def test_the_calls_run_in_other_processes() -> None:
    found = set(elsewhere(Dataset.range(64).map(lambda x: os.getpid(), num_parallel_calls=2)))
    assert os.getpid() not in found
    assert 1 <= len(found) <= 2


def test_the_next_iteration_begins_with_tasks_as_large_as_the_last_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    class NotedTask(CallTask):
        def __init__(self, function: Any, chunk: Any, *arguments: Any) -> None:
            super().__init__(function, chunk, *arguments)
            sizes.append(len(chunk))

    monkeypatch.setattr(calling, "CallTask", NotedTask)
    monkeypatch.setattr(calling, "_TASK_SECONDS", 60.0)  # However busy the machine is.
    dataset = elsewhere(Dataset.range(3000).map(lambda x: x + 1, num_parallel_calls=2))
    assert list(dataset) == list(range(1, 3001))
    assert sizes[0] == 1
    sizes.clear()
    assert list(dataset) == list(range(1, 3001))
    assert sizes[0] > 1


ENDING = """
import threading
from penstock.data import Dataset, Options
from penstock.engine.processes import call_processes
call_processes._IDLE_SECONDS = {idle}
dataset = Dataset.range(64).map(lambda x: x + 1, num_parallel_calls=2)
assert len(list(dataset.with_options(Options(executor="processes")))) == 64
{end}
"""
IDLE = """
[thread] = [each for each in threading.enumerate() if each.name == "penstock-processes"]
thread.join()
call_processes._current = None
"""


@pytest.mark.parametrize(("idle", "end"), [(60, ""), (0.2, IDLE)])
def test_no_socket_is_left_open(idle: float, end: str) -> None:
    program = ENDING.format(idle=idle, end=end)
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_states_of_threads_and_processes_are_the_same() -> None:
    dataset = Dataset.range(40).map(lambda x: x * x, num_parallel_calls=3)
    near, far = (iter(dataset.with_options(options)) for options in (THREADS, PROCESSES))
    for _ in range(17):
        assert next(near) == next(far)
    drawn = {"key": 0}
    assert near.state_dict() | drawn == far.state_dict() | drawn
    resumed = iter(dataset.with_options(THREADS))
    resumed.load_state_dict(far.state_dict())
    assert list(resumed) == list(far)


VALUES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: 3,
    "a structure": lambda x: {"a": (x, np.float32(2)), "b": np.full((2, 3), x)},
    "text": lambda x: f"element {x}",
    "rows of different lengths": lambda x: np.arange(x),
    "lists": lambda x: [int(x), 1],
    "large": lambda x: np.full(100_000, x),
    "its argument": lambda x: x,
    "datasets": lambda x: Dataset.range(x),
    "another dtype, late": lambda x: np.int32(x) if x < 20 else np.float32(x),
    "nothing of use": lambda x: object() if x == 7 else x,
    "memory": lambda x: (x, memoryview(np.arange(3))) if x % 7 else (x, b"bytes"),
    "what cannot be sent": lambda x: (y for y in ()) if x == 7 else x,
    "failures": lambda x: 1 // int(x % 5),
    "only failures": lambda x: x.no_such_attribute,
    "a number too large": lambda x: 1 << int(x + 20),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_and_failures_are_those_of_threads(kind: str) -> None:
    dataset = Dataset.range(30).map(VALUES[kind], num_parallel_calls=2)
    expected, found = (take_elements(iter(dataset.with_options(o))) for o in (THREADS, PROCESSES))
    assert found == expected


def messages(dataset: Dataset) -> list[str]:
    found, iterator = [], iter(dataset)
    while True:
        try:
            next(iterator)
        except StopIteration:
            return found
        except Exception as error:
            found.append(f"{type(error).__name__}: {error} / {error.__cause__!r}")


@pytest.mark.parametrize("kind", ["failures", "another dtype, late", "a number too large"])
def test_messages_are_those_of_threads(kind: str) -> None:
    dataset = Dataset.range(30).map(VALUES[kind], num_parallel_calls=2)
    threads = messages(dataset.with_options(THREADS))
    assert threads
    assert messages(dataset.with_options(PROCESSES)) == threads


def test_the_error_has_the_line_of_the_function() -> None:
    def parse(x: Any) -> Any:
        return int("?")  # The line.

    with pytest.raises(InvalidArgumentError, match="parse at test_call_processes") as caught:
        next(iter(elsewhere(Dataset.range(5).map(parse, num_parallel_calls=2))))
    cause = caught.value.__cause__
    assert type(cause) is ValueError
    assert 'int("?")  # The line.' in cause.__notes__[0]


def test_arguments_may_be_written_to_where_threads_allow_it() -> None:
    def double_in_place(x: Any) -> Any:
        x *= 2
        return x

    rows = Dataset.from_tensor_slices(np.ones((8, 3)))
    for options in (THREADS, PROCESSES):
        made = rows.map(lambda x: x + 1).map(double_in_place, num_parallel_calls=2)
        assert np.sum(list(made.with_options(options))) == 8 * 3 * 4
        refused = rows.map(double_in_place, num_parallel_calls=2).with_options(options)
        with pytest.raises(InvalidArgumentError, match="read-only"):
            next(iter(refused))


def test_elements_may_be_written_to_and_do_not_change_later() -> None:
    dataset = Dataset.range(50).map(lambda x: np.full(20_000, x), num_parallel_calls=2)
    kept = []
    for element in elsewhere(dataset):
        element += 1
        kept.append(element)
    assert [int(x[0]) for x in kept] == list(range(1, 51))


def test_every_element_comes_once_without_order() -> None:
    dataset = Dataset.range(200).map(lambda x: x, num_parallel_calls=2, deterministic=False)
    assert sorted(elsewhere(dataset)) == list(range(200))


def test_a_crash_costs_its_element() -> None:
    def crash(x: Any) -> Any:
        if x in (5, 30):
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    found, iterator = [], iter(elsewhere(Dataset.range(40).map(crash, num_parallel_calls=2)))
    errors = []
    while len(found) + len(errors) < 40:
        try:
            found.append(int(next(iterator)))
        except AbortedError as error:
            errors.append(str(error))
    assert found == [x for x in range(40) if x not in (5, 30)]
    assert [
        f"element {x}: its process was killed by signal 9" in e
        for x, e in zip((5, 30), errors, strict=True)
    ] == [True] * 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_no_failure_of_an_element_reaches_the_caller(kind: type[BaseException]) -> None:
    def leave(x: Any) -> Any:
        raise kind

    with pytest.raises(kind):
        next(iter(elsewhere(Dataset.range(3).map(leave, num_parallel_calls=2))))


def test_a_function_that_cannot_travel_stays_in_threads() -> None:
    lock = threading.Lock()

    def use_lock(x: Any) -> Any:
        with lock:
            return os.getpid()

    dataset = elsewhere(Dataset.range(3).map(use_lock, num_parallel_calls=2))
    why = "calls run in threads: it cannot be sent to a process (TypeError: cannot pickle"
    assert why in dataset.explain()
    iterator = iter(dataset)
    assert set(iterator) == {os.getpid()}
    assert why in dataset.explain()
    assert f"map: {why}" in str(iterator.profile())


def test_a_function_that_cannot_be_loaded_stays_in_threads() -> None:
    class Homesick:
        home = os.getpid()

        def __call__(self, x: Any) -> Any:
            return os.getpid()

        def __setstate__(self, state: Any) -> None:
            raise ImportError("no module named home")

        def __getstate__(self) -> Any:
            return {"a": 1}

    dataset = elsewhere(Dataset.range(20).map(Homesick(), num_parallel_calls=2))
    assert set(dataset) == {os.getpid()}
    assert "a process cannot load it (ImportError: no module named home)" in dataset.explain()


def test_if_the_fork_server_is_killed_the_calls_go_on_in_threads() -> None:
    dataset = elsewhere(Dataset.range(400).map(lambda x: x, num_parallel_calls=2))
    iterator = iter(dataset)
    assert next(iterator) == 0
    program = call_processes.call_processes()._program
    assert program is not None
    program.kill()
    assert list(iterator) == list(range(1, 400))
    assert list(dataset) == list(range(400)), "the next iteration starts another"


def has_rested(processes: CallProcesses) -> bool:
    with processes._lock:
        processes._dispatch_or_rest(busy=False)
    return processes.closed


def test_idle_processes_end_and_later_calls_start_others() -> None:
    iterator = iter(elsewhere(Dataset.range(10**6).map(lambda x: x, num_parallel_calls=2)))
    first = call_processes.call_processes()
    kept = [next(iterator) for _ in range(10)]
    until(lambda: has_rested(first))
    until(lambda: not first._by_descriptor)
    assert [next(iterator) for _ in range(9990)] == list(range(10, 10_000))
    assert call_processes.call_processes() is not first
    assert kept == list(range(10))


def test_a_result_that_cannot_be_unpickled_is_an_error() -> None:
    home = os.getpid()

    class Traveller:
        def __reduce__(self) -> Any:
            return _arrive, (home,)

    def _arrive(home: int) -> Any:
        if os.getpid() == home:
            raise LookupError("lost on the way")
        return Traveller()

    iterator = iter(elsewhere(Dataset.range(3).map(lambda x: Traveller(), num_parallel_calls=2)))
    with pytest.raises(LookupError, match="lost on the way"):
        next(iterator)


def test_explain_and_profile_say_where_calls_run() -> None:
    dataset = elsewhere(Dataset.range(8).map(lambda x: x, num_parallel_calls=AUTOTUNE))
    assert "- calls run in processes\n" in dataset.explain()
    iterator = iter(dataset)
    list(iterator)
    assert "map: calls run in processes\n" in str(iterator.profile())
    threads = Dataset.range(8).map(lambda x: x, num_parallel_calls=2).with_options(THREADS)
    assert "- calls run in threads\n" in threads.explain()


PROGRAM = """
import os, signal
from penstock.data import Dataset, Options

def f(x):
    if x:
        os.write(1, b"%d\\n" % os.getpid())
        signal.pause()
    return x

dataset = Dataset.range(8).map(f, num_parallel_calls=2).with_options(Options(executor="processes"))
try:
    list(dataset)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_the_processes_end_with_the_program(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        processes = [int(program.stdout.readline()) for _ in range(2)]
        assert all(map(is_running, processes))
        program.send_signal(number)
        program.wait(60)
        until(lambda: not any(map(is_running, processes)))
        assert program.stdout.read() == ("interrupted\n" if number == signal.SIGINT else "")


def test_a_wrong_structure_names_the_element_as_in_threads() -> None:
    with pytest.raises((InvalidArgumentError, InvalidTypeError)) as caught:
        list(elsewhere(Dataset.range(9).map(VALUES["nothing of use"], num_parallel_calls=2)))
    assert "for element 7" in str(caught.value)


SILENT = """
import sys
import penstock
from penstock.data import Options

numbers = penstock.Dataset.range(3).map(lambda x: x + 1, num_parallel_calls=2)
numbers = numbers.with_options(Options(executor="processes"))
sys.exit(40 + sum(map(int, numbers)))
"""


def test_calls_run_in_a_program_without_stdout() -> None:
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, SILENT]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (46, "")
