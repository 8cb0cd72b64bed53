"""The status of a service, as tables for people or as JSON for programs.

It prints every field that the dispatcher sends; no field is listed here a second time.
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
