"""The numbers in errors: a function that fails on a worker names the element as it does locally."""

import random
import re

import pytest

from penstock.data import Dataset, TextLineDataset
from tests.effort import times
from tests.integration.clusters import Cluster, until


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 0 to 5 lines; no two lines are equal."""
    where = tmp_path_factory.mktemp("lines")
    for file, count in enumerate([3, 0, 5, 1, 4, 2]):
        lines = "".join(f"{10 * file + line}\n" for line in range(count))
        (where / f"{file}.txt").write_text(lines, encoding="utf-8")
    return where


def paths(folder):
    return sorted(map(str, folder.iterdir()))


def rows(folder):
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().split()]
    return Dataset.from_tensor_slices(list(map(int, lines)))


SOURCES = {
    "rows": rows,
    "batches of rows": lambda folder: rows(folder).batch(4).unbatch(),
    "files": lambda folder: TextLineDataset(paths(folder)).map(int),
    "one file": lambda folder: TextLineDataset(paths(folder)[2:3]).map(int),
    "shuffled names": lambda folder: TextLineDataset(
        Dataset.from_tensor_slices(paths(folder)).shuffle(9, seed=3)
    ).map(int),
    "files in turn": lambda folder: Dataset.from_tensor_slices(paths(folder)).interleave(
        lambda path: TextLineDataset(path).map(int), cycle_length=3, block_length=2
    ),
    "unknown files in turn": lambda folder: (
        Dataset.from_tensor_slices(paths(folder))
        .filter(lambda path: b"1.txt" not in path)
        .interleave(TextLineDataset, cycle_length=2)
        .map(int)
    ),
    "two sources": lambda folder: (
        TextLineDataset(paths(folder)[:3])
        .map(int)
        .concatenate(TextLineDataset(paths(folder)[3:]).map(int))
    ),
}


class Fails:
    """A function that fails on some numbers, and returns the others unchanged."""

    def __init__(self, failing):
        self.failing = failing

    def __call__(self, x):
        if int(x) in self.failing:
            raise ValueError(f"not {x}")
        return x


class Predicate(Fails):
    """The same as a predicate that drops some of the rest."""

    def __call__(self, x):
        return bool(super().__call__(x) % 3)


OPERATORS = {
    "map": lambda data, failing: data.map(Fails(failing)),
    "parallel map": lambda data, failing: data.map(Fails(failing), num_parallel_calls=2),
    "filter": lambda data, failing: data.filter(Predicate(failing)),
    "flat_map": lambda data, failing: data.flat_map(
        lambda x: Dataset.from_tensors(Fails(failing)(x)).repeat(2)
    ),
    "prefetch": lambda data, failing: data.prefetch(2),
    "batch": lambda data, failing: data.batch(2).unbatch(),
}


def read(iterator, count=1000):
    """Elements and the texts of errors, without what only workers add."""
    found = []
    while len(found) < count:
        try:
            found.append(int(next(iterator)))
        except StopIteration:
            break
        except ValueError as error:
            found.append(re.sub(r" \(on worker [^),]*", "", str(error)).removesuffix(")"))
            assert len(found) < 200, found
    return found


PARTLY = ", which counts the elements of one piece"


def is_same(remote, local):
    """Whether two elements or errors are equal, apart from a number with a note on its meaning."""
    if not str(remote).endswith(PARTLY):
        return remote == local
    number = re.compile(r"for element \d+")
    return number.sub("", remote) == number.sub("", local) + PARTLY


def assert_alike(remote, local, name):
    assert len(remote) == len(local), name
    differ = [pair for pair in zip(remote, local, strict=True) if not is_same(*pair)]
    assert not differ, name


def random_plan(draw, folder):
    """A source and one to three operators that may fail on the same numbers."""
    source = draw.choice(list(SOURCES))
    operators = draw.choices(list(OPERATORS), k=draw.randint(1, 3))
    failing = set(draw.sample([0, 2, 21, 22, 24, 30, 41, 43, 51], 3))
    data = SOURCES[source](folder)
    for name in operators:
        data = OPERATORS[name](data, failing)
        failing = set(draw.sample([1, 20, 23, 40, 42, 50], 2))
    try:
        assert data.element_spec is not None
    except ValueError:  # A function that makes datasets fails on the element it is tried on.
        return random_plan(draw, folder)
    return f"{source}, {operators}", data


@pytest.mark.parametrize("seed", range(times(16)))
def test_errors_of_workers_are_those_of_the_local_dataset(cluster, folder, seed):
    draw = random.Random(seed)
    name, data = random_plan(draw, folder)
    assert_alike(read(iter(data.apply(cluster.distribute()))), read(iter(data)), name)


@pytest.mark.parametrize("seed", range(times(8)))
def test_numbers_are_the_same_behind_a_saved_state(cluster, folder, seed):
    draw = random.Random(f"resumed {seed}")
    name, data = random_plan(draw, folder)
    expected = read(iter(data))
    remote = data.apply(cluster.distribute())
    first, at = iter(remote), draw.randint(0, len(expected))
    assert_alike(read(first, at), expected[:at], name)
    resumed = iter(remote)
    resumed.load_state_dict(first.state_dict())
    assert_alike(read(resumed), expected[at:], name)


def test_an_operator_between_others_behind_an_interleave_says_what_it_counts(cluster, folder):
    """The reader counts elements that were merged or handed out, but not those between."""
    data = SOURCES["files in turn"](folder).filter(Predicate(())).map(Fails({22}))
    [error] = [x for x in read(iter(data.apply(cluster.distribute()))) if isinstance(x, str)]
    assert not error.endswith(PARTLY)
    data = data.filter(Predicate(()))
    [error] = [x for x in read(iter(data.apply(cluster.distribute()))) if isinstance(x, str)]
    assert error.endswith(PARTLY)


def test_readers_that_share_a_job_do_not_know_what_came_before(cluster, folder):
    shared = cluster.distribute(job_name="shared numbers")
    data = SOURCES["files"](folder).map(Fails({21})).apply(shared)
    [error] = [x for x in read(iter(data)) if isinstance(x, str)]
    assert "failed for element 1 (21): " in error
    assert error.endswith(PARTLY)


def test_a_state_of_an_older_release_has_no_numbers(cluster, folder):
    remote = SOURCES["files"](folder).map(Fails({43})).apply(cluster.distribute())

    def without_used(part):
        if isinstance(part, dict):
            return {name: without_used(each) for name, each in part.items() if name != "used"}
        return list(map(without_used, part)) if isinstance(part, list) else part

    def read_to_an_end():
        """A state after the end of a piece; None if all elements came at once."""
        first = iter(remote)
        while read(first, 1) != [42]:
            state = first.state_dict()
            if without_used(state) != state:
                return state
        return None

    state = until(read_to_an_end)
    resumed = iter(remote)
    resumed.load_state_dict(without_used(state))
    [error] = [x for x in read(resumed) if isinstance(x, str)]
    assert "failed for element 3 (43): " in error
    assert error.endswith(PARTLY)
