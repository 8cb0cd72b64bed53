"""The handshake: only peers with the token are admitted, within a bounded time."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import version
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.security import (
    CONTROL,
    DATA,
    ProcessLoss,
    ServerHandshake,
    Terms,
    client_handshake,
    make_proof,
    server_handshake,
)
from tests.effort import examples

TOKEN = b"the token"
SOON = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, worker = socket.socketpair()
    with client, worker:
        yield client, worker


def deadline(seconds: float = SOON) -> float:
    return time.monotonic() + seconds


def beside(call: Any) -> "queue.Queue[Any]":
    """What `call` gives or raises, once it does, in a thread of its own."""
    found: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            found.put(call())
        except OpError as error:
            found.put(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def test_both_sides_agree(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    admitted = beside(lambda: server_handshake(worker, TOKEN, deadline()))
    terms = Terms(2, 7, 8, bytes(range(32)))
    accepted = client_handshake(client, TOKEN, terms, deadline())
    assert accepted.process_loss == ProcessLoss()
    assert admitted.get() == ServerHandshake(terms, accepted.key)


def test_a_client_learns_how_the_process_of_its_plan_was_lost(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, worker = ends
    losses = {bytes(range(32)): ProcessLoss(7, -11, 0.5, True, b"f at x.py:2" * 20)}
    admitted = beside(
        lambda: server_handshake(worker, TOKEN, deadline(), last_loss=losses.__getitem__)
    )
    accepted = client_handshake(client, TOKEN, Terms(plan=bytes(range(32))), deadline())
    assert accepted.process_loss == ProcessLoss(7, -11, 0.5, True, (b"f at x.py:2" * 20)[:95])
    assert admitted.get() == ServerHandshake(Terms(plan=bytes(range(32))), accepted.key)


def test_a_stranger_learns_no_news(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    asked: list[bytes] = []

    def tell(plan: bytes) -> ProcessLoss:
        asked.append(plan)
        return ProcessLoss(7, -11)

    admitted = beside(lambda: server_handshake(worker, TOKEN, deadline(), last_loss=tell))
    with pytest.raises(UnauthenticatedError, match="does not accept the token of this process"):
        client_handshake(client, b"another", Terms(), deadline())
    assert isinstance(admitted.get(), UnauthenticatedError)
    assert asked == []


def test_every_connection_has_a_key_of_its_own() -> None:
    keys = []
    for _ in range(2):
        client, server = socket.socketpair()
        with client, server:
            beside(lambda server=server: server_handshake(server, TOKEN, deadline()))
            keys.append(client_handshake(client, TOKEN, Terms(), deadline()).key)
    assert keys[0] != keys[1]


def test_a_server_that_is_full(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    refused = beside(lambda: server_handshake(server, TOKEN, deadline(), has_room=lambda: False))
    with pytest.raises(UnavailableError, match="it has too many connections"):
        client_handshake(client, TOKEN, Terms(), deadline())
    assert "there are too many connections" in refused.get().message


def test_a_connection_for_another_purpose(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    refused = beside(lambda: server_handshake(server, TOKEN, deadline(), CONTROL))
    with pytest.raises(DataLossError, match="what answers speaks another protocol .*penstock ctrl"):
        client_handshake(client, TOKEN, Terms(), deadline(), DATA)
    assert "does not speak this protocol" in refused.get().message


def test_a_client_with_another_token(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    admitted = beside(lambda: server_handshake(worker, TOKEN, deadline()))
    with pytest.raises(UnauthenticatedError, match="does not accept the token of this process"):
        client_handshake(client, b"another", Terms(), deadline())
    refused = admitted.get()
    assert isinstance(refused, UnauthenticatedError)
    assert "the client does not know the token" in refused.message


def test_a_worker_that_only_says_yes(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends

    def pretend() -> None:
        said = worker.recv(200)
        worker.sendall(said[:48])
        worker.recv(32)
        worker.sendall(b"\x01\x01\x00" + ProcessLoss().pack() + bytes(32))

    beside(pretend)
    with pytest.raises(UnauthenticatedError, match="^does not know the token"):
        client_handshake(client, TOKEN, Terms(), deadline())


def test_a_proof_is_worth_nothing_to_the_one_who_got_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, worker = ends

    def mirror() -> None:
        said = worker.recv(200)
        worker.sendall(said[:48])
        worker.sendall(b"\x01\x01\x00" + ProcessLoss().pack() + worker.recv(32))

    beside(mirror)
    with pytest.raises(UnauthenticatedError, match="^does not know the token"):
        client_handshake(client, TOKEN, Terms(), deadline())


def test_something_else_answers(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    worker.sendall(b"HTTP/1.1 400 Bad Request\r\n".ljust(48))
    with pytest.raises(DataLossError, match="speaks another protocol .*HTTP"):
        client_handshake(client, TOKEN, Terms(), deadline())


def test_something_else_asks(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    client.sendall(b"GET / HTTP/1.1\r\n".ljust(88))
    with pytest.raises(DataLossError, match="does not speak this protocol"):
        server_handshake(worker, TOKEN, deadline())


def test_a_client_that_hangs_up(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    client.close()
    with pytest.raises(UnavailableError, match="the other side closed the connection"):
        server_handshake(worker, TOKEN, deadline())


def test_a_client_that_is_silent(ends: tuple[socket.socket, socket.socket]) -> None:
    _, worker = ends
    with pytest.raises(TimeoutError, match="timed out"):
        server_handshake(worker, TOKEN, deadline(0.01))


def test_a_client_that_is_slow(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends
    client.sendall(b"p")
    with pytest.raises(UnavailableError, match="it took too long to answer"):
        server_handshake(worker, TOKEN, deadline(-1.0))


@examples(50)
@given(said=st.binary(max_size=200))
def test_random_bytes_do_not_get_in(said: bytes) -> None:
    client, worker = socket.socketpair()
    with client, worker:
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        with pytest.raises((DataLossError, UnavailableError, UnauthenticatedError), match=r"."):
            server_handshake(worker, TOKEN, deadline())


# Versions of the protocol: each message says both versions, and which side to upgrade


def test_a_client_that_is_too_old(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, worker = ends
    monkeypatch.setattr(version, "OLDEST", 3)
    monkeypatch.setattr(version, "PROTOCOL", 4)
    refused = beside(lambda: server_handshake(worker, TOKEN, deadline()))
    message = "^speaks protocol 4 of penstock and refuses this process, .* upgrade penstock here"
    with pytest.raises(FailedPreconditionError, match=message):
        client_handshake(client, TOKEN, Terms(protocol=2), deadline())
    error = refused.get(timeout=SOON)
    assert isinstance(error, FailedPreconditionError)
    assert error.message == (
        "the client speaks protocol 2 of penstock, and this process protocols 3 to 4; "
        "upgrade penstock there"
    )


@pytest.mark.parametrize("theirs", [3, 5, 99])
def test_neighbours_and_newer_clients_are_admitted(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, theirs: int
) -> None:
    client, worker = ends
    monkeypatch.setattr(version, "OLDEST", 3)
    monkeypatch.setattr(version, "PROTOCOL", 4)
    admitted = beside(lambda: server_handshake(worker, TOKEN, deadline()))
    client_handshake(client, TOKEN, Terms(protocol=theirs), deadline())
    assert admitted.get(timeout=SOON).terms.protocol == theirs


def test_a_server_that_is_too_old(ends: tuple[socket.socket, socket.socket]) -> None:
    client, worker = ends

    def answer_as_version_0() -> None:
        asked = worker.recv(200)
        answered = asked[:48]
        worker.sendall(answered)
        worker.recv(32)
        said = b"\x01\x00\x00" + ProcessLoss().pack()
        worker.sendall(said + make_proof(TOKEN, b"server", said, asked, answered))

    beside(answer_as_version_0)
    message = (
        "^speaks protocol 0 of penstock, and this process protocols 1 to 2; upgrade penstock there$"
    )
    with pytest.raises(FailedPreconditionError, match=message):
        client_handshake(client, TOKEN, Terms(), deadline())


def test_a_server_whose_handshake_has_another_form(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, worker = ends
    worker.sendall(b"penstock data 99".ljust(48))
    message = "begins connections as 'penstock data 99', and this process as 'penstock data 6'"
    with pytest.raises(FailedPreconditionError, match=message):
        client_handshake(client, TOKEN, Terms(), deadline())
