"""The HTTP server of metrics and probes: what it answers, and what strangers can do to it."""

import contextlib
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock.cli.certificates import make_certificates
from penstock.errors import FailedPreconditionError
from penstock.service.host import http_pages
from penstock.service.host.admission import STRANGERS
from penstock.service.host.http_pages import (
    LARGEST,
    HttpRequest,
    HttpServer,
    Page,
    make_metrics_token,
)
from penstock.service.host.security import Security
from penstock.service.protocol import timing
from tests.integration.clusters import until

TOKEN = b"a token that strangers do not have"
SECURITY = Security(TOKEN)

Serve = Callable[..., HttpServer]


def fail(request: HttpRequest) -> Page:
    raise RuntimeError("broken")


PAGES = {
    "/page": lambda request: Page(f"accepts {request.headers.get('Accept', '')}"),
    "/busy": lambda request: Page("busy", 503),
    "/broken": fail,
}


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(security: Security = SECURITY) -> HttpServer:
            server = HttpServer("localhost", 0, security, PAGES)
            stack.callback(server.close)
            server.start()
            return server

        yield start


@pytest.fixture
def from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes connections within this machine for connections from other machines."""
    monkeypatch.setattr(http_pages, "_is_within_machine", lambda connected: False)


def get(server: HttpServer, path: str, **headers: str) -> tuple[int, str, Message]:
    request = urllib.request.Request(f"http://localhost:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def send(server: HttpServer, request: bytes) -> bytes:
    """All that the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", server.port)) as connected:
        connected.sendall(request)
        with connected.makefile("rb") as answer:
            return answer.read()


def test_it_answers_with_pages(serve: Serve) -> None:
    server = serve()
    status, body, headers = get(server, "/page?a=b", Accept="text/plain")
    assert (status, body) == (200, "accepts text/plain")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert get(server, "/busy")[:2] == (503, "busy")
    assert get(server, "/other")[:2] == (404, "there are /page, /busy, /broken\n")


def test_head_has_no_body(serve: Serve) -> None:
    connection = HTTPConnection("localhost", serve().port)
    with contextlib.closing(connection):
        connection.request("HEAD", "/page", headers={"Accept": "all"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Length"]) == (200, "11")
        assert answer.read() == b""


def test_a_page_that_fails_is_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    assert get(serve(), "/broken")[:2] == (500, "see the log of this process\n")
    assert "the page /broken could not be made" in caplog.text
    assert "RuntimeError: broken" in caplog.text


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /page HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 501),
        (b"one two three four\r\n\r\n", 400),
        (b"GET /page HTTP/7.5\r\n\r\n", 505),
        (b"GET /page HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"x" * (LARGEST - 5), 431),
        (b"\x16\x03\x01\r\n\r\n", 400),
    ],
)
def test_other_requests_are_refused(serve: Serve, request_bytes: bytes, status: int) -> None:
    server = serve()
    assert send(server, request_bytes).startswith(b"HTTP/1.0 %d " % status)
    until(lambda: server.rejections == 1)
    assert get(server, "/page")[0] == 200


def test_a_slow_client_is_dropped(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "HANDSHAKE", 0.05)
    server = serve()
    assert send(server, b"GET /page HTTP/1.1\r\n") == b""
    until(lambda: server.rejections == 1)


def test_silent_clients_do_not_keep_others_out(serve: Serve) -> None:
    server = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(STRANGERS + 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert get(server, "/page")[0] == 200


@pytest.mark.usefixtures("from_outside")
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer", 401),
        ("Bearer another token", 401),
        (f"Basic {TOKEN.decode()}", 401),
        (f"Bearer {TOKEN.decode()}", 200),
        (f"bearer  {TOKEN.decode()} ", 200),
        (f"Bearer {make_metrics_token(TOKEN).decode()}", 200),
    ],
)
def test_other_machines_need_a_token(
    serve: Serve, authorization: str | None, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    headers = {} if authorization is None else {"Authorization": authorization}
    found, body, answered = get(server, "/page", **headers)
    assert found == status
    refused = status == 401
    assert ("send the token" in body) == refused
    assert (answered["WWW-Authenticate"] == "Bearer") == refused
    until(lambda: ("does not know the token" in caplog.text) == refused)


def test_the_metrics_token_is_not_the_token() -> None:
    made = make_metrics_token(TOKEN)
    assert made != make_metrics_token(TOKEN + b"!")
    assert TOKEN not in made
    assert len(made) == 64


@pytest.mark.usefixtures("from_outside")
def test_other_machines_need_tls_if_there_are_certificates(serve: Serve, tmp_path: Path) -> None:
    folder = str(tmp_path / "certificates")
    make_certificates(folder, ["localhost"], 1)
    security = Security(TOKEN, folder)
    server = serve(security)
    request = urllib.request.Request(f"https://localhost:{server.port}/page")
    request.add_header("Authorization", f"Bearer {TOKEN.decode()}")
    with urllib.request.urlopen(request, context=security.client_context()) as answer:
        assert answer.read() == b"accepts "
    with pytest.raises(OSError, match="(?i)connection|disconnected"):
        urllib.request.urlopen(f"http://localhost:{server.port}/page")


@pytest.mark.parametrize(
    ("own", "peer", "within"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("127.0.0.1", "10.0.0.8", False),
        ("10.0.0.7", "127.0.0.1", False),
    ],
)
def test_which_connections_are_within_the_machine(own: str, peer: str, within: bool) -> None:
    connected = Mock()
    connected.getsockname.return_value, connected.getpeername.return_value = (own, 1), (peer, 2)
    assert http_pages._is_within_machine(connected) == within


def test_it_does_not_listen_to_other_machines_without_a_token() -> None:
    with pytest.raises(FailedPreconditionError, match="0.0.0.0:0 can be reached from other machi"):
        HttpServer("0.0.0.0", 0, Security(TOKEN, given=False), PAGES)
