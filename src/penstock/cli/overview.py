"""The status of a service, as tables for people or as JSON for programs.

It prints every field that the dispatcher sends; no field is listed here a second time.
"""

from __future__ import annotations

import json
import sys
import threading
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


def forget(service: str, job: str | None) -> int:
    """Makes the dispatcher forget jobs, and prints which."""
    from penstock.service.host import services

    answer = services.forget(service, job)
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
            console.print(_table(name, table))


def _rows(value: Any) -> list[dict[str, Any]] | None:
    """The rows of a table; None if `value` is no table. A dict of dicts has its keys in front."""
    if isinstance(value, dict) and value and all(isinstance(row, dict) for row in value.values()):
        return [{"": key, **row} for key, row in value.items()]
    if isinstance(value, list | tuple) and all(isinstance(row, dict) for row in value):
        return list(value)
    return None


def _table(name: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    columns = dict.fromkeys(column for row in rows for column in row)
    shown = [column for column in columns if column not in _FOR_PROGRAMS]
    table = Table(*shown, title=f"{name}: {len(rows)}", title_justify="left", box=None)
    for row in rows:
        # As text, not as markup: names may hold brackets.
        table.add_row(*(Text(_cell(column, row.get(column, ""))) for column in shown))
    return table


def _cell(column: str, value: Any) -> str:
    unknown = column == "cardinality" and value in _CARDINALITIES
    return _CARDINALITIES[value] if unknown else _text(value)


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
