"""Control connections: only messages of this connection, in their order, are accepted."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.errors import DataLossError, ResourceExhaustedError, UnauthenticatedError
from penstock.service.host.control_connection import LARGEST, SMALL, ControlConnection, encode
from penstock.service.protocol.messages import PutPlan

KEY = b"the key of a connection"


def soon() -> float:
    return time.monotonic() + 60.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, server = socket.socketpair()
    with client, server:
        yield client, server


def record_bytes(*messages: bytes, key: bytes = KEY, client: bool = True) -> list[bytes]:
    """The bytes that a connection sends for these messages."""
    one, other = socket.socketpair()
    with one, other:
        connection, found = ControlConnection(one, key, client=client), []
        for message in messages:
            connection.send(message, soon())
            found.append(other.recv(1 << 16))
    return found


def is_refused(server: socket.socket) -> bool:
    with pytest.raises(UnauthenticatedError, match="was changed or repeated on its way"):
        ControlConnection(server, KEY, client=False).receive(soon())
    return True


@pytest.mark.parametrize("size", [0, 1, 5000, SMALL, SMALL + 1, 300_000])
def test_messages_of_any_size(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    sender, receiver = (ControlConnection(end, KEY, client=not at) for at, end in enumerate(ends))
    message = bytes(range(256)) * (size // 256 + 1)
    sending = threading.Thread(target=sender.send, args=(message[:size], soon()))
    sending.start()
    large = []
    assert receiver.receive(soon(), before_large=lambda: large.append(1)) == message[:size]
    assert len(large) == (size > SMALL)
    sending.join()


def test_a_copy_on_the_same_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    (wire,) = record_bytes(b"message")
    connection = ControlConnection(server, KEY, client=False)
    client.sendall(wire + wire)
    assert connection.receive(soon()) == b"message"
    with pytest.raises(UnauthenticatedError, match="was changed or repeated on its way"):
        connection.receive(soon())


def test_a_copy_from_another_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(record_bytes(b"message", key=b"another key")[0])
    assert is_refused(ends[1])


def test_a_message_that_comes_too_early(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(record_bytes(b"first", b"second")[1])
    assert is_refused(ends[1])


def test_an_answer_is_not_a_request(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(record_bytes(b"message", client=False)[0])
    assert is_refused(ends[1])


def test_every_byte_counts() -> None:
    (wire,) = record_bytes(b"message")
    for place in range(len(wire)):
        changed = bytearray(wire)
        changed[place] ^= 1
        client, server = socket.socketpair()
        with client, server:
            client.sendall(changed)
            client.shutdown(socket.SHUT_WR)
            with pytest.raises((UnauthenticatedError, DataLossError, EOFError), match=r"."):
                ControlConnection(server, KEY, client=False).receive(soon())


def test_a_message_that_does_not_end_in_time(ends: tuple[socket.socket, socket.socket]) -> None:
    (wire,) = record_bytes(bytes(5000))
    ends[0].sendall(wire[:100])
    with pytest.raises(TimeoutError, match="timed out"):
        ControlConnection(ends[1], KEY, client=False).receive(time.monotonic() + 0.01)


def test_a_message_that_is_too_large() -> None:
    with pytest.raises(ResourceExhaustedError, match="PutPlan: .* more than one message may have"):
        encode(PutPlan("d", 0, LARGEST, bytes(LARGEST)))
