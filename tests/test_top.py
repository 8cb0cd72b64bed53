"""`penstock top`: what it shows, also without a dispatcher, and how Ctrl-C ends it."""

import io
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import main, top
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.errors import UnavailableError
from tests.integration.clusters import Cluster, until


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=40, highlight=False)


def read_console(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_shows_the_status_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(1) as cluster:
        elements = Dataset.range(1000).map(lambda x: x + 1)
        batches = iter(elements.apply(cluster.distribute(job_name="a [bold]job[/bold]")))
        next(batches)
        until(lambda: service.status(cluster.target)["jobs"][0]["budget"])
        assert main(["top", cluster.target, "--once"]) == 0
        shown = capsys.readouterr().out
        found = service.status(cluster.target)
        batches.close()
    assert "a [bold]job[/bold]   limit: " in shown
    assert found["jobs"][0]["advice"].split()[0] in shown
    assert "1 worker " in shown
    assert found["workers"][0]["address"] in shown
    assert "1 reader " in shown
    assert "joined      worker localhost:" in shown
    assert "\x1b" not in shown


def test_a_service_without_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(0) as cluster:
        assert main(["top", cluster.target]) == 0  # Not a terminal: once.
    shown = capsys.readouterr().out
    assert "no workers" in shown
    assert "no readers" in shown


def test_it_waits_for_a_dispatcher_and_ends_with_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = {"jobs": [], "workers": [], "wanted_workers": 0}
    answers: list[Any] = [empty, UnavailableError("it does not answer"), empty, KeyboardInterrupt()]

    def answer(target: str) -> dict[str, Any]:
        found = answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(top, "status", answer)
    monkeypatch.setattr(top, "INTERVAL", 0.001)
    console = terminal()
    assert top.run("grpc://here:1", once=False, console=console) == 0
    assert answers == []
    shown = read_console(console)
    assert "it does not answer" in shown
    # The terminal is as before: the other screen is left, and the cursor is there.
    assert shown.rindex("\x1b[?1049l") > shown.rindex("\x1b[?1049h")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_many_rows_are_cut() -> None:
    job = {
        "job": "d/0", "name": None, "repetition": 2, "clients": 0, "rate": 1234.5, "lag": 0.05,
        "consumed": 2_500_000, "held": 1500, "budget": 2.5e9,
    }  # fmt: skip
    view = top.View("grpc://here:1")
    view.add({"jobs": [job] * 6, "workers": [], "wanted_workers": 0})
    console = terminal()
    console.print(view.draw())
    shown = read_console(console)
    assert shown.count("anonymous 0, repetition 2") == 4
    assert "and 2 jobs more" in shown
    assert "1,234 elements/s" in shown
    assert "programs wait 5.0%   2.50 M handed out" in shown
    assert "1.5 KB of 2.5 GB queued" in shown


def test_a_line_of_blocks() -> None:
    assert top.draw_line([0.0, 5.0, 10.0]) == "▁▅█"
    assert top.draw_line([0.0]) == "▁"
