"""What dispatchers and workers serve over HTTP: metrics, probes, the dashboard; and the server.

Servers with a metrics port have /metrics, /healthz and /readyz. Every metric is declared here once,
and docs/metrics.md lists the same ones. Labels have few values, which do not grow with the number
of jobs, readers or workers. prometheus_client is loaded when a server with a metrics port is made.
"""

from __future__ import annotations

import hmac
import io
import json
import logging
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from email.message import Message as Headers
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args
from urllib.parse import parse_qs

from penstock.engine.formats.extras import load_extra
from penstock.errors import DataLossError, UnauthenticatedError, UnavailableError
from penstock.service.host.admission import Admission, Guest
from penstock.service.host.security import Security, is_proof, make_proof, set_timeout
from penstock.service.host.sockets import (
    is_loopback,
    join_address,
    listen_tcp,
    reachable_host,
    shut,
)
from penstock.service.logic.status import Tally
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Request
from penstock.version import VERSION

_LOG = logging.getLogger("penstock.service")

# The server: one request per connection
#
# A guard decides who gets pages. That of metrics asks nothing of connections within this machine.
# Any other one needs the token, or the metrics token that is derived from it, in `Authorization:
# Bearer`. If the server has certificates, other machines also need TLS with a certificate of their
# own.
#
# Every connection is a stranger of `Admission`: its time, its bytes and the number of connections
# are bounded in the same way as for other ports. A client that follows a feed is a guest.

_GREETING = b"penstock http"

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

    main_page = ""
    """The path of the page that `url` names."""

    def __init__(
        self, host: str, port: int, security: Security, pages: Pages, guard: Guard | None = None
    ) -> None:
        """Without a `guard`, other machines need a token."""
        security.check_exposure(host, port)
        listening = listen_tcp(host, port)
        self.port: int = listening.getsockname()[1]
        self._host = reachable_host(host)
        self.scheme = "http" if security.certificates is None or is_loopback(host) else "https"
        super().__init__([listening], security, _GREETING, _refuse_guests)
        self.most_guests = min(self.most_guests, MOST_FOLLOWERS)
        self._pages = pages
        tokens = (security.token, make_metrics_token(security.token))
        self._guard = guard or partial(_ask_for_token, tokens)

    def url(self) -> str:
        """Where users find it: http://host:port, and the path of the main page."""
        return f"{self.scheme}://{join_address(self._host, self.port)}{self.main_page}"

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


def _ask_for_token(accepted: tuple[bytes, ...], request: HttpRequest) -> Page | None:
    """A guard, which asks other machines for one of some tokens."""
    scheme, _, claim = request.headers.get("Authorization", "").partition(" ")
    given = claim.strip().encode("utf-8", "replace")
    # All tokens are compared, so that the time does not reveal which one is similar.
    found = [hmac.compare_digest(given, token) for token in accepted]
    if request.is_within_machine or (scheme.lower() == "bearer" and any(found)):
        return None
    return Page(
        "send the token, as in Authorization: Bearer TOKEN\n",
        HTTPStatus.UNAUTHORIZED,
        headers=(("WWW-Authenticate", "Bearer"),),
    )


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


# Metrics and probes

Values = Mapping[str, float | Mapping[str, float]]
"""The value of each metric by its name; of a metric with a label, by the label's value."""


class Metric(NamedTuple):
    """A metric: a counter if its name ends in `_total`, else a gauge."""

    name: str
    help: str
    label: str = ""

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


DISPATCHER_METRICS = (
    Metric("penstock_workers", "Registered workers, by state.", "state"),
    Metric("penstock_wanted_workers", "How many workers the readers could use."),
    Metric("penstock_readers", "Clients that read now."),
    Metric("penstock_jobs", "Iterations of jobs that the dispatcher remembers, by state.", "state"),
    Metric("penstock_datasets", "Registered datasets."),
    Metric("penstock_leased_elements", "Elements that readers hold a lease on."),
    Metric("penstock_reader_memory_bytes", "Bytes that readers have requested and not handed out."),
    Metric("penstock_reader_memory_budget_bytes", "The most bytes that readers may hold."),
    Metric("penstock_worker_memory_bytes", "Bytes of elements that workers keep for readers."),
    Metric("penstock_elements_handed_out_total", "Elements that readers gave to their programs."),
    Metric("penstock_reader_seconds_total", "Seconds that readers have read."),
    Metric("penstock_reader_wait_seconds_total", "Seconds of these that programs waited."),
    Metric("penstock_elements_made_total", "Elements that workers made, also more than once."),
    Metric("penstock_making_seconds_total", "Seconds that workers spent on making elements."),
    Metric("penstock_workers_joined_total", "Workers that registered."),
    Metric("penstock_workers_gone_total", "Workers that left, were replaced, or were lost."),
    Metric("penstock_workers_lost_total", "Workers that were silent for too long."),
    Metric("penstock_readers_joined_total", "Readers that opened an iteration."),
    Metric("penstock_readers_gone_total", "Readers that left or were lost."),
    Metric("penstock_readers_lost_total", "Readers that were silent for too long."),
    Metric("penstock_iterations_begun_total", "Iterations of jobs that began."),
    Metric("penstock_requests_total", "Requests to the dispatcher, by kind.", "kind"),
    Metric("penstock_request_failures_total", "Requests that were refused, by kind.", "kind"),
    Metric(
        "penstock_rejected_connections_total",
        "Connections that ended before the token was proved.",
    ),
)

WORKER_METRICS = (
    Metric("penstock_worker_registered", "1 if the dispatcher knows this worker, else 0."),
    Metric("penstock_worker_draining", "1 if this worker is about to stop, else 0."),
    Metric("penstock_worker_connections", "Connections of clients to this worker."),
    Metric("penstock_worker_plan_processes", "Processes that run plans."),
    Metric("penstock_worker_plan_process_crashes_total", "Plan processes that crashed."),
    Metric("penstock_worker_elements_made_total", "Elements that this worker made."),
    Metric("penstock_worker_making_seconds_total", "Seconds spent on making elements."),
    Metric("penstock_worker_elements_sent_total", "Elements that were sent to clients."),
    Metric("penstock_worker_sent_bytes_total", "Bytes of these elements, before compression."),
    Metric("penstock_worker_element_failures_total", "Elements that could not be computed."),
    Metric("penstock_worker_kept_bytes", "Bytes of elements that are kept for readers."),
    Metric("penstock_worker_heartbeat_failures_total", "Heartbeats that were not answered."),
    Metric(
        "penstock_worker_rejected_connections_total",
        "Connections that ended before the token was proved.",
    ),
)

WORKER_STATES = ("here", "suspected", "draining")
JOB_STATES = ("reading", "idle", "finished")

_EXTRA = "metrics_port"


class RequestCounts:
    """Counts requests by the names of their classes. Thread-safe."""

    def __init__(self) -> None:
        kinds = [kind.__name__ for kind in get_args(Request)]
        self._lock = threading.Lock()
        self._asked = Counter(dict.fromkeys(kinds, 0))  #: guarded by _lock
        self._failed = self._asked.copy()  #: guarded by _lock

    def count(self, request: Request, has_failed: bool = False) -> None:
        with self._lock:
            (self._failed if has_failed else self._asked)[type(request).__name__] += 1

    def values(self) -> Values:
        with self._lock:
            return {
                "penstock_requests_total": dict(self._asked),
                "penstock_request_failures_total": dict(self._failed),
            }


def dispatcher_values(status: Mapping[str, Any], tally: Tally) -> Values:
    """The values of metrics, from the status of a dispatcher and what it has counted."""
    workers, jobs = status["workers"], status["jobs"]
    return {
        "penstock_workers": _count_by_state((each["state"] for each in workers), WORKER_STATES),
        "penstock_wanted_workers": status["wanted_workers"],
        "penstock_readers": sum(job["clients"] for job in jobs),
        "penstock_jobs": _count_by_state(map(_job_state, jobs), JOB_STATES),
        "penstock_datasets": len(status["datasets"]),
        "penstock_leased_elements": sum(job["leased"] for job in jobs),
        "penstock_reader_memory_bytes": sum(job["held"] for job in jobs),
        "penstock_reader_memory_budget_bytes": sum(job["budget"] for job in jobs),
        "penstock_worker_memory_bytes": sum(worker["buffered"] for worker in workers),
        **{f"penstock_{name}_total": value for name, value in vars(tally).items()},
    }


def _job_state(job: Mapping[str, Any]) -> str:
    if job["clients"]:
        return "reading"
    return "finished" if job["finished"] else "idle"


def _count_by_state(found: Iterator[str], states: tuple[str, ...]) -> Mapping[str, float]:
    # Every state, so that a series never disappears.
    return dict.fromkeys(states, 0) | Counter(found)


class Collector:
    """Gives prometheus_client the families of `metrics`, with the values of each scrape."""

    def __init__(self, metrics: tuple[Metric, ...], read: Callable[[], Values]) -> None:
        self._core = load_extra("prometheus_client.core", _EXTRA, "metrics")
        self._metrics, self._read = metrics, read

    def collect(self) -> Iterator[Any]:
        """Called by the registry in every scrape."""
        values = self._read()
        for metric in self._metrics:
            yield self._make_family(metric, values[metric.name])
        build = self._core.InfoMetricFamily("penstock_build", "The version of penstock.")
        build.add_metric([], {"version": VERSION})
        yield build

    def _make_family(self, metric: Metric, value: float | Mapping[str, float]) -> Any:
        core = self._core
        kind = core.CounterMetricFamily if metric.is_counter else core.GaugeMetricFamily
        if not isinstance(value, Mapping):
            return kind(metric.name, metric.help, value=value)
        family = kind(metric.name, metric.help, labels=[metric.label])
        for label, each in value.items():
            family.add_metric([label], each)
        return family


class MetricsServer(HttpServer):
    """Serves the metrics and probes of one server.

    Args:
        host: The name or address to listen on.
        port: The port; 0 for a free one.
        security: The token and certificates, which connections from other machines need.
        metrics: The metrics of this kind of server.
        read: Returns their values.
        find_problem: Returns why the server cannot serve now; None if it can.
    """

    main_page = "/metrics"

    def __init__(
        self,
        host: str,
        port: int,
        security: Security,
        *,
        metrics: tuple[Metric, ...],
        read: Callable[[], Values],
        find_problem: Callable[[], str | None],
    ) -> None:
        client = load_extra("prometheus_client", _EXTRA, "metrics")
        registry = client.CollectorRegistry()
        registry.register(Collector(metrics, read))
        client.ProcessCollector(registry=registry)
        choose_encoder = client.exposition.choose_encoder

        def show_metrics(request: HttpRequest) -> Page:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
            return Page(encode(registry), content_type=content_type)

        def show_readiness(request: HttpRequest) -> Page:
            problem = find_problem()
            if problem is not None:
                return Page(f"{problem}\n", HTTPStatus.SERVICE_UNAVAILABLE)
            return Page("ready\n")

        pages = {
            self.main_page: show_metrics,
            "/healthz": lambda request: Page("alive\n"),
            "/readyz": show_readiness,
        }
        super().__init__(host, port, security, pages)


# The dashboard: one page that shows what a service does, as it happens.
# The page is three files of this package and a feed of server-sent events. Its numbers are those of
# the status. Only browsers with a session see it: a link that is valid once, and for a short time,
# starts one. Names and functions are users' text, so the page sets text and never HTML.


HISTORY = 600
"""How many samples the page shows when it is opened."""

_LINK, _SESSION = b"dashboard link", b"dashboard session"

_PAGE_FOLDER = Path(__file__).parent / "dashboard_page"

_PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

_PAGE_HEADERS = (
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
    ticket = make_ticket(token, _LINK, time.time() + timing.DASHBOARD_LINK)
    return f"{url.rstrip('/')}/?key={ticket}"


class Dashboard(HttpServer):
    """Serves the page.

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
        pages: dict[str, Callable[[HttpRequest], Page]] = {
            path: partial(_show_file, *file) for path, file in _PAGE_FILES.items()
        }
        pages["/events"] = self._board.show_events
        guard = SessionGuard(security.token, has_tls=security.certificates is not None)
        super().__init__(host, port, security, pages, guard)

    def link(self) -> str:
        """A new link to the page, which is valid once."""
        return make_link(self.url(), self._token)

    def start(self) -> None:
        self._board.start()
        super().start()

    def close(self) -> None:
        self._board.close()
        super().close()


def _show_file(name: str, content_type: str, request: HttpRequest) -> Page:
    return Page(
        (_PAGE_FOLDER / name).read_bytes(), content_type=content_type, headers=_PAGE_HEADERS
    )


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
            return Page(_NO_SESSION, HTTPStatus.UNAUTHORIZED, headers=_PAGE_HEADERS)
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
    """Leads to the page without the key, which must not stay in the address or the history."""
    return Page("", HTTPStatus.SEE_OTHER, headers=(*_PAGE_HEADERS, ("Location", "/"), *headers))


class Board:
    """Reads the status every second, and sends it to all browsers that show the page.

    The status is read even while there is no browser, so that a page that is opened later shows
    what happened before.
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
        return Page("", content_type="text/event-stream", headers=_PAGE_HEADERS, feed=self._follow)

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
    make one, and a server that restarts still accepts its earlier tickets.
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
