"""Effort: how many examples a test draws that could search without end.

`scripts/test` draws enough examples to detect most errors. `scripts/search` sets PENSTOCK_EFFORT
and draws many times as many. An example that it finds becomes a test of its own.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

EFFORT = float(os.environ.get("PENSTOCK_EFFORT", "1"))

Item = TypeVar("Item")


def times(count: int) -> int:
    """`count` in a normal run, more in a search."""
    return max(1, round(count * EFFORT))


def examples(count: int) -> settings:
    """Settings with which hypothesis draws `count` examples in a normal run."""
    return settings(max_examples=times(count))


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """The first, the last and some between them: `count` in a normal run."""
    most = min(len(items), max(2, times(count)))
    return [items[at * (len(items) - 1) // max(1, most - 1)] for at in range(most)]
