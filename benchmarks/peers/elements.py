"""The elements that travel through a data service, and how they are read: the same for every peer.

They cost nothing to make: each is the same array, so only the transfer from a worker to its
client is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20_210


def scalar() -> NDArray[Any]:
    return np.array(7)


def kilobyte() -> NDArray[Any]:
    return _noise(1024)


def image() -> NDArray[Any]:
    """150 KB, as a photograph of 224 x 224 pixels."""
    return _noise(224, 224, 3)


def megabyte() -> NDArray[Any]:
    return _noise(1 << 20)


def batch() -> NDArray[Any]:
    """19 MB, as 128 photographs."""
    return _noise(128, 224, 224, 3)


def _noise(*shape: int) -> NDArray[Any]:
    """Bytes that cannot be compressed."""
    return np.random.default_rng(SEED).integers(0, 256, shape, dtype=np.uint8)


ELEMENTS: dict[str, Callable[[], NDArray[Any]]] = {
    "scalars": scalar,
    "kilobytes": kilobyte,
    "images": image,
    "megabytes": megabyte,
    "batches": batch,
}
TRANSFERS = ("tcp", "shm")
PROGRAMS = {f"{name}_{way}": make for name, make in ELEMENTS.items() for way in TRANSFERS}
"""What each program sends, by the program's name."""

MILLISECOND_CALLS = 16_000
"""Rounds of arithmetic that take about a millisecond of one core."""


def busy(number: Any) -> int:
    """A millisecond of Python that never releases the interpreter's lock."""
    total = int(number)
    for step in range(MILLISECOND_CALLS):
        total = (total * 31 + step) % 1_000_003
    return total


class UnderWay:
    """`count` items of a fresh iterator for every pass; the clock starts after the first ones.

    By then memory has been touched, and buffers have grown. How long a reader waits for its
    first element is measured by `probes/service.py`.
    """

    def __init__(self, dataset: Iterable[Any], count: int, ahead: int = 16) -> None:
        self.dataset, self.count, self.ahead = dataset, count, ahead
        self.iterator: Iterator[Any] | None = None

    def begin(self) -> None:
        """Opens an iterator and waits until it yields; not timed."""
        self.iterator = None
        self.iterator = iter(self.dataset)
        for _ in islice(self.iterator, self.ahead):
            pass

    def __iter__(self) -> Iterator[Any]:
        if self.iterator is None:
            self.begin()
        assert self.iterator is not None
        started, self.iterator = self.iterator, None
        return islice(started, self.count)
