"""Listeners: clients are served, strangers are rejected, and closing frees everything."""

import contextlib
import gc
import os
import queue
import resource
import socket
import threading

import pytest

from penstock.engine.processes.chunk_memory import host_id
from penstock.errors import AlreadyExistsError, UnavailableError, UnfitServerError
from penstock.service.host import admission
from penstock.service.host.admission import DataListener
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.sockets import split_address
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import Done, Fetch
from tests.integration.clusters import until
from tests.service.host.wire_peers import SECURITY, info_of


def echo(connection: Connection) -> None:
    """Answers every fetch with its number."""
    while True:
        message, _ = connection.receive()
        if isinstance(message, Fetch):
            connection.send(Done(message.request))


def connect(listener: DataListener, protocol: str | None = None) -> Connection:
    return connect_data(info_of(listener.transfers), SECURITY, protocol, host_id(), None)


def works(listener: DataListener, protocol: str | None = None) -> bool:
    with connect(listener, protocol) as client:
        client.send(Fetch(5, 0, 0, 1))
        return client.receive()[0] == Done(5)


def test_many_clients_at_once() -> None:
    with DataListener(echo, SECURITY) as listener:
        clients = [connect(listener, protocol) for protocol in ("tcp", "shm") * 10]
        for number, client in enumerate(clients):
            client.send(Fetch(number, 0, 0, 1))
        assert [client.receive()[0] for client in clients] == [Done(i) for i in range(20)]
        for client in clients:
            client.close()


@pytest.mark.parametrize("protocol", ["tcp", "shm"])
def test_garbage_harms_only_the_one_who_sends_it(protocol: str) -> None:
    with DataListener(echo, SECURITY) as listener:
        for said in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".ljust(200), os.urandom(500)):
            with stranger(listener, protocol) as raw:
                with contextlib.suppress(OSError):  # The listener may have closed it by then.
                    raw.sendall(said)
                    raw.shutdown(socket.SHUT_WR)
                assert hung_up(raw)
            assert works(listener, protocol)


def stranger(listener: DataListener, protocol: str) -> socket.socket:
    address = listener.transfers[protocol]
    if protocol == "tcp":
        return socket.create_connection(split_address(address))
    raw = socket.socket(socket.AF_UNIX)
    raw.connect("\0" + address[1:])
    return raw


def hung_up(raw: socket.socket) -> bool:
    """Waits until the other side has closed the connection."""
    try:
        while raw.recv(100):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_silent_stranger_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "HANDSHAKE", 0.05)
    with DataListener(echo, SECURITY) as listener, stranger(listener, "tcp") as raw:
        assert hung_up(raw)


def test_many_silent_strangers_do_not_block_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STRANGERS", 3)
    monkeypatch.setattr(timing, "HANDSHAKE", 600.0)
    with DataListener(echo, SECURITY) as listener:
        silent = [stranger(listener, "tcp") for _ in range(10)]
        assert works(listener, "tcp")
        assert all(hung_up(raw) for raw in silent[:7])
        for raw in silent:
            raw.close()


def test_a_crowd_of_strangers_competes_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STRANGERS", 3)
    monkeypatch.setattr(timing, "HANDSHAKE", 600.0)
    with DataListener(echo, SECURITY) as listener:
        place = split_address(listener.transfers["tcp"])
        lone = socket.create_connection(("127.0.0.1", place[1]), source_address=("127.0.0.2", 0))
        crowd = [stranger(listener, "tcp") for _ in range(10)]
        assert all(hung_up(raw) for raw in crowd[:8])
        lone.setblocking(False)
        with pytest.raises(BlockingIOError, match="temporarily unavailable"):
            lone.recv(1)
        for raw in (lone, *crowd):
            raw.close()


def test_more_guests_than_there_is_room_for() -> None:
    with DataListener(echo, SECURITY) as listener:
        listener.most_guests = 2
        with connect(listener) as first, connect(listener):
            with pytest.raises(UnavailableError, match="it has too many connections"):
                connect(listener, "tcp")
            first.send(Fetch(5, 0, 0, 1))
            assert first.receive()[0] == Done(5)


def test_half_of_the_files_are_for_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((1024, 512), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert admission._most_guests() == most


def test_strangers_are_logged_but_not_each_of_them(caplog: pytest.LogCaptureFixture) -> None:
    with DataListener(echo, SECURITY) as listener:
        for _ in range(5):
            with stranger(listener, "tcp") as raw:
                raw.shutdown(
                    socket.SHUT_WR
                )  # It has sent nothing, so the server has not closed it.
                assert hung_up(raw)
            until(lambda: "the last from 127.0.0.1" in caplog.text)
    assert caplog.text.count("ended before the token was proved") == 1


def test_a_port_in_use() -> None:
    with DataListener(echo, SECURITY) as listener:
        _, port = split_address(listener.transfers["tcp"])
        with pytest.raises(AlreadyExistsError, match=f"port {port} is in use; choose another"):
            DataListener(echo, SECURITY, port=port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(UnfitServerError, match="host '203.0.113.1' is no address of this machine"):
        DataListener(echo, SECURITY, "203.0.113.1")


def test_ipv6() -> None:
    with DataListener(echo, SECURITY, "::1") as listener:
        assert listener.transfers["tcp"].startswith("[::1]:")
        assert works(listener, "tcp")


def test_closing_ends_connections() -> None:
    files, threads = len(os.listdir("/proc/self/fd")), port_threads()
    listener = DataListener(echo, SECURITY)
    listener.start()
    with connect(listener, "tcp") as one, connect(listener, "shm") as other:
        with stranger(listener, "tcp") as silent:
            assert works(listener)
            listener.close()
            assert hung_up(silent)
        for client in (one, other):
            with pytest.raises(UnavailableError, match="worker localhost:1"):
                client.receive()
    listener.close()
    gc.collect()
    assert port_threads() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files


NAMES = ("penstock port", "penstock connection")


def port_threads() -> set[threading.Thread]:
    """The threads of all ports; threads of other kinds may begin and end meanwhile."""
    return {thread for thread in threading.enumerate() if thread.name in NAMES}


def test_a_listener_that_was_never_started() -> None:
    files = len(os.listdir("/proc/self/fd"))
    DataListener(echo, SECURITY).close()
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_handler_may_close_its_listener() -> None:
    closed: queue.Queue[bool] = queue.Queue()

    def handle(connection: Connection) -> None:
        listener.close()
        closed.put(True)

    listener = DataListener(handle, SECURITY)
    listener.start()
    with connect(listener):
        assert closed.get()


def test_too_many_open_files_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.service.protocol.timing.EXHAUSTED", 0.001)
    listener = DataListener(echo, SECURITY)

    class Full:
        """A socket whose first connections fail because no file is free."""

        def __init__(self, real: socket.socket) -> None:
            self.real, self.failures = real, 3

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def accept(self) -> object:
            self.failures -= 1
            if self.failures >= 0:
                raise OSError(24, "Too many open files")
            return self.real.accept()

    door = listener
    door._listening = [Full(real) for real in door._listening]  # type: ignore[misc]
    with listener:
        assert works(listener, "tcp")


def test_after_any_error_the_next_connections_are_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.service.protocol.timing.EXHAUSTED", 0.001)
    with DataListener(echo, SECURITY) as listener:
        for name in ("Stranger", "server_handshake"):
            with monkeypatch.context() as broken:
                broken.setattr(admission, name, None)
                with stranger(listener, "tcp") as raw:
                    assert hung_up(raw)
        assert works(listener, "tcp")
    assert "'NoneType' object is not callable" in caplog.text


def test_too_many_threads_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.service.protocol.timing.EXHAUSTED", 0.001)
    with DataListener(echo, SECURITY) as listener:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as broken:
            broken.setattr(threading.Thread, "start", refuse)
            with stranger(listener, "tcp") as raw:
                assert hung_up(raw)
        assert works(listener, "tcp")
