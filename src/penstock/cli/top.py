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
from typing import Any, NamedTuple

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


class Styled(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


class Line(NamedTuple):
    """Pieces of text; what does not fit is wrapped behind the indent."""

    pieces: tuple[Styled, ...] = ()
    indent: int = 0


class Grid(NamedTuple):
    """A table: columns are to the right, except those of `_WORDS`."""

    columns: tuple[str, ...]
    rows: list[list[Styled]]


_WORDS = ("state",)


def run(service: str, once: bool, console: Any = None) -> int:
    """Shows the service until Ctrl-C; once if asked to, or if no terminal shows it."""
    from rich.console import Console
    from rich.live import Live

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


def _follow(view: View, live: Any, never: threading.Event) -> None:
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

    def draw(self) -> Any:
        """All of it, for rich."""
        from rich.console import Group

        return Group(*map(_draw, self.describe()))

    def describe(self) -> list[Line | Grid]:
        """All of it, from top to bottom."""
        found = self._status
        parts: list[Line | Grid] = [self._headline(), Line()]
        jobs = sorted(found["jobs"], key=lambda job: -job["clients"])
        for job in jobs[:_MOST_JOBS]:
            parts += [*_describe_job(job), Line()]
        if len(jobs) > _MOST_JOBS:
            parts += [Line((Styled(f"and {len(jobs) - _MOST_JOBS} jobs more", "dim"),)), Line()]
        parts += [_list_workers(found["workers"]), Line()]
        parts += [_list_readers(found.get("readers", []), found["jobs"]), Line()]
        return [*parts, *_list_events(found.get("events", []))]

    def _headline(self) -> Line:
        if self.problem:
            return Line((Styled(self.problem, "bold red"),))
        jobs, workers = self._status["jobs"], self._status["workers"]
        here = sum(worker["state"] == "here" for worker in workers)
        rate = sum(job["rate"] for job in jobs)
        return Line(
            (
                Styled(f"penstock {self.service}", "bold"),
                Styled(f"   {show_count(rate)} elements/s "),
                Styled(draw_line(self._rates), "cyan"),
                Styled(f"   {show_bytes(sum(job.get('byte_rate', 0.0) for job in jobs))}/s"),
                Styled(f"   {_count(here, 'worker')}"),
                Styled(f" (readers could use {self._status['wanted_workers']})"),
            )
        )


def _draw(part: Line | Grid) -> Any:
    """A part for rich: as text, not as markup, because names may hold brackets."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if isinstance(part, Line):
        return Padding(Text.assemble(*part.pieces), (0, 0, 0, part.indent))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(part.columns):
        is_text = number == 0 or name in _WORDS
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in part.rows:
        table.add_row(*(Text(*piece) for piece in row))
    return table


def _describe_job(job: Status) -> list[Line]:
    limit = job.get("limit", "unknown")
    limit_text = Styled(f"limit: {limit}", _LIMITS.get(limit, "yellow"))
    facts = (
        f"{show_count(job['rate'])} elements/s   {show_bytes(job.get('byte_rate', 0.0))}/s   "
        f"programs wait {show_share(job['lag'])}   {show_count(job['consumed'])} handed out   "
        f"{_count(job['clients'], 'reader')}   "
        f"{show_bytes(job['held'])} of {show_bytes(job['budget'])} queued"
    )
    return [
        Line((Styled(_name_job(job), "bold"), Styled("   "), limit_text)),
        Line((Styled(facts),), indent=2),
        Line((Styled(job.get("advice", ""), "italic"),), indent=2),
    ]


def _name_job(job: Status) -> str:
    name = job["name"] if job["name"] is not None else f"anonymous {job['job'].split('/')[-1]}"
    return f"{name}, repetition {job['repetition']}" if job["repetition"] else str(name)


def _list_workers(workers: list[Status]) -> Line | Grid:
    columns = ("state", "computes", "elements/s", "bytes/s", "streams", "crashes")
    return _make_grid("worker", columns, [_worker_cells(worker) for worker in workers])


def _worker_cells(worker: Status) -> list[Styled]:
    return [
        Styled(" ".join([worker["address"], *worker["tags"]])),
        Styled(worker["state"], _STATES.get(worker["state"], "")),
        Styled(show_share(worker.get("busy", 0.0))),
        Styled(show_count(worker["rate"])),
        Styled(f"{show_bytes(worker.get('byte_rate', 0.0))}/s"),
        Styled(show_count(worker["streams"])),
        Styled(show_count(worker["restarts"])),
    ]


def _list_readers(readers: list[Status], jobs: list[Status]) -> Line | Grid:
    names = {job["job"]: _name_job(job) for job in jobs}
    columns = ("wait", "elements/s", "queued", "handed out")
    return _make_grid("reader", columns, [_reader_cells(reader, names) for reader in readers])


def _reader_cells(reader: Status, names: dict[str, str]) -> list[Styled]:
    consumer = f", consumer {reader['consumer']}" if reader["consumer"] >= 0 else ""
    return [
        Styled(names.get(reader["job"], "") + consumer),
        Styled(show_share(reader["lag"])),
        Styled(show_count(reader["rate"])),
        Styled(show_bytes(reader["held"])),
        Styled(show_count(reader["consumed"])),
    ]


def _make_grid(what: str, columns: tuple[str, ...], rows: list[list[Styled]]) -> Line | Grid:
    """The rows under their number; a line if there are none."""
    if not rows:
        return Line((Styled(f"no {what}s", "dim"),))
    return Grid((_count(len(rows), what), *columns), rows[:_MOST_ROWS])


def _list_events(events: list[Status]) -> list[Line]:
    """The latest event first."""
    return [
        Line(
            (
                Styled(f"{time.strftime('%H:%M:%S', time.localtime(event['time']))}  ", "dim"),
                Styled(f"{event['kind']:<12}", _KINDS.get(event["kind"], "dim")),
                Styled(event["text"]),
            )
        )
        for event in reversed(events[-_MOST_EVENTS:])
    ]


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
