"""The dashboard: one page that shows what a service does, as it happens.

The page is three files of this package and a feed of server-sent events. Its numbers are those of
the status. Only browsers with a session see it: a link that is valid once, and for a short time,
starts one. Names and functions are users' text, so the page sets text and never HTML.
"""

from __future__ import annotations

import json
import platform
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from penstock.service.host.authentication import is_proof, make_proof
from penstock.service.host.http_server import HttpRequest, HttpServer, Page
from penstock.service.host.security import Security
from penstock.service.host.sockets import join_address
from penstock.service.protocol import timing

HISTORY = 600
"""How many samples the page shows when it is opened."""

_LINK, _SESSION = b"dashboard link", b"dashboard session"

_FOLDER = Path(__file__).parent / "dashboard_page"

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

_HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)

_NO_SESSION = """\
This page needs a link, which is valid once and for an hour. Make one on the machine of the
dispatcher, as its user: penstock dashboard-link URL
"""


def make_link(url: str, token: bytes) -> str:
    """A link to the dashboard at `url`, which is valid once."""
    return (
        f"{url.rstrip('/')}/?key={make_ticket(token, _LINK, time.time() + timing.DASHBOARD_LINK)}"
    )


class Dashboard:
    """Serves the page. Listens from the beginning, answers from `start` on.

    Args:
        host: The name or address to listen on.
        port: The port; 0 for a free one.
        security: The token and certificates of the service.
        read: Returns the status.
    """

    def __init__(
        self, host: str, port: int, security: Security, read: Callable[[], dict[str, Any]]
    ) -> None:
        self._board = Board(read)
        self._token, self._host = security.token, host
        pages: dict[str, Callable[[HttpRequest], Page]] = {
            path: partial(_show_file, *file) for path, file in _FILES.items()
        }
        pages["/events"] = self._board.show_events
        guard = SessionGuard(security.token, has_tls=security.certificates is not None)
        self._server = HttpServer(host, port, security, pages, guard=guard)

    def url(self) -> str:
        """Where the page is: http://host:port."""
        host = platform.node() if self._host in ("", "0.0.0.0", "::") else self._host
        return f"{self._server.scheme}://{join_address(host, self._server.port)}"

    def link(self) -> str:
        """A new link to the page, which is valid once."""
        return make_link(self.url(), self._token)

    def start(self) -> None:
        self._board.start()
        self._server.start()

    def close(self) -> None:
        """Closes the port; may be called again."""
        self._board.close()
        self._server.close()


def _show_file(name: str, content_type: str, request: HttpRequest) -> Page:
    return Page((_FOLDER / name).read_bytes(), content_type=content_type, headers=_HEADERS)


class SessionGuard:
    """Lets browsers with a session pass; a link that was not used before starts one."""

    def __init__(self, token: bytes, has_tls: bool) -> None:
        self._token, self._has_tls = token, has_tls
        # Browsers send the cookies of a host to all of its ports: each service has a name.
        self._cookie = f"penstock-{make_proof(token, b'dashboard cookie').hex()[:8]}"
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}
        """Links that were used, and when they expire; guarded by _lock."""

    def __call__(self, request: HttpRequest) -> Page | None:
        key = parse_qs(request.query).get("key", [""])[0]
        if key and self._use_link(key):
            return _redirect(("Set-Cookie", self._make_cookie(request)))
        if not self._has_session(request):
            return Page(_NO_SESSION, HTTPStatus.UNAUTHORIZED, headers=_HEADERS)
        return _redirect() if key else None

    def _use_link(self, key: str) -> bool:
        now, expires = time.time(), read_expiry(key, self._token, _LINK)
        if expires is None or expires < now:
            return False
        with self._lock:
            self._used = {link: until for link, until in self._used.items() if until >= now}
            is_new = key not in self._used
            self._used[key] = expires
            return is_new

    def _make_cookie(self, request: HttpRequest) -> str:
        ticket = make_ticket(self._token, _SESSION, time.time() + timing.DASHBOARD_SESSION)
        secure = "; Secure" if self._has_tls and not request.is_within_machine else ""
        rules = f"Path=/; Max-Age={timing.DASHBOARD_SESSION:.0f}; HttpOnly; SameSite=Lax{secure}"
        return f"{self._cookie}={ticket}; {rules}"

    def _has_session(self, request: HttpRequest) -> bool:
        for cookie in request.headers.get("Cookie", "").split(";"):
            name, _, ticket = cookie.strip().partition("=")
            expires = read_expiry(ticket, self._token, _SESSION) if name == self._cookie else None
            if expires is not None and expires >= time.time():
                return True
        return False


def _redirect(*headers: tuple[str, str]) -> Page:
    """To the page itself: the key must not stay in the address, nor in the history."""
    return Page("", HTTPStatus.SEE_OTHER, headers=(*_HEADERS, ("Location", "/"), *headers))


class Board:
    """Reads the status every second, and feeds it to the browsers that look.

    The status is read once for all of them, also while none looks, so that a page which is opened
    shows what happened before.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._changed = threading.Condition()
        """Guards the fields below."""
        self._history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._latest: dict[str, Any] = {}
        self._number = 0
        """How many samples were taken."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            status = self._read()
            with self._changed:
                self._history.append(take_sample(status, time.time()))
                self._latest, self._number = status, self._number + 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed, timing.DASHBOARD_SAMPLE)

    def show_events(self, request: HttpRequest) -> Page:
        """The feed: first all samples, then one more with each event."""
        return Page("", content_type="text/event-stream", headers=_HEADERS, feed=self._follow)

    def _follow(self, ended: threading.Event) -> Iterator[bytes]:
        seen = 0
        yield b"retry: 1000\n\n"
        while not ended.is_set():
            with self._changed:
                while self._number == seen and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                # After the first event, the browser has all samples but the last.
                samples = [self._history[-1]] if seen else list(self._history)
                message = {"status": self._latest, "samples": samples, "first": not seen}
                seen = self._number
            yield f"data: {json.dumps(message)}\n\n".encode()


def take_sample(status: dict[str, Any], now: float) -> dict[str, float]:
    """One point of the charts: the sums of what `status` says about jobs and workers."""
    jobs = status["jobs"]
    reading = [job for job in jobs if job["clients"]]
    budget = sum(job["budget"] for job in reading)
    readers = sum(job["clients"] for job in reading)
    return {
        "time": now,
        "rate": sum(job["rate"] for job in jobs),
        "byte_rate": sum(job["byte_rate"] for job in jobs),
        "lag": sum(job["lag"] * job["clients"] for job in reading) / max(1, readers),
        "fill": sum(job["held"] for job in reading) / budget if budget else 0.0,
    }


def make_ticket(token: bytes, purpose: bytes, expires: float) -> str:
    """A text that proves, until `expires` (seconds since 1970), that its maker knew the token.

    It does not reveal the token, and is valid for one purpose only. Any process with the token can
    make one, and a server that restarts still accepts those that it made before.
    """
    name = f"{int(expires)}-{secrets.token_hex(16)}"
    return f"{name}-{make_proof(token, purpose, name.encode()).hex()}"


def read_expiry(ticket: str, token: bytes, purpose: bytes) -> int | None:
    """When a ticket expires; None if it was not made with this token, for this purpose."""
    name, _, claim = ticket.rpartition("-")
    try:
        proof, expires = bytes.fromhex(claim), int(name.partition("-")[0])
    except ValueError:
        return None
    return expires if is_proof(proof, token, purpose, name.encode()) else None
