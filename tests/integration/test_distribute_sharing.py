"""Several readers, and workers that join and leave: which reader gets what, at what cost."""

import contextlib
import gc
import socket
import threading

import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.data.iterator import _close_all as exit_of_the_program
from penstock.errors import FailedPreconditionError
from penstock.service.host import worker_server
from tests.integration.clusters import Calls, Cluster, until, wait_until_settled

NAMES = (f"shared {number}" for number in range(10**6))


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as made:
        yield made


def in_threads(*calls):
    """The results of calls that all run at the same time."""
    results = [None] * len(calls)

    def run(number):
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def readers_of(cluster, name):
    jobs = service.status(cluster.target)["jobs"]
    return sum(job["clients"] for job in jobs if job["name"] == name)


def reading(dataset):
    return lambda: [int(x) for x in dataset]


def test_readers_of_a_job_share_its_elements(cluster):
    name = next(NAMES)
    made = [Dataset.range(500).apply(cluster.distribute(job_name=name)) for _ in range(4)]
    found = in_threads(*map(reading, made))
    assert sorted(x for part in found for x in part) == list(range(500))
    # The job is over: a late reader gets nothing, and its next iteration is the next one.
    late = Dataset.range(500).apply(cluster.distribute(job_name=name))
    assert list(late) == []
    assert sorted(map(int, late)) == list(range(500))


@pytest.mark.parametrize("way", ["closed", "dropped", "collected", "left to itself"])
@pytest.mark.parametrize(
    ("count", "stream", "saves"), [(5, True, False), (333, True, True), (333, False, True)]
)
def test_a_reader_that_stops_early_leaves_the_rest_to_other_readers(
    cluster, way, count, stream, saves
):
    name = next(NAMES)
    numbers = Dataset.range(500).filter(lambda x: True) if stream else Dataset.range(500)
    first, second, third = (numbers.apply(cluster.distribute(job_name=name)) for _ in range(3))
    iterator = iter(first)
    got = [int(next(iterator)) for _ in range(count)]
    state = iterator.state_dict() if saves else None
    if way == "closed":
        iterator.close()
    elif way == "dropped":
        del iterator
    elif way == "collected":
        ring = [iterator]
        ring.append(ring)
        del iterator, ring
        gc.collect()
        until(lambda: not readers_of(cluster, name))  # The collector does not block.
    else:
        exit_of_the_program()
    assert sorted([*got, *map(int, second)]) == list(range(500))
    if state is not None:
        late = iter(third)
        late.load_state_dict(state)
        assert list(late) == []


def test_every_repetition_is_a_job_of_its_own(cluster):
    name = next(NAMES)
    made = [Dataset.range(50).apply(cluster.distribute(job_name=name)).repeat(3) for _ in range(2)]
    found = in_threads(*map(reading, made))
    assert sorted(x for part in found for x in part) == sorted([*range(50)] * 3)


@pytest.mark.parametrize("stream", [False, True])
def test_trainers_that_share_a_cache_cost_one_production(cluster, stream):
    name = next(NAMES)
    dataset = Dataset.range(2000).repeat()
    dataset = dataset.filter(lambda x: True) if stream else dataset
    calls = Calls()
    dataset = dataset.map(calls)
    made = [
        dataset.apply(
            cluster.distribute(
                "parallel_epochs" if stream else "distributed_epoch",
                job_name=name,
                cross_trainer_cache=service.CrossTrainerCache(f"trainer {number}"),
                max_outstanding_requests=100,
            )
        ).take(3000)
        for number in range(4)
    ]
    before = calls.count
    found = in_threads(*map(reading, made))
    assert all(len(part) == 3000 for part in found)
    assert calls.count - before < 1.2 * 3000 * (2 if stream else 1)


def test_a_worker_that_joins_later_is_used():
    with Cluster(1) as cluster:
        calls = Calls()
        made = Dataset.range(400).map(calls).apply(cluster.distribute())
        iterator = iter(made)
        found = [int(next(iterator)) for _ in range(4)]
        calls.shut()
        reader = threading.Thread(target=lambda: found.extend(map(int, iterator)))
        reader.start()
        stuck = wait_until_settled(lambda: calls.count)
        cluster.workers.append(cluster.join())
        # The first worker is blocked in a call, so another call comes from another worker.
        until(lambda: calls.count > stuck)
        calls.open()
        reader.join()
        assert found == list(range(400))


def hold(dataset):
    """The same elements behind a buffer of 2 MB, which one worker fills in order."""
    in_order = dataset.scan(np.int64(0), lambda total, x: (total + x, x))
    return in_order.map(lambda x: np.full(1 << 12, x)).shuffle(64, seed=1).map(lambda x: x[0])


PLANS = {"random": lambda d: d, "stream": lambda d: d.filter(lambda x: True), "held": hold}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("how", ["drain", "stop"])
@pytest.mark.parametrize("job", [False, True])
def test_a_worker_that_leaves_loses_nothing(plan, how, job):
    """Meanwhile the reading thread waits for the worker."""
    with Cluster(2) as cluster:
        dataset = PLANS[plan](Dataset.range(600))
        expected = [int(x) for x in dataset]
        name = next(NAMES) if job else None
        iterator = iter(dataset.map(lambda x: x).apply(cluster.distribute(job_name=name)))
        found = [int(next(iterator)) for _ in range(50)]
        getattr(cluster.workers[0], how)()
        found += [int(next(iterator)) for _ in range(50)]
        cluster.workers.append(cluster.join())
        getattr(cluster.workers[1], how)()
        found += [int(x) for x in iterator]
        assert (sorted(found) if job else found) == (sorted(expected) if job else expected)


def test_all_workers_may_be_replaced():
    with Cluster(1) as cluster:
        iterator = iter(Dataset.range(300).map(lambda x: x).apply(cluster.distribute()))
        found = [int(next(iterator)) for _ in range(10)]
        cluster.workers.pop().stop()
        rest = []
        reader = threading.Thread(target=lambda: rest.extend(map(int, iterator)))
        reader.start()
        cluster.workers.append(cluster.join())
        reader.join()
        assert found + rest == list(range(300))


def test_coordinated_consumers_get_batches_of_one_length(cluster):
    """Bucketed batches: in each round, all of one shape."""
    lengths = np.random.default_rng(1).integers(1, 40, 240)
    dataset = Dataset.from_tensor_slices(lengths).map(lambda n: np.ones(n, np.int64))
    name, consumers = next(NAMES), 3
    bucketed = dataset.bucket_by_sequence_length(len, [10, 20, 30], [4 * consumers] * 4)
    parts = bucketed.flat_map(lambda batch: Dataset.from_tensor_slices(batch).batch(4))
    made = [
        parts.apply(
            cluster.distribute(job_name=name, consumer_index=index, num_consumers=consumers)
        )
        for index in range(consumers)
    ]
    columns = in_threads(*(lambda d=d: [x.shape for x in d] for d in made))
    rounds = list(zip(*columns, strict=False))
    assert len(rounds) >= 15
    alike = sum(len({shape[1] for shape in step}) == 1 for step in rounds)
    assert alike >= len(rounds) - 4
    assert sum(len(column) for column in columns) == sum(1 for _ in parts)


def test_consumers_wait_for_each_other(cluster):
    name = next(NAMES)
    made = [
        Dataset.range(30).apply(
            cluster.distribute(job_name=name, consumer_index=index, num_consumers=3)
        )
        for index in range(3)
    ]
    found = in_threads(*map(reading, made))
    assert found == [list(range(index, 30, 3)) for index in range(3)]


def test_static_policies_give_every_worker_its_share():
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(2)]
        ports = [each.getsockname()[1] for each in held]
    addresses = [f"localhost:{port}" for port in ports]
    with Cluster(0, worker_addresses=addresses) as cluster:
        for port in ports:
            cluster.workers.append(cluster.join(port=port))
        for policy in (service.ShardingPolicy.DATA, service.ShardingPolicy.FILE_OR_DATA):
            made = Dataset.range(101).map(lambda x: x * 2).apply(cluster.distribute(policy))
            assert sorted(map(int, made)) == list(range(0, 202, 2))
        everything = Dataset.range(10).apply(cluster.distribute(service.ShardingPolicy.HINT))
        assert sorted(map(int, everything)) == sorted([*range(10)] * 2)
        hint = tf.data.experimental.SHARD_HINT
        hinted = Dataset.range(10).shard(hint, hint)
        for dataset in (hinted, hinted.flat_map(Dataset.from_tensors)):
            made = dataset.apply(cluster.distribute(service.ShardingPolicy.HINT))
            assert sorted(map(int, made)) == list(range(10))


def test_local_readers_get_the_parts_of_the_workers_on_their_host(monkeypatch):
    with Cluster(0, worker_addresses=["localhost"] * 3) as cluster:
        cluster.workers.append(cluster.join())
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(worker_server, "host_id", lambda: "another host")
            cluster.workers.append(cluster.join())
        cluster.workers.append(cluster.join())
        part = cluster.distribute(service.ShardingPolicy.DATA, target_workers="LOCAL")
        made = Dataset.range(12).apply(part)
        assert sorted(map(int, made)) == [0, 2, 3, 5, 6, 8, 9, 11]
        reader = iter(made)
        before = [int(next(reader)) for _ in range(3)]
        resumed = iter(made)
        resumed.load_state_dict(reader.state_dict())
        assert sorted([*before, *map(int, resumed)]) == [0, 2, 3, 5, 6, 8, 9, 11]
        reader.close()


def test_operators_may_run_on_the_share_of_each_worker():
    options = tf.data.Options()
    options.service.stateful = "per_worker"
    with Cluster(2) as cluster:
        dataset = Dataset.range(100).filter(lambda x: True).take(10).with_options(options)
        found = sorted(map(int, dataset.apply(cluster.distribute())))
        assert len(found) == 20
        assert len(set(found)) == 20
        batches = Dataset.range(100).filter(lambda x: True).batch(30).with_options(options)
        sizes = sorted(len(batch) for batch in batches.apply(cluster.distribute()))
        assert sizes == [20, 20, 30, 30]


def test_a_late_trainer_of_a_repeated_job_joins_the_repetition_that_is_read(cluster):
    def job():
        made = Dataset.range(10).apply(cluster.distribute(job_name="late trainer"))
        return iter(made.repeat())

    early = job()
    for _ in range(25):
        next(early)
    late = job()
    found = [int(next(late)) for _ in range(20)]
    assert set(found) == set(range(10))
    early.close()
    late.close()


def test_a_reader_that_finds_all_elements_leased_starts_the_next_repetition(cluster):
    """Each reader may lease both elements before the other readers open the same repetition."""
    made = Dataset.range(2).apply
    readers = [iter(made(cluster.distribute(job_name="two elements")).repeat()) for _ in range(4)]
    for turn in range(6):
        assert int(next(readers[turn % 4])) in (0, 1)
    for reader in readers:
        reader.close()


def test_an_empty_job_is_not_repeated_for_ever(cluster):
    made = Dataset.range(0).apply(cluster.distribute(job_name="empty"))
    assert list(made.repeat()) == []


def test_a_program_that_runs_again_raises(cluster, monkeypatch, caplog):
    def job():
        return Dataset.range(10).apply(cluster.distribute(job_name="run again"))

    assert len(list(job())) == 10
    assert list(job()) == []
    assert "so this reader gets nothing of it" in caplog.text
    monkeypatch.setattr("penstock.service.host.connect._PROGRAM", "another")
    with pytest.raises(FailedPreconditionError, match="penstock forget URL 'run again'"):
        list(job())


def test_datasets_with_ids_of_their_own_are_jobs_of_their_own(cluster):
    for name in ("one", "two"):
        service.register_dataset(cluster.target, Dataset.range(4), dataset_id=name)
    for name in ("one", "two"):
        made = service.from_dataset_id("parallel_epochs", cluster.target, name, job_name="same")
        assert len(list(made)) == 8


def test_a_listed_host_means_any_port_of_it():
    with Cluster(2, worker_addresses=["localhost", "localhost"]) as cluster:
        made = Dataset.range(10).apply(cluster.distribute(service.ShardingPolicy.DATA))
        assert sorted(map(int, made)) == list(range(10))
