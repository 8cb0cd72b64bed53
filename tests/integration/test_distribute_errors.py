"""An error on a worker reaches the user in the place of its element; other elements follow."""

import functools
import itertools
import logging
import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset, TextLineDataset
from penstock.data.experimental import service
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host import services
from penstock.service.protocol import timing
from tests.integration.clusters import Cluster, until


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2) as made:
        yield made


def without_7(x):
    if x == 7:
        raise ValueError("7 is not wanted")
    return x


def all_of(iterator):
    """Elements and errors, in order."""
    found = []
    while True:
        try:
            found.append(int(next(iterator)))
        except StopIteration:
            return found
        except OpError as error:
            found.append(error)


KINDS = {
    "random": lambda: Dataset.range(20),
    "split": lambda: Dataset.range(20).filter(lambda x: True),
    "single": lambda: Dataset.from_generator(
        lambda: iter(range(20)), output_signature=tf.TensorSpec((), tf.int64)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_element_comes_in_its_place_and_the_rest_behind_it(cluster, kind):
    made = KINDS[kind]().map(without_7).apply(cluster.distribute())
    found = all_of(iter(made))
    assert found[:7] == list(range(7))
    assert found[8:] == list(range(8, 20))
    error = found[7]
    assert isinstance(error, InvalidArgumentError)
    assert isinstance(error, ValueError)
    assert "ValueError: 7 is not wanted" in str(error)
    assert "test_distribute_errors.py" in str(error)
    assert "map" in str(error)
    assert any(f"on worker {worker.address}" in str(error) for worker in cluster.workers)
    [note] = error.__notes__
    assert note.startswith("Traceback on the worker:")
    assert 'raise ValueError("7 is not wanted")' in note
    assert note.count("  File ") == 1
    assert type(error.__cause__) is ValueError
    assert str(error.__cause__) == "7 is not wanted"


def without_line_33(x):
    if x == b"line 33":
        raise ValueError("not wanted")
    return len(x)


READERS = {
    "lines": TextLineDataset,
    "shuffled lines": lambda path: TextLineDataset(path).shuffle(9, seed=1),
    "interleaved lines": lambda path: Dataset.from_tensor_slices([path] * 3).interleave(
        TextLineDataset, cycle_length=2
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_failing_function_leads_to_the_line_of_the_file(cluster, kind, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(50)), encoding="utf-8")
    made = READERS[kind](str(path)).map(without_line_33).apply(cluster.distribute())
    errors = [each for each in all_of(iter(made)) if isinstance(each, Exception)]
    place = f"; the element comes from line 34 (byte 254) of {path}"
    assert errors
    assert all(place in str(error) for error in errors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_function_does_not_end_a_worker(cluster, kind, exits):
    def leaves_at_7(x):
        if x == 7:
            raise exits("it leaves")
        return x

    found = all_of(iter(KINDS[kind]().map(leaves_at_7).apply(cluster.distribute())))
    assert [x for x in found if isinstance(x, int)] == [*range(7), *range(8, 20)]
    assert f"failed for element 7 (7): {exits.__name__}: it leaves" in str(found[7])


def by_60(early, late):
    """A function that returns something else from element 60 on."""
    return lambda x: early(x) if x < 60 else late(x)


CHANGES = {
    "keys": by_60(lambda x: {"a": x}, lambda x: {"b": x}),
    "dtypes": by_60(np.int64, np.float32),
    "number of leaves": by_60(lambda x: (x, x), lambda x: (x,)),
    "structure": by_60(lambda x: x, lambda x: (x,)),
}

WAYS = {
    "random access": lambda f: Dataset.range(100).map(f),
    "split": lambda f: Dataset.range(100).filter(lambda x: True).map(f),
    "in parallel": lambda f: Dataset.range(100).filter(lambda x: True).map(f, 4),
    "hidden by another map": lambda f: Dataset.range(100).map(f).map(lambda *parts: np.int64(0)),
    "flat_map": lambda f: Dataset.range(100).flat_map(lambda x: Dataset.from_tensors(f(x))),
    "scan": lambda f: Dataset.range(100).scan(0, lambda state, x: (state, f(x))),
}


def outcomes(dataset):
    """Elements as text and the messages of errors, in order."""
    found, iterator = [], iter(dataset)
    while True:
        try:
            found.append(repr(next(iterator)))
        except StopIteration:
            return found
        except OpError as error:
            found.append((type(error), re.sub(r" \(on worker .*\)", "", error.message)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_elements_of_another_structure_fail_as_they_do_locally(cluster, change, way):
    made = WAYS[way](CHANGES[change])
    local = outcomes(made)
    assert [type(x) for x in local] == 60 * [str] + 40 * [tuple]
    assert outcomes(made.apply(cluster.distribute())) == local


@pytest.mark.parametrize("way", [way for way in WAYS if way != "flat_map"])
@pytest.mark.parametrize(
    "change",
    [
        by_60(lambda x: [x, x], lambda x: [x, x, x]),
        by_60(lambda x: {"a": x, "b": [x]}, lambda x: {"a": x, "b": [[x]]}),
    ],
)
def test_lists_of_another_shape_fail_as_they_do_locally(cluster, change, way):
    """In a `flat_map`, the list is an array already."""
    made = WAYS[way](change)
    local = outcomes(made)
    assert [type(x) for x in local] == 60 * [str] + 40 * [tuple]
    assert outcomes(made.apply(cluster.distribute())) == local


@pytest.mark.parametrize("way", WAYS)
def test_the_order_of_keys_is_no_difference(cluster, way):
    change = by_60(
        lambda x: {"a": x, "b": (1, {"c": x, "d": -x})},
        lambda x: {"b": (1, {"d": -x, "c": x}), "a": x},
    )
    local = list(WAYS[way](change))
    assert len(local) == 100
    assert list(WAYS[way](change).apply(cluster.distribute())) == local


def test_all_readers_of_a_job_notice_another_structure(cluster):
    made = WAYS["split"](CHANGES["keys"])
    readers = [
        iter(made.apply(cluster.distribute(job_name="odd", max_outstanding_requests=1)))
        for _ in range(2)
    ]
    found = [[], []]
    for turn in range(100):
        found[turn % 2] += outcomes(itertools.islice(readers[turn % 2], 1))
    elements = [x for part in found for x in part if isinstance(x, str)]
    assert sorted(elements) == sorted(repr({"a": np.int64(x)}) for x in range(60))
    for part in found:
        errors = [x for x in part if not isinstance(x, str)]
        assert all("{'b': int64}" in message for _, message in errors)
        assert errors


def test_a_structure_that_no_sample_showed_is_an_error(cluster):
    """No sample passes the filter, so the function is traced with a made-up element."""
    made = Dataset.range(5000).filter(lambda x: x >= 4990)
    keys = made.map(lambda x: {"a": x} if x < 100 else {"b": x})
    with pytest.raises(InvalidArgumentError, match=r"{'b': \*}, but .* is {'a': \*};"):
        next(iter(keys.apply(cluster.distribute())))
    dtypes = made.map(lambda x: np.int64(x) if x < 4995 else np.float32(x))
    found = outcomes(dtypes.apply(cluster.distribute()))
    assert found[:5] == [repr(np.int64(x)) for x in range(4990, 4995)]
    assert all("float32" in message for _, message in found[5:])
    assert found[5:]


def test_a_generator_does_not_end_a_worker(cluster):
    def leaves():
        yield 1
        raise SystemExit("it leaves")

    made = Dataset.from_generator(leaves, output_signature=tf.TensorSpec((), tf.int64))
    found = all_of(iter(made.apply(cluster.distribute())))
    assert found[0] == 1
    assert "SystemExit: it leaves" in str(found[1])
    assert len(found) == 2


def test_an_error_names_the_ordinal_of_its_element(cluster):
    made = Dataset.range(20).map(without_7).apply(cluster.distribute())
    assert "element 7" in str(all_of(iter(made))[7])


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_can_be_ignored_behind_distribute(cluster, kind, mode):
    made = KINDS[kind]().map(without_7).apply(cluster.distribute(mode)).ignore_errors()
    copies = 2 if mode == "parallel_epochs" else 1
    expected = sorted([*range(7), *range(8, 20)] * copies)
    assert sorted(map(int, made)) == expected


def test_a_state_behind_a_failed_element_continues_behind_it(cluster):
    made = Dataset.range(20).map(without_7).apply(cluster.distribute())
    iterator = iter(made)
    for _ in range(7):
        next(iterator)
    with pytest.raises(InvalidArgumentError, match="7 is not wanted"):
        next(iterator)
    again = iter(made)
    again.load_state_dict(iterator.state_dict())
    assert [int(x) for x in again] == list(range(8, 20))


def test_named_jobs_continue_behind_a_failed_element(cluster):
    made = Dataset.range(20).map(without_7).apply(cluster.distribute(job_name="failing"))
    found = all_of(iter(made))
    assert [x for x in found if isinstance(x, int)] == [*range(7), *range(8, 20)]
    assert len(found) == 20


def test_a_worker_that_lacks_a_module_says_which(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    with Cluster(0) as cluster:
        address = cluster.target.partition("://")[2]
        command = [sys.executable, "-m", "penstock", "worker", "--dispatcher", address]
        worker = subprocess.Popen([*command, "--stop-with-stdin", "--quiet"], stdin=subprocess.PIPE)
        try:
            made = Dataset.range(3).map(only_here.f).apply(cluster.distribute())
            with pytest.raises(OpError, match="only_here"):
                list(made)
            # Other readers continue.
            assert [int(x) for x in Dataset.range(3).apply(cluster.distribute())] == [0, 1, 2]
        finally:
            worker.stdin.close()
            worker.wait()


def test_a_wrong_token_is_refused(monkeypatch):
    with Cluster(0, token="a secret of the service") as cluster:
        monkeypatch.setenv("PENSTOCK_TOKEN", "another secret, not theirs")
        with pytest.raises(UnauthenticatedError, match="token"):
            Dataset.range(3).apply(cluster.distribute())


def test_what_cannot_be_sent_is_named(cluster):
    lock = threading.Lock()

    def use_lock(x):
        with lock:
            return x

    made = Dataset.range(3).map(use_lock).map(lambda x: x).batch(2)
    what = r"service.distribute: map\(use_lock at .*py:\d+\) cannot be sent to workers \(TypeError"
    with pytest.raises(InvalidArgumentError, match=what):
        made.apply(cluster.distribute())


def free_port():
    with socket.create_server(("localhost", 0)) as listening:
        return listening.getsockname()[1]


def test_a_dispatcher_that_is_not_there_is_an_error_in_words(monkeypatch):
    impatient = functools.partial(services.ControlClient, timeout=0.2)
    monkeypatch.setattr(services, "ControlClient", impatient)
    address = f"localhost:{free_port()}"
    with pytest.raises(UnavailableError, match=address):
        Dataset.range(3).apply(service.distribute("distributed_epoch", f"grpc://{address}"))


def test_without_workers_a_reader_waits_for_one_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(timing, "WAIT_WARNING", 0.01)
    found = []
    with Cluster(0) as cluster:
        made = Dataset.range(3).apply(cluster.distribute())
        with caplog.at_level(logging.WARNING, "penstock.service"):
            reader = threading.Thread(target=lambda: found.extend(map(int, made)))
            reader.start()
            until(lambda: "has no workers; start one with: penstock worker" in caplog.text)
            assert found == []
            cluster.workers.append(cluster.join())
            reader.join()
    assert found == [0, 1, 2]


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_waiting_for_workers_has_an_end(monkeypatch, mode):
    monkeypatch.setattr(timing, "WAIT_WARNING", 0.01)
    monkeypatch.setattr(timing, "WAIT_LIMIT", 0.05)
    with Cluster(0) as cluster:
        what = r"waited \d+ s, and dispatcher .* has no workers"
        iterator = iter(Dataset.range(3).apply(cluster.distribute(mode)))
        with iterator, pytest.raises(UnavailableError, match=what):
            next(iterator)


def test_waiting_for_other_consumers_has_an_end(cluster, monkeypatch):
    monkeypatch.setattr(timing, "WAIT_WARNING", 0.01)
    monkeypatch.setattr(timing, "WAIT_LIMIT", 0.05)
    made = Dataset.range(9).apply(
        cluster.distribute(job_name="too few", consumer_index=0, num_consumers=3)
    )
    with pytest.raises(TimeoutError, match="consumers 1, 2 of 3 have not begun to read"):
        next(iter(made))


def test_a_worker_that_cannot_be_reached_is_named(monkeypatch):
    monkeypatch.setattr(timing, "WAIT_WARNING", 0.01)
    monkeypatch.setattr(timing, "UNREACHABLE", 0.0)
    with Cluster(0) as cluster:
        nowhere = f"localhost:{free_port()}"
        worker = cluster.join(data_transfer_protocol="tcp", data_transfer_address=nowhere)
        cluster.workers.append(worker)
        what = f"no worker can be reached from here.*{nowhere}"
        iterator = iter(Dataset.range(3).apply(cluster.distribute()))
        with iterator, pytest.raises(UnavailableError, match=what):
            next(iterator)


def test_elements_that_hold_datasets_cannot_travel(cluster):
    made = Dataset.range(9).window(3).apply(cluster.distribute("parallel_epochs"))
    with pytest.raises(FailedPreconditionError, match="elements that hold datasets cannot travel"):
        next(iter(made))


def test_windows_stay_here_where_the_workers_make_what_they_are_made_of(cluster):
    made = Dataset.range(9).map(lambda x: x + 1).window(3).apply(cluster.distribute())
    assert [[int(x) for x in window] for window in made] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_schemes_that_are_not_registered():
    with pytest.raises(
        NotFoundError, match="service.distribute: the scheme ftp:// is not registered; there are"
    ):
        Dataset.range(3).apply(service.distribute("distributed_epoch", "ftp://nowhere"))


@pytest.mark.parametrize(("saved", "loaded"), [(None, "with a name"), ("with a name", None)])
def test_states_are_loaded_into_jobs_of_their_kind(cluster, saved, loaded):
    dataset = Dataset.range(9)
    iterator = iter(dataset.apply(cluster.distribute(job_name=saved)))
    next(iterator)
    again = iter(dataset.apply(cluster.distribute(job_name=loaded)))
    again.load_state_dict(iterator.state_dict())
    kind = "with" if saved else "without"
    with pytest.raises(InvalidArgumentError, match=f"distributed dataset {kind} a job_name"):
        next(again)


def test_a_job_has_one_mode(cluster):
    list(Dataset.range(3).apply(cluster.distribute(job_name="of one mode")))
    other = Dataset.range(3).apply(cluster.distribute("parallel_epochs", job_name="of one mode"))
    with pytest.raises(InvalidArgumentError, match="of one mode"):
        list(other)


def test_static_policies_need_a_dispatcher_that_knows_its_workers(cluster):
    made = Dataset.range(3).apply(cluster.distribute(service.ShardingPolicy.DATA))
    with pytest.raises(NotFoundError, match="worker_addresses"):
        list(made)


def test_local_workers_that_are_not_there(cluster, monkeypatch):
    monkeypatch.setattr(services, "host_id", lambda: "another machine")
    address = cluster.target.replace("localhost", "127.0.0.1")
    made = Dataset.range(3).apply(
        service.distribute("distributed_epoch", address, target_workers="LOCAL")
    )
    with pytest.raises(InvalidArgumentError, match="LOCAL"):
        list(made)
