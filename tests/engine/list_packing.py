"""Packing in the list model: a row is a list of segments, a segment a list of tokens."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.plan import nodes as n
from tests.engine.list_values import FAULT


def pack_items(plan: n.Pack, source: Iterator[Any]) -> Iterator[Any]:
    """Rows are lists of segments, and a segment is a list of tokens: dicts of features."""
    rows: list[list[list[Any]]] = []
    for item in source:
        tokens = FAULT if item is FAULT else tokens_of(plan, item)
        if tokens is FAULT:
            yield FAULT
            continue
        while tokens:
            row = row_for(plan, rows, tokens)
            if row is None and len(rows) == plan.open_rows:
                yield packed_row(plan, rows.pop(0))
                continue
            if row is None:
                rows.append(row := [])
            room = plan.length - sum(map(len, row))
            row.append(tokens[:room])
            tokens = tokens[room:]
            if sum(map(len, row)) == plan.length:
                rows = [other for other in rows if other is not row]
                yield packed_row(plan, row)
    yield from (packed_row(plan, row) for row in rows)


def tokens_of(plan: n.Pack, item: Any) -> Any:
    """One dict of features for each token, the separator as the last one."""
    item = item if isinstance(item, dict) else {"tokens": item}
    if any(np.ndim(part) != 1 for part in item.values()):
        return FAULT
    if len(set(map(len, item.values()))) > 1:
        return FAULT
    columns = zip(*item.values(), strict=True)
    tokens = [dict(zip(item, values, strict=True)) for values in columns]
    if plan.separator is not None:
        named = plan.separator if isinstance(plan.separator, tuple) else (("", plan.separator),)
        last = {name: dict(named).get(name, plan.separator) for name in item}
        last |= {"loss_mask": True} if "loss_mask" in item else {}
        tokens.append({name: item[name].dtype.type(value) for name, value in last.items()})
    if plan.too_long == "truncate":
        return tokens[: plan.length]
    return FAULT if len(tokens) > plan.length and plan.too_long == "error" else tokens


def row_for(plan: n.Pack, rows: list[Any], tokens: list[Any]) -> Any:
    rooms = [plan.length - sum(map(len, row)) for row in rows]
    if plan.strategy == "concat_split":
        return rows[0] if rows else None
    fitting = [(room, place) for place, room in enumerate(rooms) if room >= len(tokens)]
    if not fitting:
        return None
    best = min(fitting) if plan.strategy == "best_fit" else fitting[0]
    return rows[best[1]]


def packed_row(plan: n.Pack, row: list[Any]) -> Any:
    """Every feature of every token, then padding."""
    made: dict[str, list[Any]] = {name: [] for name in row[0][0]}
    more: dict[str, list[Any]] = {"segment_ids": [], "positions": [], "loss_mask": []}
    for number, segment in enumerate(row, 1):
        for position, token in enumerate(segment):
            for name, value in token.items():
                made[name].append(value)
            more["segment_ids"].append(number)
            more["positions"].append(position)
            more["loss_mask"].append(position > 0 and bool(token.get("loss_mask", True)))
    fill = plan.length - len(more["positions"])
    paddings = plan.padding if isinstance(plan.padding, tuple) else ()
    for name, values in made.items():
        values += [dict(paddings).get(name, 0 if paddings else plan.padding)] * fill
    dtypes = {name: np.asarray(value).dtype for name, value in row[0][0].items()}
    dtypes |= {"segment_ids": np.int32, "positions": np.int32, "loss_mask": np.bool_}
    found = made | {
        name: values + [0] * (plan.length - len(values)) for name, values in more.items()
    }
    return {name: np.array(values).astype(dtypes[name]) for name, values in found.items()}
