"""A state saved at any element, restored with any workers, gives exactly the rest."""

import collections
import itertools
import json
import threading

import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import InvalidArgumentError
from tests.engine.driving import reload_state
from tests.engine.list_values import plain
from tests.integration.clusters import Cluster


@pytest.fixture(scope="module")
def clusters():
    """Separate services with one, two and three workers."""
    made = [Cluster(workers) for workers in (1, 2, 3)]
    yield made
    for cluster in made:
        cluster.close()


def generate_numbers():
    yield from range(12)


def files(folder):
    names = []
    for number in range(4):
        path = folder / f"{number}.txt"
        path.write_text("".join(f"{number}-{line}\n" for line in range(5)))
        names.append(str(path))
    return tf.data.TextLineDataset(names)


PLANS = {
    "random access": lambda _: Dataset.range(15).shuffle(5, seed=1).map(lambda x: x * 2),
    "batches": lambda _: Dataset.range(40).batch(3),
    "split": lambda _: Dataset.range(20).filter(lambda x: x % 3 > 0),
    "generator": lambda _: Dataset.from_generator(
        generate_numbers, output_signature=tf.TensorSpec((), tf.int64)
    ).map(lambda x: x + 1),
    "files": files,
    "cut": lambda _: Dataset.range(20).map(lambda x: x + 1).filter(lambda x: x % 2 == 1).batch(2),
    "scan": lambda _: (
        Dataset.range(12).filter(lambda x: x > 1).scan(np.int64(0), lambda s, x: (s + x, s))
    ),
}

BEHIND = {
    "nothing": lambda d: d,
    "batch": lambda d: d.batch(4),
    "shuffle": lambda d: d.shuffle(5, seed=3, reshuffle_each_iteration=False),
    "map": lambda d: d.map(lambda x: (x, x)),
    "parallel map": lambda d: d.map(lambda x: (x, x), num_parallel_calls=3),
    "repeat": lambda d: d.repeat(2),
    "take": lambda d: d.take(7),
    "skip": lambda d: d.skip(3),
    "prefetch": lambda d: d.prefetch(3),
    "enumerate": lambda d: d.enumerate(),
    "interleave": lambda d: d.interleave(lambda x: Dataset.from_tensors(x).repeat(2), 3),
    "batch prefetched": lambda d: d.prefetch(2).batch(3).prefetch(1),
}


def saved_everywhere(make, restored=None):
    """Every state of an iterator is loaded into a fresh one, which must give exactly the rest."""
    expected = [plain(x) for x in make()]
    iterator = iter(make())
    for count in range(len(expected) + 1):
        state = reload_state(iterator.state_dict())
        with iter((restored or make)()) as again:
            again.load_state_dict(state)
            assert [plain(x) for x in again] == expected[count:], f"after {count}: {state}"
        assert plain(next(iterator, None)) == (expected[count] if count < len(expected) else None)
    iterator.close()
    return expected


@pytest.mark.parametrize("name", PLANS)
def test_at_every_element_into_a_fresh_service(clusters, name, tmp_path):
    dataset = PLANS[name](tmp_path)
    found = saved_everywhere(
        lambda: dataset.apply(clusters[0].distribute()),
        lambda: dataset.apply(clusters[2].distribute()),
    )
    expected = [plain(x) for x in dataset]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert found == expected or name == "files"


@pytest.mark.parametrize("name", BEHIND)
def test_with_operators_behind_distribute(clusters, name):
    dataset = Dataset.range(10).map(lambda x: x * 2).apply(clusters[1].distribute())
    found = saved_everywhere(lambda: BEHIND[name](dataset))
    local = Dataset.range(10).filter(lambda x: True).map(lambda x: x * 2)
    assert found == [plain(x) for x in BEHIND[name](local)]


def continues(make, state, expected):
    """Whether a fresh iterator gives exactly the rest from a state."""
    with iter(make()) as again:
        again.load_state_dict(reload_state(state))
        return [plain(x) for x in again] == expected


MOVING = {
    **{name: (plan, "nothing") for name, plan in PLANS.items()},
    **{
        f"random access, {name}": (PLANS["random access"], name)
        for name in BEHIND
        if name != "shuffle"
    },
    "files, shuffle": (lambda folder: files(folder).shuffle(4), "prefetch"),
}


@pytest.mark.parametrize("name", MOVING)
def test_from_this_process_to_a_service_and_back(clusters, name, tmp_path):
    plan, behind = MOVING[name]
    dataset = plan(tmp_path)
    local = BEHIND[behind](dataset)
    served = BEHIND[behind](dataset.apply(clusters[1].distribute()))
    iter(local), iter(served)  # Now both are in their second epoch.
    here, there = iter(local), iter(served)
    there.load_state_dict(here.state_dict())
    for count in (1, 2):
        for _ in range(count):
            assert plain(next(here)) == plain(next(there))
        saved_here, saved_there = here.state_dict(), there.state_dict()
        with iter(local) as again:
            again.load_state_dict(saved_here)
            expected = [plain(x) for x in again]
        assert continues(lambda: served, saved_here, expected)
        assert continues(lambda: local, saved_there, expected)
        assert continues(lambda: served, saved_there, expected)
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("job_name", "behind"), [("not moved", BEHIND["nothing"]), (None, BEHIND["shuffle"])]
)
def test_a_state_does_not_move_where_the_order_differs(clusters, job_name, behind):
    """Readers share a job; and with random access, `shuffle` draws another order."""
    dataset = Dataset.range(20).map(lambda x: x + 1)
    served = dataset.apply(clusters[1].distribute(job_name=job_name))
    with iter(behind(served)) as reader:
        next(reader)
        with pytest.raises(InvalidArgumentError, match="does not move to or from a service"):
            iter(behind(dataset)).load_state_dict(reader.state_dict())


def test_of_two_that_are_zipped(clusters):
    one = Dataset.range(10).apply(clusters[0].distribute())
    two = Dataset.range(10).filter(lambda x: x >= 0).apply(clusters[1].distribute())
    found = saved_everywhere(lambda: Dataset.zip((one, two)).batch(2))
    assert len(found) == 5


def numbers(iterator, most=10**6):
    found = []
    for element in iterator:
        found += np.ravel(element).tolist()
        if (most := most - 1) <= 0:
            break
    return found


UNORDERED = {
    "nothing": lambda d: d,
    "batch": lambda d: d.batch(4),
    "prefetch": lambda d: d.prefetch(3),
    "shuffle": lambda d: d.shuffle(5, seed=3),
}


@pytest.mark.parametrize("plan", ["random access", "split", "files"])
@pytest.mark.parametrize("behind", UNORDERED)
def test_without_order_every_element_comes_once(clusters, plan, behind, tmp_path):
    options = tf.data.Options()
    options.deterministic = False
    dataset = PLANS[plan](tmp_path).with_options(options)
    expected = collections.Counter(numbers(dataset))

    def make(cluster):
        return iter(UNORDERED[behind](dataset.apply(cluster.distribute())))

    for count in range(0, 16, 3):
        iterator = make(clusters[2])
        found = numbers(iterator, count) if count else []
        again = make(clusters[1])
        again.load_state_dict(iterator.state_dict())
        iterator.close()
        found += numbers(again)
        assert collections.Counter(found) == expected, count


NAMES = iter(range(1000))


def of_a_job(cluster, dataset, count=2, **arguments):
    """Readers of one new job."""
    name = f"job {next(NAMES)}"
    return [
        iter(dataset.apply(cluster.distribute(job_name=name, **arguments))) for _ in range(count)
    ]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("count", [0, 4])
def test_one_reader_of_a_job_dies_and_comes_back(clusters, name, count, tmp_path):
    dataset = PLANS[name](tmp_path)
    expected = collections.Counter(numbers(dataset))
    one, two = of_a_job(clusters[1], dataset)
    found = numbers(one, 2) + numbers(two, 2)
    found += numbers(one, count) if count else []
    state = json.loads(json.dumps(one.state_dict()))
    numbers(one, 2)  # The reader dies after these elements, and gets them again.
    job = state["at"]["from"]["own"] if "from" in state["at"] else state["at"]["own"]
    assert job["clients"]
    one.close()
    again = iter(dataset.apply(clusters[1].distribute(job_name=f"job {next(NAMES) - 1}")))
    again.load_state_dict(state)
    found += numbers(again, 3) + numbers(two) + numbers(again)
    assert collections.Counter(found) == expected


@pytest.mark.parametrize("name", ["random access", "split", "generator", "files"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 1)])
def test_a_job_continues_with_another_number_of_readers(clusters, name, before, after, tmp_path):
    dataset = PLANS[name](tmp_path)
    readers = of_a_job(clusters[1], dataset, before)
    found = [x for count, reader in enumerate(readers) for x in numbers(reader, count + 1)]
    state = service.merge_states([reader.state_dict() for reader in readers])
    for reader in readers:
        reader.close()
    state = json.loads(json.dumps(state))
    # The service and the readers are new, and so is the number of readers.
    again = of_a_job(clusters[2], dataset, after)
    for reader in again:
        reader.load_state_dict(state)
    found += [x for reader in again for x in numbers(reader, 2)]
    found += [x for reader in again for x in numbers(reader)]
    assert collections.Counter(found) == collections.Counter(numbers(dataset))


@pytest.mark.parametrize("kept", [0, 1])
def test_a_state_of_any_reader_without_seeds_fits_a_fresh_service(clusters, kept):
    def readers(cluster, name):
        """The datasets differ as in separate processes: each is shuffled in another order."""
        made = [Dataset.range(40).shuffle(40) for _ in range(2)]
        return [iter(one.apply(cluster.distribute(job_name=name))) for one in made]

    one, two = readers(clusters[1], f"unseeded {kept}")
    found = numbers(one, 5) + numbers(two, 5)
    states = [one.state_dict(), two.state_dict()]
    merged = service.merge_states(states if kept == 0 else states[::-1])
    for reader in (one, two):
        reader.close()
    for reader in readers(clusters[2], f"unseeded {kept}"):
        reader.load_state_dict(json.loads(json.dumps(merged)))
        found += numbers(reader, 5)
        last = reader
    assert sorted(found + numbers(last)) == list(range(40))


def test_states_of_different_jobs_are_not_merged(clusters):
    states = []
    for dataset in (Dataset.range(9), Dataset.range(9).map(lambda x: x)):
        [reader] = of_a_job(clusters[0], dataset, 1)
        next(reader)
        states.append(reader.state_dict())
    with pytest.raises(ValueError, match="service.merge_states: the states are of different"):
        service.merge_states(states)


@pytest.mark.parametrize("stream", [False, True])
def test_coordinated_reads_continue_at_the_same_round(clusters, stream):
    dataset = Dataset.range(30).filter(lambda x: True) if stream else Dataset.range(30)

    def consumers(cluster):
        return [
            iter(dataset.apply(made))
            for made in (
                cluster.distribute(job_name=name, consumer_index=index, num_consumers=3)
                for name in [f"job {next(NAMES)}"]
                for index in range(3)
            )
        ]

    expected = [in_step(consumers(clusters[0]), 100)]
    before = consumers(clusters[0])
    rounds = in_step(before, 4)
    states = [json.loads(json.dumps(iterator.state_dict())) for iterator in before]
    for iterator in before:
        iterator.close()
    after = consumers(clusters[2])
    for iterator, state in zip(after, states, strict=True):
        iterator.load_state_dict(state)
    assert [rounds + in_step(after, 100)] == expected
    assert sorted(x for step in expected[0] for x in step) == list(range(30))


def in_step(iterators, most):
    """The batches of all consumers by round; each consumer reads in a thread of its own."""
    columns = [[] for _ in iterators]

    def read(iterator, column):
        column += [int(x) for x in itertools.islice(iterator, most)]

    threads = [
        threading.Thread(target=read, args=pair) for pair in zip(iterators, columns, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [tuple(step) for step in itertools.zip_longest(*columns)]


SIZES = {"random access": 1024, "batches": 1024, "split": 1024, "generator": 4096, "files": 8192}


@pytest.mark.parametrize("job", [None, "named"])
@pytest.mark.parametrize("name", SIZES)
def test_states_are_small(clusters, name, job, tmp_path):
    dataset = PLANS[name](tmp_path).repeat(30)
    iterator = iter(dataset.apply(clusters[2].distribute(job_name=job and f"{job} {name}")))
    most = 0
    for _ in range(200):
        next(iterator)
        most = max(most, len(json.dumps(iterator.state_dict())))
    iterator.close()
    print(f"{name}, {job}: {most} bytes")
    assert most < SIZES[name]
