"""`penstock top`: a service in the terminal, as it happens. It shows what the dashboard shows.

Its numbers are those of the status. Names are users' text, so they are set as text, never as
markup of rich.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.data.experimental.service.remote_datasets import status
from penstock.errors import OpError

Status = dict[str, Any]

INTERVAL = 1.0
_MOST_SAMPLES = 30
_MOST_JOBS, _MOST_ROWS, _MOST_EVENTS = 4, 10, 8
_WIDTH = 100
"""The width of what is not printed to a terminal."""

_LIMITS = {"program": "green", "finished": "green", "unknown": "dim", "no readers": "dim"}
_STATES = {"here": "green", "suspected": "yellow", "draining": "blue"}
_KINDS = {
    "joined": "green",
    "began": "blue",
    "moved": "yellow",
    "unreachable": "yellow",
    "lost": "red",
    "crashed": "red",
    "failed": "red",
}
_BLOCKS = "▁▂▃▄▅▆▇█"

_EMPTY_LINE = Text()


def run(service: str, once: bool, console: Console | None = None) -> int:
    """Shows the service until Ctrl-C; once if asked to, or if no terminal shows it."""
    if console is None:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    view = View(service)
    view.add(status(service))
    if once or not console.is_terminal:
        console.print(view.draw())
        return 0
    with Live(view.draw(), console=console, screen=True, auto_refresh=False) as live:
        try:
            _follow(view, live, threading.Event())
        except KeyboardInterrupt:
            return 0
    return 0


def _follow(view: View, live: Live, never: threading.Event) -> None:
    while not never.wait(INTERVAL):
        try:
            view.add(status(view.service))
        except OpError as error:
            view.problem = error.message
        live.update(view.draw(), refresh=True)


class View:
    """What the terminal shows: the latest status, and how the rates were before."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.problem = ""
        """Why there is no new status; empty if there is one."""
        self._status: Status = {"jobs": [], "workers": [], "wanted_workers": 0}
        self._rates: deque[float] = deque(maxlen=_MOST_SAMPLES)

    def add(self, found: Status) -> None:
        self._status, self.problem = found, ""
        self._rates.append(sum(job["rate"] for job in found["jobs"]))

    def draw(self) -> Group:
        """All of it, from top to bottom."""
        found = self._status
        parts: list[RenderableType] = [self._draw_headline(), _EMPTY_LINE]
        jobs = sorted(found["jobs"], key=lambda job: -job["clients"])
        for job in jobs[:_MOST_JOBS]:
            parts += [*_draw_job(job), _EMPTY_LINE]
        if len(jobs) > _MOST_JOBS:
            parts += [Text(f"and {len(jobs) - _MOST_JOBS} jobs more", "dim"), _EMPTY_LINE]
        parts += [_draw_workers(found["workers"]), _EMPTY_LINE]
        parts += [_draw_readers(found.get("readers", []), found["jobs"]), _EMPTY_LINE]
        return Group(*parts, *map(_draw_event, reversed(found.get("events", [])[-_MOST_EVENTS:])))

    def _draw_headline(self) -> Text:
        if self.problem:
            return Text(self.problem, "bold red")
        jobs, workers = self._status["jobs"], self._status["workers"]
        here = sum(worker["state"] == "here" for worker in workers)
        rate = sum(job["rate"] for job in jobs)
        return Text.assemble(
            (f"penstock {self.service}", "bold"),
            f"   {show_count(rate)} elements/s ",
            (draw_line(self._rates), "cyan"),
            f"   {show_bytes(sum(job.get('byte_rate', 0.0) for job in jobs))}/s",
            f"   {_count(here, 'worker')}",
            f" (readers could use {self._status['wanted_workers']})",
        )


def _draw_job(job: Status) -> list[RenderableType]:
    limit = job.get("limit", "unknown")
    facts = (
        f"{show_count(job['rate'])} elements/s   {show_bytes(job.get('byte_rate', 0.0))}/s   "
        f"programs wait {show_share(job['lag'])}   {show_count(job['consumed'])} handed out   "
        f"{_count(job['clients'], 'reader')}   "
        f"{show_bytes(job['held'])} of {show_bytes(job['budget'])} queued"
    )
    return [
        Text.assemble(
            (_name_job(job), "bold"), "   ", (f"limit: {limit}", _LIMITS.get(limit, "yellow"))
        ),
        Padding(Text(facts), (0, 0, 0, 2)),
        Padding(Text(job.get("advice", ""), "italic"), (0, 0, 0, 2)),
    ]


def _name_job(job: Status) -> str:
    name = job["name"] if job["name"] is not None else f"anonymous {job['job'].split('/')[-1]}"
    return f"{name}, repetition {job['repetition']}" if job["repetition"] else str(name)


def _draw_workers(workers: list[Status]) -> RenderableType:
    columns = ("state", "computes", "elements/s", "bytes/s", "streams", "crashes")
    return _draw_table("worker", columns, [_worker_cells(worker) for worker in workers])


def _worker_cells(worker: Status) -> list[str | Text]:
    return [
        " ".join([worker["address"], *worker["tags"]]),
        Text(worker["state"], _STATES.get(worker["state"], "")),
        show_share(worker.get("busy", 0.0)),
        show_count(worker["rate"]),
        f"{show_bytes(worker.get('byte_rate', 0.0))}/s",
        show_count(worker["streams"]),
        show_count(worker["restarts"]),
    ]


def _draw_readers(readers: list[Status], jobs: list[Status]) -> RenderableType:
    names = {job["job"]: _name_job(job) for job in jobs}
    columns = ("wait", "elements/s", "queued", "handed out")
    return _draw_table("reader", columns, [_reader_cells(reader, names) for reader in readers])


def _reader_cells(reader: Status, names: dict[str, str]) -> list[str | Text]:
    consumer = f", consumer {reader['consumer']}" if reader["consumer"] >= 0 else ""
    return [
        names.get(reader["job"], "") + consumer,
        show_share(reader["lag"]),
        show_count(reader["rate"]),
        show_bytes(reader["held"]),
        show_count(reader["consumed"]),
    ]


def _draw_table(
    what: str, columns: tuple[str, ...], rows: list[list[str | Text]]
) -> RenderableType:
    """The rows under their number, numbers to the right; a line if there are none."""
    if not rows:
        return Text(f"no {what}s", "dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(_count(len(rows), what), no_wrap=True)
    for name in columns:
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for row in rows[:_MOST_ROWS]:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def _draw_event(event: Status) -> Text:
    return Text.assemble(
        (f"{time.strftime('%H:%M:%S', time.localtime(event['time']))}  ", "dim"),
        (f"{event['kind']:<12}", _KINDS.get(event["kind"], "dim")),
        event["text"],
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def draw_line(values: Iterable[float]) -> str:
    """The values as blocks; the highest one as a full block."""
    found = list(values)
    most = max(found, default=0.0) or 1.0
    return "".join(_BLOCKS[round(value / most * (len(_BLOCKS) - 1))] for value in found)


def show_count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}"


def show_bytes(value: float) -> str:
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def show_share(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"
