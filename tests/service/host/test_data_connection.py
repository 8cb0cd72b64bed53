"""Data connections: messages and chunks arrive, and any error ends the connection at once."""

import select
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from penstock.cli.certificates import make_certificates
from penstock.element.ragged import Ragged
from penstock.engine.processes.chunk_memory import host_id
from penstock.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.host import data_connection
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import INLINE, Connection
from penstock.service.host.security import Security
from penstock.service.protocol.data_messages import Done, Failed, Fetch, Mark, Rows
from tests.service.host.wire_peers import (
    SECURITY,
    chunk,
    in_thread,
    open_link,
    receive_all,
    rows_of,
    worker_process,
)

SIZES = [1, 1000, INLINE - 64, INLINE, 200_000, 5_000_000]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Security:
    folder = tmp_path_factory.mktemp("certificates") / "set"
    make_certificates(str(folder))
    return Security(b"token", str(folder))


@pytest.fixture(params=["tcp", "checked", "shm", "tls"])
def pair(request: pytest.FixtureRequest) -> Any:
    if request.param == "tls":
        with open_link("tcp", security=request.getfixturevalue("certificates")) as ends:
            yield ends
    elif request.param == "checked":
        with open_link("tcp") as ends:
            ends[1]._checks = True  # As on a connection that leaves this machine.
            yield ends
    else:
        with open_link(request.param) as ends:
            yield ends


def test_messages_both_ways(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    asked = Fetch(1, 2, 3, 4, Mark(3, b"state" * 10_000))
    client.send(asked)
    client.send(Fetch(2, 2, 4, 5))
    assert worker.receive() == (asked, None)
    assert worker.receive() == (Fetch(2, 2, 4, 5), None)
    worker.send(Failed(1, 3, "ValueError", "no", "Traceback"))
    worker.send(Done(1, 4))
    assert client.receive() == (Failed(1, 3, "ValueError", "no", "Traceback"), None)
    assert client.receive() == (Done(1, 4), None)


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_every_size(pair: tuple[Connection, Connection], size: int) -> None:
    client, worker = pair
    for number in range(5):
        sender = in_thread(worker.send_rows, 7, number, rows_of(size, number), None, 0.5)
        message, columns = client.receive()
        sender.join()
        assert isinstance(message, Rows)
        assert (message.request, message.start, message.count, message.seconds) == (
            7,
            number,
            1,
            0.5,
        )
        assert columns is not None
        assert isinstance(columns[0], np.ndarray)
        assert columns[0].shape == (1, size)
        assert (columns[0] == number).all()
        assert not columns[0].flags.writeable
        assert columns[0].ctypes.data % 64 == 0


def test_columns_of_every_kind(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    text = np.empty(2, object)
    text[:] = [b"a" * 30_000, b"\0"]
    sent = chunk(
        np.arange(40_000, dtype=np.float32).reshape(2, -1),
        np.ones((2, 3), ml_dtypes.bfloat16),
        text,
        Ragged.from_rows([[1, 2, 3], []]),
        [np.zeros((3, 4)), np.ones(2)],
        [None, None],
    )
    sender = in_thread(worker.send_rows, 1, 0, sent, Mark(2, b"here"))
    message, columns = client.receive()
    sender.join()
    assert isinstance(message, Rows)
    assert message.mark == Mark(2, b"here")
    assert columns is not None
    dense, brain, strings, ragged, varied, nothing = columns
    np.testing.assert_array_equal(dense, sent.columns[0])  # type: ignore[arg-type]
    assert brain.dtype == ml_dtypes.bfloat16  # type: ignore[union-attr]
    assert list(strings) == [b"a" * 30_000, b"\0"]
    assert ragged == sent.columns[3]
    assert [leaf.tolist() for leaf in varied] == [np.zeros((3, 4)).tolist(), [1.0, 1.0]]
    assert nothing == [None, None]


def test_more_parts_than_the_system_takes_at_once(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    leaves = [np.full((1, i % 7), i % 251, np.uint8) for i in range(3000)]
    sender = in_thread(worker.send_rows, 1, 0, chunk([*leaves, Ragged.from_rows([[1]])]))
    _, columns = client.receive()
    sender.join()
    assert columns is not None
    assert [leaf.tolist() for leaf in columns[0][:-1]] == [leaf.tolist() for leaf in leaves]


def test_sent_memory_may_be_changed(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    sent = rows_of(100_000, 1)
    worker.send_rows(1, 0, sent)
    sent.columns[0][:] = 2  # type: ignore[index]
    _, columns = client.receive()
    assert columns is not None
    assert (columns[0] == 1).all()  # type: ignore[attr-defined]


def test_pending_is_what_a_select_does_not_see(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    assert not client.pending()
    worker.send(Done(1))
    worker.send(Done(2))
    worker.send(Done(3))
    client.receive()
    received = 1
    while client.pending():
        client.receive()
        received += 1
    while received < 3:
        client.receive()
        received += 1
    assert not client.pending()


def test_traffic_both_ways_at_once(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    state, count = Mark(0, bytes(100_000)), 60

    def ask() -> None:
        for number in range(count):
            client.send(Fetch(number, 0, 0, 1, state))

    def answer() -> None:
        for number in range(count):
            worker.send_rows(number, 0, rows_of(100_000, number))

    heard: list[int] = []

    def listen() -> None:
        while len(heard) < count:
            message, _ = worker.receive()
            if isinstance(message, Fetch):
                heard.append(message.request)

    threads = [in_thread(work) for work in (ask, answer, listen)]
    for number in range(count):
        message, columns = client.receive()
        assert message.request == number  # type: ignore[union-attr]
        assert (columns[0] == number).all()  # type: ignore[index, attr-defined]
    for thread in threads:
        thread.join()
    assert heard == list(range(count))


def test_looking_takes_in_what_has_arrived(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    assert not worker.poll()
    assert not client.poll()
    client.send(Fetch(1, 2, 3, 4))
    worker.send_rows(1, 3, rows_of(INLINE, 7))
    while not worker.poll():
        select.select([worker], [], [])
    assert worker.receive()[0] == Fetch(1, 2, 3, 4)
    _, columns = client.receive()
    assert columns is not None
    assert (columns[0] == 7).all()  # type: ignore[attr-defined]
    client.close()
    with pytest.raises(UnavailableError, match="to (a )?client"):
        look_until_the_end(worker)


def look_until_the_end(connection: Connection) -> None:
    while True:
        select.select([connection], [], [])
        connection.poll()


def test_looking_keeps_descriptors() -> None:
    with open_link("shm") as (client, worker):
        worker.send_rows(1, 0, rows_of(INLINE, 7))
        while not client.poll():
            select.select([client], [], [])
        message, columns = client.receive()
        assert isinstance(message, Rows)
        assert message.segment >= 0
        assert (columns[0] == 7).all()  # type: ignore[index, attr-defined]


# The end


def test_the_end_of_the_other_side(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    worker.send(Done(1))
    worker.close()
    assert client.receive() == (Done(1), None)
    with pytest.raises(UnavailableError, match="worker localhost:1 .*closed it"):
        client.receive()
    with pytest.raises(UnavailableError, match="aborted"):
        client.send(Fetch(1, 2, 3, 4))


def test_abort_ends_a_wait(pair: tuple[Connection, Connection]) -> None:
    client, _ = pair
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            client.receive()
        except UnavailableError as error:
            failures.append(error)

    waiting = in_thread(wait)
    client.abort()
    waiting.join()
    assert "it was aborted" in str(failures[0])
    client.close()
    client.abort()
    client.close()


def test_abort_ends_a_send_that_the_peer_does_not_read(pair: tuple[Connection, Connection]) -> None:
    _, worker = pair
    failures: list[BaseException] = []
    many = chunk(*[np.zeros((1, INLINE - 4096), np.uint8)])

    def send() -> None:
        try:
            while True:
                worker.send_rows(1, 0, many)
        except UnavailableError as error:
            failures.append(error)

    sending = in_thread(send)
    worker.abort()
    sending.join()
    assert "it was aborted" in str(failures[0])


def test_what_came_before_an_abort_is_not_received(pair: tuple[Connection, Connection]) -> None:
    client, worker = pair
    worker.send(Done(1))
    client.abort()
    with pytest.raises(UnavailableError, match="it was aborted"):
        client.receive()


@pytest.mark.parametrize("protocol", ["tcp", "shm"])
def test_a_killed_worker(protocol: str) -> None:
    with (
        worker_process() as (info, process),
        connect_data(info, SECURITY, protocol, host_id(), None) as client,
    ):
        client.send(Fetch(1, 1, 0, 1_000_000))
        kept = []
        for ordinal in range(20):
            message, columns = client.receive()
            assert isinstance(message, Rows)
            assert message.start == ordinal
            assert columns is not None
            kept.append(columns[0])
        process.kill()
        with pytest.raises(UnavailableError, match="worker localhost:1"):
            receive_all(client)
        assert [int(array[0, 0]) for array in kept] == list(range(20))


def test_no_memory_for_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def take(self, size: int) -> memoryview:
            raise MemoryError

    with open_link("tcp") as (client, worker):
        monkeypatch.setattr(data_connection, "BUFFERS", Full())
        worker.send_rows(1, 0, rows_of(10))
        with pytest.raises(ResourceExhaustedError, match="no memory .* use smaller batches"):
            client.receive()
        with pytest.raises(UnavailableError, match="closed"):
            worker.receive()


def test_an_interrupted_connection_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_link("tcp") as (client, worker):
        monkeypatch.setattr(client._incoming, "read", lambda: (_ for _ in ()).throw(KeyError("x")))
        with pytest.raises(KeyError, match="x"):
            client.receive()
        with pytest.raises(UnavailableError, match="closed"):
            worker.receive()


def test_too_large_a_message_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.service.protocol.data_messages.MAX_BODY", 1000)
    with open_link("tcp") as (client, worker):
        with pytest.raises(InvalidArgumentError, match="cannot be sent at once"):
            worker.send_rows(1, 0, rows_of(2000))
        worker.send(Done(1))
        assert client.receive()[0] == Done(1)
