"""The dashboard without a browser: who sees it, what it sends, and how it ends."""

import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import FailedPreconditionError, UnfitServerError
from penstock.service.host import http_pages
from penstock.service.host.http_pages import Dashboard, make_link, take_sample
from penstock.service.host.security import Security
from penstock.service.host.server_setup import DispatcherConfig, check_dispatcher
from penstock.service.protocol import timing
from tests.integration.clusters import Cluster, until

TOKEN = b"a token that strangers do not have"
STATUS: dict[str, Any] = {"jobs": [], "workers": []}


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    made = Dashboard("localhost", 0, Security(TOKEN), lambda: STATUS)
    made.start()
    yield made
    made.close()


def connect(dashboard: Dashboard) -> HTTPConnection:
    return HTTPConnection(dashboard.url().removeprefix("http://"), timeout=60)


def get(dashboard: Dashboard, path: str, cookie: str = "") -> HTTPResponse:
    connection = connect(dashboard)
    connection.request("GET", path, headers={"Cookie": cookie})
    return connection.getresponse()


def start_session(dashboard: Dashboard) -> str:
    """The cookie that a browser gets for a link."""
    answer = get(dashboard, dashboard.link().removeprefix(dashboard.url()))
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_only_a_session_shows_the_page(dashboard: Dashboard) -> None:
    for path in ("/", "/page.js", "/events", "/?key=1-2-3"):
        answer = get(dashboard, path, "penstock-0=1; other")
        assert answer.status == 401
        assert b"penstock dashboard-link" in answer.read()
    cookie = start_session(dashboard)
    assert b"<title>penstock</title>" in get(dashboard, "/", f"a=b; {cookie}; c").read()
    assert get(dashboard, "/other", cookie).status == 404


def test_a_link_is_valid_once(dashboard: Dashboard) -> None:
    path = dashboard.link().removeprefix(dashboard.url())
    assert [get(dashboard, path).status for _ in range(2)] == [303, 401]
    assert get(dashboard, path, start_session(dashboard)).status == 303


def test_links_and_sessions_expire(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cookie = dashboard.link().removeprefix(dashboard.url()), start_session(dashboard)
    now = http_pages.time.time()
    monkeypatch.setattr(http_pages.time, "time", lambda: now + timing.DASHBOARD_LINK + 1)
    assert get(dashboard, path).status == 401
    assert get(dashboard, "/", cookie).status == 200
    monkeypatch.setattr(http_pages.time, "time", lambda: now + timing.DASHBOARD_SESSION + 2)
    assert get(dashboard, "/", cookie).status == 401


def test_any_process_with_the_token_makes_links(dashboard: Dashboard) -> None:
    path = make_link("http://elsewhere/", TOKEN).removeprefix("http://elsewhere")
    assert get(dashboard, path).status == 303
    assert get(dashboard, make_link("", b"another token")).status == 401


def test_a_session_outlives_a_restart(dashboard: Dashboard) -> None:
    cookie = start_session(dashboard)
    other = Dashboard("localhost", 0, Security(TOKEN), lambda: STATUS)
    with contextlib.closing(other):
        other.start()
        assert get(other, "/", cookie).status == 200


@pytest.mark.parametrize("has_tls", [False, True])
def test_the_cookie_is_not_for_scripts(
    dashboard: Dashboard, has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = http_pages.SessionGuard(TOKEN, has_tls)
    query = make_link("", TOKEN).partition("?")[2]
    request = http_pages.HttpRequest("/", query, http_pages.Headers(), is_within_machine=False)
    (cookie,) = [value for name, value in guard(request).headers if name == "Set-Cookie"]
    assert "HttpOnly; SameSite=Lax" in cookie
    assert ("Secure" in cookie) == has_tls


def test_nothing_is_loaded_from_elsewhere(dashboard: Dashboard) -> None:
    cookie = start_session(dashboard)
    for path in ("/", "/page.js", "/page.css", "/icon.svg", "/events"):
        policy = get(dashboard, path, cookie).headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
    for file in Path(http_pages.__file__).with_name("dashboard_page").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|innerHTML|insertAdjacent|document\.write| style=", text) == []


def read_events(answer: HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def test_a_feed_begins_with_all_samples(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "DASHBOARD_SAMPLE", 0.01)
    until(lambda: len(dashboard._board._history) >= 3)
    with get(dashboard, "/events", start_session(dashboard)) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        events = read_events(answer)
        first, second = next(events), next(events)
    assert (first["first"], second["first"]) == (True, False)
    assert len(first["samples"]) >= 3
    assert len(second["samples"]) == 1
    assert first["status"] == STATUS


def test_closing_ends_feeds(dashboard: Dashboard) -> None:
    with get(dashboard, "/events", start_session(dashboard)) as answer:
        assert next(read_events(answer))["first"]
        dashboard.close()
        assert list(read_events(answer)) == []


def test_only_so_many_may_follow(dashboard: Dashboard) -> None:
    cookie = start_session(dashboard)
    dashboard.most_guests = 1
    with get(dashboard, "/events", cookie) as followed:
        next(read_events(followed))
        assert get(dashboard, "/events", cookie).status == 503
        assert get(dashboard, "/", cookie).status == 200


def test_other_machines_need_a_token_to_be_listened_to() -> None:
    with pytest.raises(FailedPreconditionError, match="0.0.0.0:0 can be reached from other mach"):
        Dashboard("0.0.0.0", 0, Security(TOKEN, given=False), lambda: STATUS)


def test_samples_are_sums_over_jobs() -> None:
    def job(clients: int, rate: float, lag: float) -> dict[str, Any]:
        amounts = {"rate": rate, "byte_rate": 10 * rate, "held": 2, "budget": 8}
        return {"clients": clients, "lag": lag, **amounts}

    status = {"jobs": [job(1, 5.0, 0.5), job(3, 1.0, 0.1), job(0, 0.0, 0.9)]}
    found = take_sample(status, 7.0)
    assert found == pytest.approx(
        {"time": 7.0, "rate": 6.0, "byte_rate": 60.0, "lag": 0.2, "fill": 0.25}
    )
    assert take_sample(STATUS, 7.0)["fill"] == 0.0


def test_a_dispatcher_has_a_dashboard_if_it_gets_a_port() -> None:
    with Cluster(0) as cluster:
        assert cluster.dispatcher.dashboard_link() is None
    with Cluster(0, dashboard_port=0) as cluster:
        link = cluster.dispatcher.dashboard_link()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"penstock" in opener.open(link).read()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(link)
    with pytest.raises(UnfitServerError, match="dashboard_port must be from 1 to 65535"):
        check_dispatcher(DispatcherConfig(dashboard_port=70000))
