"""Proportions: in which order a mixture draws from its sources, by whole numbers only.

Source i with weight w of W in total has its m-th turn between the draws floor(m * W / w) and
ceil((m + 1) * W / w). Of the sources whose turn has come, the one draws whose turn ends first. So
after n draws a source has less than one element more or less than n * w / W.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

import numpy as np

from penstock.element.columns import Array

_LONGEST_PERIOD = 1 << 16
_BLOCK = 4096
"""How many draws are planned at once."""

Weights = tuple[int, ...]


def whole_weights(weights: Sequence[float]) -> Weights:
    """The smallest whole numbers in the same proportions; 0.1 is a tenth exactly.

    >>> whole_weights([0.7, 0.2, 0.1]), whole_weights([3, 0, 6])
    ((7, 2, 1), (1, 0, 2))
    """
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    return tuple(weight // gcd(*whole) for weight in whole)


def draws(weights: Weights, counts: Sequence[int], length: int) -> list[int]:
    """The sources of the next `length` draws, after each source was drawn from `counts` times.

    >>> draws((2, 1), (0, 0), 6)
    [0, 0, 1, 0, 0, 1]
    """
    total, drawn = sum(weights), sum(counts)
    sources = [source for source, weight in enumerate(weights) if weight]
    begins = [count * total // (weight or 1) for weight, count in zip(weights, counts, strict=True)]
    ends = [-(-(n + 1) * total // (weight or 1)) for weight, n in zip(weights, counts, strict=True)]
    turns, order = list(counts), []
    for now in range(drawn, drawn + length):
        chosen, first = -1, 0
        for source in sources:
            if begins[source] <= now and (chosen < 0 or ends[source] < first):
                chosen, first = source, ends[source]
        order.append(chosen)
        turns[chosen] += 1
        begins[chosen] = turns[chosen] * total // weights[chosen]
        ends[chosen] = -(-(turns[chosen] + 1) * total // weights[chosen])
    return order


@lru_cache(maxsize=16)
def _one_period(weights: Weights) -> Array:
    """The draws until each source was drawn from as often as its weight, again and again."""
    period = np.array(draws(weights, [0] * len(weights), sum(weights)))
    return np.tile(period, -(-_BLOCK // len(period)))


class Order:
    """The sources of all draws from now on; at least one weight is not 0.

    `counts` are the draws from each source since the first one that these weights decided.
    """

    def __init__(self, weights: Weights, counts: Sequence[int] | None = None) -> None:
        self.weights = weights
        self.counts: Array = np.array(counts or [0] * len(weights))
        self._periodic = sum(weights) <= _LONGEST_PERIOD
        self._at = 0
        if self._periodic:
            self._block = _one_period(weights)
            self._at = int(self.counts.sum()) % sum(weights)
        else:
            self._block = self._plan_block()

    def _plan_block(self) -> Array:
        return np.array(draws(self.weights, self.counts.tolist(), _BLOCK))

    def peek(self, limit: int) -> Array:
        """The sources of the next 1 to `limit` draws."""
        if self._at == len(self._block):
            self._at = 0
            self._block = self._block if self._periodic else self._plan_block()
        return self._block[self._at : self._at + limit]

    def advance(self, count: int) -> None:
        """Counts the next `count` draws, which `peek` returned."""
        drawn = self._block[self._at : self._at + count]
        self.counts = self.counts + np.bincount(drawn, minlength=len(self.weights))
        self._at += count
