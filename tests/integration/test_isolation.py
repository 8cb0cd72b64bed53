"""Isolation: a function that ends its process costs that process, and no elements of other plans.

All tests but the last ones share one worker, which must survive all of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.cli.certificates import make_certificates
from penstock.data import Dataset
from penstock.errors import AbortedError
from tests.integration.chaos.cluster import Program
from tests.integration.clusters import until
from tests.integration.stage import Stage, open_stage

CLIENT = os.getpid()


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("stage")) as stage:
        stage.dispatcher()
        stage.own_worker()
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    before = shared_stage.status()["workers"]
    yield shared_stage
    after = shared_stage.status()["workers"]
    assert [worker["worker"] for worker in after] == [worker["worker"] for worker in before]


def segmentation_fault() -> None:
    ctypes.string_at(0)


def exit_at_once() -> None:
    os._exit(3)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ENDS: dict[Callable[[], None], str] = {
    segmentation_fault: r"was killed by signal 11 \(segmentation fault\)",
    exit_at_once: "exited with code 3",
    kill_itself: r"was killed by signal 9 \(killed\)",
}


def at(ordinal: int, end: Callable[[], None], once: Path | None = None) -> Callable[[Any], Any]:
    """A function that ends its process at an element: always, or until a file exists."""

    def call(x: Any) -> Any:
        if x == ordinal and os.getpid() != CLIENT and not (once and once.exists()):
            if once is not None:
                once.touch()
            end()
        return x

    return call


def read_on(dataset: Dataset) -> tuple[list[int], list[str]]:
    """The elements, and the errors that came between them."""
    iterator, found, errors = iter(dataset), list[int](), list[str]()
    while True:
        try:
            found.append(int(next(iterator)))
        except AbortedError as error:
            errors.append(error.message)
        except StopIteration:
            return found, errors


def streams(dataset: Dataset) -> Dataset:
    """The same elements, made one after the other by one worker."""
    return dataset.filter(lambda x: True)


def test_another_reader_keeps_its_process(stage: Stage) -> None:
    slow = streams(Dataset.range(300)).map(lambda x: (x, os.getpid()))
    other = iter(slow.apply(stage.distribute()))
    found = list(islice(other, 40))
    [worker] = stage.status()["workers"]
    for end, how in ENDS.items():
        crashing = Dataset.range(60).map(at(20, end)).apply(stage.distribute())
        made, [error] = read_on(crashing)
        assert made == [*range(20), *range(21, 60)]
        assert re.search(rf"Dataset.map: call at .* element 20 .* in this call .* {how}", error)
        found += islice(other, 40)
    found += other
    assert [int(x) for x, _ in found] == list(range(300))
    assert len({int(process) for _, process in found}) == 1
    stage.until(lambda status: status["workers"][0]["restarts"] >= worker["restarts"] + 9)


@pytest.mark.parametrize(
    ("end", "stream"), [(segmentation_fault, False), (exit_at_once, True), (kill_itself, False)]
)
def test_a_lost_process_is_replaced_and_nothing_is_lost(
    stage: Stage,
    end: Callable[[], None],
    stream: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = streams(Dataset.range(60)) if stream else Dataset.range(60)
    made = dataset.map(at(20, end, tmp_path / "once")).apply(stage.distribute())
    with caplog.at_level(logging.WARNING):
        assert [int(x) for x in made] == list(range(60))
    [told] = [r.message for r in caplog.records if "and was replaced" in r.message]
    assert ENDS[end].replace("\\", "") in told


def test_a_crash_costs_readers_of_one_job_one_element(stage: Stage) -> None:
    """A state that was saved after the error continues after it, too."""
    crashing = streams(Dataset.range(60)).map(at(20, exit_at_once))
    one, two = (iter(crashing.apply(stage.distribute(job_name="crash"))) for _ in range(2))
    found, readers, errors = list[int](), [one, two], 0
    while readers:
        try:
            found.append(int(next(readers[0])))
        except AbortedError:
            errors += 1
        except StopIteration:
            readers.pop(0)
            continue
        readers = readers[::-1]
    assert (sorted(found), errors) == ([x for x in range(60) if x != 20], 1)


def test_a_state_behind_a_crash_continues_behind_it(stage: Stage) -> None:
    crashing = Dataset.range(40).map(at(20, kill_itself)).apply(stage.distribute())
    iterator = iter(crashing)
    assert [int(x) for x in islice(iterator, 20)] == list(range(20))
    with pytest.raises(AbortedError, match=r"element 20.*kernel does that when memory runs out"):
        next(iterator)
    resumed = iter(crashing)
    resumed.load_state_dict(iterator.state_dict())
    assert [int(x) for x in resumed] == [int(x) for x in iterator] == list(range(21, 40))
    assert len(list(crashing.ignore_errors())) == 39


def test_a_generator_that_ends_its_process_ends_the_reader(stage: Stage) -> None:
    """No later element can be computed. Dropping errors must not hide that, nor run forever."""

    def numbers() -> Iterator[int]:
        yield from range(3)
        if os.getpid() != CLIENT:
            os._exit(5)

    spec = Dataset.range(1).element_spec
    made = Dataset.from_generator(numbers, output_signature=spec).repeat(2)
    reading = made.apply(stage.distribute("parallel_epochs")).ignore_errors()
    found, [error] = read_on(reading)
    assert found == [0, 1, 2]
    assert re.search("3 plan processes crashed .*from_generator: .*numbers.* code 5.* ends", error)


class Deadly:
    """A function that ends every process which only decodes it."""

    def __call__(self, x: Any) -> Any:
        return x

    def __reduce__(self) -> Any:
        return os._exit, (7,)


def test_a_plan_that_ends_processes_before_they_begin(stage: Stage) -> None:
    made = Dataset.range(60).map(Deadly()).apply(stage.distribute())
    found, [error] = read_on(made)
    assert not found
    assert re.search(
        "elements 0 to 0 of stream 0, .* exited with code 7; no call of .* ends", error
    )


def test_a_process_that_leaves_another_one_behind(stage: Stage, tmp_path: Path) -> None:
    """The remaining process has all sockets too, so they do not end with the first process."""
    left = tmp_path / "left"

    def fork_and_exit() -> None:
        if (child := os.fork()) == 0:
            signal.pause()
        left.write_text(str(child))
        os._exit(1)

    made = Dataset.range(60).map(at(20, fork_and_exit, left)).apply(stage.distribute())
    assert [int(x) for x in made] == list(range(60))
    os.kill(int(left.read_text()), signal.SIGKILL)


def test_processes_draw_different_random_numbers(stage: Stage) -> None:
    def draw(x: Any) -> Any:
        return np.random.randint(1 << 30, size=4)

    def draw_again(x: Any) -> Any:
        return np.random.randint(1 << 30, size=4)

    one, two = (Dataset.range(1).map(call).apply(stage.distribute()) for call in (draw, draw_again))
    assert next(iter(one)).tolist() != next(iter(two)).tolist()


def test_encrypted_connections_reach_their_process(tmp_path: Path) -> None:
    folder = str(tmp_path / "certificates")
    make_certificates(folder, ["localhost"], 1)
    with pytest.MonkeyPatch.context() as patch, open_stage(tmp_path) as stage:
        patch.setenv("PENSTOCK_CERTIFICATES", folder)
        stage.dispatcher(certificates=folder)
        stage.own_worker()
        reading = stage.distribute(data_transfer_protocol="tcp")
        large = Dataset.range(30).map(lambda x: np.full(300_000, x, np.uint8))
        other = iter(large.apply(reading))
        found = [next(other)]
        with pytest.raises(AbortedError, match=r"element 20.* \(segmentation fault\)"):
            list(Dataset.range(60).map(at(20, segmentation_fault)).apply(reading))
        found += other
        assert [np.unique(x).tolist() for x in found] == [[x] for x in range(30)]


def descendants(process: int) -> set[int]:
    """All processes that a process has started, and those that they have started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = words.rpartition(")")[2].split()[:2]
        if state != "Z":
            parents.setdefault(int(parent), []).append(int(stat.parent.name))
    found, fresh = set[int](), {process}
    while fresh:
        fresh = {child for parent in fresh for child in parents.get(parent, ())}
        found |= fresh
    return found


def is_there(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Program, set[int]]]:
    """A worker with a reader, and the processes that it has started."""
    with open_stage(tmp_path) as stage:
        stage.dispatcher()
        worker = stage.own_worker()
        with iter(Dataset.range(10**6).map(lambda x: x + 1).apply(stage.distribute())) as iterator:
            next(iterator)
            processes = descendants(worker.process.pid)
            assert len(processes) == 2
            yield worker, processes


def test_a_killed_worker_leaves_no_process(busy: tuple[Program, set[int]]) -> None:
    worker, processes = busy
    worker.kill()
    until(lambda: not any(map(is_there, processes)))


def test_ctrl_c_is_the_workers_business(busy: tuple[Program, set[int]]) -> None:
    """A terminal sends Ctrl-C to all processes of a command; the worker drains, then all end."""
    worker, processes = busy
    for process in processes:
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.process.wait() == 0
    until(lambda: not any(map(is_there, processes)))


def test_a_worker_that_can_start_no_process_ends_with_an_error(
    busy: tuple[Program, set[int]],
) -> None:
    worker, processes = busy
    [fork_server] = [process for process in processes if descendants(process)]
    os.kill(fork_server, signal.SIGKILL)
    assert worker.process.wait() == 1
    assert "lost the process that starts plan processes; it stops" in worker.last_words()
    until(lambda: not any(map(is_there, processes)))
