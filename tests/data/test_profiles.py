"""Every iterator has a profile, with functions by name and line, and workers' operators."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

import penstock
from penstock.data import AUTOTUNE, Dataset, Options
from penstock.data.experimental import service
from tests.integration.clusters import until


def double(x):
    return x * 2


DOUBLE = f"double at test_profiles.py:{double.__code__.co_firstlineno}"


@pytest.fixture(scope="module")
def url():
    with service.DispatchServer() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        config = service.WorkerConfig(dispatcher_address=address)
        with service.WorkerServer(config), service.WorkerServer(config):
            yield dispatcher.target


@pytest.fixture
def dataset():
    return Dataset.range(24).map(double).batch(4)


def names(profile):
    return [row.name for row in profile.operators if not row.workers]


def test_the_iterators_of_adapters_and_strategies_have_profiles(dataset):
    strategy = penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one_by_one = ["batch", f"map({DOUBLE})", "range"]
    for iterator, expected in [
        (dataset.as_numpy_iterator(), one_by_one),
        (iter(dataset.as_torch()), ["deliver", *one_by_one]),
        (iter(strategy.experimental_distribute_dataset(dataset)), ["deliver", *one_by_one]),
    ]:
        count = len(list(iterator))
        profile = iterator.profile()
        assert names(profile) == expected
        assert [row.elements for row in profile.operators][-3:] == [count, 24, 24]
        assert 0 < profile.waited <= profile.seconds


def test_inputs_for_each_replica_are_profiled_together():
    strategy = penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = penstock.distribute.InputOptions(
        experimental_replication_mode=penstock.distribute.InputReplicationMode.PER_REPLICA,
        experimental_place_dataset_on_device=True,
        experimental_fetch_to_device=False,
    )
    made = strategy.distribute_datasets_from_function(lambda _: Dataset.range(4), options)
    iterator = iter(made)
    list(iterator)
    assert names(iterator.profile()) == ["deliver", "range"] * 2


def test_through_a_service_the_operators_of_the_workers_are_there(url, dataset):
    iterator = iter(dataset.apply(service.distribute("distributed_epoch", url)))
    assert len(list(iterator)) == 6
    profile = iterator.profile()
    assert names(profile) == ["distribute"]
    remote = {row.name: row for row in profile.operators if row.workers}
    assert list(remote) == ["batch", f"map({DOUBLE})", "range"]  # And no operator that bounds them.
    assert remote["range"].elements == 24
    assert remote["batch"].elements == 6
    assert remote[f"map({DOUBLE})"].elements == 24
    assert remote["batch"].nbytes == 24 * 8
    here = profile.operators[0]
    assert here.elements == 6
    assert here.busy == 0
    assert f"{' ' * 4}map({DOUBLE}) on {here.wait and remote['batch'].workers} w" in str(profile)


def test_a_plan_that_is_cut_shows_both_sides(url):
    plan = Dataset.range(40).map(double).shuffle(4, seed=1).filter(lambda x: x > 8).batch(5)
    iterator = iter(plan.apply(service.distribute("distributed_epoch", url)).repeat(2))
    assert sum(map(len, iterator)) == 70
    profile = iterator.profile()
    assert names(profile)[0] == "repeat"
    remote = [row for row in profile.operators if row.workers]
    assert sum(row.elements for row in remote if row.function == DOUBLE) == 80
    assert {row.operator for row in profile.operators} >= {"distribute", "filter", "batch", "map"}


def test_pieces_of_a_plan_show_what_was_written(url):
    plan = Dataset.range(90).take(60).filter(lambda x: x > 8).map(double)
    iterator = iter(plan.apply(service.distribute("distributed_epoch", url)))
    assert len(list(iterator)) == 51
    remote = {row.operator for row in iterator.profile().operators if row.workers}
    assert remote <= {"map", "filter", "take", "range"}


@pytest.mark.parametrize("number", range(8))
def test_errors_on_workers_are_counted(url, number):
    """The figures arrive even if no element follows them."""

    def fail(x):
        if x == number:
            raise ValueError("no")
        return x

    failing = Dataset.range(8).map(fail).apply(service.distribute("distributed_epoch", url))
    iterator = iter(failing.ignore_errors())
    assert [int(x) for x in iterator] == [x for x in range(8) if x != number]
    assert [row.errors for row in iterator.profile().operators if row.function] == [1]


GATE = threading.Event()
GATE.set()


def wait_at_gate(x):
    GATE.wait()
    return x


AT_GATE = f"wait_at_gate at test_profiles.py:{wait_at_gate.__code__.co_firstlineno}"


def profile_while_it_hangs(dataset, is_seen):
    """The first profile for which `is_seen` is true, while a call of `wait_at_gate` is not over."""

    def look():
        profile = iterator.profile()
        return profile if is_seen(profile) else None

    iterator = iter(dataset)
    first = next(iterator)
    GATE.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        rest = pool.submit(list, iterator)
        try:
            profile = until(look)
        finally:
            GATE.set()
        assert first == 0
        assert len(rest.result()) == 63
    assert not any(row.call for row in iterator.profile().operators)
    return profile


def test_a_call_that_hangs_in_a_worker_is_what_the_program_waits_for(url):
    """The network is not blamed, although workers send nothing else meanwhile."""
    data = Dataset.range(64).filter(lambda x: True).map(wait_at_gate)
    distributed = data.apply(service.distribute("distributed_epoch", url))
    profile = profile_while_it_hangs(
        distributed, lambda one: one.bottleneck.startswith(f"{AT_GATE} on worker ")
    )
    assert "waits for this call" in profile.bottleneck
    assert f"distribute: has waited for {AT_GATE}" in str(profile)
    assert 0 < profile.operators[0].call_seconds <= profile.operators[0].wait
    assert profile.waited <= profile.seconds
    assert next(row for row in profile.operators if row.function == AT_GATE).busy > 0


def test_a_call_that_hangs_in_this_process_counts_while_it_runs():
    data = Dataset.range(64).map(wait_at_gate)
    profile = profile_while_it_hangs(data, lambda one: one.waited > 0.2)
    assert profile.bottleneck.startswith(f"map({AT_GATE}): ")


def test_waiting_for_the_lock_is_told_from_computing():
    def hold_lock(x):
        return x + sum(i for i in range(60_000)) * 0

    options = Options()
    options.executor = "threads"
    dataset = Dataset.range(40).map(hold_lock, num_parallel_calls=4).with_options(options)
    iterator = iter(dataset)
    list(iterator)
    calls = next(row.calls for row in iterator.profile().operators if row.calls)
    assert calls.place == "threads"
    assert calls.most == 4
    assert 0 < calls.cpu_seconds <= 1.1 * calls.seconds


def test_a_profile_ends_with_its_iteration(dataset):
    iterator = iter(dataset)
    list(iterator)
    assert iterator.profile().seconds == iterator.profile().seconds


def test_autotune_is_what_a_sequential_map_is_advised(dataset):
    iterator = iter(dataset)
    list(iterator)
    row = next(row for row in iterator.profile().operators if row.operator == "map")
    assert row.hint == f"call {DOUBLE} in parallel: map(..., num_parallel_calls=AUTOTUNE)"
    assert AUTOTUNE == -1
