"""Steps of a distributed dataset: each pass continues where the last pass ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

ENDING = 1_000_000
"""So many passes over the rows that no measurement reaches the end."""


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
