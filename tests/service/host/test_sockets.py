"""Relays: bytes pass between a TLS socket and a plain one, in both directions, until one ends."""

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.certificates import make_certificates
from penstock.service.host.security import Security
from penstock.service.host.sockets import relay

LARGE = bytes(range(256)) * 8192


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[ssl.SSLSocket, socket.socket, threading.Thread]]:
    """A client's end, a process's end, and the thread that relays between them."""
    make_certificates(str(tmp_path / "certificates"), ["localhost"], 1)
    security = Security(b"token", str(tmp_path / "certificates"))
    server, client = security.server_context(), security.client_context()
    assert server is not None
    assert client is not None
    outer, inner = socket.socketpair()
    near, far = socket.socketpair()

    def run() -> None:
        with server.wrap_socket(inner, server_side=True) as secret, near:
            relay(secret, near)

    thread = threading.Thread(target=run)
    thread.start()
    with client.wrap_socket(outer, server_hostname="localhost") as encrypted, far:
        yield encrypted, far, thread
    thread.join()


def receive_bytes(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := end.recv(size - len(data))):
        data += piece
    return data


def test_both_directions(ends: tuple[ssl.SSLSocket, socket.socket, threading.Thread]) -> None:
    client, process, _ = ends
    for one, other in ((client, process), (process, client)):
        sending = threading.Thread(target=one.sendall, args=(LARGE,))
        sending.start()
        assert receive_bytes(other, len(LARGE)) == LARGE
        sending.join()


@pytest.mark.parametrize("which", [0, 1])
def test_the_end_of_one_is_the_end_of_the_other(
    ends: tuple[ssl.SSLSocket, socket.socket, threading.Thread], which: int
) -> None:
    client, process, thread = ends
    ended, other = (client, process)[:: 1 - 2 * which]
    ended.close()
    try:
        assert other.recv(9) == b""
    except OSError:  # TLS calls an end without a farewell an error.
        assert other is client
    thread.join()
