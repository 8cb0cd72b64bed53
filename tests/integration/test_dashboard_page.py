"""The dashboard in Chromium, at a service that is read: one browser looks at all of it.

The browser is Debian's package, or another Chromium on the path.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from penstock.data import Dataset
from penstock.data.experimental import service
from tests.integration.clusters import Cluster, until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MISSING = "the tests of the dashboard did not run: there is no chromium on the path"
NAME = "<img src=x onerror=alert(1)> & <b>'name'</b>"
MINUTE = 60_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)


@pytest.fixture
def browser() -> Iterator[Browser]:
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        with contextlib.closing(launched):
            yield launched


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(0, dashboard_port=0, worker_timeout_ms=2000, work_dir=str(tmp_path)) as made:
        made.workers = [made.join(heartbeat_interval_ms=500)]
        yield made


@contextlib.contextmanager
def killable_worker(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "penstock", "worker", "--dispatcher", cluster.address]
    with subprocess.Popen([*command, "--quiet"]) as worker:
        try:
            yield worker
        finally:
            worker.kill()


TABLES = (
    ("workers", "worker", "address", ("rate", "byte_rate", "busy", "streams", "restarts")),
    ("jobs", "job", "job", ("rate", "byte_rate", "consumed", "leased", "clients", "held")),
    ("readers", "reader", "client", ("rate", "lag", "held", "consumed")),
)

READ_TABLES = """tables => tables.map(([table, key, column, fields]) => Object.fromEntries(
    [...document.querySelectorAll(`[data-${key}]`)].map(row => [
        row.dataset[key],
        fields.map(field => Number(row.querySelector(`[data-field=${field}]`).dataset.value))])))"""
"""All numbers on the page, by table and row."""


HIDDEN = """[...document.querySelectorAll(".scroll")].filter(
    box => box.scrollWidth > box.clientWidth).map(box => box.innerText)"""
"""The tables with columns that are seen only after scrolling."""


def numbers_of(status: dict[str, Any]) -> list[dict[str, list[float]]]:
    """The same numbers of a status."""
    return [
        {row[column]: [row[field] for field in fields] for row in status[table]}
        for table, _, column, fields in TABLES
    ]


class Comparison:
    """Compares the page with the latest status of the dispatcher, which heartbeats change."""

    def __init__(self, page: Page, target: str) -> None:
        self._page, self._target = page, target
        self._said: list[list[dict[str, list[float]]]] = []

    def agrees(self) -> bool:
        self._said.append(numbers_of(service.status(self._target)))
        return self._page.evaluate(READ_TABLES, list(TABLES)) in self._said


def wait_for_text(page: Page, selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector).textContent.includes(text)",
        arg=[selector, text],
        timeout=MINUTE,
    )


def test_the_page_shows_a_service_that_is_read(browser: Browser, cluster: Cluster) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    elements = Dataset.range(10**6).map(lambda x: x * 2).batch(10)
    batches = iter(elements.apply(cluster.distribute(job_name=NAME)))
    next(batches)
    with killable_worker(cluster) as worker:
        page.goto(cluster.dispatcher.dashboard_link())
        assert "key" not in page.url
        wait_for_text(page, "#worker-count", "2")
        assert page.inner_text("[data-job] .title b") == NAME
        comparison = Comparison(page, cluster.target)
        until(lambda: next(batches) is not None and comparison.agrees())
        os.kill(worker.pid, signal.SIGKILL)
        wait_for_text(page, "#events", "silent for 2 s")
        wait_for_text(page, "#worker-count", "1")
    check_that_it_fits_and_is_readable(page)
    page.goto(cluster.dispatcher.dashboard_link().replace("?key=", "?key=1"))  # A wrong key.
    assert page.title() == "penstock"  # The session counts.
    batches.close()
    cluster.dispatcher.stop()
    wait_for_text(page, "#live", "does not answer")
    # The browser itself reports a feed that broke off; the page must not have failed.
    assert [text for text in said if "net::ERR" not in text] == []


def check_that_it_fits_and_is_readable(page: Page) -> None:
    for width in (1280, 1100, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(HIDDEN) == []
    colors = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colors.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(colors)) == 2
