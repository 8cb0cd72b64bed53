"""Progress: clients get reports during long work, and none while elements flow."""

import threading
from functools import partial
from typing import Any

import pytest

from penstock.data import Dataset
from penstock.data.dataset import ENVIRONMENT
from penstock.service.host.fetch_server import FetchGate, ProgressReporter, serve
from penstock.service.host.runtime import MACHINE
from penstock.service.host.tasks import Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import Done, Fetch, OpenTask, Progress, Rows
from penstock.service.protocol.messages import Work
from tests.integration.clusters import until
from tests.service.host.wire_peers import in_thread, open_link

GATE = threading.Event()


def hang(x: int) -> int:
    GATE.wait()
    return x


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PROGRESS", 0.01)
    GATE.set()


def tasks_of(dataset: Any) -> Tasks:
    return Tasks(lambda digest: dataset.__plan__, lambda: ENVIRONMENT, "localhost:1")


@pytest.mark.parametrize("protocol", ["tcp", "shm"])
def test_a_client_learns_where_its_request_is(protocol: str) -> None:
    tasks = tasks_of(Dataset.range(9).map(hang))
    work = Work("digest", "job", "random", 0, 1, 7, (0,))
    with open_link(protocol) as (client, worker):
        in_thread(serve, worker, tasks, FetchGate())
        GATE.clear()
        client.send(OpenTask(1, work), Fetch(3, 1, 0, 2))
        where = f"hang at test_fetch_server.py:{hang.__code__.co_firstlineno}"
        said = [client.receive()[0] for _ in range(3)]
        until(lambda: client.receive()[0].where == where)
        found = client.receive()[0]
        assert (found.request, found.element) == (3, 0)
        assert [row.operator for row in found.operators] == ["map", "range"]
        assert found.operators[0].seconds > 0
        assert all(isinstance(message, Progress) for message in said)
        GATE.set()
        rest = [client.receive()[0]]
        while not isinstance(rest[-1], Done):
            rest.append(client.receive()[0])
    assert sum(message.count for message in rest if isinstance(message, Rows)) == 2


def test_reports_stop_when_no_connection_is_served() -> None:
    class Silent:
        reports = 0

        def report(self) -> None:
            self.reports += 1

    reporter, one = ProgressReporter(MACHINE), Silent()
    for _ in range(2):
        before = one.reports
        reporter.add(one)
        until(lambda before=before: one.reports > before)
        reporter.remove(one)
        until(lambda: not reporter._runs)


def test_a_client_that_reads_nothing_blocks_no_other_client() -> None:
    with open_link("tcp") as (client, worker):
        for number in range(200_000):
            if not worker._channel.has_room():
                break
            worker.offer(partial(Progress, number, "f at train.py:2" * 20))
        assert not worker._channel.has_room()
        worker.offer(partial(Progress, 0))  # It returns.
        with worker._sending:
            worker.offer(partial(Progress, 0))
        assert client.receive()[0] == Progress(0, "f at train.py:2" * 20)
