"""Balancing: the rows of a global batch are dealt out such that all portions cost about the same.

A step takes as long as its most expensive portion. Every row stays in its step, every portion keeps
its number of rows, and the rows of a portion keep their order. The result depends on the costs
alone, so that workers that share a batch deal it out in the same way.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element import columns
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.errors import InvalidArgumentError, kind_of
from penstock.plan.functions import Function

_SWAPS = 4
"""How often rows are exchanged between two portions, at most, for each portion."""


class Balance:
    """Deals out batches by a function that returns the cost of each row of a batch."""

    def __init__(self, cost: Callable[..., Any]) -> None:
        self._function = Function(cost)
        self._lock = threading.Lock()
        """Guards the fields below: several iterators may use one dataset."""
        self._batches = 0
        self._before = self._after = 0.0

    def costs(self, batch: Chunk) -> Array:
        """The cost of each row of the only batch in a chunk."""
        element, rows = batch.elements()[0], _count_rows(batch)
        try:
            found = self._function.call(*(element if type(element) is tuple else (element,)))
            costs = np.asarray(found, np.float64)
        except Exception as cause:
            message = f"{self._where} failed: {type(cause).__name__}: {cause}"
            raise kind_of(cause)(message) from cause
        if costs.shape != (rows,) or not (np.isfinite(costs) & (costs >= 0)).all():
            raise InvalidArgumentError(
                f"{self._where} must return one cost from 0 on for each of the {rows} rows of a "
                f"batch, got {found!r:.60}"
            )
        return costs

    @property
    def _where(self) -> str:
        return f"InputOptions(balance={self._function})"

    def apply(self, batch: Chunk, costs: Array, sizes: list[int]) -> Chunk:
        """The only batch in a chunk, with its rows in the order of portions of `sizes` rows."""
        order = deal(costs, sizes)
        self._record(_highest_cost(costs, sizes), _highest_cost(costs[order], sizes))
        leaves = [column[0] for column in batch.columns]
        dealt = [None if leaf is None else columns.take(leaf, order) for leaf in leaves]
        return Chunk(batch.tree, [columns.make([leaf]) for leaf in dealt], 1)

    def _record(self, before: float, after: float) -> None:
        with self._lock:
            self._batches += 1
            self._before += before
            self._after += after

    def __str__(self) -> str:
        """What it does and has gained so far, for `explain()`."""
        dealt = f"rows are dealt out by their costs, {self._function}"
        with self._lock:
            if not self._batches:
                return f"{dealt}: not measured before the first step"
            before, after = self._before / self._batches, self._after / self._batches
        return (
            f"{dealt}: the most expensive portion of a step has {after:.2f} times the mean cost, "
            f"{before:.2f} times without it (steps measured: {self._batches}); "
            f"a step that waits for it takes {after / before:.0%} of the time"
        )


def _count_rows(batch: Chunk) -> int:
    return next((len(column[0]) for column in batch.columns if column[0] is not None), 0)


def _highest_cost(costs: Array, sizes: list[int]) -> float:
    """The cost of the most expensive portion, in mean costs of a portion."""
    if not costs.sum():
        return 1.0
    sums = [part.sum() for part in np.split(costs, np.cumsum(sizes)[:-1])]
    return float(max(sums) / (costs.sum() / len(sizes)))


def even_sizes(rows: int, portions: int) -> list[int]:
    """How many rows each portion gets by the batch rule.

    >>> even_sizes(8, 2), even_sizes(5, 4)
    ([4, 4], [2, 2, 1, 0])
    """
    each = -(-rows // portions)
    return [max(0, min(each, rows - number * each)) for number in range(portions)]


def deal(costs: Array, sizes: list[int]) -> Array:
    """The rows of all portions, one portion after the other.

    The most expensive rows are dealt first, each to the cheapest portion that has room. Then rows
    are exchanged between the most and the least expensive portion. Rows stay as they are if that
    makes the most expensive portion no cheaper.

    >>> deal(np.array([9.0, 8, 1, 2]), [2, 2])
    array([0, 2, 1, 3])
    """
    given = np.arange(len(costs))
    portions = _deal_greedily(costs, sizes)
    _exchange(costs, portions)
    order = np.concatenate([given[:0], *(np.sort(portion) for portion in portions)])
    return order if _highest_cost(costs[order], sizes) < _highest_cost(costs, sizes) else given


def _deal_greedily(costs: Array, sizes: list[int]) -> list[Array]:
    portions: list[list[int]] = [[] for _ in sizes]
    cheapest = [(0.0, number) for number, size in enumerate(sizes) if size]
    values = costs.tolist()
    for row in np.argsort(-costs, kind="stable").tolist():
        total, number = cheapest[0]
        portions[number].append(row)
        if len(portions[number]) < sizes[number]:
            heapq.heapreplace(cheapest, (total + values[row], number))
        else:
            heapq.heappop(cheapest)
    return [np.array(portion, np.intp) for portion in portions]


def _exchange(costs: Array, portions: list[Array]) -> None:
    """Exchanges rows while that makes the most expensive portion cheaper."""
    sums = np.array([costs[portion].sum() for portion in portions])
    for _ in range(_SWAPS * len(portions)):
        most, least = int(sums.argmax()), int(sums.argmin())
        gap = sums[most] - sums[least]
        gains = costs[portions[most]][:, None] - costs[portions[least]]
        useful = np.where((gains > 0) & (gains < gap), np.abs(gains - gap / 2), np.inf)
        if not useful.size or np.isinf(useful.min()):
            return
        one, other = np.unravel_index(int(useful.argmin()), useful.shape)
        gain = gains[one, other]
        rows = portions[most][one], portions[least][other]
        portions[least][other], portions[most][one] = rows
        sums[most] -= gain
        sums[least] += gain
