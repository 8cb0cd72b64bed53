"""The stream of a reader: how it waits, when it fails, how it continues with other workers."""

import concurrent.futures
import contextlib
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.data import Dataset, Options
from penstock.data.dataset import ENVIRONMENT
from penstock.data.experimental import service
from penstock.engine.context import Context
from penstock.engine.lower import open_plan
from penstock.errors import (
    AbortedError,
    CancelledError,
    FailedPreconditionError,
    InternalError,
    UnavailableError,
)
from penstock.plan import nodes
from penstock.service.host.plan_store import PlanCache
from penstock.service.host.remote_stream import RemoteStream, missing_workers
from penstock.service.host.security import Security
from penstock.service.host.services import Session
from penstock.service.logic.dispatcher_records import LOST
from penstock.service.logic.facts import ClientGone
from tests.integration.clusters import Calls, Cluster, until, wait_until_settled


@pytest.fixture
def cluster():
    with Cluster(1) as made:
        yield made


def open_remote(dataset, state=None, **arguments):
    """The stream of a distributed dataset, without an iterator around it."""
    tap = open_plan(dataset.__plan__, state, Context(ENVIRONMENT, (0,), 7))
    [remote] = tap.inputs
    assert isinstance(remote, RemoteStream)
    return remote


def drain_remote(remote, limit):
    with contextlib.suppress(StopIteration):
        while True:
            remote.pull(limit)


def test_it_gives_as_many_as_are_asked_for_at_most(cluster):
    remote = open_remote(Dataset.range(100).apply(cluster.distribute()))
    found = []
    while len(found) < 100:
        chunk = remote.pull(7)
        assert 1 <= len(chunk) <= 7
        found += [int(x) for x in chunk.elements()]
    assert found == list(range(100))
    for _ in range(2):
        with pytest.raises(StopIteration):
            remote.pull(7)
    remote.close()
    remote.close()


def test_a_waiting_stream_can_be_interrupted(cluster):
    calls = Calls()
    remote = open_remote(Dataset.range(9).map(calls).apply(cluster.distribute()))
    calls.shut()
    before = calls.count
    failures = []

    def read():
        try:
            while True:
                remote.pull(1)
        except CancelledError as error:
            failures.append(error.message)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: calls.count > before)
    remote.interrupt()
    reader.join()
    assert failures == ["distribute: reading was stopped while it waited"]
    remote.close()
    calls.open()


def pulled_with_states(remote):
    """Five pairs of a state and the elements that were pulled after it."""
    for _ in range(5):
        state = remote.save()
        sure = remote.sure(4)
        assert 1 <= sure <= 4
        yield state, [int(x) for x in remote.pull(sure).elements()]


def test_a_reader_of_a_named_job_pulls_what_is_sure(cluster):
    remote = open_remote(Dataset.range(23).apply(cluster.distribute(job_name="a job")))
    pulled = [x for _, elements in pulled_with_states(remote) for x in elements]
    assert pulled == list(range(len(pulled)))
    remote.close()


# Not for named jobs: another reader may get the elements that a closed reader returned.
@pytest.mark.parametrize("arguments", [{}, {"mode": "parallel_epochs"}])
def test_a_state_is_exact_at_every_pull(cluster, arguments):
    made = Dataset.range(23).apply(cluster.distribute(**arguments))
    remote = open_remote(made)
    before = list(pulled_with_states(remote))
    remote.close()
    for state, elements in before:
        again = open_remote(made, state)
        found = []
        while len(found) < len(elements):
            found += [int(x) for x in again.pull(len(elements) - len(found)).elements()]
        assert found == elements
        again.close()


def test_a_failure_of_the_service_ends_the_waiting(cluster):
    calls = Calls()
    remote = open_remote(Dataset.range(9).map(calls).apply(cluster.distribute()))
    calls.shut()
    remote._opening.session.failure = InternalError("nobody will ever answer")
    with pytest.raises(InternalError, match="nobody will ever answer"):
        drain_remote(remote, 1)
    calls.open()
    remote.close()
    remote._opening.session.failure = None


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_in_trouble_is_asked_again(cluster, monkeypatch, stream):
    """The worker cannot get the plan, because the dispatcher does not answer in time."""
    fetch, failures = PlanCache._fetch, iter([1, 2])

    def fail_then_fetch(plans, digest):
        if next(failures, None) is not None:
            raise UnavailableError("dispatcher localhost:1 has not answered for 1 s")
        return fetch(plans, digest)

    monkeypatch.setattr(PlanCache, "_fetch", fail_then_fetch)
    monkeypatch.setattr("penstock.service.protocol.timing.WORKER_REFUSAL", 0.01)
    numbers = Dataset.range(9).filter(lambda x: True) if stream else Dataset.range(9)
    assert [int(x) for x in numbers.apply(cluster.distribute())] == list(range(9))
    assert next(failures, None) is None


def rest_of(remote):
    """Pulls all remaining elements."""
    found = []
    with contextlib.suppress(StopIteration):
        while True:
            found += [int(x) for x in remote.pull(4).elements()]
    return found


def test_an_error_costs_no_elements(cluster):
    """The error arrives together with elements; the user gets these elements first."""
    remote = open_remote(Dataset.range(9).apply(cluster.distribute()))
    report, failures = remote._report, [InternalError("something is wrong")]

    def fail(elements=0):
        report(elements)
        if elements and failures:
            remote._agent.events.append(failures.pop())

    remote._report = fail
    found = [int(x) for x in remote.pull(1).elements()]
    with pytest.raises(InternalError, match="something is wrong"):
        remote.pull(1)
    assert found + rest_of(remote) == list(range(9))
    remote.close()


def test_workers_that_are_lost_again_and_again_are_an_error_of_the_next_pull(cluster):
    """The error waits until the last worker is back and explains the loss, or is unreachable."""
    remote = open_remote(Dataset.range(9).apply(cluster.distribute(max_outstanding_requests=1)))
    found = [int(x) for x in remote.pull(1).elements()]
    [worker] = remote._reading.fetcher.workers
    remote._deliveries.lose(worker)
    for _ in range(3):
        remote._reading.fetcher.blame.add(worker, 0, 1, 2)
    with pytest.raises(AbortedError, match="3 workers were lost .* can continue there") as raised:
        rest_of(remote)
    assert not raised.value.takes_element
    assert worker in remote._reading.fetcher.workers
    for _ in range(3):
        remote._reading.fetcher.blame.add(worker, 0, 1, 2)
    with pytest.raises(AbortedError, match="3 workers were lost .* reading ends here"):
        rest_of(remote)
    assert found == [0]
    assert rest_of(remote) == []
    remote.close()


@pytest.mark.parametrize("reachable", [True, False])
def test_a_worker_is_reported_lost_only_if_it_cannot_be_reached(cluster, monkeypatch, reachable):
    remote = open_remote(Dataset.range(9).apply(cluster.distribute(max_outstanding_requests=1)))
    found = [int(x) for x in remote.pull(1).elements()]
    [worker], told = remote._reading.fetcher.workers, []
    monkeypatch.setattr(remote._agent, "report_lost", told.append)
    if not reachable:
        refusing = itertools.chain([UnavailableError("not now")], itertools.repeat(None))
        connect = remote._links._connect

        def refuse(info):
            if (error := next(refusing)) is not None:
                raise error
            return connect(info)

        remote._links._connect = refuse
    remote._deliveries.lose(worker)
    assert found + rest_of(remote) == list(range(9))
    assert told == ([] if reachable else [worker])
    remote.close()


def test_a_reader_that_was_taken_for_dead_continues(monkeypatch):
    """In a named job its leases go to other readers; elements that it handed out do not."""
    monkeypatch.setattr("penstock.service.protocol.timing.CLIENT_HEARTBEAT", 0.02)
    with Cluster(1) as cluster:
        iterator = iter(Dataset.range(300).apply(cluster.distribute(job_name="taken for dead")))
        found = [int(next(iterator)) for _ in range(20)]
        ledger = cluster.dispatcher._hosted._handler.ledger
        with ledger._lock:
            [name] = [name for name, client in ledger._state.clients.items()]
            ledger._commit((ClientGone(name, LOST),))
        found += [int(x) for x in iterator]
        assert sorted(found) == list(range(300))


def test_a_reader_that_waits_for_leases_says_that_the_dispatcher_is_silent(
    cluster, monkeypatch, caplog
):
    """The warning must not blame leases of other readers: there are no other readers."""
    times = {"CLIENT_HEARTBEAT": 0.02, "WAIT_WARNING": 0.1, "LONGEST_LOOK": 0.1}
    for name, seconds in times.items():
        monkeypatch.setattr(f"penstock.service.protocol.timing.{name}", seconds)
    named = cluster.distribute(job_name="silent", max_outstanding_requests=1)
    remote = open_remote(Dataset.range(300).filter(lambda x: True).apply(named))
    remote.pull(1)
    caplog.clear()  # On a busy machine the first element takes long enough to be logged, too.

    def fail_once_logged(request):
        until(lambda: "waiting for" in caplog.text)
        raise InternalError("the reader has logged why it waits")

    with monkeypatch.context() as cut, caplog.at_level("WARNING"):
        cut.setattr(remote._opening.session, "call", fail_once_logged)
        with pytest.raises(InternalError, match="the reader has logged"):
            drain_remote(remote, 1)
    assert "for leases of the dispatcher, which has not answered for" in caplog.text
    remote.close()


def test_a_reader_that_waits_names_the_element_inside_the_call(cluster, monkeypatch, caplog):
    """The warning names the element of the `map`, too, not only the next batch."""
    monkeypatch.setattr("penstock.service.protocol.timing.WAIT_WARNING", 0.2)
    gate = Calls()

    def wait_at_43(x):
        return gate(x) if x == 43 else x

    data = Dataset.range(64).map(wait_at_43).batch(8).apply(cluster.distribute())
    gate.shut()
    with caplog.at_level("WARNING"), concurrent.futures.ThreadPoolExecutor() as pool:
        rest = pool.submit(list, data)
        try:
            until(lambda: " for its element 43 (worker " in caplog.text)
        finally:
            gate.open()
        assert len(rest.result()) == 8
    assert ", in wait_at_43 at test_remote_stream.py:" in caplog.text


def test_what_is_kept_is_bounded_by_max_outstanding_requests(cluster):
    calls = Calls()
    made = Dataset.range(500).map(calls).apply(cluster.distribute(max_outstanding_requests=5))
    before = calls.count
    remote = open_remote(made)
    remote.pull(1)
    assert wait_until_settled(lambda: calls.count) - before <= 6
    remote.close()


def test_the_plan_of_a_part_runs_on_workers_only():
    node = nodes.Distribute(Dataset.range(3).__plan__, "", 1)
    with pytest.raises(FailedPreconditionError, match="runs on workers only"):
        open_plan(node, None, Context(ENVIRONMENT, (0,), 7))


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (True, "the worker processes of local:// have not started yet"),
        (False, "dispatcher host:1 has no workers; start one with: penstock worker --dispatcher"),
    ],
)
def test_a_reader_says_how_to_get_workers(local: bool, message: str) -> None:
    links: Any = SimpleNamespace(missing=list)
    session = Session("host:1", Security(b""), list, local=local)
    assert message in missing_workers(links, session, 0.0).message


def test_a_memory_budget_that_leaves_workers_idle_is_logged_and_shown(cluster, caplog):
    options = Options()
    options.service.reader_memory = 1_500_000
    large = Dataset.range(9).map(lambda x: np.full(1_000_000, x, np.uint8))
    iterator = iter(large.apply(cluster.distribute()).with_options(options))
    assert next(iterator)[0] == 0
    until(lambda: service.status(cluster.target)["jobs"][0]["budget"])
    [job] = service.status(cluster.target)["jobs"]
    assert job["budget"] == 1_500_000
    assert job["held"] <= 3_000_000  # The size of the first elements was not known.
    assert [int(x[0]) for x in iterator] == list(range(1, 9))
    assert "about 1.0 MB, and this reader may hold 1.5 MB that it has not handed out" in caplog.text
