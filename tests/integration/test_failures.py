"""Faults that break TensorFlow's data service. Here no element is lost, none comes twice, and
every epoch ends.

Readers may have only a few elements outstanding, so that each fault comes in the middle of work.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from penstock import errors
from penstock.data import Dataset, TextLineDataset
from penstock.data.experimental import service
from penstock.service.host.services import python_version, session
from penstock.service.protocol.messages import RegisterWorker, WorkerInfo
from tests.integration.chaos.cluster import ROOT, Program, free_port
from tests.integration.stage import Stage, open_stage

EARLY = 40
POLICIES = service.ShardingPolicy


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path) as made:
        yield made


def first(iterator: Any, count: int = EARLY) -> list[Any]:
    return numbers(islice(iterator, count))


def numbers(elements: Any) -> list[Any]:
    return [element.tolist() for element in elements]


def files_of(folder: Path, files: int, each: int) -> Dataset:
    """Lines of so many files, each with its own text."""
    for number in range(files):
        texts = (f"{number}-{line}\n" for line in range(each))
        (folder / f"{number:02}.txt").write_text("".join(texts))
    names = sorted(str(path) for path in folder.glob("*.txt"))
    return Dataset.from_tensor_slices(names).interleave(TextLineDataset, cycle_length=2)


# One worker dies in a distributed epoch


def test_one_of_two_workers_is_killed(stage: Stage) -> None:
    stage.dispatcher()
    victim, _ = stage.own_worker(), stage.worker()
    iterator = iter(Dataset.range(300).apply(stage.distribute()))
    found = first(iterator)
    victim.kill()
    assert found + numbers(iterator) == list(range(300))


def test_one_of_two_workers_is_killed_with_one_request_at_a_time(stage: Stage) -> None:
    stage.dispatcher()
    victim, _ = stage.own_worker(), stage.worker()
    reading = stage.distribute(max_outstanding_requests=1)
    iterator = iter(Dataset.range(300).apply(reading))
    found = first(iterator)
    victim.kill()
    assert found + numbers(iterator) == list(range(300))


def test_a_worker_is_killed_among_batches(stage: Stage) -> None:
    stage.dispatcher()
    victim, _ = stage.own_worker(), stage.worker()
    batches = Dataset.range(400).batch(4)
    iterator = iter(batches.apply(stage.distribute()))
    found = first(iterator)
    victim.kill()
    assert found + numbers(iterator) == numbers(batches)


def test_a_worker_is_killed_in_the_middle_of_a_file(stage: Stage, tmp_path: Path) -> None:
    stage.dispatcher()
    victim, _ = stage.own_worker(), stage.worker()
    dataset = files_of(tmp_path, 12, 25)
    iterator = iter(dataset.apply(stage.distribute()))
    found = list(islice(iterator, EARLY))
    victim.kill()
    found += iterator
    assert len(found) == 300
    assert Counter(found) == Counter(dataset)


@pytest.mark.parametrize("same_port", [True, False])
def test_a_killed_worker_is_replaced(stage: Stage, same_port: bool) -> None:
    stage.dispatcher()
    port = free_port()
    victim, _ = stage.own_worker(port), stage.worker()
    iterator = iter(Dataset.range(300).apply(stage.distribute()))
    found = first(iterator)
    victim.kill()
    stage.own_worker(port if same_port else free_port())
    assert found + numbers(iterator) == list(range(300))


def test_a_worker_stops(stage: Stage) -> None:
    stage.dispatcher()
    leaving, _ = stage.worker(), stage.worker()
    iterator = iter(Dataset.range(300).apply(stage.distribute()))
    found = first(iterator)
    leaving.stop()
    assert found + numbers(iterator) == list(range(300))


def test_a_worker_is_stopped_for_longer_than_its_timeout(stage: Stage) -> None:
    stage.dispatcher(worker_timeout_ms=1000)
    frozen, _ = stage.own_worker(), stage.worker()
    iterator = iter(Dataset.range(300).apply(stage.distribute()))
    found = first(iterator)
    frozen.signal(signal.SIGSTOP)
    stage.until(lambda status: len(status["workers"]) == 1)
    found += first(iterator)
    frozen.signal(signal.SIGCONT)
    stage.until(lambda status: len(status["workers"]) == 2)
    assert found + numbers(iterator) == list(range(300))


# One worker dies where every worker makes a copy, or its share


def test_a_killed_workers_copy_is_made_by_the_other(stage: Stage) -> None:
    stage.dispatcher()
    victim, _ = stage.own_worker(), stage.worker()
    iterator = iter(Dataset.range(200).apply(stage.distribute("parallel_epochs")))
    found = first(iterator)
    victim.kill()
    assert Counter(found + numbers(iterator)) == Counter(list(range(200)) * 2)


@pytest.mark.parametrize("same_port", [True, False])
def test_a_worker_that_replaces_another_continues_with_its_copy(
    stage: Stage, same_port: bool
) -> None:
    stage.dispatcher()
    port = free_port()
    victim, _ = stage.own_worker(port), stage.worker()
    iterator = iter(Dataset.range(200).apply(stage.distribute("parallel_epochs")))
    found = first(iterator)
    victim.kill()
    found += first(iterator)
    stage.until(lambda status: [w["state"] for w in status["workers"]] != ["here", "here"])
    stage.own_worker(port if same_port else free_port())
    assert Counter(found + numbers(iterator)) == Counter(list(range(200)) * 2)


@pytest.mark.parametrize("policy", [POLICIES.DATA, POLICIES.FILE])
def test_a_share_that_was_fixed_beforehand_is_not_made_again(
    stage: Stage, policy: Any, tmp_path: Path
) -> None:
    ports = (free_port(), free_port())
    stage.dispatcher(worker_addresses=[f"localhost:{port}" for port in ports])
    victim, _ = stage.own_worker(ports[0]), stage.worker(ports[1])
    dataset = files_of(tmp_path, 6, 25)
    iterator = iter(dataset.apply(stage.distribute(policy)))
    found = list(islice(iterator, EARLY))
    victim.kill()
    victim.start()
    found += iterator
    assert len(found) == 150
    assert Counter(found) == Counter(dataset)


# The dispatcher dies


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_a_dispatcher_that_is_gone_for_good_is_not_missed(stage: Stage, mode: str) -> None:
    dispatcher = stage.own_dispatcher(kept=False)
    stage.worker(), stage.worker()
    # A worker that computes for a plan for the first time asks the dispatcher for it.
    assert len(numbers(Dataset.range(300).apply(stage.distribute("parallel_epochs")))) == 600
    iterator = iter(Dataset.range(300).apply(stage.distribute(mode)))
    found = first(iterator)
    dispatcher.kill()
    copies = 2 if mode == "parallel_epochs" else 1
    assert Counter(found + numbers(iterator)) == Counter(list(range(300)) * copies)


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_dispatcher_comes_back(stage: Stage, mode: str, kept: bool) -> None:
    dispatcher = stage.own_dispatcher(kept)
    stage.worker(), stage.worker()
    iterator = iter(Dataset.range(300).apply(stage.distribute(mode)))
    found = first(iterator)
    dispatcher.kill()
    found += first(iterator)
    dispatcher.start()
    stage.until(lambda status: len(status["workers"]) == 2)
    copies = 2 if mode == "parallel_epochs" else 1
    assert Counter(found + numbers(iterator)) == Counter(list(range(300)) * copies)


def test_a_dispatcher_comes_back_for_two_readers_of_one_job(stage: Stage) -> None:
    dispatcher = stage.own_dispatcher()
    stage.worker(), stage.worker()
    sharing = stage.distribute(job_name="shared")
    iterators = [iter(Dataset.range(300).apply(sharing)) for _ in range(2)]
    found = [first(iterator) for iterator in iterators]
    dispatcher.kill()
    with ThreadPoolExecutor(2) as pool:
        rest = [pool.submit(numbers, iterator) for iterator in iterators]
        dispatcher.start()
        found += [reading.result() for reading in rest]
    assert Counter(chain.from_iterable(found)) == Counter(range(300))


@pytest.mark.parametrize("kept", [True, False])
def test_everything_comes_back(stage: Stage, kept: bool) -> None:
    dispatcher = stage.own_dispatcher(kept)
    workers = [stage.own_worker(), stage.own_worker()]
    iterator = iter(Dataset.range(300).apply(stage.distribute()))
    found = first(iterator)
    restart(dispatcher, *workers)
    assert found + numbers(iterator) == list(range(300))


def restart(*programs: Program) -> None:
    for program in programs:
        program.kill()
    for program in programs:
        program.start()


@pytest.mark.parametrize("kept", [True, False])
def test_a_dispatcher_comes_back_between_two_epochs(stage: Stage, kept: bool) -> None:
    dispatcher = stage.own_dispatcher(kept)
    stage.worker(), stage.worker()
    dataset = Dataset.range(300).apply(stage.distribute())
    assert numbers(dataset) == list(range(300))
    restart(dispatcher)
    assert numbers(dataset) == list(range(300))


@pytest.mark.parametrize("kept", [True, False])
def test_a_finished_job_is_remembered_by_a_dispatcher_with_a_journal(
    stage: Stage, kept: bool
) -> None:
    dispatcher = stage.own_dispatcher(kept)
    stage.worker()
    assert numbers(Dataset.range(300).apply(stage.distribute(job_name="once"))) == list(range(300))
    restart(dispatcher)
    stage.until(lambda status: len(status["workers"]) == 1)
    again = numbers(Dataset.range(300).apply(stage.distribute(job_name="once")))
    assert again == ([] if kept else list(range(300)))


# A client dies

READER = """
import sys
import penstock

reading = penstock.data.experimental.service.distribute(
    "distributed_epoch", sys.argv[1], job_name="shared", max_outstanding_requests=16)
iterator = iter(penstock.data.Dataset.range(300).apply(reading))
for _ in range(30):
    print(int(next(iterator)), flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_client_had_not_consumed_goes_to_other_clients(stage: Stage) -> None:
    stage.dispatcher()
    stage.worker()
    command = [sys.executable, "-c", READER, stage.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        taken = []
        for _ in range(20):
            taken.append(int(client.stdout.readline()))
            client.stdin.write("\n")
            client.stdin.flush()
        taken.append(int(client.stdout.readline()))
        client.kill()
    rest = numbers(Dataset.range(300).apply(stage.distribute(job_name="shared")))
    assert sorted({*taken, *rest}) == list(range(300))
    assert len(set(rest)) == len(rest)
    # Elements that the client had read but not reported come again; at least the last one.
    again = [number for number in taken if number in rest]
    assert again
    assert again == taken[-len(again) :]


# Others


def test_rounds_of_coordinated_reads_continue_without_a_worker(stage: Stage) -> None:
    stage.dispatcher()
    victim, _ = stage.own_worker(), stage.worker()
    dataset = Dataset.range(1200)
    readers = [
        dataset.apply(stage.distribute(job_name="rounds", consumer_index=i, num_consumers=2))
        for i in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        iterators = list(pool.map(iter, readers))
        found = list(pool.map(first, iterators))
        victim.kill()
        found = [a + b for a, b in zip(found, pool.map(numbers, iterators), strict=True)]
    assert Counter(found[0] + found[1]) == Counter(range(1200))
    assert all(b == a + 1 for a, b in zip(*found, strict=True))


def test_only_workers_of_this_host_are_wanted_and_there_are_none(stage: Stage) -> None:
    stage.dispatcher()
    info = WorkerInfo("far/1", "far:1", "another host", {"tcp": "far:1"})
    talk = session(f"localhost:{stage.port}")
    talk.call(RegisterWorker(info, python_version()))
    dataset = Dataset.range(10).apply(stage.distribute(target_workers="LOCAL"))
    with pytest.raises(errors.InvalidArgumentError, match="LOCAL"):
        next(iter(dataset))


def test_a_worker_without_a_dispatcher_gives_up_and_blocks_no_client(stage: Stage) -> None:
    config = service.WorkerConfig(
        dispatcher_address=f"localhost:{stage.port}", dispatcher_timeout_ms=500
    )
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(service.WorkerServer, config)
        turns = 0
        while not start.done():
            turns += 1
        with pytest.raises(errors.UnavailableError, match="has not answered"):
            start.result()
    assert turns > 100


def test_two_dispatchers_on_one_port(stage: Stage) -> None:
    stage.dispatcher()
    with pytest.raises(errors.OpError, match=f"port {stage.port} is in use"):
        stage.dispatcher()
