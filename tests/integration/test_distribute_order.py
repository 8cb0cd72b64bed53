"""The order of a distributed dataset is that of the local one, however the workers divide it."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise, product
from pathlib import Path

import pytest

import penstock as tf
from penstock.data import Dataset, FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.io import TFRecordWriter
from penstock.plan import parts
from tests.effort import times
from tests.integration.clusters import Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of every format; some TFRecords hold the bytes of another TFRecord file."""
    folder = tmp_path_factory.mktemp("order")
    draw = random.Random(5)
    for number in range(4):
        lines = [str(draw.randrange(10**9)) * draw.randrange(9) for _ in range(100 * number + 20)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
        (folder / f"{number}.bin").write_bytes(b"H" + os.urandom(50 * (100 * number + 7)) + b"FF")
        payloads = [os.urandom(draw.randrange(200)) for _ in range(100 * number + 9)]
        write(folder / f"{number}.plain", payloads)
        inside = (folder / f"{number}.plain").read_bytes()
        write(folder / f"{number}.nested", [*payloads[:9], inside, *payloads[:9]])
        write(folder / f"{number}.gz", payloads, "GZIP")
    damaged = bytearray((folder / "3.plain").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "3.damaged").write_bytes(damaged)
    return folder


def write(path, payloads, compression=None):
    with TFRecordWriter(path, compression) as writer:
        for payload in payloads:
            writer.write(payload)


def names(folder, kind, numbers=(2, 0, 3, 1)):
    return [str(folder / f"{number}.{kind}") for number in numbers]


def pairs(path):
    return TextLineDataset(path).filter(lambda line: len(line) % 3 != 0)


DATASETS = {
    "text": lambda f: TextLineDataset(names(f, "txt")),
    "text, batched": lambda f: TextLineDataset(names(f, "txt")).batch(7).take(70),
    "text, shuffled files": lambda f: TextLineDataset(
        Dataset.from_tensor_slices(names(f, "txt")).shuffle(4, seed=2)
    ),
    "text, filtered": lambda f: TextLineDataset(names(f, "txt")).filter(lambda x: len(x) % 2 == 0),
    "fixed": lambda f: FixedLengthRecordDataset(names(f, "bin"), 50, 1, 2).enumerate(),
    "tfrecord": lambda f: TFRecordDataset(names(f, "plain")),
    "tfrecord, nested": lambda f: TFRecordDataset(names(f, "nested")).map(len),
    "tfrecord, damaged": lambda f: TFRecordDataset(
        [*names(f, "damaged", [3]), *names(f, "plain", [1])]
    ).ignore_errors(),
    "tfrecord, nothing left": lambda f: TFRecordDataset(names(f, "plain")).filter(lambda x: False),
    "gzip": lambda f: TFRecordDataset(names(f, "gz"), "GZIP"),
    "both": lambda f: TFRecordDataset(names(f, "nested")).concatenate(
        TextLineDataset(names(f, "txt"))
    ),
    "flat_map": lambda f: Dataset.from_tensor_slices(names(f, "txt")).flat_map(pairs),
}


def some(x):
    return Dataset.range(10 * x, 10 * x + x % 4)


def odd(x):
    return x % 2 == 1


INTERLEAVED = {
    "slots": lambda f: Dataset.range(4).interleave(some, cycle_length=3),
    "blocks": lambda f: Dataset.range(40).interleave(some, 4, 2).map(lambda x: -x),
    "filtered": lambda f: Dataset.range(40).interleave(some, 4, 2).filter(odd).batch(5),
    "of filtered": lambda f: Dataset.range(40).filter(odd).interleave(some, 3).enumerate(),
    "expanded": lambda f: Dataset.range(40).interleave(some, 3).flat_map(some),
    "of expanded": lambda f: Dataset.range(7).flat_map(Dataset.range).interleave(some, 3, 2),
    "twice": lambda f: Dataset.range(30).interleave(some, 3).interleave(some, 2, 2),
    "short": lambda f: Dataset.range(300).interleave(some, 4, num_parallel_calls=2),
    "long": lambda f: Dataset.range(5).interleave(lambda x: Dataset.range(1000), 3, 7).filter(odd),
    "endless": lambda f: Dataset.counter().interleave(some, 5).take(200),
    "files": lambda f: Dataset.from_tensor_slices(names(f, "plain")).interleave(TFRecordDataset, 3),
    "parallel reads": lambda f: TextLineDataset(names(f, "txt"), num_parallel_reads=3).take(500),
}
OF_FILES = [*DATASETS, "files", "parallel reads"]
DATASETS.update(INTERLEAVED)


@pytest.mark.parametrize("name", DATASETS)
def test_a_single_reader_of_a_job_gets_the_local_order(cluster, folder, name, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 1000)
    dataset = DATASETS[name](folder)
    made = dataset.apply(cluster.distribute(job_name=f"order, {name}"))
    assert list(map(repr, made)) == list(map(repr, dataset))


@pytest.mark.parametrize(
    ("name", "part_bytes"), [*product(DATASETS, [3000]), *product(OF_FILES, [200])]
)
def test_files_come_in_the_local_order(cluster, folder, name, part_bytes, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    dataset = DATASETS[name](folder)
    expected = list(map(repr, dataset))
    assert list(map(repr, dataset.apply(cluster.distribute()))) == expected


@pytest.mark.parametrize("name", ["text", "tfrecord, nested", "both", "expanded", "short", "long"])
def test_going_on_from_a_state_keeps_the_order_of_files(cluster, folder, name, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 1000)
    dataset = DATASETS[name](folder).apply(cluster.distribute())
    expected = list(map(repr, dataset))
    iterator = iter(dataset)
    step = len(expected) // times(4)
    for count in range(0, len(expected), step):
        state = iterator.state_dict()
        again = iter(dataset)
        again.load_state_dict(state)
        assert list(map(repr, again)) == expected[count:]
        for _ in range(step):
            next(iterator, None)


@pytest.mark.parametrize("repetitions", [1, 2])
def test_every_epoch_behind_a_cache_has_the_local_order(cluster, repetitions):
    cached = Dataset.range(40).shuffle(40, seed=3).cache().repeat(repetitions)
    local, made = cached.batch(7), cached.batch(7).apply(cluster.distribute())
    for _ in range(3):
        assert list(map(repr, made)) == list(map(repr, local))


def test_readers_of_a_job_share_the_records_of_files_by_parts(cluster, folder, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 500)
    dataset = TFRecordDataset(names(folder, "nested"))
    expected = sorted(map(bytes, dataset))
    made = dataset.apply(cluster.distribute(job_name="records"))
    other = dataset.apply(cluster.distribute(job_name="records"))
    found = []
    one, two = iter(made), iter(other)
    for _ in range(20):
        found += [next(one), next(two)]
    assert sorted([*found, *one, *two]) == expected


SHARED = {
    "range": lambda lines: Dataset.range(900),
    "range, mapped": lambda lines: Dataset.range(900).map(lambda x: x * 7),
    "text": TextLineDataset,
    "text, filtered": lambda lines: TextLineDataset(lines).filter(lambda x: x[-1:] != b"3"),
    "flat_map": lambda lines: Dataset.range(40).flat_map(
        lambda x: Dataset.range(100 * x, 100 * x + x % 30)
    ),
    "interleave": lambda lines: Dataset.range(40).interleave(
        lambda x: Dataset.range(100 * x, 100 * x + x % 30), cycle_length=3, block_length=2
    ),
    "interleaved files": lambda lines: Dataset.from_tensor_slices(lines).interleave(
        TextLineDataset, cycle_length=2
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_each_of_several_readers_gets_its_share_in_the_local_order(cluster, tmp_path, name):
    """Except that a reader without a free piece takes over the rest of another reader's piece,
    which may be an earlier one."""
    lines = [str(tmp_path / f"{number}.txt") for number in range(4)]
    for number, path in enumerate(lines):
        numbers = range(100 * number, 100 * number + 60 + number)
        Path(path).write_text("\n".join(map(str, numbers)))
    made = SHARED[name](lines)
    order = {int(x): place for place, x in enumerate(made)}
    shared = [iter(made.apply(cluster.distribute(job_name=f"shared {name}"))) for _ in range(3)]
    with ThreadPoolExecutor(len(shared)) as pool:
        found = list(pool.map(lambda reader: [order[int(x)] for x in reader], shared))
    assert sorted(chain(*found)) == list(range(len(order)))
    values = list(order)
    for share in found:
        back = [values[b] for a, b in pairwise(share) if b < a]
        has_pieces = name in ("text", "text, filtered", "flat_map")
        assert not back if not has_pieces else all(x % 100 for x in back)


def test_without_order_every_record_comes_once(cluster, folder, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 500)
    dataset = TFRecordDataset(names(folder, "nested"))
    options = tf.data.Options()
    options.deterministic = False
    made = dataset.apply(cluster.distribute()).with_options(options)
    assert sorted(made) == sorted(dataset)


@pytest.mark.parametrize("way", ["ordered", "one at a time", "unordered", "named"])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize(
    "read", [TextLineDataset, TFRecordDataset, lambda files: FixedLengthRecordDataset(files, 50)]
)
def test_a_missing_file_is_one_error(cluster, folder, read, ignored, way, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 1000)
    kind = {TextLineDataset: "txt", TFRecordDataset: "plain"}.get(read, "bin")
    files = [*names(folder, kind, [3]), str(folder / "missing"), *names(folder, kind, [2])]
    # If the order of the files is random, every file counts as having the same number of parts.
    dataset = read(Dataset.from_tensor_slices(files).shuffle(3, seed=1))
    dataset = dataset.ignore_errors() if ignored else dataset
    job = {"job_name": f"missing, {kind}, {ignored}"} if way == "named" else {}
    job |= {"max_outstanding_requests": 1} if way == "one at a time" else {}
    options = tf.data.Options()
    options.deterministic = way != "unordered"
    made = dataset.apply(cluster.distribute(**job)).with_options(options)
    arrange = list if way != "unordered" else sorted
    assert arrange(map(repr, outcomes(made))) == arrange(map(repr, outcomes(dataset)))


def outcomes(dataset):
    """All elements; a failing one is replaced by the class of its error."""
    found, iterator = [], iter(dataset)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except tf.errors.OpError as error:
            found.append(type(error))
