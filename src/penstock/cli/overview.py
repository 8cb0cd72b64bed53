"""The status of a service, as tables for people or as JSON for programs.

It prints every field that the dispatcher sends. The legend says what the columns mean;
docs/metrics.md describes the same fields as programs see them (`--json`).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.data.experimental.service.remote_datasets import status
from penstock.plan.nodes import INFINITE, UNKNOWN

Show = Callable[[dict[str, Any]], None]

_INTERVAL = 1.0
_FOR_PROGRAMS = {"worker", "job", "host", "transfers"}
"""Long ids and addresses, left out of the tables."""

_CARDINALITIES = {INFINITE: "infinite", UNKNOWN: "unknown"}

_WIDTH = 160
"""The width of tables that are not printed to a terminal."""

_NARROWEST = 24
"""A longer text is wrapped in its column, which has at least so many characters then."""


def forget(service: str, job: str | None) -> int:
    """Makes the dispatcher forget jobs, and prints which."""
    from penstock.service.host import services

    answer = services.find_session(service, "forget").forget(job)
    for name in answer.forgotten:
        print(f"forgotten: {name}")
    for name in answer.kept:
        print(f"kept, because it has readers: {name}")
    if not answer.forgotten and not answer.kept:
        print("there are no named jobs")
    return 0


def run(service: str, show: Show, watch: bool) -> int:
    """Shows the status once, or again and again until Ctrl-C."""
    never = threading.Event()
    try:
        while True:
            found = status(service)
            if watch and show is as_tables and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")
            show(found)
            if not watch:
                return 0
            never.wait(_INTERVAL)
    except KeyboardInterrupt:
        return 0


def as_json(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def as_tables(found: dict[str, Any]) -> None:
    """Single values first, then a table for each list."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    rows = {name: _rows(value) for name, value in found.items()}
    for name, value in found.items():
        if not rows[name]:
            console.print(f"{name}: {_text(value)}", markup=False)
    for name, table in rows.items():
        if table:
            cells = _cells(table)
            widths = {column: _width(column, cells) for column in cells[0]}
            fits = sum(widths.values()) + 2 * len(widths) <= console.width
            title = f"{name}: {len(table)}"
            shown = _table(title, cells, widths) if fits else _blocks(title, cells, console.width)
            console.print(shown)


def _rows(value: Any) -> list[dict[str, Any]] | None:
    """The rows of a table; None if `value` is no table. A dict of dicts has its keys in front."""
    if isinstance(value, dict) and value and all(isinstance(row, dict) for row in value.values()):
        return [{"": key, **row} for key, row in value.items()]
    if isinstance(value, list | tuple) and all(isinstance(row, dict) for row in value):
        return list(value)
    return None


def _width(column: str, cells: list[dict[str, str]]) -> int:
    """How many characters a column needs at least, so that no word is cut."""
    texts = [row[column] for row in cells]
    words = [word for text in texts for word in text.split()]
    longest = max(map(len, texts))
    return max(len(column), min(_NARROWEST, longest), *map(len, words))


def _table(title: str, cells: list[dict[str, str]], widths: dict[str, int]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None)
    for column, width in widths.items():
        table.add_column(column, min_width=width)
    for row in cells:
        # As text, not as markup: names may hold brackets.
        table.add_row(*map(Text, row.values()))
    return table


def _blocks(title: str, cells: list[dict[str, str]], width: int) -> Any:
    """The same for a narrow terminal: a block for each row, with its first column above."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = [Text(title, "italic")]
    for row in cells:
        (_, head), *rest = row.items()
        fields = [Text.assemble((f"{column} ", "dim"), text) for column, text in rest]
        short = [field for field in fields if len(field) <= width // 3]
        parts.append(Padding(Text(head, "bold"), (0, 0, 0, 1)))
        parts.append(Padding(Columns(short, equal=True, padding=(0, 2)), (0, 0, 0, 3)))
        parts += [Padding(field, (0, 0, 0, 3)) for field in fields if len(field) > width // 3]
    return Group(*parts)


def _cells(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The texts of a table, row by row; every row has all columns."""
    columns = dict.fromkeys(column for row in rows for column in row)
    shown = [column for column in columns if column not in _FOR_PROGRAMS]
    return [{column: _cell(column, row.get(column, "")) for column in shown} for row in rows]


def _cell(column: str, value: Any) -> str:
    if column == "cardinality" and value in _CARDINALITIES:
        return _CARDINALITIES[value]
    if column == "time" and isinstance(value, int | float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return _text(value)


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.1f}" if abs(value) < 1e6 else f"{value:,.0f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{key} {_text(one)}" for key, one in value.items()) or "-"
        case list() | tuple():
            return ", ".join(map(_text, value)) or "-"
    return str(value)


LEGEND = {
    "workers": {
        "address": "where readers reach it",
        "tags": "the words of penstock worker --tag",
        "version": "its version of penstock",
        "streams": "streams that are placed on it",
        "rate": "elements per second that it makes",
        "byte_rate": "bytes per second of these elements",
        "busy": "the share of its time that it computes, 0 to 1",
        "buffered": "bytes of elements that it keeps for readers",
        "restarts": "plan processes that crashed",
        "last_seen": "seconds since its last heartbeat",
        "state": "here; suspected: a reader cannot reach it; draining: it is about to leave",
    },
    "jobs": {
        "name": "the job_name; - for an anonymous job",
        "repetition": "which iteration of the job it is, from 0",
        "dataset_id": "the dataset that it reads",
        "mode": "the sharding policy; DYNAMIC is distributed_epoch, OFF parallel_epochs",
        "form": "how it is divided; random: any worker makes any element",
        "consumers": "the consumers of a coordinated read; 0 for other reads",
        "missing_consumers": "the numbers of consumers that have not come",
        "clients": "its readers",
        "streams": "streams that have begun",
        "leased": "elements that readers hold a lease on",
        "consumed": "leased elements that readers have handed out",
        "rate": "elements per second that its readers hand out",
        "byte_rate": "bytes per second of these elements",
        "held": "bytes that its readers have requested and not handed out",
        "budget": "the most bytes that its readers may hold",
        "lag": "the share of their time that programs wait for elements, 0 to 1",
        "finished": "whether readers with leases have read it to its end",
        "limit": "what sets its pace: source, function, wire, program, device, ...",
        "advice": "what would help",
        "slowest": "the slowest operator on the workers, if a reader knows it",
        "delivering": "the share of their time that readers copy to devices, 0 to 1",
    },
    "readers": {
        "client": "its id",
        "consumer": "its number in a coordinated read; -1 in other reads",
        "consumed": "leased elements that it has handed out",
        "rate": "elements per second that it hands out",
        "held": "bytes that it has requested and not handed out",
        "budget": "the most bytes that it may hold",
        "lag": "the share of its time that its program waits for elements, 0 to 1",
        "last_seen": "seconds since its last heartbeat",
    },
    "datasets": {
        "dataset_id": "its id",
        "kind": "how workers divide it: random, split or single",
        "streams": "its pieces; -1 if they have no end",
        "cardinality": "its elements",
    },
    "events": {
        "time": "when; with --json, in seconds since 1970",
        "kind": "joined, left, lost, moved, failed, ...",
        "text": "what happened",
    },
}


def legend() -> str:
    """The legend as text, for `penstock status --help`."""
    lines = ["columns:"]
    for table, columns in LEGEND.items():
        lines.append(f"  {table}:")
        lines += [f"    {name:<18} {meaning}" for name, meaning in columns.items()]
    return "\n".join(lines)
