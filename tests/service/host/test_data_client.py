"""Connecting to a worker: which transport is used, and which error is raised if none works."""

import contextlib
import os
import queue
import socket
import threading

import pytest

from penstock.cli.certificates import make_certificates
from penstock.engine.processes import chunk_memory
from penstock.engine.processes.chunk_memory import host_id
from penstock.errors import (
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.admission import DataListener
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.security import Security
from penstock.service.protocol.data_messages import Rows
from penstock.service.protocol.messages import WorkerInfo
from tests.integration.chaos.proxy import Proxy
from tests.service.host.wire_peers import (
    SECURITY,
    in_thread,
    info_of,
    open_link,
    rows_of,
    worker_process,
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Security:
    folder = tmp_path_factory.mktemp("certificates") / "set"
    make_certificates(str(folder))
    return Security(b"token", str(folder))


def test_unknown_compression() -> None:
    with pytest.raises(InvalidArgumentError, match=r'compression must be .* got "?.GZIP'):
        connect_data(info_of({}), SECURITY, None, host_id(), "GZIP")


def test_the_best_way_is_chosen() -> None:
    with open_link("tcp") as (client, _):
        assert client.peer == "worker localhost:1 (tcp)"
    with open_link("shm") as (client, _):
        assert client.peer == "worker localhost:1 (shm)"


def test_tcp_where_shared_memory_does_not_work() -> None:
    with worker_process() as (info, _):
        lost = WorkerInfo("w", "a:1", host_id(), {**info.transfers, "shm": "@nobody"})
        with connect_data(lost, SECURITY, None, host_id(), None) as client:
            assert client.peer == "worker a:1 (tcp)"
        with pytest.raises(
            UnavailableError, match="worker a:1: no data from shm @nobody .*refused"
        ):
            connect_data(lost, SECURITY, "shm", host_id(), None)
        with connect_data(info, SECURITY, None, "elsewhere", None) as client:
            assert client.peer == "worker localhost:1 (tcp)"
        with connect_data(info, SECURITY, None, host_id(), None) as client:
            assert client.peer == "worker localhost:1 (shm)"


def test_shared_memory_with_another_machine() -> None:
    with pytest.raises(UnavailableError, match='shares no memory .* use data_transfer_protocol "t'):
        connect_data(info_of({"shm": "@x"}), SECURITY, "shm", "elsewhere", None)


def test_unknown_protocol() -> None:
    with pytest.raises(InvalidArgumentError, match="data_transfer_protocol must be .* got 'rdma'"):
        connect_data(info_of({}), SECURITY, "rdma", host_id(), None)


def test_a_worker_without_tcp() -> None:
    with pytest.raises(UnavailableError, match="worker localhost:1 hands out no data by tcp"):
        connect_data(info_of({}), SECURITY, "tcp", host_id(), None)


def test_no_server_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"localhost:{taken.getsockname()[1]}"
        message = f"worker localhost:1: no data from tcp {address} .*refused.*data_transfer_address"
        with pytest.raises(UnavailableError, match=message):
            connect_data(info_of({"tcp": address}), SECURITY, None, host_id(), None)


def test_a_bad_address() -> None:
    with pytest.raises(UnavailableError, match="no data from tcp spam .address 'spam' must be"):
        connect_data(info_of({"tcp": "spam"}), SECURITY, None, host_id(), None)


def test_wrong_token() -> None:
    other = Security(b"another token", origin="the file ~/token")
    with worker_process() as (info, _):
        for protocol in ("tcp", "shm", None):
            with pytest.raises(UnauthenticatedError, match="accept the token of this .* ~/token"):
                connect_data(info, other, protocol, host_id(), None)


def test_a_client_without_certificates(certificates: Security) -> None:
    with open_link("tcp", security=certificates) as (client, _):
        host, port = client._channel._socket.getpeername()
        with pytest.raises(UnavailableError, match=r"\(the other side uses certificates"):
            connect_data(
                info_of({"tcp": f"{host}:{port}"}), Security(b"token"), "tcp", host_id(), None
            )


def test_here_is_the_same_in_another_process() -> None:
    with worker_process() as (info, _):
        assert info.host == host_id()
        assert host_id() == chunk_memory.host_id.__wrapped__()


def test_the_host_id_is_unique_where_it_cannot_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", lambda path: (_ for _ in ()).throw(OSError()))
    assert chunk_memory.host_id.__wrapped__() != chunk_memory.host_id.__wrapped__()


def test_the_system_watches_the_network_for_clients() -> None:
    with open_link("tcp") as (client, worker):
        option = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert client._channel._socket.getsockopt(*option) == 7_500
        assert worker._channel._socket.getsockopt(*option) == 0, "clients may read when they like"


@pytest.mark.parametrize("proxied", [False, True])
def test_elements_have_checksums_unless_they_stay_in_memory(proxied: bool) -> None:
    arrived: queue.Queue[Connection] = queue.Queue()
    over = threading.Event()

    def handle(connection: Connection) -> None:
        arrived.put(connection)
        over.wait()

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(DataListener(handle, SECURITY))
        stack.callback(over.set)
        transfers = dict(listener.transfers)
        if proxied:
            proxy = Proxy(int(transfers["tcp"].rpartition(":")[2]))
            stack.callback(proxy.close)
            transfers["tcp"] = f"localhost:{proxy.port}"
        client = connect_data(info_of(transfers), SECURITY, "tcp", host_id(), None)
        stack.enter_context(client)
        sender = in_thread(arrived.get().send_rows, 1, 0, rows_of(1000))
        message, columns = client.receive()
        sender.join()
    assert isinstance(message, Rows)
    assert message.checked == proxied
    assert columns is not None
