"""The arguments of `Dataset.mix`, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import Node

ENDS = ("stop", "repeat", "drop")

Sources = tuple[tuple[str, ...], tuple[Node, ...], tuple[float, ...]]
"""Names, plans and weights of the datasets."""


def sources_of(where: str, datasets: Any) -> Sources:
    if not isinstance(datasets, dict) or not datasets:
        raise InvalidTypeError(
            f"{where}: needs a dict {{name: (dataset, weight)}}, got {check.describe(datasets)}"
        )
    parts, weights = [], []
    for name, pair in datasets.items():
        if not isinstance(name, str) or type(pair) is not tuple or len(pair) != 2:
            raise InvalidTypeError(
                f"{where}: every item must be name: (dataset, weight), "
                f"got {name!r}: {check.describe(pair)}"
            )
        parts.append(check.plan_of(where, f"the dataset of {name!r}", pair[0]))
        weights.append(_weight(where, name, pair[1]))
    if not any(weights):
        raise InvalidArgumentError(f"{where}: at least one weight must be more than 0")
    return tuple(datasets), tuple(parts), tuple(weights)


def _weight(where: str, name: str, value: Any) -> float:
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise InvalidTypeError(
            f"{where}: the weight of {name!r} must be a number, got {check.describe(value)}"
        )
    weight = float(value) if isinstance(value, float | np.floating) else int(value)
    if not 0 <= weight < float("inf"):
        raise InvalidArgumentError(
            f"{where}: the weight of {name!r} must be at least 0 and finite, got {value!r}"
        )
    return weight


def ends_of(where: str, on_end: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """What happens at the end of each dataset."""
    if not isinstance(on_end, dict):
        return (check.one_of(where, "on_end", on_end, ENDS),) * len(names)
    if on_end.keys() != set(names):
        raise InvalidArgumentError(
            f"{where}: on_end must name each of the datasets {list(names)}, got {list(on_end)}"
        )
    return tuple(check.one_of(where, f"on_end of {name!r}", on_end[name], ENDS) for name in names)
