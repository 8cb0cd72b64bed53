"""Weights: which dataset to sample or mix from, and which elements a resampling keeps.

`sample_from_datasets` picks a dataset at random by weights, and `mix` by exact turns.
`rejection_resample` keeps an element of class c with a probability proportional to
`target[c] / initial[c]`; the most wanted class is always kept.

Plans refer to functions of this module by name, so they must stay here for other releases.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.element.columns import Array
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import Node

_ROUNDED = 0.02

SMOOTHING = 10
"""How many elements of every class count as seen before the first one."""


def check_weights(where: str, value: Any, count: int) -> list[float]:
    """One weight per dataset; without any they are equal."""
    if value is None:
        return [1.0] * count
    weights = np.asarray(value)
    if weights.shape != (count,):
        raise InvalidArgumentError(
            f"{where}: weights must be one number for each of the {count} datasets, got {value!r}"
        )
    if weights.dtype.kind != "f":
        raise InvalidTypeError(
            f"{where}: weights must be floats, got {value!r} ({weights.dtype}); write 1.0 for 1"
        )
    if not np.all(np.isfinite(weights)):
        raise InvalidArgumentError(f"{where}: weights must be finite, got {value!r}")
    return [float(weight) for weight in weights]


def pick(weights: Any, word: Any) -> np.int64:
    """The number of a dataset, by weights and a random number below 2**32.

    >>> pick((0.25, 0.75), 2**30), pick((0.25, 0.75), 2**30 - 1)
    (np.int64(1), np.int64(0))
    """
    edges = np.cumsum(np.ravel(weights), dtype=np.float64)
    point = int(word) / 2**32 * edges[-1]
    return np.int64(min(np.searchsorted(edges, point, side="right"), len(edges) - 1))


def distribution(where: str, name: str, value: Any) -> Array:
    """Proportions of classes, from any numbers that are not negative."""
    try:
        weights: Array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        weights = np.zeros(0)
    if weights.ndim != 1 or not weights.size or not np.all(weights >= 0) or not weights.sum() > 0:
        raise InvalidArgumentError(
            f"{where}: {name} must be a list of proportions, one per class, got {value!r}"
        )
    return np.asarray(weights / weights.sum())


def check_whole(where: str, name: str, value: Any) -> None:
    """Proportions of one whole, up to what rounding them to two digits takes away."""
    total = float(np.sum(np.asarray(value, np.float64)))
    if abs(total - 1) > _ROUNDED:
        raise InvalidArgumentError(
            f"{where}: {name} must sum to 1, got {value!r}, which sums to {total:g}; "
            "divide it by its sum"
        )


def acceptance(target: Array, initial: Array) -> Array:
    """The probability to keep an element, per class.

    >>> acceptance(np.array([0.5, 0.5]), np.array([0.75, 0.25])).round(3).tolist()
    [0.333, 1.0]
    """
    ratio = target / (initial + np.finfo(initial.dtype).tiny)
    return np.asarray(ratio / ratio.max())


class Estimate:
    """A function for `scan` that learns the initial distribution from the classes it sees."""

    def __init__(self, target: Array) -> None:
        self.target = target
        self.initial = np.full(len(target), SMOOTHING, np.int64)

    def __call__(self, seen: Array, labelled: tuple[Any, Any]) -> tuple[Array, tuple[Any, ...]]:
        number = class_number(labelled[0], len(self.target))
        seen = seen.copy()
        seen[number] += 1
        chance = acceptance(self.target, seen / seen.sum())[number]
        return seen, (chance, *labelled)


def weigh(chances: Array, number: Any, element: Any) -> tuple[Any, ...]:
    """(chance, class, element) for a chance per class."""
    return chances[class_number(number, len(chances))], number, element


def is_kept(weighed: tuple[Any, ...], word: Any) -> bool:
    """Whether an element is kept, by its chance and a random number below 2**32."""
    return bool(word < weighed[0] * 2**32)


def drop_chance(weighed: tuple[Any, ...], word: Any) -> tuple[Any, ...]:
    """(class, element) of (chance, class, element)."""
    return weighed[1:]


def class_number(value: Any, classes: int) -> int:
    """The class of an element as an index."""
    number = int(value)
    if not 0 <= number < classes:
        raise InvalidArgumentError(
            f"Dataset.rejection_resample: class_func must return 0 to {classes - 1}, got {number}"
        )
    return number


# The arguments of `Dataset.mix`

ENDS = ("stop", "repeat", "drop")

Sources = tuple[tuple[str, ...], tuple[Node, ...], tuple[float, ...]]
"""Names, plans and weights of the datasets."""


def check_mixture(where: str, datasets: Any) -> Sources:
    """The argument of `Dataset.mix`."""
    if not isinstance(datasets, dict) or not datasets:
        raise InvalidTypeError(
            f"{where}: needs a dict {{name: (dataset, weight)}} with at least one dataset, "
            f"got {check.describe(datasets)}"
        )
    parts, weights = [], []
    for name, pair in datasets.items():
        if not isinstance(name, str) or type(pair) is not tuple or len(pair) != 2:
            raise InvalidTypeError(
                f"{where}: every item must be name: (dataset, weight), "
                f"got {name!r}: {check.describe(pair)}"
            )
        parts.append(check.plan_of(where, f"the dataset of {name!r}", pair[0]))
        weights.append(_check_weight(where, name, pair[1]))
    if not any(weights):
        raise InvalidArgumentError(f"{where}: at least one weight must be more than 0")
    return tuple(datasets), tuple(parts), tuple(weights)


def _check_weight(where: str, name: str, value: Any) -> float:
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


def check_ends(where: str, on_end: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """What happens at the end of each dataset."""
    if not isinstance(on_end, dict):
        return (check.one_of(where, "on_end", on_end, ENDS),) * len(names)
    if on_end.keys() != set(names):
        raise InvalidArgumentError(
            f"{where}: on_end must name each of the datasets {list(names)}, got {list(on_end)}"
        )
    return tuple(check.one_of(where, f"on_end of {name!r}", on_end[name], ENDS) for name in names)
