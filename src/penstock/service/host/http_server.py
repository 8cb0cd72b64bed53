"""A small HTTP server for metrics and probes: one request per connection, answered from memory.

A connection within this machine needs nothing. Any other one needs the token, or the metrics token
that is derived from it, in `Authorization: Bearer`; if the server has certificates, it also needs
TLS with a certificate of its own. Every connection is a stranger of `Admission`: its time, its
bytes and the number of connections are bounded in the same way as for other ports.
"""

from __future__ import annotations

import hmac
import io
import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple, NoReturn

from penstock.errors import DataLossError, UnauthenticatedError, UnavailableError
from penstock.service.host.admission import Admission
from penstock.service.host.authentication import make_proof, set_timeout
from penstock.service.host.security import Security
from penstock.service.host.sockets import is_loopback, listen_tcp, shut
from penstock.service.protocol import timing

_LOG = logging.getLogger("penstock.service")

_MARK = b"penstock http"

LARGEST = 8 << 10
"""Bytes of the largest request that is read."""

TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """The answer to a request."""

    body: str | bytes
    status: int = HTTPStatus.OK
    content_type: str = TEXT


Pages = Mapping[str, Callable[[str], Page]]
"""Makes the page of each path, from the formats that the client accepts (the header `Accept`)."""


def make_metrics_token(token: bytes) -> bytes:
    """A token that allows reading metrics and nothing else."""
    return make_proof(token, b"metrics").hex().encode()


class HttpServer(Admission):
    """Serves `pages` at `host` and `port`; listens from the beginning, answers from `start` on."""

    def __init__(
        self,
        host: str,
        port: int,
        security: Security,
        pages: Pages,
        seconds: float = timing.HANDSHAKE,
    ) -> None:
        """`seconds`: a request that takes longer is not answered."""
        security.check_exposure(host, port)
        listening = listen_tcp(host, port)
        self.port: int = listening.getsockname()[1]
        self.scheme = "http" if security.certificates is None or is_loopback(host) else "https"
        super().__init__([listening], security, _MARK, _refuse_guests, handshake_seconds=seconds)
        self._pages = pages
        self._accepted = (security.token, make_metrics_token(security.token))

    def _needs_tls(self, connected: socket.socket) -> bool:
        return not _is_within_machine(connected)

    def _meet(self, connected: socket.socket, deadline: float) -> None:
        with connected:
            is_trusted = _is_within_machine(connected)
            exchange = _Exchange(
                _read_head(connected, deadline), self._pages, () if is_trusted else self._accepted
            )
            set_timeout(connected, deadline)
            connected.sendall(exchange.response)
            shut(connected, socket.SHUT_WR)
        if exchange.problem is not None:
            raise exchange.problem


def _refuse_guests(connected: socket.socket, admitted: object) -> NoReturn:
    raise AssertionError("an HTTP client is never a guest")


def _is_within_machine(connected: socket.socket) -> bool:
    """Whether both ends of a connection have addresses that only this machine can use."""
    return all(is_loopback(end[0]) for end in (connected.getsockname(), connected.getpeername()))


def _read_head(connected: socket.socket, deadline: float) -> bytes:
    """The request line and the headers, or the first bytes of them if they are too long."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < LARGEST:
        set_timeout(connected, deadline)
        piece = connected.recv(LARGEST - len(head))
        if not piece:
            raise UnavailableError("the other side closed the connection")
        head += piece
    return head


class _Exchange(BaseHTTPRequestHandler):
    """Parses one request in memory; `response` has the bytes of the answer.

    `accepted` are the tokens of which the client must send one; empty if it needs none. `problem`
    is the reason for which the request was refused, if it was.
    """

    default_request_version = "HTTP/1.0"
    server_version, sys_version = "penstock", ""

    def __init__(self, head: bytes, pages: Pages, accepted: tuple[bytes, ...]) -> None:
        self.client_address = ("", 0)
        self.problem: Exception | None = None
        self._pages, self._accepted_tokens = pages, accepted
        self.wfile = written = io.BytesIO()
        if b"\r\n\r\n" in head:
            self.rfile = io.BytesIO(head)
            self.handle_one_request()
        else:
            self._refuse_long_request()
        self.response = written.getvalue()

    def _refuse_long_request(self) -> None:
        self.request_version, self.requestline, self.command = "HTTP/1.0", "", ""
        self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.problem = DataLossError(f"not a request that this server answers: {code}")
        super().send_error(code, message, explain)

    def do_GET(self) -> None:
        if self._accepted_tokens and not self._has_token():
            self.problem = UnauthenticatedError("the client does not know the token")
            self._send(
                Page("send the token, as in Authorization: Bearer TOKEN\n", 401),
                ("WWW-Authenticate", "Bearer"),
            )
            return
        self._send(self._make_page(self.path.partition("?")[0]))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _make_page(self, path: str) -> Page:
        make = self._pages.get(path)
        if make is None:
            return Page(f"there are {', '.join(self._pages)}\n", HTTPStatus.NOT_FOUND)
        try:
            return make(self.headers.get("Accept", ""))
        except Exception:
            _LOG.exception("http: the page %s could not be made", path)
            return Page("see the log of this process\n", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _has_token(self) -> bool:
        scheme, _, claim = self.headers.get("Authorization", "").partition(" ")
        given = claim.strip().encode("utf-8", "replace")
        # All of them, so that the time says nothing about which one is similar.
        found = [hmac.compare_digest(given, token) for token in self._accepted_tokens]
        return scheme.lower() == "bearer" and any(found)

    def _send(self, page: Page, *headers: tuple[str, str]) -> None:
        body = page.body.encode() if isinstance(page.body, str) else page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:
        """Prints nothing: `Admission` logs refused connections."""
