"""A small HTTP server for metrics, probes and the dashboard: one request per connection.

A guard decides who gets pages. That of metrics asks nothing of connections within this machine. Any
other one needs the token, or the metrics token that is derived from it, in `Authorization: Bearer`.
If the server has certificates, other machines also need TLS with a certificate of their own.

Every connection is a stranger of `Admission`: its time, its bytes and the number of connections are
bounded in the same way as for other ports. A client that follows a feed is a guest.
"""

from __future__ import annotations

import hmac
import io
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from email.message import Message as Headers
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple, NoReturn

from penstock.errors import DataLossError, UnauthenticatedError, UnavailableError
from penstock.service.host.admission import Admission, Guest
from penstock.service.host.security import Security, make_proof, set_timeout
from penstock.service.host.sockets import is_loopback, listen_tcp, shut
from penstock.service.protocol import timing

_LOG = logging.getLogger("penstock.service")

_MARK = b"penstock http"

LARGEST = 8 << 10
"""Bytes of the largest request that is read."""

TEXT = "text/plain; charset=utf-8"


MOST_FOLLOWERS = 32
"""How many clients may follow feeds at once."""


class HttpRequest(NamedTuple):
    """What a client asks for."""

    path: str
    query: str
    headers: Headers
    is_within_machine: bool


Feed = Callable[[threading.Event], Iterator[bytes]]
"""Yields what a client gets, piece by piece; ends soon after the event is set."""


class Page(NamedTuple):
    """The answer to a request: `body`, or a `feed` that the client follows."""

    body: str | bytes
    status: int = HTTPStatus.OK
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    feed: Feed | None = None


Pages = Mapping[str, Callable[[HttpRequest], Page]]
"""Makes the page of each path."""

Guard = Callable[[HttpRequest], Page | None]
"""Returns the page that refuses a request; None if the request is allowed."""


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
        guard: Guard | None = None,
    ) -> None:
        """`seconds`: a request that takes longer is not answered. Without `guard`: by tokens."""
        security.check_exposure(host, port)
        listening = listen_tcp(host, port)
        self.port: int = listening.getsockname()[1]
        self.scheme = "http" if security.certificates is None or is_loopback(host) else "https"
        super().__init__([listening], security, _MARK, _refuse_guests, handshake_seconds=seconds)
        self.most_guests = min(self.most_guests, MOST_FOLLOWERS)
        self._pages = pages
        self._guard = guard if guard is not None else TokenGuard(security.token)

    def _needs_tls(self, connected: socket.socket) -> bool:
        return not _is_within_machine(connected)

    def _meet(self, connected: socket.socket, deadline: float) -> Guest | None:
        head = _read_head(connected, deadline)
        if not head:  # Browsers open connections that they may need, and use some of them.
            connected.close()
            return None
        exchange = _Exchange(head, self._answer, is_within_machine=_is_within_machine(connected))
        set_timeout(connected, deadline)
        connected.sendall(exchange.response)
        if exchange.feed is not None:
            return _Follower(connected, exchange.feed)
        shut(connected, socket.SHUT_WR)
        connected.close()
        if exchange.problem is not None:
            raise exchange.problem
        return None

    def _answer(self, request: HttpRequest) -> Page:
        refusal = self._guard(request)
        if refusal is not None:
            return refusal
        page = self._make_page(request)
        if page.feed is not None and not self._has_room():
            return Page("too many clients follow this page\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return page

    def _make_page(self, request: HttpRequest) -> Page:
        make = self._pages.get(request.path)
        if make is None:
            return Page(f"there are {', '.join(self._pages)}\n", HTTPStatus.NOT_FOUND)
        try:
            return make(request)
        except Exception:
            _LOG.exception("http: the page %s could not be made", request.path)
            return Page("see the log of this process\n", HTTPStatus.INTERNAL_SERVER_ERROR)


class TokenGuard:
    """Asks other machines for the token, or for the metrics token."""

    def __init__(self, token: bytes) -> None:
        self._accepted = (token, make_metrics_token(token))

    def __call__(self, request: HttpRequest) -> Page | None:
        if request.is_within_machine or self._has_token(request.headers):
            return None
        return Page(
            "send the token, as in Authorization: Bearer TOKEN\n",
            HTTPStatus.UNAUTHORIZED,
            headers=(("WWW-Authenticate", "Bearer"),),
        )

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, claim = headers.get("Authorization", "").partition(" ")
        given = claim.strip().encode("utf-8", "replace")
        # All of them, so that the time says nothing about which one is similar.
        found = [hmac.compare_digest(given, token) for token in self._accepted]
        return scheme.lower() == "bearer" and any(found)


class _Follower:
    """A client that gets a feed until it, or the server, ends the connection."""

    def __init__(self, connected: socket.socket, feed: Feed) -> None:
        self._connected, self._feed = connected, feed
        self._ended = threading.Event()

    def serve(self, leave: Callable[[], None]) -> None:
        try:
            self._connected.settimeout(timing.HANDSHAKE)
            for piece in self._feed(self._ended):
                self._connected.sendall(piece)
        except OSError:
            pass  # The client has closed the connection, or reads nothing.
        finally:
            leave()

    def dismiss(self) -> None:
        self._ended.set()

    def abort(self) -> None:
        self._ended.set()
        shut(self._connected)

    def close(self) -> None:
        self._connected.close()


def _refuse_guests(connected: socket.socket, admitted: object) -> NoReturn:
    raise AssertionError("an HTTP client is never a guest")


def _is_within_machine(connected: socket.socket) -> bool:
    """Whether both ends of a connection have addresses that only this machine can use."""
    return all(is_loopback(end[0]) for end in (connected.getsockname(), connected.getpeername()))


def _read_head(connected: socket.socket, deadline: float) -> bytes:
    """The request line and the headers, or the first bytes of them if they are too long.

    Returns nothing if the client sends nothing.
    """
    head = b""
    while b"\r\n\r\n" not in head and len(head) < LARGEST:
        set_timeout(connected, deadline)
        try:
            piece = connected.recv(LARGEST - len(head))
        except TimeoutError:
            if head:
                raise
            return b""
        if not piece and head:
            raise UnavailableError("the other side closed the connection")
        if not piece:
            return b""
        head += piece
    return head


class _Exchange(BaseHTTPRequestHandler):
    """Parses one request in memory; `response` has the bytes of the answer.

    `feed` is what follows them, if the client gets a feed. `problem` is the reason for which the
    request was refused, if it was.
    """

    default_request_version = "HTTP/1.0"
    server_version, sys_version = "penstock", ""

    def __init__(
        self, head: bytes, answer: Callable[[HttpRequest], Page], is_within_machine: bool
    ) -> None:
        self.client_address = ("", 0)
        self.problem: Exception | None = None
        self.feed: Feed | None = None
        self._answer, self._is_within_machine = answer, is_within_machine
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
        path, _, query = self.path.partition("?")
        page = self._answer(HttpRequest(path, query, self.headers, self._is_within_machine))
        if page.status == HTTPStatus.UNAUTHORIZED:
            self.problem = UnauthenticatedError("the client does not know the token")
        self._send(page)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, page: Page) -> None:
        body = page.body.encode() if isinstance(page.body, str) else page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        if page.feed is None:
            self.send_header("Content-Length", str(len(body)))
        for name, value in page.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.feed = page.feed

    def log_message(self, format: str, *_: object) -> None:
        """Prints nothing: `Admission` logs refused connections."""
