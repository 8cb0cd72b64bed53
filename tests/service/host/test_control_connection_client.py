import contextlib
import gc
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import msgspec
import pytest

from penstock.cli.certificates import make_certificates
from penstock.errors import (
    AlreadyExistsError,
    CancelledError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnfitServerError,
    UnknownError,
)
from penstock.service.host import dispatcher_server
from penstock.service.host.admission import DataListener
from penstock.service.host.control_connection import (
    LARGEST,
    ControlClient,
    ControlConnection,
    decode_reply,
    encode,
    is_transient,
    reply_to_error,
)
from penstock.service.host.dispatcher_server import ControlServer
from penstock.service.host.security import (
    CONTROL,
    PROOF_SIZE,
    ProcessLoss,
    Security,
    Terms,
    client_handshake,
)
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ErrorReply,
    GetDataset,
    GetPlan,
    GetPlanReply,
    GetStatus,
    Ok,
    PutPlan,
    RegisterDatasetReply,
)

SECURITY = Security(b"the token of these tests")


def echo(request):
    match request:
        case GetDataset("missing"):
            raise NotFoundError("GetDataset: no dataset 'missing'")
        case GetDataset("fault"):
            raise KeyError("oh")
        case GetDataset("large"):
            return GetPlanReply(bytes(LARGEST), LARGEST)
        case GetDataset(name):
            return RegisterDatasetReply(name)
        case _:
            return Ok()


@pytest.fixture
def server():
    server = ControlServer(echo, "localhost", 0, SECURITY)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server):
    client = ControlClient(f"localhost:{server.port}", SECURITY)
    yield client
    client.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Several addresses


def test_the_address_that_listens_is_found(server):
    gone = free_port()
    client = ControlClient(f"localhost:{gone},localhost:{server.port}", SECURITY)
    assert client.call(GetStatus()) == Ok()
    assert client.address == f"localhost:{gone},localhost:{server.port}"
    client.close()


def test_an_address_that_accepts_and_says_nothing_is_left(server, monkeypatch):
    """Like a suspended dispatcher: the operating system accepts connections for it."""
    monkeypatch.setattr(timing, "CONTROL_FAILOVER", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        port = stopped.getsockname()[1]
        client = ControlClient(f"localhost:{port},localhost:{server.port}", SECURITY)
        assert client.call(GetStatus()) == Ok()
        client.close()


def test_all_addresses_of_a_name_are_tried(server, monkeypatch):
    found = socket.getaddrinfo("127.0.0.1", server.port, type=socket.SOCK_STREAM)
    other = socket.getaddrinfo("127.0.0.1", free_port(), type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: other + found)
    client = ControlClient("dispatcher.example.org:5050", SECURITY)
    assert client.call(GetStatus()) == Ok()
    client.close()


def test_a_name_that_leads_elsewhere_after_a_restart(server, monkeypatch):
    """Like a cluster manager that restarts a dispatcher on another machine."""
    look_up = socket.getaddrinfo
    ports = {"dispatcher.example.org": server.port}

    def look_up_name(host, port, *arguments, **named):
        return look_up("127.0.0.1", ports.get(host, port), *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_name)
    client = ControlClient("dispatcher.example.org:5050", SECURITY)
    assert client.call(GetDataset("one")) == RegisterDatasetReply("one")
    server.stop()
    other = ControlServer(echo, "localhost", 0, SECURITY)
    other.start()
    ports["dispatcher.example.org"] = other.port
    assert client.call(GetDataset("two")) == RegisterDatasetReply("two")
    client.close()
    other.stop()


def test_one_of_the_names_is_not_known(server, monkeypatch):
    look_up = socket.getaddrinfo

    def look_up_local(host, *arguments, **named):
        if host == "gone.example.org":
            raise socket.gaierror("not known")
        return look_up(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_local)
    client = ControlClient(f"gone.example.org:1,localhost:{server.port}", SECURITY)
    assert client.call(GetStatus()) == Ok()
    client.close()
    with pytest.raises(UnavailableError, match="the name of the host is not known"):
        ControlClient("gone.example.org:1,gone.example.org:2", SECURITY, 0.01).call(GetStatus())


def test_a_dispatcher_that_may_not_answer_is_left(server):
    """It lost its work_dir to another dispatcher, and has not closed its port yet."""

    def refuse(request):
        raise UnavailableError("lost work_dir")

    former = ControlServer(refuse, "localhost", 0, SECURITY)
    former.start()
    client = ControlClient(f"localhost:{former.port},localhost:{server.port}", SECURITY)
    assert client.call(GetStatus()) == Ok()
    client.close()
    former.stop()


# Calls


def test_a_call_in_progress_follows_a_dispatcher_that_moves(server, client):
    client.call(GetDataset("first"))  # Leaves a connection to the old address.
    server.stop()
    moved = ControlServer(echo, "localhost", 0, SECURITY)
    moved.start()
    replies: queue.Queue[object] = queue.Queue()
    calling = threading.Thread(target=lambda: replies.put(client.call(GetDataset("second"))))
    calling.start()
    client.move(f"localhost:{moved.port}")
    assert replies.get(timeout=60) == RegisterDatasetReply("second")
    assert client.address == f"localhost:{moved.port}"
    calling.join()
    moved.stop()


def test_a_call_and_its_answer(client):
    assert client.call(GetDataset("1000")) == RegisterDatasetReply("1000")
    assert client.call(GetStatus()) == Ok()


def test_calls_from_several_threads(client):
    answers = {}

    def ask(name: str) -> None:
        answers[name] = [client.call(GetDataset(f"{name}{number}")) for number in range(20)]

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {
        name: [RegisterDatasetReply(f"{name}{number}") for number in range(20)] for name in "abcd"
    }


def test_an_error_is_raised_as_what_it_was(client):
    with pytest.raises(NotFoundError, match="^GetDataset: no dataset 'missing'$"):
        client.call(GetDataset("missing"))


def test_an_error_of_the_server_is_reported_and_survived(client):
    with pytest.raises(InternalError, match="the dispatcher failed with KeyError: 'oh'"):
        client.call(GetDataset("fault"))
    assert client.call(GetStatus()) == Ok()


def test_an_error_that_this_side_does_not_know():
    assert isinstance(reply_to_error(ErrorReply("Novel", "words")), UnknownError)
    assert str(reply_to_error(ErrorReply("kind_of", "words"))) == "kind_of: words"


def test_messages_that_are_too_large(client):
    with pytest.raises(ResourceExhaustedError, match="PutPlan: .* more than one message may have"):
        client.call(PutPlan("d", 0, LARGEST, bytes(LARGEST)))
    with pytest.raises(
        ResourceExhaustedError, match="GetPlanReply: .* more than one message may have"
    ):
        client.call(GetDataset("large"))
    assert client.call(PutPlan("d", 0, LARGEST, bytes(LARGEST - 1024))) == Ok()


def test_where_threads_cannot_wait_for_all_connections_each_has_one(monkeypatch):
    monkeypatch.setattr(dispatcher_server, "_HAS_EPOLL", False)
    server = ControlServer(echo, "localhost", 0, SECURITY)
    server.start()
    clients = [ControlClient(f"localhost:{server.port}", SECURITY) for _ in range(3)]
    for _ in range(2):
        assert [client.call(GetStatus()) for client in clients] == [Ok()] * 3
    clients[0].close()
    server.stop()
    for client in clients:
        client.close()


def test_connections_that_say_nothing_cost_no_thread(server, client):
    # Servers of earlier tests may have threads, too, until they are collected.
    before = set(threading.enumerate())
    client.call(GetStatus())
    clients = [ControlClient(f"localhost:{server.port}", SECURITY) for _ in range(30)]
    for each in clients:
        assert each.call(GetStatus()) == Ok()
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert 0 < names.count("penstock-control") < 10
    for each in clients:
        each.close()


def test_what_is_in_hand_is_answered_before_a_server_stops(monkeypatch):
    monkeypatch.setattr("penstock.service.protocol.timing.CONTROL_GRACE", 600.0)
    begun, go_on = threading.Event(), threading.Event()

    def slow(request):
        begun.set()
        go_on.wait()
        return Ok()

    server = ControlServer(slow, "localhost", 0, SECURITY)
    server.start()
    client, answers = ControlClient(f"localhost:{server.port}", SECURITY), []
    calling = threading.Thread(target=lambda: answers.append(client.call(GetStatus())))
    calling.start()
    begun.wait()
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    with contextlib.suppress(ConnectionError):
        while True:  # Until the server accepts no more connections.
            socket.create_connection(("127.0.0.1", server.port)).close()
    go_on.set()
    calling.join()
    stopping.join()
    assert answers == [Ok()]
    client.close()


def test_large_messages_take_turns_and_small_ones_do_not(monkeypatch):
    monkeypatch.setattr(dispatcher_server, "_TURNS", 1)
    begun, go_on = queue.Queue(), threading.Event()

    def slow(request):
        if isinstance(request, PutPlan):
            begun.put(request.digest)
            go_on.wait()
        return Ok()

    server = ControlServer(slow, "localhost", 0, SECURITY)
    server.start()
    client = ControlClient(f"localhost:{server.port}", SECURITY)
    plans = [PutPlan(name, 0, 1 << 20, bytes(1 << 20)) for name in "abc"]
    threads = [threading.Thread(target=client.call, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    first = begun.get()
    assert client.call(GetDataset("x")) == Ok()
    assert begun.empty()
    go_on.set()
    for thread in threads:
        thread.join()
    assert sorted((first, begun.get(), begun.get())) == ["a", "b", "c"]
    client.close()
    server.stop()


def test_a_plan_that_gets_no_turn_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(dispatcher_server, "_TURNS", 1)
    monkeypatch.setattr("penstock.service.protocol.timing.CONTROL_TURN", 0.01)
    held, go_on = threading.Event(), threading.Event()

    def slow(request):
        if isinstance(request, GetPlan) and not held.is_set():
            held.set()
            go_on.wait()
        return Ok()

    server = ControlServer(slow, "localhost", 0, SECURITY)
    server.start()
    with member(server) as first, member(server) as second:
        first.send(encode(GetPlan("a")), soon())
        held.wait()
        second.send(encode(GetPlan("b")), soon())
        reply = decode_reply(second.receive(soon()))
        assert "too many large messages at the same time" in reply.message
        assert is_transient(reply)
        go_on.set()
        assert decode_reply(first.receive(soon())) == Ok()
        second.send(encode(GetPlan("b")), soon())
        assert decode_reply(second.receive(soon())) == Ok()
    server.stop()


# No server


def test_no_server_there():
    port = free_port()
    client = ControlClient(f"localhost:{port}", SECURITY)
    with pytest.raises(
        UnavailableError,
        match=f"^dispatcher localhost:{port} has not answered for 0.3 s .[0-9]+ attempts?, last: "
        "connection refused.; is it running. start one with: "
        f"penstock dispatcher --port {port}$",
    ):
        client.call(GetStatus(), timeout=0.3)
    client.close()


def test_a_host_that_is_not_known():
    client = ControlClient("no-such-host.invalid:5050", SECURITY, timeout=0.3)
    with pytest.raises(
        UnavailableError, match="last: the name of the host .* start one on no-such-host.invalid wi"
    ):
        client.call(GetStatus())
    client.close()


def test_a_peer_that_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlClient(f"localhost:{silent.getsockname()[1]}", SECURITY)
        with pytest.raises(UnavailableError, match="has not answered for 0.3 s"):
            client.call(GetStatus(), timeout=0.3)
        client.close()


def test_a_slow_answer_is_waited_for_however_short_the_time_to_repeat_it():
    def slow(request):
        time.sleep(0.4)
        return Ok()

    server = ControlServer(slow, "localhost", 0, SECURITY)
    server.start()
    client = ControlClient(f"localhost:{server.port}", SECURITY, timeout=0.1)
    assert client.call(GetStatus()) == Ok()
    with pytest.raises(UnavailableError, match="has not answered for 0.1 s"):
        client.call(GetStatus(), timeout=0.1)
    client.close()
    server.stop()


@contextlib.contextmanager
def fake_server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that calls `answer` for each connection; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listening.accept()[0] as connected:
                    answer(connected)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def test_a_server_of_something_else():
    with fake_server(
        lambda connected: connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    ) as port:
        client = ControlClient(f"localhost:{port}", SECURITY)
        with pytest.raises(
            UnavailableError, match=f"localhost:{port} is not a penstock dispatcher; lo"
        ):
            client.call(GetStatus())
        client.close()


def test_the_data_port_of_a_worker():
    with DataListener(lambda connection: None, SECURITY) as listener:
        client = ControlClient(listener.transfers["tcp"], SECURITY)
        with pytest.raises(UnavailableError, match="is not a penstock dispatcher; look at the ad"):
            client.call(GetStatus())
        client.close()


def test_a_client_survives_the_restart_of_the_server(client, server):
    client.call(GetStatus())
    server.stop()
    back = threading.Event()
    answer = []
    caller = threading.Thread(target=lambda: (back.set(), answer.append(client.call(GetStatus()))))
    caller.start()
    back.wait()
    again = ControlServer(echo, "localhost", server.port, SECURITY)
    again.start()
    caller.join()
    assert answer == [Ok()]
    again.stop()


def test_closing_ends_calls_that_wait():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlClient(f"localhost:{silent.getsockname()[1]}", SECURITY)
        raised = []

        def wait() -> None:
            try:
                client.call(GetStatus())
            except CancelledError as error:
                raised.append(error)

        caller = threading.Thread(target=wait)
        caller.start()
        silent.accept()[0].close()
        client.close()
        caller.join()
    assert len(raised) == 1


def test_a_closed_client():
    client = ControlClient("localhost:5050", SECURITY)
    client.close()
    client.close()
    with pytest.raises(CancelledError, match="localhost:5050: the connection was closed here"):
        client.call(GetStatus())


# Who may call


def test_a_wrong_token(server):
    client = ControlClient(
        f"localhost:{server.port}", Security(b"another", origin="PENSTOCK_TOKEN")
    )
    with pytest.raises(
        UnauthenticatedError,
        match=f"dispatcher localhost:{server.port} does not accept the token of this process "
        r"\(from PENSTOCK_TOKEN\); both sides look for it in --token-file",
    ):
        client.call(GetStatus())
    client.close()


@contextlib.contextmanager
def member(server) -> Iterator[ControlConnection]:
    """A connection that has proved the token."""
    with socket.create_connection(("127.0.0.1", server.port)) as connected:
        key = client_handshake(connected, SECURITY.token, Terms(), soon(), CONTROL).key
        yield ControlConnection(connected, key, client=True)


def soon() -> float:
    return time.monotonic() + 60.0


def is_cut(connected: socket.socket) -> bool:
    """Whether the other side closes the connection without sending a byte."""
    connected.settimeout(60.0)
    try:
        return not connected.recv(100)
    except ConnectionResetError:
        return True


def test_a_server_that_does_not_know_the_token():
    def pretend(connected: socket.socket) -> None:
        said = connected.recv(100)
        connected.sendall(said[:48])
        connected.recv(32)
        connected.sendall(b"\x01\x01\x00" + ProcessLoss().pack() + bytes(PROOF_SIZE))

    with fake_server(pretend) as port:
        client = ControlClient(f"localhost:{port}", SECURITY)
        with pytest.raises(
            UnauthenticatedError, match="does not know the token .from the argument tok"
        ):
            client.call(GetStatus())
        client.close()


def test_garbage_before_the_proof(server, client):
    for size in (1, 87, 88, 89, 1000, 100_000):
        stranger = socket.create_connection(("127.0.0.1", server.port))
        with stranger, contextlib.suppress(OSError):
            stranger.sendall(os.urandom(size))
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
    assert client.call(GetStatus()) == Ok()


@pytest.mark.parametrize("size", [1, 7, 8, 39, 40, 1000])
def test_garbage_behind_the_proof(server, client, size):
    with member(server) as connection:
        connection.connected.sendall(os.urandom(size))
        connection.connected.shutdown(socket.SHUT_WR)
        assert is_cut(connection.connected)
    assert client.call(GetStatus()) == Ok()


def test_a_message_larger_than_any(server, client):
    with member(server) as connection:
        connection.send(bytes(LARGEST + 1)[:0], soon())  # Empty, and not a message.
        assert decode_reply(connection.receive(soon())).kind == "InvalidArgumentError"
        with contextlib.suppress(ConnectionError):
            connection.send(bytes(LARGEST + 1), soon())
        assert is_cut(connection.connected)
    assert client.call(GetStatus()) == Ok()


def test_a_message_of_another_version(server):
    with member(server) as connection:
        for odd in ({"t": "Novel"}, [[[]]], "words"):
            connection.send(msgspec.msgpack.encode(odd), soon())
            reply = decode_reply(connection.receive(soon()))
            assert reply.kind == "InvalidArgumentError"
            assert "the request cannot be decoded" in reply.message


def test_an_answer_of_another_version():
    with pytest.raises(InvalidArgumentError, match="the reply cannot be decoded"):
        decode_reply(msgspec.msgpack.encode({"t": "Novel"}))


# Where a server listens


@pytest.mark.parametrize("port", [-5, 65536, 1.5, "5050"])
def test_ports_that_are_none(port):
    with pytest.raises(UnfitServerError, match="port must be 0 .any free one. or a number up to"):
        ControlServer(echo, "localhost", port, SECURITY)
    with pytest.raises(RuntimeError, match="port must be"):
        ControlServer(echo, "localhost", port, SECURITY)


def test_a_port_in_use(server):
    with pytest.raises(AlreadyExistsError, match=f"port {server.port} is in use; choose another"):
        ControlServer(echo, "localhost", server.port, SECURITY)


def test_a_host_that_is_elsewhere():
    with pytest.raises(UnfitServerError, match="host '192.0.2.1' is no address of this machine"):
        ControlServer(echo, "192.0.2.1", 0, SECURITY)
    with pytest.raises(UnfitServerError, match="host 'no-such-host.invalid' is no address"):
        ControlServer(echo, "no-such-host.invalid", 0, SECURITY)


def test_no_server_for_other_machines_without_a_given_token():
    with pytest.raises(FailedPreconditionError, match="0.0.0.0:0 can be reached from other"):
        ControlServer(echo, "0.0.0.0", 0, Security(b"found", given=False))
    server = ControlServer(echo, "0.0.0.0", 0, SECURITY)
    server.stop()


def test_a_port_is_free_again_after_stop(server):
    server.stop()
    server.stop()
    again = ControlServer(echo, "localhost", server.port, SECURITY)
    assert again.port == server.port
    again.stop()


def test_a_server_that_is_dropped_gives_its_port_back():
    server = ControlServer(echo, "localhost", 0, SECURITY)
    server.start()
    port, dropped = server.port, weakref.ref(server)
    del server
    gc.collect()
    assert dropped() is None
    again = ControlServer(echo, "localhost", port, SECURITY)
    again.stop()


PROGRAM = """
import os, sys
sys.path[:0] = {path!r}
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.dispatcher_server import ControlServer
from penstock.service.host.security import Security
from penstock.service.protocol.messages import GetStatus, Ok
security = Security(b"token of a program")
server = ControlServer(lambda request: Ok(), "localhost", 0, security)
server.start()
client = ControlClient(f"localhost:{{server.port}}", security)
print(client.call(GetStatus()))
child = os.fork()
if child == 0:
    os.write(1, (str(client.call(GetStatus())) + "\\n").encode())
    os._exit(0)
os.waitpid(child, 0)
print(client.call(GetStatus()))
"""


def test_a_program_ends_without_stopping_anything_and_its_children_can_call():
    program = PROGRAM.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("Ok()\n" * 3, "")


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("control") / "set")
    make_certificates(folder)
    return folder


def test_with_certificates(certificates):
    security = Security(SECURITY.token, certificates)
    server = ControlServer(echo, "localhost", 0, security)
    server.start()
    for host in ("localhost", "127.0.0.1"):
        client = ControlClient(f"{host}:{server.port}", security)
        assert client.call(GetStatus()) == Ok()
        client.close()
    server.stop()


def test_certificates_of_another_set(certificates, tmp_path):
    make_certificates(str(tmp_path / "set"))
    server = ControlServer(echo, "localhost", 0, Security(SECURITY.token, certificates))
    server.start()
    other = Security(SECURITY.token, str(tmp_path / "set"))
    client = ControlClient(f"localhost:{server.port}", other, timeout=1e9)
    with pytest.raises(UnauthenticatedError, match="certificate is not from the same set; give"):
        client.call(GetStatus())
    client.close()
    server.stop()


def test_only_the_server_has_certificates(certificates):
    server = ControlServer(echo, "localhost", 0, Security(SECURITY.token, certificates))
    server.start()
    client = ControlClient(f"localhost:{server.port}", SECURITY, timeout=1e9)
    with pytest.raises(
        UnauthenticatedError, match="the other side uses certificates and this one does not; give"
    ):
        client.call(GetStatus())
    client.close()
    server.stop()


def test_only_the_client_has_certificates(server, certificates):
    security = Security(SECURITY.token, certificates)
    client = ControlClient(f"localhost:{server.port}", security, timeout=1e9)
    with pytest.raises(
        UnauthenticatedError, match="this side uses certificates and the other does not; give"
    ):
        client.call(GetStatus())
    client.close()


def test_a_certificate_for_another_host(certificates):
    security = Security(SECURITY.token, certificates)
    server = ControlServer(echo, "127.0.0.2", 0, security)
    server.start()
    client = ControlClient(f"127.0.0.2:{server.port}", security, timeout=1e9)
    with pytest.raises(UnauthenticatedError, match="is for another host .IP address mismatch"):
        client.call(GetStatus())
    client.close()
    server.stop()


def test_certificates_that_cannot_be_used(tmp_path):
    for name in ("ca.pem", "server.pem", "server-key.pem"):
        (tmp_path / name).write_text("no")
        (tmp_path / name).chmod(0o600)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidArgumentError, match="no usable server certificate"):
        ControlServer(echo, "localhost", 0, Security(b"", str(tmp_path)))
    assert len(os.listdir("/proc/self/fd")) <= files


# A dispatcher that cannot answer for now


@pytest.fixture
def busy_server():
    """Answers that its disk is full, `left` times more."""
    left = [3]

    def answer(request):
        left[0] -= 1
        if left[0] >= 0:
            raise UnavailableError("the disk is full")
        return Ok()

    server = ControlServer(answer, "localhost", 0, SECURITY)
    server.start()
    yield server, left
    server.stop()


def test_a_dispatcher_that_cannot_answer_for_now_is_asked_again(busy_server, monkeypatch, caplog):
    monkeypatch.setattr("penstock.service.protocol.timing.CONTROL_WARNING", 0.0)
    server, left = busy_server
    client = ControlClient(f"localhost:{server.port}", SECURITY)
    assert client.call(GetStatus()) == Ok()
    assert left == [-1]
    assert "does not answer (the disk is full); it is asked for" in caplog.text
    client.close()


def test_what_it_says_at_last_is_the_error(busy_server):
    server, left = busy_server
    left[0] = 10**9
    client = ControlClient(f"localhost:{server.port}", SECURITY, timeout=0.05)
    with pytest.raises(UnavailableError, match="^the disk is full$"):
        client.call(GetStatus())
    client.close()
