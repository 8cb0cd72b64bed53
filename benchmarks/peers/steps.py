"""Steps of a distributed dataset: each pass takes so many, and goes on where the last one was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

ENDING = 1_000_000
"""Passes over the rows that nobody sees the end of."""


class Stretch:
    """`count` steps for every pass; the iterator is made for the first pass, and not again."""

    def __init__(self, dataset: Iterable[Any], count: int) -> None:
        self.dataset, self.count = dataset, count
        self.iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.iterator is None:
            self.iterator = iter(self.dataset)
        return islice(self.iterator, self.count)


def devices(replicas: int) -> list[str]:
    return [f"CPU:{number}" for number in range(replicas)]
