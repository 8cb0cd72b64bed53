"""The life of a reader: how it ends, what it leaves behind, and how much memory it needs."""

import collections
import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import UnimplementedError
from penstock.service.host import control_connection, services
from penstock.service.host.services import session
from tests.integration.clusters import Calls, Cluster, until, wait_until_settled


@pytest.fixture
def cluster():
    with Cluster(2) as made:
        yield made


def census():
    """What a process could leave behind: its threads, and its open files and sockets."""
    gc.collect()
    names = (thread.name for thread in threading.enumerate())
    # A dispatcher's threads for requests are as many as there were requests at once.
    found = collections.Counter(name for name in names if name != "penstock-control")
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The descriptor of this listing is closed by now.
            found[os.readlink(f"/proc/self/fd/{number}").partition(":")[0]] += 1
    return found


def wait_until_gone(before):
    """Waits until all threads and files that are not in `before` are gone."""
    try:
        until(lambda: not census() - before)
    except AssertionError:
        assert census() - before == collections.Counter()


def read_all(dataset):
    return [int(x) for x in dataset]


ENDINGS = {
    "read to the end": lambda it: list(it),
    "closed early": lambda it: (next(it), it.close()),
    "closed before": lambda it: it.close(),
    "dropped": lambda it: next(it),
    "saved and closed": lambda it: (next(it), it.state_dict(), it.close()),
}

WAYS = {
    "alone": lambda d: d,
    "prefetched": lambda d: d.prefetch(4),
    "batched": lambda d: d.batch(2),
    "zipped": lambda d: Dataset.zip((d, Dataset.range(10**6))),
    "repeated": lambda d: d.repeat(2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("arguments", [{}, {"job_name": "a job"}], ids=["anonymous", "named"])
def test_nothing_is_left_of_a_reader(cluster, way, arguments, monkeypatch):
    # A connection to the dispatcher is kept for every call that was made at the same time.
    monkeypatch.setattr(control_connection, "_KEPT", 1)
    made = WAYS[way](Dataset.range(300).map(lambda x: x).apply(cluster.distribute(**arguments)))
    next(iter(made.take(1)))  # From now on the process has everything that it opens only once.
    before = wait_until_settled(census)
    for ending in ENDINGS.values():
        iterator = iter(made)
        ending(iterator)
        del iterator
        wait_until_gone(before)


def test_nothing_is_left_of_a_service():
    with Cluster(1) as cluster:
        read_all(Dataset.range(10).apply(cluster.distribute()))
    before = wait_until_settled(census)
    with Cluster(3) as cluster:
        read_all(Dataset.range(10).apply(cluster.distribute()))
        read_all(Dataset.range(10).apply(cluster.distribute(job_name="named")))
    wait_until_gone(before)


def test_closing_does_not_wait_for_a_function(cluster):
    calls = Calls()
    made = Dataset.range(100).map(calls).apply(cluster.distribute()).prefetch(4)
    before = calls.count
    calls.shut()
    iterator = iter(made)
    reader = threading.Thread(target=lambda: next(iterator, None))
    reader.start()
    until(lambda: calls.count > before)
    iterator.close()  # The function still waits, so a close that waited for it would block forever.
    reader.join()
    assert not calls.gates[calls.key].is_set()
    calls.open()


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_closing_without_prefetch_does_not_wait_either(cluster, mode):
    calls = Calls()
    iterator = iter(Dataset.range(100).map(calls).apply(cluster.distribute(mode)))
    next(iterator)
    calls.shut()
    iterator.close()
    calls.open()


class Interrupting:
    """Interrupts the main thread while it waits for the element."""

    done = False

    def __call__(self, x):
        if x == 5 and not Interrupting.done:
            Interrupting.done = True
            signal.raise_signal(signal.SIGINT)
        return x


def test_an_interrupted_reader_continues_where_it_was(cluster):
    iterator = iter(Dataset.range(20).map(Interrupting()).apply(cluster.distribute()))
    found, interrupts = [], 0
    while len(found) < 20:
        try:
            found.append(int(next(iterator)))
        except KeyboardInterrupt:
            interrupts += 1
    assert found == list(range(20))
    assert interrupts == 1
    assert next(iterator, None) is None


def test_many_readers_at_once(cluster):
    datasets = [
        Dataset.range(200).map(lambda x, n=number: x + n).apply(cluster.distribute())
        for number in range(12)
    ]
    results = [None] * len(datasets)

    def read(number):
        results[number] = read_all(datasets[number])

    threads = [threading.Thread(target=read, args=(n,)) for n in range(len(datasets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(n, 200 + n)) for n in range(len(datasets))]


def test_readers_in_turns(cluster):
    dataset = Dataset.range(100).apply(cluster.distribute())
    iterators = [iter(dataset) for _ in range(8)]
    for number in range(100):
        assert [int(next(iterator)) for iterator in iterators] == [number] * 8
    for iterator in iterators:
        iterator.close()


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_no_more_is_made_than_may_be_asked_for(cluster, most, stream):
    calls = Calls()
    dataset = Dataset.range(1000)
    dataset = dataset.filter(lambda x: True) if stream else dataset
    made = dataset.map(calls).apply(cluster.distribute(max_outstanding_requests=most))
    before = calls.count
    iterator = iter(made)
    for number in range(20):
        assert next(iterator) == number
        assert calls.count - before <= number + 1 + most
    iterator.close()


def kilobytes(x):
    return np.full(1 << 20, x, np.uint8)


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_reader_does_not_make_workers_grow(cluster, stream):
    calls = Calls()
    dataset = Dataset.range(10_000)
    dataset = dataset.filter(lambda x: True) if stream else dataset
    made = dataset.map(lambda x: kilobytes(calls(x))).apply(cluster.distribute())
    iterator = iter(made)
    for number in range(5):
        assert next(iterator)[0] == number
    # Prefetched elements are bounded by 64 MB, and a little for data in sockets.
    wait_until_settled(lambda: (calls.count, "made"))
    assert calls.count < 100
    buffered = [worker["buffered"] for worker in service.status(cluster.target)["workers"]]
    assert max(buffered) < 100 << 20
    iterator.close()


def read_in_child(target, results):
    try:
        made = Dataset.range(20).apply(service.distribute("distributed_epoch", target))
        results.put(read_all(made))
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
# What the tests before it have loaded is not to fork, either; the child does not use it.
@pytest.mark.filterwarnings("ignore:.*JAX is multithreaded:RuntimeWarning")
def test_a_forked_child_reads_by_itself(cluster):
    made = Dataset.range(20).apply(cluster.distribute())
    iterator = iter(made)
    assert next(iterator) == 0
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    child = fork.Process(target=read_in_child, args=(cluster.target, results))
    # Other threads may hold them when a process forks.
    with services._LOCK, services._OPENING:
        child.start()
    try:
        assert results.get(timeout=60) == list(range(20))
    finally:
        child.kill()
        child.join()
    assert read_all(iterator) == list(range(1, 20))


LOCKS = {
    "of services": lambda cluster: services._LOCK,
    "of the connection": lambda cluster: session(cluster.address)._call.__self__._connections._lock,
    "of the dispatcher": lambda cluster: cluster.dispatcher._hosted._handler.ledger._lock,
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("job", [None, "collected"])
def test_the_collector_may_find_a_reader_while_a_lock_is_held(cluster, lock, job):
    made = Dataset.range(100).apply(cluster.distribute(job_name=job))
    iterator = iter(made)
    assert next(iterator) == 0
    ring = [iterator]
    ring.append(ring)
    with lock(cluster):
        del iterator, ring
        gc.collect()
    assert read_all(made) == list(range(100))


def test_a_function_that_takes_long_shows_while_it_runs(cluster):
    """It counts as neither a slow program nor a slow network."""
    calls = Calls()
    data = Dataset.range(20).filter(lambda x: True).map(calls)
    iterator = iter(data.apply(cluster.distribute()))
    next(iterator)
    calls.shut()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        rest = pool.submit(list, iterator)
        try:
            until(lambda: rate_of(cluster)[0] > 0.9)
            until(lambda: rate_of(cluster)[1] > 0.9)
        finally:
            calls.open()
        assert len(rest.result()) == 19


def rate_of(cluster):
    """The share of its time that the program waits, and that the busiest worker computes."""
    found = service.status(cluster.target)
    return found["jobs"][0]["lag"], max(worker["busy"] for worker in found["workers"])


@pytest.mark.parametrize("rows", [range(1, 1001), np.arange(1, 1 << 21)], ids=["plan", "array"])
def test_a_worker_that_stops_while_it_fetches_a_plan_fails_no_reader(cluster, rows):
    """A worker that stops closes its connection to the dispatcher before those to its clients."""
    cluster.workers[0]._hosted._running.control.close()
    data = Dataset.from_tensor_slices(rows).batch(1 << 10)
    read = list(data.apply(cluster.distribute()))
    assert np.array_equal(np.concatenate(read), rows)


def test_a_server_that_is_dropped_stops():
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher.target.partition("://")[2]))
    made = Dataset.range(5).apply(service.distribute("distributed_epoch", dispatcher.target))
    assert read_all(made) == [0, 1, 2, 3, 4]
    before = len(threading.enumerate())
    del worker
    del dispatcher
    until(lambda: gc.collect() >= 0 and len(threading.enumerate()) < before)


def test_penstock_itself_loads_only_the_configuration_of_the_service():
    code = "import sys, penstock; print(*[m for m in sys.modules if 'penstock.service.' in m])"
    with os.popen(f'{os.sys.executable} -c "{code}"') as found:
        loaded = set(found.read().split())
    host = "penstock.service.host"
    assert loaded == {host, f"{host}.server_setup"}


def test_the_result_is_not_random_access(cluster):
    made = Dataset.range(5).apply(cluster.distribute())
    with pytest.raises(UnimplementedError, match="the service decides which worker computes"):
        made[0]


@pytest.mark.parametrize("kept", [False, True])
def test_short_jobs_leave_nothing_behind(kept, tmp_path):
    config = {"work_dir": str(tmp_path)} if kept else {}
    with Cluster(1, **config) as cluster:
        for number in range(30):
            made = Dataset.range(number, number + 3).map(lambda x: x)
            assert len(list(made.apply(cluster.distribute()))) == 3
        status = service.status(cluster.target)
        assert (status["jobs"], status["datasets"]) == ([], [])
        until(lambda: not kept or os.listdir(tmp_path / "plans") == [])
        again = made.apply(cluster.distribute())
        assert [len(list(again)) for _ in range(2)] == [3, 3]
